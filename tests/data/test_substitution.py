"""More trees: parts of a tree are exchanged for those of other trees."""

import itertools

import pytest

from transformer_jax import config, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.data import substitution
from transformer_jax.data.reading import trees
from transformer_jax.data.reading.records import ParsedFile, Reading
from transformer_jax.data.substitution import Substituted, build, phrases_in

TREES = """\
((S (NP-SBJ (DT The) (NN cat)) (VP (VBD slept) (NP (-NONE- *T*))) (. .)))
(S (NP (PRP$ my) (JJ old) (NN aunt)) (VP (VBD saw) (NP (DT a) (NN boat))) (. .))
(NP (NN rain)) (X (-NONE- *))
(FRAG (ADVP (RB again)) (PP (IN with) (NP (NP (NNS tears)) (PP (IN of) (NP (NN joy))))))
"""


def as_record(tree):
    return {"source": " ".join(trees.words(tree)), "target": str(tree)}


def read_line(line):
    found = filter(None, map(trees.clean, trees.read(line)))
    return [as_record(tree) for tree in found]


@pytest.fixture
def open_file(tmp_path):
    def open_file(versions, text=TREES):
        path = tmp_path / "train.trees"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        return Substituted(
            ParsedFile(str(path), "trees", Reading(read_line)), versions, as_record
        )

    return open_file


def tagged(tree):
    return set(zip(trees.tags(tree), trees.words(tree), strict=True))


def parts_of(tree):
    """Yield (label, words) of a tree's phrases that have no phrase inside."""
    steps = list(trees.walk(tree))
    for begin, end in phrases_in(steps):
        if all(kind != "(" for kind, _ in steps[begin + 1 : end]):
            phrase = build(steps[begin:end])
            yield phrase.label, " ".join(trees.words(phrase))


def test_a_tree_is_built_from_its_walk():
    for tree in map(trees.clean, trees.read(TREES)):
        if tree is not None:
            assert build(list(trees.walk(tree))) == tree
    steps = list(trees.walk(trees.read(TREES)[-1]))
    spans = [build(steps[slice(*span)]) for span in phrases_in(steps)]
    assert [tree.label for tree in spans] == ["ADVP", "NP", "NP", "PP", "NP", "PP"]


def test_the_given_trees_come_first_and_each_version_has_their_roots(open_file):
    records, plain = open_file(30), open_file(0)
    assert len(plain) == 4 and len(records) == 4 * 31
    assert list(records)[:4] == list(plain)
    roots = [trees.read(record["target"])[0].label for record in records]
    assert roots == ["S", "S", "NP", "FRAG"] * 31
    assert records.where(2) == plain.where(2)
    assert records.where(3 + 4 * 7).endswith("train.trees, line 4, version 7")
    with pytest.raises(IndexError):
        records[4 * 31]


def test_what_is_exchanged_has_the_same_label(open_file, monkeypatch):
    monkeypatch.setattr(substitution, "OPEN", 2)
    monkeypatch.setattr(substitution, "WORDS", 0.5)
    given = [trees.read(record["target"])[0] for record in open_file(0)]
    known = set().union(*map(tagged, given))
    labels = {label for tree in given for label, _ in parts_of(tree)}
    records, seen = open_file(50), set()
    for record in records:
        [tree] = trees.read(record["target"])
        assert record == as_record(tree)
        assert tagged(tree) <= known
        assert {label for label, _ in parts_of(tree)} <= labels
        assert len(trees.words(tree)) <= substitution.LONGEST
        seen.add(record["target"])
    assert len(seen) > 100
    # A phrase of another tree, and a word of another tree in its place.
    assert any(
        "(S (NP (PRP$ my) (JJ old) (NN aunt)) (VP (VBD slept))" in t for t in seen
    )
    assert any("(S (NP (DT The) (NN rain)) (VP (VBD slept)) (. .))" in t for t in seen)


def test_words_of_tags_with_few_words_stay(open_file):
    given = [trees.read(record["target"])[0] for record in open_file(0)]
    known = {part for tree in given for part in parts_of(tree)}
    for record in open_file(20):  # no tag has `OPEN` words
        [tree] = trees.read(record["target"])
        assert set(parts_of(tree)) <= known


def test_long_trees_are_left_out(open_file, monkeypatch):
    monkeypatch.setattr(substitution, "LONGEST", 4)
    most = itertools.cycle([4, 7, 4, 5])
    for record, longest in zip(open_file(50), most, strict=False):
        assert len(record["source"].split()) <= longest


def test_versions_depend_on_the_file_and_their_number_alone(open_file):
    once, again, fewer = open_file(9), open_file(9), open_file(3)
    assert [once[i] for i in reversed(range(40))] == list(again)[::-1]
    assert list(fewer) == list(once)[:16]
    assert once.fingerprint == again.fingerprint != fewer.fingerprint
    other = open_file(9, TREES.replace("aunt", "uncle"))
    assert other.fingerprint != once.fingerprint
    assert "each of the 4 trees is followed by 9 versions" in once.notes[-1]


def test_only_training_trees_get_versions(tmp_path):
    (tmp_path / "trees").write_text(TREES)
    given = {f"data.{split}_files": "trees" for split in ("train", "validation")}
    given |= {"data.source": "trees", "data.folder": str(tmp_path)}
    loaded = config.load("parsing", given | {"data.substitutes": "2"})
    source = tasks.find("parsing").source(loaded)
    found = [source.read(split) for split in ("train", "validation")]
    assert [len(records) for records in found] == [12, 4]
    assert list(found[0])[:4] == list(found[1])
    assert found[0][0]["target"] == "(S (NP XX XX )NP (VP XX )VP XX )S"


def test_generated_trees_have_no_versions():
    with pytest.raises(UserError, match="data.substitutes = 3 .* leave data.substit"):
        config.load("parsing", {"data.substitutes": "3"})
