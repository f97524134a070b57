"""A tagger learns from versions of its training trees, and counts what was given."""

import dataclasses
import json

import pytest

from transformer_jax import config, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.data import substitution
from transformer_jax.data.reading import trees
from transformer_jax.family.tagging.tags import Lexicon

TREES = """\
(S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .))
(S (NP (PRP$ my) (JJ old) (NN aunt)) (VP (VBD saw) (NP (DT a) (NN boat))) (. .))
(NP (NN rain))
"""


def tagged(tree):
    return set(zip(trees.tags(tree), trees.words(tree), strict=True))


def test_a_tagger_learns_from_versions_but_counts_only_what_was_given(tmp_path):
    (tmp_path / "trees").write_text(TREES)
    given = {f"data.{split}_files": "trees" for split in ("train", "validation")}
    given |= {"data.source": "trees", "data.folder": str(tmp_path)}
    given |= {"data.tagset": "pos", "data.substitutes": "2"}
    loaded = config.load("tagging", given)
    source = tasks.find("tagging").source(loaded)
    found = source.read("train")
    assert [len(found), len(source.read("validation"))] == [9, 3]
    known = set().union(*map(tagged, trees.read(TREES)))
    for record in found:
        pairs = zip(record["tags"].split(), record["text"].split(), strict=True)
        assert set(pairs) <= known
    plain = substitution.without_versions(found)
    assert list(plain) == list(source.read("validation"))
    counted = []
    tasks.find("tagging").learn(loaded, source, tmp_path / "learnt", counted.append)
    words = json.loads((tmp_path / "learnt" / "tags.json").read_text())
    assert words == json.loads(json.dumps(dataclasses.asdict(Lexicon.count(plain))))


def test_generated_trees_have_no_versions():
    with pytest.raises(UserError, match="data.substitutes = 3 .* leave data.substit"):
        config.load("tagging", {"data.substitutes": "3"})
