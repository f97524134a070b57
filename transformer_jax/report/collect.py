"""Read what runs have written, and put those that differ by their seed into a group.

Nothing is scored here: a run counts by the scores that it or `evaluate` wrote.
"""

import collections
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from transformer_jax.base.errors import UserError
from transformer_jax.report import groups
from transformer_jax.report.groups import Member
from transformer_jax.report.significance import Difference
from transformer_jax.runs import bundle
from transformer_jax.training import log

SAME = ("step", "weights", "beams", "alpha")  # parameters and search of two scores
CURRENT = "current"  # the parameters of a validation during the training
NAMED = 4  # options that name a group; of more, the common part of its folders does


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A finished run: its scores in a split, and its validations."""

    member: Member
    entry: dict[str, Any]  # of the split that is reported
    measures: dict[str, float]
    seconds: float
    curve: dict[int, dict[str, float]]  # step → measures of the validation

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.member.config.seed


@dataclasses.dataclass(frozen=True)
class Group:
    """The runs of one config, in the order of their seeds."""

    name: str
    options: dict[str, Any]  # in which the groups differ
    outcomes: tuple[Outcome, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return [outcome.seed for outcome in self.outcomes]

    def values(self, metric: str) -> tuple[float, ...]:
        """Return a metric of each run."""
        return tuple(outcome.measures[metric] for outcome in self.outcomes)

    def curve(self, metric: str) -> dict[int, tuple[float, ...]]:
        """Return the values of a metric at each step that all runs have validated."""
        curves = [outcome.curve for outcome in self.outcomes]
        steps = [
            step
            for step in sorted(set.intersection(*(set(curve) for curve in curves)))
            if all(metric in curve[step] for curve in curves)
        ]
        return {step: tuple(curve[step][metric] for curve in curves) for step in steps}


@dataclasses.dataclass(frozen=True)
class Report:
    """The groups of a report, the baseline first, and the runs that are left out."""

    split: str
    groups: tuple[Group, ...]
    left_out: dict[str, str]  # run → why

    @property
    def metrics(self) -> list[str]:
        """The metrics of the split."""
        return list(self.groups[0].outcomes[0].measures)

    def differences(self) -> list[tuple[Group, Difference]]:
        """Compare each group with the baseline, by every metric that is a test."""
        baseline, *others = self.groups
        found = []
        for metric in self.metrics:
            for other in others:
                if metric == groups.PERPLEXITY:
                    continue
                if min(len(baseline.outcomes), len(other.outcomes)) < 2:
                    continue
                sides = baseline.values(metric), other.values(metric)
                same = baseline.seeds == other.seeds
                names = baseline.name, other.name
                found.append((other, Difference(metric, *names, *sides, same)))
        return found


def collect(places: Sequence[str], split: str = "", baseline: str = "") -> Report:
    """Read runs and group them; `baseline` is a part of the name of a group or run.

    Without a split, it is test if all runs have it, else the first that they share, at
    last the validation.
    """
    members = [groups.open_member(place) for place in places]
    groups.refuse_twice(members)
    _refuse_tasks(members)
    entries: dict[str, dict[str, dict]] = {}
    left_out: dict[str, str] = {}
    for member in members:
        if member.folder.read_result() is None:
            left_out[member.place] = _progress(member)
        else:
            entries[member.place] = _read_entries(member)
    if not entries:
        _refuse_all(left_out, "none of the runs has ended, so there is no score yet")
    split = split or _choose_split(entries)
    for place, found in entries.items():
        if split not in found:
            have = ", ".join(found) or "none"
            raise UserError(
                f"{place} has no scores of {split} (it has {have}): score it by "
                f"evaluate --workdir {place} --split {split}, or choose another --split"
            )
    outcomes = []
    for member in members:
        if member.place not in entries:
            continue
        outcome = _read_outcome(member, entries[member.place][split])
        if lost := _not_finite(outcome.measures):
            left_out[member.place] = f"its {lost} is not finite"
        else:
            outcomes.append(outcome)
    if not outcomes:
        _refuse_all(left_out, f"no run has finite scores of {split}")
    _refuse_other_data([outcome.member for outcome in outcomes], split)
    _refuse_other_answers(outcomes)
    groups.refuse_other_signatures((o.member, o.entry) for o in outcomes)
    found = _group(outcomes)
    return Report(split, tuple(_put_first(found, baseline)), left_out)


def _refuse_all(left_out: dict[str, str], why: str) -> NoReturn:
    raise UserError(why, *(f"{place}: {reason}" for place, reason in left_out.items()))


def _read_entries(member: Member) -> dict[str, dict[str, Any]]:
    """Return the scores of each split: those of the end, of `evaluate`, of the log.

    If `evaluate` has scored the same parameters again in the same way, such as with a
    newer sacreBLEU, its scores count.
    """
    result, later = (member.folder.read_note(f"{n}.json") for n in ("result", "scores"))
    found = dict(later)
    for split, entry in result["scores"].items():
        again = later.get(split, {})
        if any(again.get(key) != entry.get(key) for key in SAME):
            found[split] = entry
    for one in _validations(member)[-1:]:
        found.setdefault("validation", {**one, "weights": CURRENT})
    return found


def _not_finite(measures: dict[str, float]) -> str:
    return ", ".join(k for k, value in measures.items() if not math.isfinite(value))


def _refuse_other_answers(outcomes: Sequence[Outcome]) -> None:
    """Refuse validations of trainings that have answered different examples."""
    asked = {
        outcome.member.place: outcome.member.config.eval.get("answers")
        for outcome in outcomes
        if outcome.entry["weights"] == CURRENT
    }
    (first, count), *others = asked.items() if asked else [("", 0)]
    for place, other in others:
        if other != count:
            raise UserError(
                f"eval.answers is {count} in {first} and {other} in {place}, whose "
                "validations have answered other examples: score all of them by "
                "evaluate --split validation"
            )


def _read_outcome(member: Member, entry: dict[str, Any]) -> Outcome:
    curve = {
        one["step"]: {k: v for k, v in measured.items() if math.isfinite(v)}
        for one in _validations(member)
        for measured in [_measure_if_scored(member, one)]
    }
    result = member.folder.read_note("result.json")
    return Outcome(
        member,
        entry,
        _measure_if_scored(member, entry),
        float(result.get("seconds", 0.0)),
        curve,
    )


def _validations(member: Member) -> list[dict[str, Any]]:
    """Read the validations of a training, of which the last may serve as its score."""
    entries = log.read_entries(member.folder.path / "metrics.jsonl")
    return [one for one in entries if one["kind"] == "validation"]


def _measure_if_scored(member: Member, entry: dict[str, Any]) -> dict[str, float]:
    """Return the measures of a validation, of which the answers may not be scored."""
    try:
        return groups.measures(member, entry)
    except LookupError:
        return {"loss": entry["loss"]} if "loss" in entry else {}


def _group(outcomes: Iterable[Outcome]) -> list[Group]:
    """Put runs that differ by their seed alone into groups, each named."""
    sorted_in: dict[str, list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        sorted_in[_identify(outcome.member)].append(outcome)
    for together in sorted_in.values():
        together.sort(key=lambda outcome: outcome.seed)
        groups.refuse_equal_seeds([one.member for one in together])
    settings = [groups.settings(found[0].member) for found in sorted_in.values()]
    differing = [
        key
        for key in dict.fromkeys(key for found in settings for key in found)
        if any(found.get(key) != settings[0].get(key) for found in settings)
    ]
    named = []
    for found, together in zip(settings, sorted_in.values(), strict=True):
        options = {key: found.get(key) for key in differing}
        named.append(Group(_name(options, together), options, tuple(together)))
    if len({group.name for group in named}) < len(named):  # such as other data
        named = [
            dataclasses.replace(group, name=_name({}, group.outcomes))
            for group in named
        ]
    names = collections.Counter(group.name for group in named)
    return [
        dataclasses.replace(group, name=f"{group.name} ({i})")
        if names[group.name] > 1
        else group
        for i, group in enumerate(named, 1)
    ]


def _identify(member: Member) -> str:
    """Return the same text for runs of one group alone."""
    return json.dumps([groups.settings(member), groups.data_of(member)], default=str)


def _name(options: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """Name a group by the options that differ, or by what its folders share."""
    if 0 < len(options) <= NAMED:
        return ", ".join(f"{key}={value}" for key, value in options.items())
    places = [outcome.member.place for outcome in outcomes]
    if len(places) == 1:
        return places[0]
    return f"{os.path.commonprefix(places)}*"


def _put_first(found: list[Group], baseline: str) -> list[Group]:
    """Move the group with this part of its name, or with this run, to the front."""
    if not baseline:
        return found
    named = [group for group in found if baseline == group.name] or [
        group
        for group in found
        if baseline in group.name
        or any(baseline == outcome.member.place for outcome in group.outcomes)
    ]
    if len(named) != 1:
        which = "; ".join(group.name for group in named or found)
        raise UserError(
            f"--baseline={baseline} is in the names of {len(named)} groups: choose one "
            f"of {which}"
        )
    return [*named, *(group for group in found if group is not named[0])]


def _choose_split(entries: dict[str, dict[str, dict]]) -> str:
    """Return test, or the first split that all runs have scores of."""
    first, *others = entries.values()
    shared = [name for name in first if all(name in other for other in others)]
    if not shared:
        have = [f"{place}: {', '.join(found)}" for place, found in entries.items()]
        raise UserError("the runs have no scores of the same split", *have)
    return "test" if "test" in shared else shared[0]


def _progress(member: Member) -> str:
    if bundle.is_bundle(member.folder.path):
        return "a bundle, which keeps no scores: name its run"
    entries = log.read_entries(member.folder.path / "metrics.jsonl")
    step = max((entry["step"] for entry in entries), default=0)
    return f"not finished: step {step:,} of {member.config.train.steps:,}"


def _refuse_tasks(members: Sequence[Member]) -> None:
    """Refuse runs of two tasks, whose scores cannot be compared."""
    first, *others = members
    for other in others:
        if other.config.task != first.config.task:
            raise UserError(
                f"{other.place} was trained for the task {other.config.task}, "
                f"{first.place} for {first.config.task}: a report is of one task"
            )


def _refuse_other_data(members: Sequence[Member], split: str) -> None:
    """Refuse runs whose ledgers have different data in the split."""
    first, *others = ((member, groups.data_of(member, split)) for member in members)
    for member, found in others:
        known = found.keys() & first[1].keys()
        if any(found[key] != first[1][key] for key in known):
            raise UserError(
                f"the {split} data of {member.place} are not those of "
                f"{first[0].place}: a report compares scores of the same data"
            )
