"""Open groups of runs, each of several seeds of one config, and look up their scores.

An entry of a run's scores.json is used if it was computed with the requested parameters
and search on the present data. Otherwise the run is scored again.
"""

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax import tasks
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.records import Records
from transformer_jax.decoding import Options
from transformer_jax.runs import bundle
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.evaluator import SCHEMA

logger = logging.getLogger(__name__)

# Keys that may differ within a group. Except for the seed, none of them changes a
# parameter or an answer by more than rounding. The content of data.folder is compared
# by fingerprints.
FREE = (
    "seed",
    "data.folder",
    "imports",
    "log",
    "mesh",
    "model.remat",
    "model.scan_layers",
    "targets",
    "timeout",
)
PERPLEXITY = "perplexity"  # says the same as the loss, so it is no test of its own


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of a group, whose parameters have not been read."""

    folder: Folder
    config: ConfigDict

    @property
    def place(self) -> str:
        """The run directory as the user named it."""
        return str(self.folder.place)

    @functools.cached_property
    def task(self) -> Task:
        """The run's task."""
        return tasks.find(self.config.task).open(self.config, self.folder.tokenizer)

    def records(self, split: str) -> Records:
        """Read a split of the data that the run's config names."""
        return tasks.find(self.config.task).source(self.config).read(split)


def open_groups(
    ours: Sequence[str], theirs: Sequence[str]
) -> tuple[list[Member], list[Member]]:
    """Open the runs of --workdir and --compare, of which the second may be empty."""
    if len(ours) < 2 or len(theirs) == 1:
        raise UserError(
            f"--workdir names {_count(ours)} and --compare {_count(theirs)}: a group "
            "needs two seeds or more; to compare two single runs, name one in each"
        )
    group, baseline = ([open_member(path) for path in side] for side in (ours, theirs))
    refuse_twice([*group, *baseline])
    sides = [("workdir", group), ("compare", baseline)]
    for name, side in sides[: 1 + bool(baseline)]:
        for member in side[1:]:
            _refuse_mixture(name, side[0], member)
        refuse_equal_seeds(side, f"--{name}: ")
    task = group[0].config.task
    for member in baseline[:1]:
        if member.config.task != task:
            raise UserError(
                f"--compare: {member.place} was trained for the task "
                f"{member.config.task}, {group[0].place} for {task}"
            )
    return group, baseline


def refuse_other_data(members: Sequence[Member], split: str) -> None:
    """Refuse runs with different data in a split."""
    first, *others = members
    records = first.records(split)
    for member in others:
        found = member.records(split)
        if _fingerprint(found) != _fingerprint(records):
            raise UserError(
                f"the {split} data of {member.place} ({len(found):,} examples) are not "
                f"those of {first.place} ({len(records):,} examples): groups are "
                "compared on the same data"
            )


def find_scores(
    member: Member, name: str, split: str, weights: str, options: Options
) -> dict[str, Any] | None:
    """Look up an entry of a run's scores.json, if it is still valid."""
    folder, config = member.folder, member.config
    entry = folder.read_note("scores.json").get(name)
    if entry is None or bundle.is_bundle(folder.path):
        return None
    ledger = folder.read_note("ledger.json").get(split, {})
    records = member.records(split)
    if (ledger.get("fingerprint"), ledger.get("content")) != _fingerprint(records):
        return None
    step, label = runs.choose_params(folder, weights or config.eval.weights)
    wanted: dict[str, Any] = {"schema": SCHEMA, "step": step, "weights": label}
    if "decode" in config:
        wanted |= {"beams": options.beams, "alpha": options.alpha}
    scored_by = tasks.find(config.task).scored_by(config)
    if not scored_by.items() <= _filled_up(config, entry).items():
        return None
    try:
        finite = all(map(math.isfinite, member.task.scoring.measures(entry).values()))
    except (LookupError, TypeError):
        return None
    return entry if finite and wanted.items() <= entry.items() else None


def measures(member: Member, entry: dict[str, Any]) -> dict[str, float]:
    """Return the metrics and the loss of a run."""
    found = dict(member.task.scoring.measures(entry))
    return found | {name: entry[name] for name in ("loss", PERPLEXITY) if name in entry}


def measure(member: Member, entry: dict[str, Any]) -> dict[str, float]:
    """Return the metrics and the loss; refuse a value that is not finite."""
    found = measures(member, entry)
    for name, value in found.items():
        if not math.isfinite(value):
            raise UserError(
                f"the {name} of {member.place} is {value}: leave out this run"
            )
    return found


def refuse_other_signatures(
    scored: Iterable[tuple[Member, dict[str, Any]]],
) -> None:
    """Refuse scores that were computed in different ways, such as without case."""
    scored = [(member, _filled_up(member.config, entry)) for member, entry in scored]
    (first, ours), *others = scored
    rules = [key for key in ours if key.endswith("_signature")] + [
        *tasks.find(first.config.task).scored_by(first.config)
    ]
    for member, theirs in others:
        for key in rules:
            if (other := theirs.get(key)) != ours.get(key):
                raise UserError(
                    f"{key} is {ours.get(key)} of {first.place} and {other} of "
                    f"{member.place}: score both by the same rules"
                )


def _filled_up(config: ConfigDict, entry: dict[str, Any]) -> dict[str, Any]:
    """Add the defaults of options that an entry was scored without, as it is older."""
    options = tasks.find(config.task).evaluation
    return {**(schema.defaults(options) if options else {}), **entry}


def open_member(path: str) -> Member:
    """Open a run for its config and scores, with a warning if it was a trial."""
    folder = Folder(path)
    config = folder.config()
    if config.train.smoke:
        logger.warning("warning    %s %s", folder.place, runs.SMOKE)
    return Member(folder, config)


def _count(paths: Sequence[str]) -> str:
    return f"{len(paths)} run" + "s" * (len(paths) != 1)


def refuse_twice(members: Sequence[Member]) -> None:
    """Refuse a run that is named more than once."""
    seen: dict[str, Member] = {}
    for member in members:
        path = os.path.realpath(member.folder.path)
        if path in seen:
            raise UserError(
                f"{seen[path].place} and {member.place} are the same run: name each "
                "once"
            )
        seen[path] = member


def settings(member: Member) -> dict[str, Any]:
    """Return the options by which a run belongs to a group."""
    return {
        key: value
        for key, value in configs.items(member.config)
        if not any(key == free or key.startswith(f"{free}.") for free in FREE)
    }


def data_of(member: Member, split: str = "train") -> dict[str, Any]:
    """Return the fingerprints of the data in a split, as far as the run noted them."""
    ledger = member.folder.read_note("ledger.json").get(split, {})
    return {key: ledger[key] for key in ("fingerprint", "content") if key in ledger}


def _refuse_mixture(flag: str, first: Member, other: Member) -> None:
    """Refuse a run of another config or of other training data than its group."""
    ours, theirs = settings(first), settings(other)
    differing = [
        key
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]
    if differing:
        raise UserError(
            *(
                f"--{flag}: {key} is {ours.get(key)!r} in {first.place} and "
                f"{theirs.get(key)!r} in {other.place}: the runs of a group differ by "
                "their seed alone; python -m transformer_jax.report takes several"
                for key in differing
            )
        )
    data = data_of(first), data_of(other)
    if any(data[0][key] != data[1][key] for key in data[0].keys() & data[1].keys()):
        sizes = [
            member.folder.read_note("ledger.json")["train"]["examples"]
            for member in (first, other)
        ]
        raise UserError(
            f"--{flag}: {first.place} was trained on {sizes[0]:,} examples and "
            f"{other.place} on {sizes[1]:,} others: the runs of a group have the same "
            "data"
        )


def refuse_equal_seeds(members: Sequence[Member], where: str = "") -> None:
    """Refuse two runs of a group that have one seed."""
    by_seed: dict[int, Member] = {}
    for member in members:
        seed = member.config.seed
        if seed in by_seed:
            raise UserError(
                f"{where}{by_seed[seed].place} and {member.place} both have the "
                f"seed {seed}: train one with another, as --config.seed={seed + 1}"
            )
        by_seed[seed] = member


def _fingerprint(records: Records) -> tuple[str, str]:
    return records.source_fingerprint, records.content
