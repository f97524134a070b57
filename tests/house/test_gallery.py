"""The gallery has every figure, small, with what its docstring says of it."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import draw_gallery  # noqa: E402  (a script next to the documents)

from transformer_jax.base import entry_points  # noqa: E402
from transformer_jax.visualize import figures  # noqa: E402

ENTRIES = sum(draw_gallery.SECTIONS.values(), [])
ELSEWHERE = {"attention", "similarity"}  # drawn once, or by others


def test_the_page_is_in_step_with_the_docstrings():
    text = draw_gallery.PAGE.read_text(encoding="utf-8")
    assert draw_gallery.page() == text, "run python docs/draw_gallery.py"


def test_every_figure_is_in_the_gallery_and_every_command():
    drawn = {function for _, function, _ in ENTRIES if hasattr(figures, function)}
    assert drawn | ELSEWHERE == set(figures.__all__) | ELSEWHERE
    named = {words.split()[0] for _, _, words in ENTRIES}
    assert named - {"explain"} == set(entry_points.names("figures"))


def test_pictures_are_small():
    pictures = sorted(draw_gallery.PICTURES.glob("*"))
    assert {p.stem for p in pictures} == {picture for picture, _, _ in ENTRIES}
    sizes = [p.stat().st_size for p in pictures]
    assert max(sizes) <= 60_000 and sum(sizes) <= 1_000_000
