"""Declare the options of a search with their defaults, meanings and bounds.

`config.decode` and the flags of `predict` are made from these fields. A task with
further options declares them in a subclass.
"""

import dataclasses

from transformer_jax.base import schema
from transformer_jax.base.schema import SEEDS, option

# The numbers that a search reads as data, not as a part of its program.
NUMBERS = (
    "alpha",
    "coverage",
    "diversity",
    "contrast",
    "temperature",
    "top_p",
    "min_p",
    "seed",
)
# Those whose default leaves a part of the program out, and what stands for the others.
SWITCHES = {"coverage": 1.0, "top_p": 0.5, "min_p": 0.5, "contrast": 0.5}


@dataclasses.dataclass(frozen=True)
class Options:
    """How to search; hashable, because jit compiles for each value but `NUMBERS`."""

    beams: int = option(4, "Beam width; 1 is greedy search.", least=1)
    alpha: float = option(
        0.6, "Exponent of the length penalty; 0 means none (6.1).", least=-10, most=10
    )
    coverage: float = option(
        0.0,
        "Penalty for source words that receive little attention; 0 means none.",
        least=0,
        of="source",
    )
    extra_length: int = option(
        50,
        "Most pieces that an answer may have beyond its line's (6.1).",
        least=0,
        of="source",
    )
    max_length: int = option(
        0, "Most pieces of an answer, with its end; 0 means extra_length.", least=0
    )
    min_length: int = option(0, "Fewest pieces of an answer, with its end.", least=0)
    groups: int = option(
        1,
        "Groups of the beam, each of which writes other pieces than those before it.",
        least=1,
    )
    diversity: float = option(
        0.5,
        "groups: what a piece loses for each hypothesis of an earlier group that takes "
        "it in the same step.",
        least=0,
    )
    n_best: int = option(
        1,
        "Answers per line (with --format=jsonl); at most beams, unless sampled.",
        least=1,
    )
    mbr: int = option(
        0,
        "Candidates (samples or hypotheses of the beam) of which the one most like the "
        "others by chrF is the answer; 0 means the likeliest.",
        least=0,
    )
    no_repeat: int = option(
        0, "Length of an n-gram that may not occur twice; 0 means any may.", least=0
    )
    contrast: float = option(
        0.0,
        "Instead of a beam: weight, up to 1, with which each piece, one of the top_k "
        "likeliest, must make the text unlike what it has said; 0 means off.",
        least=0,
        most=1,
    )
    sample: bool = option(
        False, "Sample answers at random instead of searching for the best."
    )
    temperature: float = option(
        1.0, "sample: below 1, likely pieces get even likelier.", least=1e-6
    )
    top_k: int = option(
        0,
        "sample: draw from the k likeliest pieces; 0 means from all. contrast: the "
        "pieces that are compared.",
        least=0,
    )
    top_p: float = option(
        1.0,
        "sample: draw from the smallest set of pieces with this probability.",
        least=1e-9,
        most=1,
    )
    min_p: float = option(
        0.0,
        "sample: least probability of a piece, relative to the likeliest one's.",
        least=0,
        most=1,
    )
    seed: int = option(
        0,
        "sample: seed of the draws, which also depend on the line's number.",
        least=0,
        most=SEEDS,
    )

    @property
    def width(self) -> int:
        """The hypotheses of a row that the model reads."""
        if self.sample:
            return self.n_best
        return self.top_k if self.contrast else self.beams

    def without_numbers(self) -> "Options":
        """Clear `NUMBERS`, so that one compiled program serves all their values."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        cleared = {name: defaults[name] for name in NUMBERS}
        for name, on in SWITCHES.items():
            if getattr(self, name) != defaults[name]:
                cleared[name] = on
        return dataclasses.replace(self, **cleared)

    def of_candidates(self) -> "Options":
        """Return how to search the candidates of `mbr`."""
        return dataclasses.replace(self, n_best=self.mbr or self.n_best, mbr=0)

    def find_problems(self) -> list[str]:
        """List values that are out of bounds or contradict each other."""
        problems = schema.find_problems("decode", self)
        if self.mbr == 1 or 0 < self.mbr < self.n_best:
            problems.append(
                f"decode.mbr {self.mbr} must be at least {max(self.n_best, 2)}: it "
                "chooses decode.n_best of several candidates"
            )
        if self.mbr > self.beams and not self.sample:
            problems.append(
                f"decode.mbr {self.mbr} is more than decode.beams {self.beams}: raise "
                "decode.beams, or draw candidates (decode.sample)"
            )
        if self.contrast and (
            self.sample or self.n_best > 1 or self.mbr or self.groups > 1
        ):
            problems.append(
                f"decode.contrast {self.contrast} writes one text, without a beam or "
                "draws: leave out sample, n_best, mbr and groups"
            )
        if 0 < self.contrast <= 1 and self.top_k < 2:
            problems.append(
                f"decode.contrast {self.contrast} compares decode.top_k pieces, of "
                f"which {self.top_k} are asked for: set it to 2 or more, such as 4"
            )
        if self.groups > 1 and (self.beams % self.groups or self.sample):
            problems.append(
                f"decode.groups {self.groups} must divide decode.beams {self.beams}, "
                "the hypotheses of a beam search (without decode.sample)"
            )
        if self.n_best > self.beams and not self.sample:
            problems.append(
                f"decode.n_best {self.n_best} is more than decode.beams "
                f"{self.beams}: a beam search finds at most decode.beams answers"
            )
        if self.max_length and self.min_length > self.max_length:
            problems.append(
                f"decode.min_length {self.min_length} is more than decode.max_length "
                f"{self.max_length}"
            )
        return problems
