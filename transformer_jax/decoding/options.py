"""How to search: each option with its default, meaning and bounds.

`config.decode` and the flags of `predict` are made from these fields.
"""

import dataclasses
from typing import Any

from transformer_jax import keys
from transformer_jax.keys import key


@dataclasses.dataclass(frozen=True)
class Options:
    """Set how to search; as a hashable value, because jit compiles for each."""

    beams: int = key(4, "Beam width; 1 is greedy search.", least=1)
    alpha: float = key(0.6, "Length penalty; 0: none (6.1).")
    coverage: float = key(
        0.0, "Penalty for source words that are hardly attended to; 0: none.", least=0
    )
    extra_length: int = key(
        50, "Pieces that an answer may have more than its line (6.1).", least=0
    )
    max_length: int = key(
        0, "Pieces of an answer at most; 0: extra_length says it.", least=0
    )
    min_length: int = key(0, "Pieces of an answer at least.", least=0)
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
    seed: int = key(0, "sample: seed of the draws; a line's also depend on its number.")
    well_formed: bool = key(
        False, "Parsing: search among trees over the words alone.", task_only=True
    )


def find_problems(options: Any) -> list[str]:
    """List the problems of options, or of the `decode` section of a config."""
    if not isinstance(options, Options):
        options = Options(**options)
    problems = keys.find_problems("decode", options)
    if options.n_best > options.beams and not options.sample:
        problems.append(
            f"decode.n_best {options.n_best} is more than decode.beams "
            f"{options.beams}: a beam finds no more than it is wide"
        )
    if options.well_formed and (options.no_repeat or options.min_length):
        problems.append(
            f"decode.well_formed: a tree over given words obeys neither no_repeat "
            f"{options.no_repeat} nor min_length {options.min_length}: use 0, or False"
        )
    if options.max_length and options.min_length > options.max_length:
        problems.append(
            f"decode.min_length {options.min_length} is more than decode.max_length "
            f"{options.max_length}"
        )
    return problems
