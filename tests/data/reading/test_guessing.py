"""Guess what files hold: their form, their columns, their task."""

import csv
import gzip
import json
import random

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.guessing import guess

draw = random.Random(3)
WORDS = "house tree river old green walks reads slowly never often".split()
TEXTS = [
    " ".join(draw.choices(WORDS, k=draw.randint(4, 12))) + f" {i}" for i in range(90)
]
LABELS = [draw.choice(["good", "bad"]) for _ in TEXTS]


def write_csv(path, rows, delimiter=","):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return str(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", [True, False])
def test_a_table_with_few_values_in_a_column_is_for_classification(
    tmp_path, delimiter, header
):
    rows = [[str(i), t, n] for i, (t, n) in enumerate(zip(TEXTS, LABELS, strict=True))]
    head = [["id", "review", "sentiment"]] if header else []
    path = write_csv(tmp_path / "a.csv", [*head, *rows], delimiter)
    found = guess([path])
    assert (found.task, found.form) == ("classification", "csv")
    text, label = ("review", "sentiment") if header else ("2", "3")
    assert found.columns == {"text": text, "label": label}
    assert found.labels == {n: LABELS.count(n) for n in ("good", "bad")}
    assert found.splits == {"train": {"files": path}}
    assert found.sample[7] == {"text": TEXTS[7], "label": LABELS[7]}


def test_two_columns_of_text_are_for_translation_in_their_order(tmp_path):
    rows = [[t, t.upper(), "CC-BY"] for t in TEXTS]
    named = [tmp_path / "pairs.dev.tsv", tmp_path / "pairs.train.tsv"]
    paths = [write_csv(p, [["de", "en", "licence"], *rows], "\t") for p in named]
    found = guess(paths)
    assert (found.task, found.columns) == (
        "translation",
        {"source": "de", "target": "en"},
    )
    assert found.splits == {
        "validation": {"files": paths[0]},
        "train": {"files": paths[1]},
    }


def test_json_lines_and_tables_of_arrow_are_read_by_their_names(tmp_path):
    rows = [{"pair": {"de": t, "en": t.upper()}, "n": i} for i, t in enumerate(TEXTS)]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    found = guess([str(tmp_path / "a.jsonl.gz")])
    names = {"source": "pair.de", "target": "pair.en"}
    assert (found.form, found.task, found.columns) == ("jsonl", "translation", names)
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    again = guess([str(tmp_path / "a.parquet")])
    assert (again.form, again.columns) == ("arrow", names)
    assert again.sample == found.sample


def test_text_is_parallel_if_its_lines_pair_and_else_for_a_language_model(tmp_path):
    for name in ("train.de", "train.en", "test.de", "test.en"):
        (tmp_path / name).write_text("\n".join(TEXTS) + "\n")
    paths = [str(tmp_path / n) for n in ("train.de", "train.en", "test.de", "test.en")]
    found = guess(paths)
    assert (found.task, found.form) == ("translation", "text")
    assert found.splits["test"] == {"source": paths[2], "target": paths[3]}
    assert guess(paths[:1]).task == "language"
    assert guess(paths[:1]).sample[3] == {"text": TEXTS[3]}
    (tmp_path / "train.en").write_text("one\n")
    with pytest.raises(UserError, match="are no pair: they have"):
        guess(paths[:2])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "there is no file a.csv"),
        ({"a.csv": "x,y\n1,2\n", "b.txt": "x\n"}, "these files are of several forms"),
        ({"a.csv": "x\n1\n", "b.csv": "x\n1\n"}, "both seem to be train: give one"),
        ({"test.csv": "x\n1\n"}, "seems to be the training split"),
        ({"a.csv": "text,label\n"}, "has no examples"),
        ({"a.csv": "a,b\n1,2\n3,4\n5,6\n"}, "has no column of text among a, b"),
        ({"a.jsonl": '{"a": "b"}\n[1]\n'}, "line 2 is no JSON object"),
    ],
)
def test_files_that_give_no_example_are_refused(tmp_path, monkeypatch, files, words):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words):
        guess(list(files) or ["a.csv"])


def test_a_folder_that_datasets_has_not_saved_is_refused(tmp_path):
    with pytest.raises(UserError, match="is a folder that datasets has not saved"):
        guess([str(tmp_path)])
