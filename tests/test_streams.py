"""Input and output that end early, are closed, full, endless, or one and the same."""

import errno
import gzip
import io
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

from transformer_jax import audit, cli, evaluate, inspect_data, plan, predict
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import streams
from transformer_jax.data.reading.sources import parallel_text
from transformer_jax.data.text import retrieval
from transformer_jax.decoding import DecodeRequest
from transformer_jax.runs import run as runs
from transformer_jax.runs.session import Session
from transformer_jax.visualize.flags import Drawing
from transformer_jax.visualize.viewer import command as view


def answerer(run, form="text"):
    return predict.LineAnswerer(run, runs.decode_options(run.config), 64, form)


def test_an_output_that_is_also_read_is_refused_and_stays_whole(tmp_path):
    file, other = tmp_path / "lines", tmp_path / "other"
    file.write_text("O gato dorme.\n")
    os.link(file, other)
    (tmp_path / "link").symlink_to(file)
    said = "--output=.* is the file to be read.*: name another"
    with file.open("rb") as source:
        for sink in (file, other, tmp_path / "link", tmp_path / "." / "lines"):
            for read in (source.fileno(), str(file), str(tmp_path / "link")):
                with pytest.raises(UserError, match=said):
                    cli.refuse_overwriting("output", str(sink), ["", None, "no", read])
    cli.refuse_overwriting("output", str(tmp_path / "new"), [str(other)])
    cli.refuse_overwriting("output", os.devnull, [os.devnull])
    assert file.read_text() == "O gato dorme.\n"


@pytest.mark.parametrize("flag", ["source", "reference"])
def test_evaluate_does_not_write_over_what_it_reads(tiny_run, run_main, tmp_path, flag):
    for name in ("source", "reference"):
        (tmp_path / name).write_text("O gato dorme.\n")
    given = [f"--{name}={tmp_path / name}" for name in ("source", "reference")]
    os.link(tmp_path / flag, tmp_path / "answers")
    with pytest.raises(UserError, match="--answers=.* is the file to be read"):
        run_main(
            evaluate, f"--workdir={tiny_run}", *given, f"--answers={tmp_path}/answers"
        )
    assert (tmp_path / flag).read_text() == "O gato dorme.\n"


def test_no_command_writes_over_a_run_or_the_data_that_its_config_names(
    tiny_run, run_main, tmp_path
):
    config = tiny_run / "config.json"
    before = config.read_bytes()
    refused = "is the file to be read"
    link = tmp_path / "page.png"
    link.symlink_to(config)
    for call in (
        lambda: run_main(predict, f"--workdir={tiny_run}", f"--output={config}"),
        lambda: run_main(
            evaluate, f"--workdir={tiny_run}", "--split=test", f"--answers={config}"
        ),
        lambda: run_main(audit, f"--workdir={tiny_run}", f"--output={config}"),
        lambda: run_main(
            view, f"--workdir={tiny_run}", "--text=x", f"--output={config}"
        ),
        lambda: run_main(
            Drawing("attention"), f"--workdir={tiny_run}", f"--output={link}"
        ),
    ):
        with pytest.raises(UserError, match=refused):
            call()
    assert config.read_bytes() == before
    mine, text = tmp_path / "mine.py", tmp_path / "text.png"
    text.write_text("a\n")
    mine.write_text(f"""
from transformer_jax import config as configs
def get_config():
    config = configs.base("translation")
    config.data.source, config.data.folder = "text", {str(tmp_path)!r}
    for split in ("train", "validation"):
        config.data[split + "_source"] = config.data[split + "_target"] = "te?t.png"
    return config
""")
    for module, *words in (
        (plan, f"--output={mine}", "--target=cpu"),
        (plan, f"--output={text}", "--target=cpu"),
        (inspect_data, f"--picture={text}"),
    ):
        with pytest.raises(UserError, match=refused):
            run_main(module, f"--config={mine}", *words)
    assert text.read_text() == "a\n"


@pytest.mark.system
def test_an_input_is_not_appended_to_by_its_own_answers(tiny_run, tmp_path):
    (tmp_path / "lines").write_text("O gato dorme.\n")
    words = "-m transformer_jax.predict --workdir"
    done = subprocess.run(
        f"{sys.executable} {words} {tiny_run} < lines >> lines",
        shell=True, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "the standard output is the file to be read" in done.stderr


def test_chunks_end_at_newlines_only_and_bad_bytes_are_marked():
    source = io.BufferedReader(io.BytesIO(b"\xef\xbb\xbfa\r\nb\xff\x0bc\n\nlast"))
    assert list(streams.read_chunks(source)) == [["a", "b\udcff\x0bc", "", "last"]]


def test_a_slow_pipe_is_answered_line_by_line():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", 0) as pipe:
        chunks = streams.read_chunks(source)
        pipe.write(b"one\n")
        assert next(chunks) == ["one"]
        threading.Timer(0.2, lambda: pipe.write(b"two\nthree\n")).start()
        assert next(chunks) == ["two", "three"]
        pipe.write(b"rest")
        pipe.close()
        assert list(chunks) == [["rest"]]


def lines_of(content, encoding="utf-8"):
    source = io.BufferedReader(io.BytesIO(content))
    return [line for chunk in streams.read_chunks(source, encoding) for line in chunk]


TEXT = "O gato dorme.\r\nA maçã é boa.\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_text_is_recognised_and_read_when_named(encoding):
    content = TEXT.encode(encoding)
    recognised = "not UTF-8: name it with --encoding=utf-.*iconv"
    with pytest.raises(UserError, match=recognised):
        lines_of(content)
    assert lines_of(content, encoding) == ["O gato dorme.", "A maçã é boa."]
    cut = "is not text in .*: name its encoding with --encoding"
    with pytest.raises(UserError, match=cut):
        lines_of(content + b"\x00", encoding)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8", "utf-8-sig"])
def test_narrow_text_is_read_in_its_encoding(encoding):
    known = streams.check_encoding(encoding)
    content = TEXT.encode(encoding)
    assert lines_of(content, known) == ["O gato dorme.", "A maçã é boa."]
    assert lines_of(gzip.compress(content), known)[1] == "A maçã é boa."
    with pytest.raises(UserError, match="cannot be read: "):
        lines_of(gzip.compress(content)[:-9], known)


@pytest.mark.parametrize("name", ["utf-9", "base64", "", "a\0"])
def test_an_encoding_that_there_is_not_is_refused(name):
    with pytest.raises(UserError, match="there is no such encoding of text"):
        streams.check_encoding(name)


def test_a_line_that_is_not_text_is_refused_by_its_number(run, caplog):
    lines = lines_of(b"O gato dorme.\nma\xe7\xe3\nA casa.\n")
    tool = answerer(run, "jsonl")
    sink = io.BytesIO()
    assert tool.answer_all(tool.answer, iter([lines]), sink) == 1
    entries = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [entry["input"] for entry in entries] == [
        "O gato dorme.",
        "ma\ufffd\ufffd",
        "A casa.",
    ]
    assert "byte 0xe7 at character 3 is not text in UTF-8" in entries[1]["error"]
    assert entries[1]["output"] == "" and "error" not in entries[2]
    assert "line 2: byte 0xe7" in caplog.text
    for call in (tool.embed, tool.score):
        [entry] = map(
            json.loads, call([f"{lines[1]}\ta" if call == tool.score else lines[1]])
        )
        assert "byte 0xe7" in entry["error"]


def test_a_pipe_is_read_like_a_file(run, tmp_path):
    def pipe(name, content):
        os.mkfifo(tmp_path / name)
        threading.Thread(target=(tmp_path / name).write_bytes, args=(content,)).start()
        return str(tmp_path / name)

    index = retrieval.open_index(pipe("among", b"O gato.\n\nEle\n"), run.encode)
    assert index is not None and index.texts == ["O gato.", "Ele"]
    records = parallel_text(pipe("s", b"a\nb\n"), pipe("t", b"c\r\nd"))
    assert [*records] == [
        {"source": "a", "target": "c"},
        {"source": "b", "target": "d"},
    ]
    packed = pipe("packed", gzip.compress("maçã\n".encode("latin-1")))
    assert [*streams.open_lines(packed, "latin-1")] == ["maçã"]
    with pytest.raises(UserError, match="nothing, line 2: character 1 is not text in"):
        streams.open_lines(pipe("nothing", b"a\n\xe7\n"))
    with pytest.raises(UserError, match="is empty: there is nothing to read"):
        streams.open_lines(pipe("empty", b""))


@pytest.mark.parametrize("before", [0, 1, 2000, 2001])
def test_a_line_without_end_is_an_error_after_any_number_of_lines(monkeypatch, before):
    monkeypatch.setattr(streams, "LONGEST", 1 << 17)
    content = b"a\n" * before + b"x" * (1 << 18) + b"\nO gato dorme.\n"
    seen = []
    with pytest.raises(
        UserError, match=f"line {before + 1} has more than 131,072 bytes"
    ):
        for chunk in streams.read_chunks(io.BufferedReader(io.BytesIO(content))):
            assert chunk
            seen += chunk
    assert seen == ["a"] * before


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
    monkeypatch.setattr(streams, "LONGEST", 1 << 20)
    seen = []
    with pytest.raises(UserError, match="line 3 has more than 1,048,576 bytes"):
        for chunk in streams.read_chunks(io.BufferedReader(Endless())):
            seen += chunk
    assert seen == ["a", "b"]


def test_a_line_of_many_reads_is_whole():
    text = b"y" * 300_000
    chunks = list(streams.read_chunks(io.BufferedReader(io.BytesIO(text + b"\nz"))))
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

    assert Session(answerer(run), answer).converse() == 0
    assert asked == ["O gato \udcff dorme."]
    assert capsys.readouterr().out == "> an answer\n> "
    assert "readline" in sys.modules  # which gives `input` history and editing


@pytest.mark.system
def test_a_session_has_commands(run, monkeypatch, capsys):
    def typed(text, form="text", **options):
        source = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", source)
        tool = answerer(run, form)
        assert Session(tool, tool.answer, **options).converse() == 0
        return tool, *capsys.readouterr()

    monkeypatch.setattr(run, "weights", "average")
    line = "O gato dorme no sofá."
    _, out, err = typed(f":scores\n:attention\n:help\n:quit\n{line}\n")
    assert out.count("> ") == 4 and err.count("there is no answer yet") == 2
    assert "Ctrl-D" in err and ":beams N" in err
    tool, out, err = typed(
        f":beams 3\n{line}\n:scores\n:beams x\n:beams 0\n:bems\n::a\n"
    )
    assert tool.options.beams == 3 and out.count("> ") == 8
    assert len(re.findall(r"(?m)^ +-\d+\.\d{3}  ", err)) == 3
    assert "error: :beams x: give a whole number" in err
    assert "error: decode.beams = 0" in err
    assert ":bems is no command. Did you mean ':beams'" in err
    assert tool.unknown.lines == 1  # ":a", whose colon no piece has
    monkeypatch.setattr(run.task.inspector, "attend_words", lambda reading: (
        ["The", "cat"], ["O", "gato"], np.array([[0.9, 0.1], [0.25, 0.75]])
    ))  # fmt: skip
    for form in ("text", "jsonl"):
        _, out, err = typed("O gato.\n:attention\n", form)
        if "no answer" not in err:  # the run has learned little
            assert "The  O 90 %, gato 10 %" in err and "cat  gato 75 %, O 25 %" in err
    _, _, err = typed(":beams 2\n:help\n", searches=False)
    assert ":beams is no command" in err and ":beams N" not in err


def test_the_time_left_is_that_of_the_lines_not_of_compiling(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(cli.time, "monotonic", lambda: now[0])
    pace, said = cli.Pace(), []
    for seconds, done in ((80, 1), (80.5, 40), (84, 41), (90, 101)):
        now[0] = seconds
        said.append(pace.describe(done, 301))
    assert said == [
        "",
        "",
        "10.0 sentences/s, left 26 s",
        "10.0 sentences/s, left 20 s",
    ]


def test_a_bar_fits_the_terminal(monkeypatch, capsys):
    for width in (80, 40, 20):
        monkeypatch.setattr(cli, "terminal_width", lambda width=width: width)
        cli.Bar(True).show(1500, 2000, "12.5 sentences/s, left 20 s")
        drawn = capsys.readouterr().err.removeprefix("\r\x1b[K")
        assert drawn.lstrip("█· ").startswith("1500/2000 ") and len(drawn) < width


@pytest.mark.system
def test_closed_streams_and_a_locale_without_letters_end_nothing(tiny_run, tmp_path):
    (tmp_path / "lines").write_text("O gato dorme.\n日本\n", encoding="utf-8")

    def status(words, redirect, **environment):
        command = f"{shlex.quote(sys.executable)} -m transformer_jax.{words} {redirect}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", **environment},
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    given = f"predict --workdir={tiny_run} --input=lines"
    plain = status(given, "")
    assert (
        plain[0] == 0
        and plain[1].count("\n") == 2
        and "does not know 日 本" in plain[2]
    )
    assert status(given, "2>&-") == (0, plain[1], "")
    assert status(given, "--output=out >&- 2>&-") == (0, "", "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == plain[1]
    code, _, said = status(given, ">&-")
    assert code == 2 and "standard output is closed: name a file with --output" in said
    assert status("evaluate --workdir=none --split=test", "2>&-") == (2, "", "")
    plainest = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    code, out, said = status(given, "", **plainest)
    assert (code, out) == plain[:2] and "does not know \\u65e5 \\u672c" in said


@pytest.mark.system
def test_a_file_that_the_system_does_not_let_read_is_named(tiny_run, run_main):
    with pytest.raises(UserError, match="/proc/self/mem cannot be read"):
        run_main(predict, f"--workdir={tiny_run}", "--input=/proc/self/mem")


@pytest.mark.system
@pytest.mark.parametrize("words", ["", "keys quickstart", "train --help", "configs"])
def test_a_list_whose_reader_leaves_or_has_no_room_is_one_line(words):
    def status(redirect):
        command = f"{shlex.quote(sys.executable)} -m transformer_jax {words} {redirect}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        return done.returncode, done.stderr

    code, said = status("> >(exec <&-)")
    assert code == 0 and "Traceback" not in said
    assert status(">&-") == (0, "")
    full = 2, "error: writing the output: No space left on device\n"
    assert status("> /dev/full") == full
