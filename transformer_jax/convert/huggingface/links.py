"""Links between the parameters of a model here and the tensors of one of Hugging Face.

A link names some of ours and some of theirs, and has a function for each direction. All
links of an architecture together name every parameter once. Linear maps are transposed
(theirs are [out, in]), tables are renumbered, and factors that one of the two
implementations applies at run time are folded into a weight, so both directions are
exact up to rounding.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Arrays = Sequence[np.ndarray]


class Link(NamedTuple):
    """Parameters here, tensors there, and how each become the other."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Callable[..., Arrays]  # their tensors → our parameters
    write: Callable[..., Arrays]  # our parameters → their tensors


class Vocabulary(NamedTuple):
    """The rows of a table here and there."""

    theirs: Sequence[int]  # their row of each of our ids; -1 if they lack it
    rows: int  # of our table, padded
    their_rows: int

    def read(self, table: np.ndarray) -> np.ndarray:
        """Put their rows in our order; rows that they lack are 0."""
        made = np.zeros((self.rows, *table.shape[1:]), table.dtype)
        ids = np.asarray(self.theirs)
        made[: len(ids)][ids >= 0] = table[ids[ids >= 0]]
        return made

    def write(self, table: np.ndarray) -> np.ndarray:
        """Put our rows in their order; rows that are none of our tokens are 0.

        Where two of our ids are one of theirs, padding gives way, and the end goes
        before the start.
        """
        made = np.zeros((self.their_rows, *table.shape[1:]), table.dtype)
        pad, *rest = range(len(self.theirs))
        unknown, start, end, *pieces = rest
        for ours in (pad, *pieces, unknown, start, end):
            if (theirs := self.theirs[ours]) >= 0:
                made[theirs] = table[ours]
        return made


def same(ours: str, theirs: str, factor: float = 1.0) -> Link:
    """Link two arrays of one form; ours is `factor` times theirs."""
    return Link(
        (ours,),
        (theirs,),
        lambda x: [_times(x, factor)],
        lambda x: [_times(x, 1 / factor)],
    )


def matrix(ours: str, theirs: str, factor: float = 1.0) -> Link:
    """Link two matrices of which one is the other's transpose."""
    return Link(
        (ours,),
        (theirs,),
        lambda x: [_times(x.T, factor)],
        lambda x: [_times(x.T, 1 / factor)],
    )


def dense(ours: str, theirs: str, bias: bool = True, factor: float = 1.0) -> list[Link]:
    """Link two linear maps."""
    links = [matrix(f"{ours}/kernel", f"{theirs}.weight", factor)]
    return links + [same(f"{ours}/bias", f"{theirs}.bias", factor)] * bias


def attention(
    ours: str, theirs: str, out: str, inputs: bool = True, result: bool = True
) -> list[Link]:
    """Link the four maps of an attention; inputs and result may have biases."""
    made = []
    for name, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        made += dense(f"{ours}/{name}", f"{theirs}.{letter}_proj", inputs)
    return made + dense(f"{ours}/out", f"{theirs}.{out}", result)


def norm(ours: str, theirs: str, bias: bool = True) -> list[Link]:
    """Link two norms."""
    links = [same(f"{ours}/scale", f"{theirs}.weight")]
    return links + [same(f"{ours}/bias", f"{theirs}.bias")] * bias


def table(ours: str, theirs: str, rows: Vocabulary, factor: float = 1.0) -> Link:
    """Link two tables with a row per token."""
    return Link(
        (ours,),
        (theirs,),
        lambda x: [_times(rows.read(x), factor)],
        lambda x: [_times(rows.write(x), 1 / factor)],
    )


def output(theirs: str, rows: Vocabulary, factor: float = 1.0) -> Link:
    """Link the matrix of the logits, if it is not a table of embeddings."""
    return Link(
        ("projection/kernel",),
        (theirs,),
        lambda x: [_times(rows.read(x).T, factor)],
        lambda x: [_times(rows.write(np.ascontiguousarray(x.T)), 1 / factor)],
    )


def output_bias(theirs: str, rows: Vocabulary, axes: int = 1) -> Link:
    """Link the biases of the logits, which may be a matrix of one row there."""
    shape = (1,) * (axes - 1)
    return Link(
        ("output_bias/bias",),
        (theirs,),
        lambda x: [rows.read(x.reshape(-1))],
        lambda x: [rows.write(x).reshape(*shape, -1)],
    )


def learned_positions(ours: str, theirs: str, unused: int = 0) -> Link:
    """Link two tables of positions, of which theirs begins with unused rows."""
    return Link(
        (ours,),
        (theirs,),
        lambda x: [x[unused:]],
        lambda x: [np.pad(x, ((unused, 0), (0, 0)))],
    )


def _times(x: np.ndarray, factor: float) -> np.ndarray:
    if factor == 1.0:
        return x
    return (x.astype(np.float32) * factor).astype(x.dtype)
