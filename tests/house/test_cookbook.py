"""The Python of the pages: those that are executed run from top to bottom."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NAMES = ("cookbook", "look_inside", "tour", "transformer")
EXECUTED = [ROOT / "docs" / f"{name}.md" for name in NAMES]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md")]


def blocks(path):
    """The Python blocks of a page, compiled, with the line numbers of the page."""
    text = path.read_text()
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M):
        if re.match(r"# \S+, (below|above): ", match[1]):  # a part of a file
            continue
        above = text.count("\n", 0, match.start(1))
        yield compile("\n" * above + match[1], path, "exec")


@pytest.mark.system
@pytest.mark.parametrize("page", EXECUTED, ids=lambda p: p.stem)
def test_the_python_of_a_page_runs(page):
    names = {}
    for block in blocks(page):  # which assert what they show
        exec(block, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_python_of_a_page_compiles(page):
    found = list(blocks(page))
    assert found or page.name not in ("README.md", "cookbook.md", "configs.md")
