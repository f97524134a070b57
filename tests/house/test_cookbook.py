"""The Python of the pages: the cookbook runs from top to bottom, the others compile."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
COOKBOOK = ROOT / "docs" / "cookbook.md"
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
def test_the_cookbook_runs(capsys):
    names = {}
    for block in blocks(COOKBOOK):
        exec(block, names)
    assert names["accuracy"] > 0.9
    assert "tokens right" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_python_of_a_page_compiles(page):
    found = list(blocks(page))
    assert found or page.name not in ("README.md", "cookbook.md", "configs.md")
