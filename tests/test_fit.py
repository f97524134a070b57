"""Train on what a program holds: lists, dicts, frames, data sets."""

import json
import types
from typing import ClassVar

import pytest

import transformer_jax
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import given
from transformer_jax.training.hooks import Hook

FIELDS = ("text", "label")
ROWS = [("good", "1"), ("bad", "0"), ("fine\nso", "1")]
RECORDS = [dict(zip(FIELDS, row, strict=True)) for row in ROWS]


class Frame:
    """What is used of a pandas DataFrame, which is no dependency."""

    columns = ("review", "stars")

    def __getitem__(self, name):
        return [row[self.columns.index(name)] for row in ROWS]

    def to_dict(self):
        raise AssertionError("one list per column is enough")


class Set(list):
    """What is used of a `datasets.Dataset`."""

    column_names = FIELDS
    features = {"label": types.SimpleNamespace(names=["0", "1"]), "text": "string"}


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        [list(row) for row in ROWS],
        RECORDS,
        ({**row, "other": None} for row in RECORDS),
        {"text": [t for t, _ in ROWS], "label": [int(n) for _, n in ROWS]},
        Set({"text": text, "label": int(label)} for text, label in ROWS),
    ],
)
def test_examples_of_any_form_are_the_same_records(data):
    assert given.records_of(data, FIELDS, {}) == RECORDS


def test_columns_of_other_names_are_given():
    names = {"text": "review", "label": "stars"}
    assert given.records_of(Frame(), FIELDS, names) == RECORDS
    assert given.records_of(["a", "b"], ("text",), {}) == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize(
    ("data", "columns", "words"),
    [
        (RECORDS, {"txt": "a"}, "columns has 'txt', but the fields .* text, label"),
        (
            RECORDS,
            {"text": "tet"},
            "example 1 has no 'tet'.*Name the right column in",
        ),
        ([("a", None)], {}, "train, example 1: the label .* is None"),
        (
            [("a", "b", "c")],
            {},
            "example 1 is .* examples are dicts or tuples of text, label",
        ),
        ([], {}, "train has no examples"),
        ({"text": ["a"], "label": []}, {}, "different lengths: text 1, label 0"),
        ({"train": Set(), "test": Set()}, {}, "the splits train, test: give one"),
    ],
)
def test_what_is_no_example_is_refused_by_its_number(data, columns, words):
    with pytest.raises(UserError, match=words):
        given.records_of(data, FIELDS, columns)


def test_held_out_examples_are_spread_and_not_trained_on():
    kept, held = given.hold_out(list(range(100)))
    assert held == [0, 20, 40, 60, 80]
    assert sorted(kept + held) == list(range(100))
    assert len(given.hold_out(list(range(90_000)))[1]) == 1000
    with pytest.raises(UserError, match="train has a single example"):
        given.hold_out([1])


@pytest.mark.system
def test_a_program_trains_on_its_examples_and_goes_on(tiny, tmp_path, one_device):
    words = ["good", "fine", "bad", "poor"]
    rows = [
        (f"a {w} film {i % 7}", "pn"[j > 1])
        for i in range(20)
        for j, w in enumerate(words)
    ]
    known = dict(configs.items(configs.load("opinions:label")))
    options = {k: v for k, v in tiny().items() if k in known and k != "eval.splits"}
    options |= {"optim.schedule": "constant", "tokenizer.kind": "word"}

    class Mine(Hook):
        called: ClassVar = []

        def record(self, step, kind, values):
            self.called.append((step, kind, self.config.optim.schedule))

        def save(self, step, state):
            self.called.append((step, "save", int(state.step)))

    def fit(steps):
        return transformer_jax.fit(
            "opinions:label",
            rows,
            test=rows[:6],
            workdir=tmp_path / "run",
            options={**options, "train.steps": steps},
            hooks=[Mine],
        )

    run = fit(4)
    assert run.step == 4
    assert {(3, "save", 3), (4, "train", "constant")} <= set(Mine.called)
    assert set(run.predict([text for text, _ in rows])) <= {"p", "n"}
    kept, held = given.hold_out(given.records_of(rows, FIELDS, {}))
    lines = (tmp_path / "run" / "data" / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == kept
    assert list(run.records("validation")) == held
    assert "accuracy" in run.folder.read_result()["scores"]["test"]
    before = (tmp_path / "run" / "data" / "train.jsonl").stat().st_mtime_ns
    again = fit(4)  # done: nothing is trained or written again
    assert again.step == 4
    assert (tmp_path / "run" / "data" / "train.jsonl").stat().st_mtime_ns == before


def test_a_task_without_text_is_refused(tmp_path):
    with pytest.raises(UserError, match="'images' does not read texts or labels"):
        transformer_jax.fit("images", [], workdir=tmp_path / "run")
