"""Declare the options of a search: default, meaning and bounds of each.

`config.decode` and the flags of `predict` are made from these fields. A task that has
options of its own declares them in a subclass.
"""

import dataclasses

from transformer_jax import keys
from transformer_jax.keys import SEEDS, key


@dataclasses.dataclass(frozen=True)
class Options:
    """Set how to search; as a hashable value, because jit compiles for each."""

    beams: int = key(4, "Beam width; 1 is greedy search.", least=1)
    alpha: float = key(0.6, "Length penalty; 0: none (6.1).", least=-10, most=10)
    coverage: float = key(
        0.0, "Penalty for source words that are hardly attended to; 0: none.", least=0
    )
    extra_length: int = key(
        50, "Pieces that an answer may have more than its line (6.1).", least=0
    )
    max_length: int = key(
        0, "Pieces of an answer at most, its end is one; 0: extra_length.", least=0
    )
    min_length: int = key(0, "Pieces of an answer at least, its end is one.", least=0)
    n_best: int = key(
        1,
        "Answers a line (with --format=jsonl); at most as many as beams, unless drawn.",
        least=1,
    )
    no_repeat: int = key(0, "No run of so many pieces comes twice; 0: off.", least=0)
    sample: bool = key(
        False, "Draw answers by chance, instead of searching for the best."
    )
    temperature: float = key(
        1.0, "sample: below 1 the likely gets likelier.", least=1e-6
    )
    top_k: int = key(
        0, "sample: draw from the k likeliest pieces; 0: from all.", least=0
    )
    top_p: float = key(
        1.0,
        "sample: draw from the fewest pieces that hold this probability.",
        least=1e-9,
        most=1,
    )
    min_p: float = key(
        0.0,
        "sample: draw from pieces at least as likely as this × the best.",
        least=0,
        most=1,
    )
    seed: int = key(
        0,
        "sample: seed of the draws; a line's also depend on its number.",
        least=0,
        most=SEEDS,
    )

    def find_problems(self) -> list[str]:
        """List the values that are out of bounds or contradict each other."""
        problems = keys.find_problems("decode", self)
        if self.n_best > self.beams and not self.sample:
            problems.append(
                f"decode.n_best {self.n_best} is more than decode.beams "
                f"{self.beams}: a beam finds no more than it is wide"
            )
        if self.max_length and self.min_length > self.max_length:
            problems.append(
                f"decode.min_length {self.min_length} is more than decode.max_length "
                f"{self.max_length}"
            )
        return problems
