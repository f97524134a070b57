"""Files of a run that others have cut, edited, or written in another encoding."""

import ast
import json
import logging
import os
import pathlib
import re
import subprocess
import sys

import pytest
from damage import DAMAGE

import transformer_jax
from transformer_jax import config
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import records
from transformer_jax.data.text import tokenizer
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks import classification
from transformer_jax.training import log as metrics

LEDGER = {"train": {"store": "a", "fingerprint": "b", "content": "c", "examples": 1}}


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path / "run")
    made.note_start(config.load("quickstart"))
    return made


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", ["versions.json", "scores.json", "result.json", "ledger.json"]
)
def test_a_file_that_only_informs_stops_nothing(folder, name, damage, caplog):
    path = folder.path / name
    path.write_bytes(DAMAGE[damage])
    with caplog.at_level(logging.WARNING):
        assert folder.read_result() is None
        folder.add_scores("test", {"bleu": 1.0})
        folder.note_start(config.load("quickstart"))
        folder.adopt_data(LEDGER)
        folder.write("result.json", {"step": 3})
    assert all("\n" not in line for line in caplog.messages)
    assert any(str(path) in line for line in caplog.messages)
    for written in ("versions.json", "scores.json", "result.json", "ledger.json"):
        assert isinstance(json.loads((folder.path / written).read_text()), dict)
    if damage != "other kinds":  # which can be read
        assert (folder.damaged / name).read_bytes() == DAMAGE[damage]


def test_a_result_that_can_be_printed_is_read(folder):
    scores = {"test": {"summary": "BLEU = 1", "examples": 3, "loss": 1.5}}
    whole = {"step": 3, "stopped_early": False, "weights": "best", "scores": scores}
    folder.write("result.json", whole)
    assert folder.read_result() == whole
    scores["test"]["loss"] = "low"
    folder.write("result.json", whole)
    assert folder.read_result() is None


@pytest.mark.parametrize("damage", [*DAMAGE, "another size", "no model", "a word"])
def test_a_damaged_config_is_one_line_with_its_name(folder, damage):
    path = folder.path / "config.json"
    whole = json.loads(path.read_text())
    model = whole["model"]
    changed = {
        "another size": {**whole, "model": {**model, "num_heads": 0}},
        "a word": {**whole, "model": {**model, "d_model": "big"}},
        "no model": {**whole, "model": 3},
    }
    damaged = changed.get(damage)
    path.write_bytes(json.dumps(damaged).encode() if damaged else DAMAGE[damage])
    with pytest.raises(UserError) as caught:
        folder.config()
    assert f"{path} is damaged: " in str(caught.value)
    assert "\n" not in str(caught.value) and "Put back a copy" in str(caught.value)


def entry(step, **more):
    return json.dumps({"step": step, "kind": "train", "loss": 1.0, **more}).encode()


@pytest.mark.parametrize(
    "bad",
    [
        b"{", b"3", b"[]", b"\xff\xfe", b'{"step": "3"}', b"[" * 100_000,
        entry(2, loss="low"), entry(2, seconds=[]), entry("two"),
    ],
)  # fmt: skip
def test_metrics_that_nobody_can_read_are_left_out(tmp_path, bad, monkeypatch):
    said = []
    monkeypatch.setattr(metrics.console, "info", said.append)
    path = tmp_path / "metrics.jsonl"
    lines = [entry(1), bad, entry(3), entry(9)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert [e["step"] for e in metrics.read_entries(path)] == [1, 3, 9]
    assert metrics.training_seconds(path) == 0
    log = metrics.RunLog(Folder(tmp_path), active=True)
    log.cut_back(3)
    assert [e["step"] for e in metrics.read_entries(path)] == [1, 3]
    assert len(said) == 1 and "1 lines cannot be read, the first is 2" in said[0]
    kept = tmp_path / "damaged" / "metrics.jsonl"
    assert kept.read_bytes() == b"\n".join(lines) + b"\n"


@pytest.mark.parametrize("make", [pathlib.Path.mkdir, os.mkfifo], ids=["dir", "fifo"])
def test_metrics_that_are_no_file_are_set_aside(tmp_path, make):
    make(tmp_path / "metrics.jsonl")
    log = metrics.RunLog(Folder(tmp_path), active=True)
    log.cut_back(3)
    log.record(4, "train", {"loss": 1.0})
    assert [e["step"] for e in metrics.read_entries(log.path)] == [4]


def test_a_line_cut_short_by_a_kill_is_nothing_to_speak_of(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(metrics.console, "info", said.append)
    (tmp_path / "metrics.jsonl").write_bytes(entry(1) + b"\n" + entry(2)[:9])
    metrics.RunLog(Folder(tmp_path), active=True).cut_back(3)
    assert not said and not (tmp_path / "damaged").exists()


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, where):
    path = tmp_path / "file"
    files.write(path, "löwe\n")

    def fail(*_):
        raise OSError(28, "No space left on device")

    owner = os if where == "fsync" else pathlib.Path
    monkeypatch.setattr(owner, where, fail)
    with pytest.raises(OSError, match="No space left"):
        files.write(path, "other")
    assert path.read_bytes() == "löwe\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_flushed_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    flush, rename = os.fsync, pathlib.Path.replace
    monkeypatch.setattr(os, "fsync", lambda f: done.append("flush") or flush(f))
    monkeypatch.setattr(
        pathlib.Path, "replace", lambda a, b: done.append("name") or rename(a, b)
    )
    files.write(tmp_path / "file", "x")
    assert done == ["flush", "name", "flush"]  # the last is the folder's


def test_nothing_is_moved_over_what_was_moved_before(tmp_path):
    for content in ("first", "second"):
        (tmp_path / "file").write_text(content)
        files.move_aside(tmp_path / "file", tmp_path / "damaged", "file")
    assert (tmp_path / "damaged" / "file").read_text() == "first"
    assert (tmp_path / "damaged" / "file.2").read_text() == "second"


@pytest.mark.parametrize(
    "damage", [*DAMAGE.values(), b'{"labels": [3], "mean": 0, "deviation": 1}',
               b'{"labels": [], "mean": null, "deviation": 1}', None],
)  # fmt: skip
def test_damaged_labels_are_one_line_with_the_name_of_their_file(tmp_path, damage):
    if damage is not None:
        (tmp_path / classification.LABELS_FILE).write_bytes(damage)
    with pytest.raises(UserError) as caught:
        classification.open_run(config.base("classification"), tmp_path)
    assert f"{tmp_path / 'answers.json'} is damaged: " in str(caught.value)
    assert "\n" not in str(caught.value)


TEXT = re.compile(r"[rwax]t?\+?")  # a mode of `open` that needs an encoding


def test_every_text_file_is_opened_in_a_named_encoding():
    root = pathlib.Path(transformer_jax.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and _opens_text(call):
                names = {word.arg for word in call.keywords}
                if not names & {"encoding", None}:
                    found.append(f"{path.relative_to(root)}:{call.lineno}")
    assert not found


def _opens_text(call):
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if method else getattr(call.func, "id", "")
    if name in ("read_text", "write_text"):
        return True
    modes = [
        a.value
        for a in [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
        if isinstance(a, ast.Constant) and isinstance(a.value, str)
    ]
    if name not in ("open", "fdopen"):
        return False
    bare = not call.args and not call.keywords if method else len(call.args) == 1
    return bare or any(TEXT.fullmatch(mode) for mode in modes)


SCORING = """
import sys
from transformer_jax.runs.folder import Folder
for i in range(50):
    Folder(sys.argv[1]).add_scores(f"{sys.argv[2]}-{i}", {"bleu": 1.0})
"""


@pytest.mark.system
def test_processes_that_score_one_run_lose_no_entry(folder):
    command = [sys.executable, "-c", SCORING, folder.path]
    scoring = [
        subprocess.Popen([*command, str(i)], stderr=subprocess.PIPE) for i in range(4)
    ]
    for process in scoring:
        assert process.communicate()[1] == b""
    assert len(folder.read_note("scores.json")) == 200
    assert not [*folder.path.glob(".*.tmp"), *folder.path.glob("damaged")]


def test_an_object_with_a_key_twice_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"seed": 1, "model": {"name": "a", "name": "b"}}')
    with pytest.raises(UserError, match=r"config.json is damaged: it has the key 'nam"):
        Folder(tmp_path).config()
    table = tmp_path / "t.jsonl"
    table.write_text('{"de": "a", "de": "b"}\n')
    with pytest.raises(UserError, match=r"line 1 is not valid JSON: it has the key 'd"):
        list(records.JsonTable(str(table), {"source": "de"}))


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_file_has_the_mode_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        files.write(tmp_path / "a", "x")
        tokenizer.Bytes().save(tmp_path / "b")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask
