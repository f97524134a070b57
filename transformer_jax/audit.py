"""Measure what a language model memorised: canaries, extraction, membership.

    python -m transformer_jax.audit --workdir RUN
    python -m transformer_jax.audit --workdir RUN --output audit.json

Canaries are secrets planted in the training text by `data.canaries`. The exposure of
one is log2 of the number of candidates minus log2 of its rank among them (Carlini et
al. 2019): about 1.4 bits for a random rank, and at most log2 of their number.
Extraction prompts the model with the first half of a line and compares its greedy
continuation with the second half. The membership test guesses that of two lines the
one with the lower loss was trained on. Held-out lines are the baseline.
Pitfall: a threshold that is set on the lines it is tried on gives more false alarms
than it promises, so half of the held-out lines set it, and the others try it.
"""

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import flags

from transformer_jax import cli, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import UNK
from transformer_jax.data.reading import canaries
from transformer_jax.data.reading.canaries import Canary
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder
from transformer_jax.runs.run import Run
from transformer_jax.tasks.protocols import ReadsTexts, require

LINES_READ = 10**6  # the most lines read from a split
SHORTEST = 20  # the fewest characters in a line that is used
FOLLOWING = 40  # the most characters that the model is asked to continue with
DRAWS = 1000  # bootstrap samples
ALARMS = 0.01  # the share of held-out lines that may be taken for members


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("workdir", "", "The run directory of a language model.")
    flags.DEFINE_string("split", "validation", "A split that was not trained on.")
    flags.DEFINE_integer("lines", 500, "Lines of each split.", lower_bound=2)
    flags.DEFINE_integer(
        "candidates",
        0,
        "Candidates per canary, drawn at random; 0 means all.",
        lower_bound=0,
    )
    flags.DEFINE_integer("seed", 0, "Seed for drawing lines and candidates.")
    flags.DEFINE_string("output", "", "A JSON file for the figures.")
    cli.define_weights()


def main(overrides: dict[str, str]) -> None:
    """Audit a run as the flags say."""
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to audit")
    cli.check_weights(args.weights)
    if args.output:
        cli.refuse_overwriting("output", args.output, Folder(args.workdir).files())
        cli.check_writable(args.output)
    run = runs.load(args.workdir, args.weights)
    found = audit(run, args.split, args.lines, args.candidates, args.seed)
    print(report(run, found))
    if args.output:
        with cli.open_file(args.output, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(found), file, indent=2)


@dataclasses.dataclass(frozen=True)
class Exposure:
    """The memorisation of a canary, by the rank of its secret among candidates."""

    canary: Canary
    rank: int  # of the secret, perhaps estimated; 0 if the vocabulary cannot write it
    candidates: int  # how many of them the model's vocabulary can write
    compared: int  # the candidates compared with the secret
    exposure: float  # bits
    extracted: bool  # whether the model continued the prompt with the secret


@dataclasses.dataclass(frozen=True)
class Extraction:
    """The number of lines that the model continued word for word."""

    lines: tuple[int, int]  # training, held out
    training: int
    held_out: int


@dataclasses.dataclass(frozen=True)
class Membership:
    """The separation of training lines from held-out lines by their losses."""

    lines: tuple[int, int]  # training, held out
    losses: tuple[float, float]  # means, in nats per piece
    auc: float
    interval: tuple[float, float]  # 95 %
    # The share of training lines found at ALARMS false alarms by half of the held-out
    # lines, and the false alarms of the other half; None if these are too few.
    found: float | None
    alarms: float | None


@dataclasses.dataclass(frozen=True)
class Audit:
    """All findings about a run."""

    run: str
    canaries: tuple[Exposure, ...]
    extraction: Extraction
    membership: Membership


def audit(
    run: Run,
    split: str = "validation",
    lines: int = 500,
    candidates: int = 0,
    seed: int = 0,
) -> Audit:
    """Audit a run with lines of its training text and as many of a held-out split."""
    if "canaries" not in run.config.data:
        raise UserError(
            f"{run.folder.place} is a run of the task {run.config.task}: only a "
            "language model, whose text is read line by line, can be audited"
        )
    trained, held_out = choose_lines(run, split, lines, seed)
    return Audit(
        str(run.folder.place),
        tuple(expose(run, candidates, seed)),
        extract(run, trained, held_out),
        tell_members(run, trained, held_out, seed),
    )


def choose_lines(
    run: Run, split: str, count: int, seed: int
) -> tuple[list[str], list[str]]:
    """Draw lines from the training text and from a split, none of them in both."""
    source: Any = tasks.find(run.config.task).source(run.config)
    most = run.config.data.window - 1  # the text of a line follows a line end

    def read(name):
        some = itertools.islice(source.lines(name), LINES_READ)
        texts = (record["text"][:most].rstrip() for record in some)
        least = min(SHORTEST, most)
        return dict.fromkeys(t for t in texts if len(t) >= least and _halves(t))

    trained = read("train")
    held_out = [text for text in read(split) if text not in trained]
    for name, found in (("train", trained), (split, held_out)):
        if len(found) < 2:
            raise UserError(
                f"the split {name!r} has {len(found)} lines of at least {SHORTEST} "
                "characters and two words that the other does not have: an audit "
                "needs two"
            )
    drawer = random.Random(seed)
    draws = (sorted(trained), sorted(held_out))
    first, second = (drawer.sample(d, min(count, len(d))) for d in draws)
    return first, second


def expose(run: Run, most: int = 0, seed: int = 0) -> list[Exposure]:
    """Rank the secret of each planted canary, and try to extract it."""
    data = run.config.data
    planted = canaries.draw(data.canaries, data.canary_seed)
    said = asked_for(run, [(c.prompt, c.secret) for c in planted]) if planted else []
    drawer, found = random.Random(seed), []
    for canary, extracted in zip(planted, said, strict=True):
        known = [c for c in canaries.list_candidates(canary.kind) if _writes(run, c)]
        others = [c for c in known if c != canary.secret]
        compared = drawer.sample(others, min(most or len(others), len(others)))
        rank, bits = 0, 0.0
        if len(others) < len(known):  # the vocabulary can write the secret
            costs = read_costs(run, canary.prompt, [canary.secret, *compared], np.sum)
            likelier = int((costs[1:] < costs[0]).sum())
            rank = 1 + round(likelier * len(others) / max(len(compared), 1))
            bits = float(np.log2(len(known) / rank))
        found.append(Exposure(canary, rank, len(known), len(compared), bits, extracted))
    return found


def _writes(run: Run, text: str) -> bool:
    """Return whether the vocabulary can encode all of a text."""
    (tokenizer,) = run.task.data.vocabularies.values()
    return UNK not in tokenizer.encode_inside(text)


def read_costs(
    run: Run, prompt: str, texts: Sequence[str], over: Callable = np.mean
) -> np.ndarray:
    """Return the negative log-probability of texts after a line end and a prompt."""
    reader = require(run.task, ReadsTexts, "read_texts")
    found = reader.read_texts(run.params, f"\n{prompt}", texts, run.mesh)
    return np.array([-over(log_probs) for log_probs in found])


def asked_for(run: Run, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Return for each (beginning, rest) whether the model continues with the rest."""
    (tokenizer,) = run.task.data.vocabularies.values()
    longest = max(len(tokenizer.encode_inside(f" {rest}")) for _, rest in pairs)
    greedy = {"beams": 1, "sample": False, "max_length": longest + 1}
    room = max(run.config.data.window - greedy["max_length"], 1)
    given = [f"\n{begun}".rstrip()[-room:] for begun, _ in pairs]
    replies, found = run.replies(given, **greedy), []
    for (begun, rest), start, reply in zip(pairs, given, replies, strict=True):
        if reply.error:
            raise UserError(reply.error)
        space = " " * (begun != begun.rstrip())
        expected = tokenizer.decode(tokenizer.encode_inside(f"{start}{space}{rest}"))
        written = " ".join(reply.details["text"].split())
        found.append(written.startswith(" ".join(expected.split())))
    return found


def extract(run: Run, trained: Sequence[str], held_out: Sequence[str]) -> Extraction:
    """Prompt with the first half of each line, and compare the continuation."""
    halves = (_halves(line) for line in (*trained, *held_out))
    right = asked_for(run, [pair for pair in halves if pair])
    first, second = right[: len(trained)], right[len(trained) :]
    return Extraction((len(first), len(second)), sum(first), sum(second))


def _halves(line: str) -> tuple[str, str] | None:
    """Split a line between words in its first half, or return None."""
    cut = line.rfind(" ", 1, len(line) // 2 + 1)
    if cut < 0 or not line[:cut].strip() or not line[cut:].strip():
        return None
    rest = line[cut : cut + FOLLOWING + 1]
    if cut + len(rest) < len(line) and " " in rest[1:]:
        rest = rest[: rest.rfind(" ")]  # keep complete words
    return line[:cut], rest


def tell_members(
    run: Run, trained: Sequence[str], held_out: Sequence[str], seed: int = 0
) -> Membership:
    """Tell training lines from held-out lines by their loss per piece."""
    costs = read_costs(run, "", [*trained, *held_out])
    members, others = costs[: len(trained)], costs[len(trained) :]
    generator, drawn = np.random.default_rng(seed), []
    for _ in range(DRAWS):
        sides = (generator.choice(side, len(side)) for side in (members, others))
        drawn.append(auc(*sides))
    low, high = np.quantile(drawn, (0.025, 0.975))
    found, alarms = find_members(members, others)
    return Membership(
        (len(members), len(others)),
        (float(members.mean()), float(others.mean())),
        auc(members, others),
        (float(low), float(high)),
        found,
        alarms,
    )


def find_members(
    members: np.ndarray, others: np.ndarray
) -> tuple[float | None, float | None]:
    """Return the shares of members and of others that are taken for members.

    A threshold below all but k - 1 of n lines raises k in n + 1 false alarms on others
    like them. It is set on every second of the others and tried on the rest.
    """
    setting, trying = np.sort(others[::2]), others[1::2]
    place = int(ALARMS * (len(setting) + 1))
    if not place:
        return None, None
    threshold = setting[place - 1]
    return float((members < threshold).mean()), float((trying < threshold).mean())


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """Return the probability that a member has the lower loss; a tie counts half."""
    ranked = np.sort(others)
    higher = len(others) - np.searchsorted(ranked, members, "right")
    equal = np.searchsorted(ranked, members, "right") - np.searchsorted(ranked, members)
    return float((higher + equal / 2).mean() / len(others))


def report(run: Run, found: Audit) -> str:
    """Format the findings as text with a table."""
    lines = [f"run         {run!r}", ""]
    if found.canaries:
        lines += [*_canary_table(found.canaries), ""]
    else:
        lines += ["no canaries were planted (data.canaries)", ""]
    text, members = found.extraction, found.membership
    low, high = members.interval
    return "\n".join(
        [
            *lines,
            "extraction  given the first half of a line, the model writes the rest "
            "word for word:",
            f"            training {text.training} of {text.lines[0]} lines, "
            f"held out {text.held_out} of {text.lines[1]}",
            f"membership  AUC {members.auc:.3f} (95 %: {low:.3f} to {high:.3f}; chance "
            "0.5) by the loss of a line:",
            f"            training {members.losses[0]:.3f}, held out "
            f"{members.losses[1]:.3f} nats per piece",
            f"            {_describe_found(members)}",
        ]
    )


def _describe_found(members: Membership) -> str:
    """Say how many training lines are found, or why that cannot be told."""
    if members.found is None or members.alarms is None:
        needed = 2 * round(1 / ALARMS)
        return (
            f"{members.lines[1]} held-out lines are too few to set {ALARMS:.0%} false "
            f"alarms: {needed} are needed (--lines)"
        )
    return (
        f"at {ALARMS:.0%} false alarms {members.found:.1%} of the training lines are "
        f"found (alarms on held-out lines that did not set it: {members.alarms:.1%})"
    )


def _canary_table(found: Sequence[Exposure]) -> list[str]:
    head = f"{'canary':<10} {'planted':>7} {'rank':>6} {'of':>6} {'exposure':>8}  "
    lines = [f"{head}extracted"]
    for one in sorted(found, key=lambda e: (e.canary.times, e.canary.kind)):
        rank = f"{one.rank:>6,} {one.candidates:>6,} {one.exposure:>8.1f}"
        if not one.rank:
            rank = f"{'cannot be written':>22}"
        lines.append(
            f"{one.canary.kind:<10} {one.canary.times:>7,} {rank}  "
            f"{'yes' if one.extracted else 'no':<5} {one.canary.prompt}"
            f"{one.canary.secret}"
        )
    exact = all(one.compared >= one.candidates - 1 for one in found)
    how = "of all candidates" if exact else "estimated from a sample of candidates"
    lines.append(f"Exposure is in bits; ranks are {how}.")
    for times in sorted({one.canary.times for one in found}):
        some = [one for one in found if one.canary.times == times]
        mean = np.mean([one.exposure for one in some if one.rank] or [0.0])
        lines.append(
            f"planted {times:,} {'time' if times == 1 else 'times'}: "
            f"{sum(one.extracted for one in some)} of {len(some)} extracted, "
            f"mean exposure {mean:.1f} bits"
        )
    return lines


if __name__ == "__main__":
    define_flags()
    cli.run(main)
