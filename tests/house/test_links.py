"""Every relative link of a page leads to a file, and every anchor to a heading."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("[a-z]*/README.md")]
PAGES += ROOT.glob("transformer_jax/family/*/README.md")


def prose(path):
    """A page without its code."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(path):
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    text = prose(page)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue  # of the world outside
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def test_the_table_of_contents_has_every_page():
    index = (ROOT / "docs" / "index.md").read_text()
    blocks = re.findall(r"```{toctree}\n(.*?)```", index, re.S)
    named = {e for block in blocks for e in block.split("\n") if e and e[0] != ":"}
    found = {p.stem for entry in named for p in ROOT.glob(f"docs/{entry}.md")}
    assert found == {p.stem for p in ROOT.glob("docs/*.md")} - {"index"}
