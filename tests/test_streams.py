"""Input and output that end early, are closed, full, endless, or one and the same."""

import errno
import io
import logging
import os
import shlex
import subprocess
import sys
import types

import pytest

from transformer_jax import cli, predict
from transformer_jax.decoding import DecodeRequest
from transformer_jax.errors import UserError
from transformer_jax.runs import run as runs


def answerer(run, form="text"):
    return predict.LineAnswerer(run, runs.decode_options(run.config), 64, form)


def test_an_output_that_is_also_read_is_refused_and_stays_whole(tmp_path):
    file, other = tmp_path / "lines", tmp_path / "other"
    file.write_text("O gato dorme.\n")
    os.link(file, other)
    with file.open("rb") as source:
        for sink in (file, other):
            with pytest.raises(UserError, match="is the file to be read"):
                predict._refuse_overwriting(str(sink), source, "")
    memory = io.BytesIO()
    with pytest.raises(UserError, match="is the file to be read"):
        predict._refuse_overwriting(str(file), memory, str(other))
    predict._refuse_overwriting(str(tmp_path / "new"), memory, str(other))
    predict._refuse_overwriting(os.devnull, memory, "")
    assert file.read_text() == "O gato dorme.\n"


def test_a_line_without_a_tab_is_refused_and_the_others_are_scored(run, caplog):
    lines = ["O gato dorme.\tThe cat sleeps.", "O gato dorme.", "a\tb\tc", "Ele\tHe"]
    scored = answerer(run)
    with caplog.at_level(logging.WARNING, "transformer_jax.predict"):
        found = list(scored.score(lines))
    assert found[1] == found[2] == "" and float(found[0]) < 0 > float(found[3])
    assert scored.refused == 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("line 2: 1 column: --score needs")
    assert messages[1].startswith("line 3: 3 columns: --score needs")
    entry = list(answerer(run, "jsonl").score(lines))[1]
    assert '"error": "1 column' in entry


def test_an_empty_answer_to_words_is_noted(run, caplog):
    class Silent:
        def parse(self, line, *args):
            return DecodeRequest(line=line)

        def question(self, record):
            return record["source"]

        def answers(self, params, requests, mesh, options):
            for i, request in enumerate(requests):
                yield i, predict.Reply(request.line, "")

    task = types.SimpleNamespace(inference=Silent())
    silent = answerer(run)
    silent.run = types.SimpleNamespace(task=task, params=run.params, mesh=run.mesh)
    with caplog.at_level(logging.WARNING, "transformer_jax.predict"):
        assert list(silent.answer(["O gato.", "  "])) == ["", ""]
    assert [r.getMessage() for r in caplog.records] == ["line 1: the answer is empty"]


class Endless(io.RawIOBase):
    """One line, a few lines before it, and no end."""

    def __init__(self):
        self.first = b"a\nb\n"

    def readable(self):
        return True

    def readinto(self, buffer):
        data = self.first or b"x" * len(buffer)
        buffer[: len(data)] = data
        self.first = b""
        return len(data)


def test_a_line_without_end_is_refused_behind_the_answers_before_it(monkeypatch):
    monkeypatch.setattr(cli, "LONGEST", 1 << 20)
    seen = []
    with pytest.raises(UserError, match="line 3 has more than 1,048,576 bytes"):
        for chunk in cli.read_chunks(io.BufferedReader(Endless())):
            seen += chunk
    assert seen == ["a", "b"]


def test_a_line_of_many_reads_is_whole():
    text = b"y" * 300_000
    chunks = list(cli.read_chunks(io.BufferedReader(io.BytesIO(text + b"\nz"))))
    assert [line for chunk in chunks for line in chunk] == [text.decode(), "z"]


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path):
    cli.check_writable(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").write_text("kept")
    cli.check_writable(str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "kept"
    with pytest.raises(UserError, match="No such file"):
        cli.check_writable(str(tmp_path / "none" / "file"))


SCRIPT = """
import sys, transformer_jax
from transformer_jax import cli, train
from transformer_jax.training import log
def main(overrides):
    for i in range(20000):
        log.console.info("a line of the log")
    open({marker!r}, "w").close()
cli.run(main)
"""


def execute(code, redirect=""):
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {redirect}"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True
    )


@pytest.mark.system
@pytest.mark.parametrize("redirect", ["| head -3", ">&-", "> /dev/full"])
def test_a_training_whose_output_goes_away_goes_on(redirect, tmp_path):
    marker = tmp_path / "done"
    done = execute(SCRIPT.format(marker=str(marker)), redirect)
    assert done.returncode == 0, done.stderr
    assert marker.exists() and not done.stderr


FULL = """
import sys
from transformer_jax import cli
def main(overrides):
    sys.stdout.write("a line\\n")
    sys.stdout.flush()
cli.run(main)
"""


@pytest.mark.system
def test_a_result_that_cannot_be_written_is_a_mistake_in_one_line():
    done = execute(FULL, "> /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("error: writing the output: No space left")
    assert done.stderr.count("\n") == 1


def test_a_closed_standard_input_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="standard input is closed"):
        cli.standard_input()


def test_other_errors_keep_their_traceback():
    assert errno.ENOENT not in cli.OF_THE_MACHINE


def test_a_session_has_history_and_takes_any_bytes(run, monkeypatch, capsys):
    typed = io.TextIOWrapper(io.BytesIO(b"O gato \xff dorme.\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", typed)
    monkeypatch.delitem(sys.modules, "readline", raising=False)
    asked = []

    def answer(lines, first):
        asked.extend(lines)
        return ["an answer"]

    assert answerer(run).converse(answer) == 0
    assert asked == ["O gato \ufffd dorme."]
    assert capsys.readouterr().out == "> an answer\n> "
    assert "readline" in sys.modules  # which gives `input` history and editing


@pytest.mark.system
@pytest.mark.parametrize("words", ["", "keys quickstart", "train --help", "configs"])
def test_a_list_whose_reader_leaves_or_has_no_room_is_one_line(words):
    def status(redirect):
        command = f"{shlex.quote(sys.executable)} -m transformer_jax {words} {redirect}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        return done.returncode, done.stderr

    assert status("> >(exec <&-)")[0] == 0
    assert "Traceback" not in status("> >(exec <&-)")[1]
    assert status(">&-") == (0, "")
    full = 2, "error: writing the output: No space left on device\n"
    assert status("> /dev/full") == full
