"""Sources: what a config names, as records; every fault is reported with its place."""

import gzip
import json
import pickle
import re

import numpy as np
import pytest

from transformer_jax import config
from transformer_jax.base.errors import UserError
from transformer_jax.corpora import phrasebook
from transformer_jax.data.reading import filters
from transformer_jax.data.reading.records import (
    Concatenation,
    Generated,
    JsonTable,
    Parallel,
    whole_numbers,
)
from transformer_jax.data.reading.sources import Source, parallel_text


@pytest.fixture
def write(tmp_path):
    def write(name, *lines):
        content = "".join(line + "\n" for line in lines).encode()
        content = gzip.compress(content) if name.endswith(".gz") else content
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


@pytest.fixture
def source(tmp_path):
    """A function: the source of a config's `data` section with these keys."""

    def make(form, **keys):
        data = config.base().data
        with data.unlocked():
            data.update(source=form, folder=str(tmp_path), **keys)
        return Source(data)

    return make


def texts(records):
    return [(r["source"], r["target"]) for r in records]


def test_unequal_files_are_refused_with_both_counts(write):
    with pytest.raises(UserError, match=r"a has 2 lines.*b has 3"):
        parallel_text(write("a", "1", "2"), write("b", "1", "2", "3"))


def test_records_pair_line_by_line_and_their_fingerprint_is_their_content(write):
    first = parallel_text(write("a", "um", "dois"), write("b", "one", "two"))
    assert texts(first) == [("um", "one"), ("dois", "two")]
    assert [first[i] for i in range(2)] == list(first)
    same = parallel_text(write("c", "um", "dois"), write("d", "one", "two"))
    other = parallel_text(write("c2", "um", "dois"), write("d2", "one", "Two"))
    assert first.fingerprint == same.fingerprint != other.fingerprint
    swapped = parallel_text(write("b3", "one", "two"), write("a3", "um", "dois"))
    assert swapped.fingerprint != first.fingerprint


def test_the_phrasebook_is_a_source_with_a_split_of_unseen_combinations():
    data = config.base().data
    with data.unlocked():
        data.test_size = 3
        data.train_size = 10**9
    source = Source(data, generated=phrasebook.pairs(data))
    assert source.read("train").fingerprint  # known without generating a billion pairs
    assert source.splits == phrasebook.SPLITS
    assert len(source.read("test_combinations")) == 3
    with pytest.raises(UserError, match="test_combinations"):
        source.read("tests")


def test_several_corpora_and_patterns_are_read_one_after_another(write, source):
    for name, words in {"a": "um", "n1": "dois", "n2": "três"}.items():
        write(f"{name}.pt", words)
    for name, words in {"a": "one", "n1": "two", "n2": "three"}.items():
        write(f"{name}.en", words)
    keys = {"train_source": "a.pt, n*.pt", "train_target": "a.en, n*.en"}
    records = source("text", **keys).read("train")
    assert texts(records) == [("um", "one"), ("dois", "two"), ("três", "three")]
    assert records.where(2).endswith("n2.pt, line 1")
    assert records.where_field(2, "target").endswith("n2.en, line 1")
    assert [records[i]["target"] for i in (2, 0)] == ["three", "one"]
    with pytest.raises(IndexError):
        records[3]


def test_tags_tell_the_direction_and_weights_belong_to_a_corpus(write, source):
    write("de", "Haus", "Hund"), write("en", "house", "dog")
    records = source(
        "text",
        train_source="de, en",
        train_target="en, de",
        train_tags="<2en>, <2de>",
        train_weights=(1.0, 2.5),
    ).read("train")
    assert texts(records)[1:3] == [("<2en> Hund", "dog"), ("<2de> house", "Haus")]
    assert records[3] == {"source": "<2de> dog", "target": "Hund"}
    assert list(records.mixture.repeats(np.array([0, 3, 1]))) == [2, 5, 2]


def test_a_held_out_split_needs_the_tags_of_training_unless_there_is_one(write, source):
    write("de", "Haus"), write("en", "house")
    sides = {"source": "de,de", "target": "en,en"}
    keys = {f"{s}_{k}": v for s in ("train", "validation") for k, v in sides.items()}
    one = source("text", **keys, train_tags="<2en>,<2en>").read("validation")
    assert texts(one) == [("<2en> Haus", "house")] * 2
    several = source("text", **keys, train_tags="<2en>,<2fr>")
    words = (
        "data.validation_tags is not set, but each training source begins with one of "
        "<2en>, <2fr> .* set data.validation_tags, with a tag for each of its corpora"
    )
    with pytest.raises(UserError, match=words):
        several.read("validation")
    assert [bool(re.fullmatch(words, one)) for one in several.find_problems()] == [True]
    own = source("text", **keys, train_tags="<2en>,<2fr>", validation_tags="<2fr>,")
    assert texts(own.read("validation"))[::-1] == [
        ("Haus", "house"),
        ("<2fr> Haus", "house"),
    ]
    assert not own.find_problems()


def test_two_texts_get_the_only_tag_of_training_once(write):
    pair = write("a", "um", "<t> dois"), write("b", "one", "two")
    assert texts(parallel_text(*pair, tags=["<t>"])) == [
        ("<t> um", "one"), ("<t> dois", "two")
    ]  # fmt: skip
    assert parallel_text(*pair, tags=["<t>"])[1]["source"].plain == "dois"
    assert texts(parallel_text(*pair, tags=["<t>", "<u>"]))[0] == ("um", "one")


def test_a_corpus_may_be_without_a_tag(write, source):
    """As the real pairs beside those that a model has translated back."""
    write("de", "Haus"), write("en", "house")
    keys = {"train_source": "de, de", "train_target": "en, en"}
    keys |= {"validation_source": "de", "validation_target": "en"}
    records = source("text", **keys, train_tags=", <back>")
    assert texts(records.read("train")) == [("Haus", "house"), ("<back> Haus", "house")]
    assert not records.read("validation").notes  # their sources have no tag either


def test_a_tagged_source_keeps_its_plain_text(write, source):
    write("a", "", "x"), write("b", "y", "x")
    keys = {"train_source": "a", "train_target": "b", "train_tags": "<t>"}
    records = source("text", **keys).read("train")
    assert texts(records) == [("<t> ", "y"), ("<t> x", "x")]
    assert texts(records.untagged) == [("", "y"), ("x", "x")]
    again = pickle.loads(pickle.dumps(records[1]))["source"]
    assert (again, again.plain) == ("<t> x", "x")
    settings = config.base().filter
    with settings.unlocked():
        settings.update(identical=True, source_script="greek", max_ratio=0.0)
    why_not = filters.make(settings, 9)
    found = [why_not(r, {"source": [0], "target": [0]}) for r in records]
    assert found == ["with an empty side", "whose target is its source"]


def test_corpora_of_equal_weight_occur_once_each(write, source):
    write("a", "x"), write("b", "y")
    keys = {"train_source": "a, a", "train_target": "b, b"}
    for weights in ((), (3.0, 3.0)):
        records = source("text", **keys, train_weights=weights).read("train")
        assert records.mixture.repeats(np.array([0])) is None


@pytest.mark.parametrize(
    ("temperature", "weights", "times"),
    [(1.0, (), None), (2.0, (), [1, 3]), (2.0, (1.0, 2.0), [1, 6]), (1e9, (), [1, 9])],
)
def test_a_temperature_repeats_small_corpora(
    write, source, temperature, weights, times
):
    """Of 9 and of 1 record; drawn in proportion to 9 ** (1/T) and 1."""
    write("a", *"abcdefghi"), write("b", "x")
    keys = {"train_source": "a, b", "train_target": "a, b", "train_weights": weights}
    mixture = source("text", **keys, temperature=temperature).read("train").mixture
    numbers = np.array([0, 9])
    assert mixture.corpora_of(numbers).tolist() == [0, 1]
    found = mixture.repeats(numbers)
    assert found is None if times is None else found.tolist() == times


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ((1.0, 2.0), [1, 2]),
        ((0.5, 1.0), [1, 2]),
        ((0.33, 1.0, 0.66), [1, 3, 2]),
        ((1.0, 1.1), [9, 10]),
        ((1.0, 1000.3), [1, 1000]),
    ],
)
def test_weights_become_small_whole_numbers(weights, whole):
    assert whole_numbers(weights).tolist() == whole


def test_tags_are_part_of_the_fingerprint(write):
    parts = [Parallel({"source": write("a", "x"), "target": write("b", "y")})]
    assert (
        Concatenation(parts, tags=["<x>"]).fingerprint
        != Concatenation(parts).fingerprint
    )


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"train_weights": (1.0,)}, "train_weights has 1 entries for 2 corpora"),
        ({"train_tags": "a, b, c"}, "train_tags has 3 entries for 2 corpora"),
        ({"train_target": "b"}, "names 2 corpora, but data.train_target names 1"),
    ],
)
def test_lists_that_do_not_match_are_refused(write, source, keys, problem):
    write("a", "x"), write("b", "y")
    keys = {"train_source": "a, a", "train_target": "b, b", **keys}
    with pytest.raises(UserError, match=problem):
        source("text", **keys).read("train")


def test_tab_separated_columns_by_number(write, source):
    write("t.tsv.gz", "en 1\tde 1\tCC-BY", "en 2\t\tCC-BY")
    keys = {"train_files": "t.tsv.gz", "source_column": "2", "target_column": "1"}
    records = source("tsv", **keys).read("train")
    assert texts(records) == [("de 1", "en 1"), ("", "en 2")]
    assert records[1] == {"source": "", "target": "en 2"}


def test_a_line_without_the_column_is_named_with_both_numbers(write, source):
    write("t.tsv", "Sentence\tLabel", "fine\tgood")
    with pytest.raises(UserError, match=r"line 1 is a header \(sentence, label\), but"):
        source("tsv", train_files="t.tsv").read("train")
    write("t.tsv", "a\tb", "only one")
    records = source("tsv", train_files="t.tsv").read("train")
    with pytest.raises(
        UserError,
        match=r"line 2 has 1 tab-separated column, but the target is column 2",
    ):
        list(records)


def test_json_lines_by_key_or_nested_key(write, source):
    lines = [{"translation": {"de": f"de {i}", "en": f"en\n{i}"}} for i in range(2)]
    write("t.jsonl", *map(json.dumps, lines))
    keys = {"source_column": "translation.de", "target_column": "translation.en"}
    records = source("jsonl", train_files="t.jsonl", **keys).read("train")
    assert texts(records) == [("de 0", "en\n0"), ("de 1", "en\n1")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"de": "x", "eng": "y"}', "line 2 has no key 'en'. Did you mean 'eng'?"),
        ('{"de": "x", "en": ', "line 2 is not valid JSON"),
        ('{"de": "x", "en": "y", "de": "z"}', "JSON: it has the key 'de' twice"),
        ('["x", "y"]', "line 2 has no key 'de'"),
        (
            '{"de": null, "en": "y"}',
            "line 2: the source .'de', data.source_column. is None of type NoneType",
        ),
        ('{"de": "x", "en": 3}', "line 2: the target .'en', .* is 3 of type int"),
        (
            r'{"de": "ab\ud83d", "en": "y"}',
            r"line 2: the source .* has '\\ud83d' at character 3: half of",
        ),
    ],
)
def test_faulty_json_is_named_by_its_line(write, source, line, problem):
    write("t.jsonl", '{"de": "x", "en": "y"}', line)
    keys = {"source_column": "de", "target_column": "en", "train_files": "t.jsonl"}
    with pytest.raises(UserError, match=problem):
        list(source("jsonl", **keys).read("train"))


def test_a_label_may_be_a_number_or_true_or_false(write):
    values = [3, 2.5, True, "good"]
    lines = [json.dumps({"t": "x", "l": value}) for value in values]
    table = JsonTable(write("t.jsonl", *lines), {"text": "t", "label": "l"})
    assert [record["label"] for record in table] == ["3", "2.5", "True", "good"]
    wrong = write("w.jsonl", '{"t": "x", "l": [1]}')
    with pytest.raises(UserError, match=r"line 1: the label .* of type list"):
        JsonTable(wrong, {"text": "t", "label": "l"})[0]


def test_missing_files_are_found_before_anything_is_read(write, source):
    write("a", "x")
    data = source("text", train_source="a", train_target="b*", test_source="a").data
    problems = "\n".join(Source(data).find_problems())
    assert "data.train_target: there is no file" in problems and "b*" in problems
    assert "data.validation_source is empty: name a file" in problems
    assert "data.test_target is empty" in problems
    assert "data.train_source:" not in problems


@pytest.mark.parametrize(
    ("form", "keys", "problem"),
    [
        ("jsonl", {}, "data.source_column is empty: name the key"),
        ("tsv", {"source_column": "de"}, "data.source_column = 'de': a column's num"),
        ("tfds", {"source_column": "de"}, "data.target_column is empty: name the feat"),
        ("tfds", {}, "data.tfds_name is empty: name a data set and its splits"),
    ],
)
def test_unnamed_columns_are_reported(source, form, keys, problem):
    assert problem in "\n".join(source(form, **keys).find_problems())


def test_an_unknown_form_is_never_read_as_generated_data(source):
    with pytest.raises(UserError, match=r"data.source = 'tvs': .*jsonl.*'tsv'"):
        source("tvs", train_files="t.tsv").read("train")


def test_notes_of_all_files_are_collected(write, source, tmp_path):
    (tmp_path / "a").write_bytes(b"x\r\n")
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbfy\n")
    records = source("text", train_source="a", train_target="b").read("train")
    assert len(records.notes) == 2
    assert texts(records) == [("x", "y")]


def test_deeply_nested_json_is_named_by_its_line(write):
    deep = '{"text": ' + "[" * 200_000 + "]" * 200_000 + "}"
    path = write("deep.jsonl", '{"text": "a"}', deep)
    table = JsonTable(path, {"text": "text"})
    with pytest.raises(UserError, match="deep.jsonl, line 2 is JSON nested too deeply"):
        list(table)
    assert table[0] == {"text": "a"}


def test_generated_records_are_made_once_for_the_same_code():
    made = []

    def make():
        made.append(1)
        return [{"source": w} for w in "abc"]

    first = Generated(make, "three letters", "code 1")
    again = Generated(make, "three letters", "code 1")
    assert first.content == again.content and len(first) == len(again) == 3
    assert len(made) == 1
    assert again[1] == {"source": "b"} and len(made) == 2
    assert len(Generated(make, "three letters", "code 2")) == 3 and len(made) == 3


def test_the_content_of_generated_records_shows_changes_within_a_version():
    first, same, other = (
        Generated(lambda words=words: [{"source": w} for w in words], "v1")
        for words in ("ab", "ab", "ac")
    )
    assert first.content == same.content != other.content
    both = Concatenation([first, other])
    assert both.content not in (first.content, Concatenation([first, same]).content)
