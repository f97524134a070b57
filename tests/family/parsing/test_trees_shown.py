"""Trees in the viewer: nested lists, drawn over the words that were read."""

import pytest

from transformer_jax.family.parsing.task import TreeInference
from transformer_jax.visualize.viewer import page
from transformer_jax.visualize.viewer.collect import collect


def test_a_tree_is_nested_lists():
    inference = object.__new__(TreeInference)
    tree = inference.nest("(S (NP (DT the) (NN cat)) (VB sleeps))")
    assert tree == ["S", ["NP", ["DT", "the"], ["NN", "cat"]], ["VB", "sleeps"]]
    assert inference.nest("") is None


@pytest.mark.slow
def test_a_parser_has_a_tree_over_its_words(untrained):
    item = collect(untrained("parsing"), "the red cat sleeps")

    def words(node):
        return [node] if isinstance(node, str) else sum(map(words, node[1:]), [])

    assert words(item["tree"]) == ["the", "red", "cat", "sleeps"]


@pytest.mark.system
def test_a_parser_s_tree_has_the_words_that_it_read(view, untrained, tmp_path):
    pytest.importorskip("selenium", reason="selenium is not installed")
    path = tmp_path / "page.html"
    page.write(path, [("parser", untrained("parsing"))], ["the red cat sleeps"])
    shown = view(path)
    shown.one("[data-view=tree]").click()
    words = [text.text for text in shown.all(".tree text.word")]
    assert words == ["the", "red", "cat", "sleeps"]
