"""Define the style that all figures share: colours, sizes, labels.

The colours can be told apart with any kind of colour blindness, and in grey. matplotlib
is imported when the first figure is drawn; pyplot keeps every figure in memory, so it
is not used.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_jax.tasks.protocols import AttentionMaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.text import Annotation

# The palette of Okabe and Ito, darkest first.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", "--", ":", "-.")  # distinguish more than six lines
MARKERS = "osD^vP*X"
AMOUNTS = "viridis"  # nothing to much
SIGNED = "RdBu_r"  # below and above zero
YES_NO = ("#E4E4E4", "#0072B2")
CELL = 0.24  # inches per labelled row or column
# Around a point, in points: x, y and the alignment of the text. The best come first.
SIDES = (
    (5, 4, "left", "bottom"),
    (5, -4, "left", "top"),
    (-5, 4, "right", "bottom"),
    (-5, -4, "right", "top"),
    (7, 0, "left", "center"),
    (-7, 0, "right", "center"),
    (0, 7, "center", "bottom"),
    (0, -7, "center", "top"),
    (5, 16, "left", "bottom"),
    (5, -16, "left", "top"),
    (-5, 16, "right", "bottom"),
    (-5, -16, "right", "top"),
)
SPACE = "▁"  # SentencePiece's sign for the space before a word


def make_figure(width: float, height: float) -> "Figure":
    """Make an empty figure of this size in inches."""
    from matplotlib.figure import Figure  # takes a second, and only figures need it

    return Figure(figsize=(width, height), layout="constrained")


def line(number: int) -> dict[str, Any]:
    """Return the colour and dashes of a line; the first 24 lines differ."""
    dashes = DASHES[number // len(LINES) % len(DASHES)]
    return {"color": LINES[number % len(LINES)], "linestyle": dashes}


def readable(pieces: Sequence[str]) -> list[str]:
    """Write pieces as words; a piece that continues a word begins with a dot."""
    shown = []
    for i, piece in enumerate(pieces):
        text = piece.replace(SPACE, " ").strip()
        inside = i > 0 and piece[:1].isalnum() and pieces[i - 1][-1:].isalnum()
        shown.append(("·" if inside else "") + text or "␣")
    return shown


# Scripts without spaces, whose pieces cannot be joined into words.
UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")


def group_words(pieces: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the words of pieces, and for each piece the index of its word.

    Punctuation and tokens such as </s> are words of their own, as in the viewer.
    """
    words: list[str] = []
    numbers = []
    spaced = any(piece.startswith(SPACE) for piece in pieces)
    for i, piece in enumerate(pieces):
        before = pieces[i - 1] if i else ""
        inside = before == SPACE or (before[-1:].isalnum() and piece[:1].isalnum())
        if i and spaced and inside and not UNSPACED.match(piece):
            words[-1] += piece
        else:
            words.append(piece)
        numbers.append(len(words) - 1)
    return words, numbers


def axis_labels(maps: AttentionMaps, kind: str) -> tuple[list[str], list[str]]:
    """Return labels for the queries and the keys of a kind of attention.

    A decoder's query is "X → Y": where it has read X and writes Y.
    """
    queries, keys = map(readable, maps.tokens[kind])
    if kind in ("decoder", "cross") and maps.written:
        pairs = zip(queries, readable(maps.written), strict=True)
        queries = [f"{read} → {written}" for read, written in pairs]
    return queries, keys


def label_ticks(axes: "Axes", rows: Sequence[str], columns: Sequence[str]) -> None:
    """Label the rows and columns of an image, the columns vertically."""
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.tick_params(length=2)


def separate_cells(axes: "Axes", shape: tuple[int, ...]) -> None:
    """Draw white lines between cells, so that a block of one colour shows its rows."""
    rows, columns = shape
    axes.set_xticks(np.arange(1, columns) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)


def write_numbers(
    axes: "Axes", image: "AxesImage", texts: Sequence[list[str]], size: float = 7
) -> None:
    """Write a text into each cell of an image, dark on light and light on dark."""
    values = np.ma.asarray(image.get_array())
    colors = np.asarray(image.cmap(image.norm(values)))
    hidden = np.ma.getmaskarray(values)  # shows the light colour below it
    for i, j in np.ndindex(values.shape):
        red, green, blue = colors[i, j, :3]
        dark = not hidden[i, j] and 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        text_color = "white" if dark else "black"
        axes.text(
            j, i, texts[i][j], ha="center", va="center", color=text_color, fontsize=size
        )


def label_points(
    axes: "Axes",
    places: Sequence[tuple[float, float]],
    texts: Sequence[str],
    bold: Sequence[str] = (),
) -> None:
    """Write a text next to each point, on the side where the least is covered.

    Call this last: the sides depend on the limits and on the room that titles take.
    """
    figure: Any = axes.figure
    figure.draw_without_rendering()  # lays out the figure
    points = axes.transData.transform(np.asarray(places, float))
    taken = [Bounds(x - 6, y - 6, x + 6, y + 6) for x, y in points.tolist()]
    inside = Bounds(*axes.get_window_extent().extents)
    for place, text in zip(places, texts, strict=True):
        note = axes.annotate(
            text,
            place,
            (0, 0),
            textcoords="offset points",
            fontsize=8,
            fontweight="bold" if text in bold else "normal",
        )
        covered = []
        for side in SIDES:
            _move(note, *side)
            box = Bounds(*note.get_window_extent().extents)
            outside = box.area() - box.common(inside)
            covered.append(outside + sum(map(box.common, taken)))
        _move(note, *SIDES[int(np.argmin(covered))])
        box = Bounds(*note.get_window_extent().extents)
        taken.append(box._replace(left=box.left - 4, right=box.right + 4))


class Bounds(NamedTuple):
    """A box in pixels."""

    left: float
    low: float
    right: float
    high: float

    def area(self) -> float:
        """Return the area of this box."""
        return (self.right - self.left) * (self.high - self.low)

    def common(self, other: "Bounds") -> float:
        """Return the area that two boxes share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.high, other.high) - max(self.low, other.low)
        return max(width, 0.0) * max(height, 0.0)


def _move(note: "Annotation", x: float, y: float, side: Any, height: Any) -> None:
    note.set(position=(x, y), horizontalalignment=side, verticalalignment=height)


def clean(axes: "Axes") -> None:
    """Draw a faint grid below the lines."""
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure: "Figure", path: Any, dpi: int = 150) -> None:
    """Write a figure; the same figure gives the same bytes every time."""
    from matplotlib import rc_context

    svg = str(path).endswith(".svg")
    with rc_context({"svg.hashsalt": "transformer_jax"}):
        metadata: dict[str, Any] = {"Date": None} if svg else {"Software": None}
        figure.savefig(path, dpi=dpi, metadata=metadata)
