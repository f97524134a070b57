"""A corpus that is answered shard by shard has the answers of the plain command."""

import gzip
import json
import os
import subprocess
import sys
import types

import pytest

from transformer_jax import cli, predict, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import streams
from transformer_jax.runs import run as runs
from transformer_jax.shards import __main__ as shards_command

LONG = "palavra " * 500


@pytest.fixture(scope="module")
def lines(run):
    source = tasks.find(run.config.task).source(run.config)
    found = [r["source"] for r in source.read("test")]
    return [*found, "", "O gato\r", *found[:5]]


@pytest.fixture
def corpus(lines, tmp_path):
    """Two files of a folder, one of them packed, and an empty one."""
    folder = tmp_path / "a corpus"
    (folder / "más").mkdir(parents=True)
    (folder / "a.txt").write_text("\n".join(lines), newline="")
    packed = gzip.compress("\n".join([*lines[:4], LONG]).encode())
    (folder / "más" / "b.gz").write_bytes(packed)
    (folder / "empty").touch()
    return folder


@pytest.fixture
def call(run, tiny_run, run_main, monkeypatch):
    """A function: the exit code of a command that answers with the run."""
    loads = []

    def load(*given, **options):
        loads.append(given)
        return run

    monkeypatch.setattr(runs, "load", load)

    opened = []
    open_file = cli.open_file
    monkeypatch.setattr(
        cli, "open_file", lambda *given: opened.append(open_file(*given)) or opened[-1]
    )

    def call(module, *words):
        codes = []
        main = types.SimpleNamespace(
            define_flags=module.define_flags,
            main=lambda overrides: codes.append(module.main(overrides)),
        )
        run_main(main, *words)
        while opened:  # which the end of the process closes
            opened.pop().close()
        return codes[0]

    def answer(*words):
        return call(predict, "--workdir", tiny_run, *words)

    answer.join = lambda out, target: call(
        shards_command, "--work", out, "--join", target
    )
    answer.loads = loads
    return answer


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("form", "shards"),
    [
        ("text", 4),
        pytest.param("text", 1, marks=pytest.mark.system),
        pytest.param("jsonl", 4, marks=pytest.mark.system),
    ],
)
def test_joined_answers_are_those_of_the_plain_command(
    call, corpus, tmp_path, form, shards
):
    words = [f"--format={form}"]
    out, joined = tmp_path / "out", tmp_path / "joined"
    code = call("--input", corpus, "--output", out, f"--shards={shards}", *words)
    assert code == 1  # a line is refused
    assert call.join(out, joined) == 0
    for name, answers in (("a.txt", "a.txt"), ("más/b.gz", "más/b")):
        call("--input", corpus / name, "--output", tmp_path / "plain", *words)
        found, plain = joined / answers, tmp_path / "plain"
        if form == "text":
            assert found.read_text() == plain.read_text()
            continue
        for one, other in zip(entries(found), entries(plain), strict=True):
            if "score" in other:  # rounded differently, beside other lines
                other["score"] = pytest.approx(other["score"], rel=1e-4)
            assert one == other
    assert (joined / "empty").read_text() == ""


@pytest.mark.parametrize("mode", ["--score", "--embed"])
def test_lines_are_scored_and_embedded_like_by_the_plain_command(
    call, lines, tmp_path, mode
):
    text = tmp_path / "pairs"
    pairs = [f"{line.strip()}\tThe cat sleeps." for line in lines[:9]]
    text.write_text("\n".join(pairs) + "\n")
    words = mode, "--format=jsonl", "--input", text
    assert call(*words, "--output", tmp_path / "out", "--shards=3") == 0
    call.join(tmp_path / "out", tmp_path / "joined")
    call(*words, "--output", tmp_path / "plain")
    found, plain = entries(tmp_path / "joined"), entries(tmp_path / "plain")
    for one, other in zip(found, plain, strict=True):
        assert one.keys() == other.keys() and one["input"] == other["input"]
        key = mode.removeprefix("--").replace("embed", "vector")
        assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-4)


def test_a_second_start_loads_nothing_and_says_again_what_was_refused(
    call, corpus, tmp_path, caplog
):
    words = "--input", corpus, "--output", tmp_path / "out", "--shards=3"
    assert call(*words) == 1 and len(call.loads) == 1
    caplog.set_level("INFO", "transformer_jax")
    caplog.clear()
    assert call(*words) == 1 and len(call.loads) == 1
    assert caplog.messages[-1].endswith(", 1 lines refused")


def test_a_refused_line_is_named_by_its_file_and_number(call, lines, tmp_path, caplog):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a").write_text("\n".join([*lines[:3], LONG]) + "\n")
    (folder / "b").write_text(LONG + "\n")
    call("--input", folder, "--output", tmp_path / "out", "--shards=1")
    refused = [m for m in caplog.messages if "pieces are more than" in m]
    assert refused[0].startswith("a from byte 0: line 4: ")
    assert refused[1].startswith("b from byte 0: line 1: ")


def test_a_line_without_an_end_is_named_by_its_file(call, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "LONGEST", 900)
    (tmp_path / "a b").write_text("O gato.\n" + "x" * 2000)
    with pytest.raises(UserError, match="^a b from byte 0: line 2 has more than 900"):
        call("--input", tmp_path / "a b", "--output", tmp_path / "out", "--shards=1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--beams=3"], "options beams: 2 there, 3 now"),
        (["--alpha=0.1"], "options alpha: None there, 0.1 now"),
        (["--format=jsonl"], "suffix: '.txt' there, '.jsonl' now"),
        (["--on_long=split"], "options on_long: 'refuse' there, 'split' now"),
        (["--shards=3"], "shards: 2 there, 3 now"),
    ],
)
def test_other_options_than_those_it_was_begun_with_are_refused(
    call, corpus, tmp_path, changes, says
):
    words = ["--input", corpus / "a.txt", "--output", tmp_path / "out", "--beams=2"]
    words += ["--shards=2"]
    call(*words, "--worker=plan")
    with pytest.raises(UserError, match=f"holds other work.*{says}.*: give the same"):
        call(*words, *changes)


def test_a_corpus_that_changes_between_two_starts_is_refused(call, corpus, tmp_path):
    words = "--input", corpus, "--output", tmp_path / "out", "--shards=2"
    call(*words, "--worker=plan")
    os.utime(corpus / "a.txt", (0, 0))
    with pytest.raises(UserError, match="inputs files a.txt version: .* there, '0'"):
        call(*words)


def test_answers_of_other_parameters_are_refused(
    call, corpus, tmp_path, run, monkeypatch
):
    words = "--input", corpus / "a.txt", "--output", tmp_path / "out", "--shards=2"
    call(*words, "--worker=0/2")
    monkeypatch.setattr(run, "params", {**run.params, "more": run.params})
    with pytest.raises(UserError, match="was done by another .parameters: .*: give"):
        call(*words, "--worker=1/2")
    assert not (tmp_path / "out" / "00001.txt").exists()


def test_lines_that_are_searched_are_the_same_in_all_shards(call, corpus, tmp_path):
    among = tmp_path / "among"
    words = ["--input", corpus / "a.txt", "--output", tmp_path / "out", "--shards=2"]
    words += ["--among", among]
    among.write_text("O gato.\n")
    call(*words, "--worker=0/2")
    among.write_text("O gato dorme.\n")
    with pytest.raises(UserError, match="was done by another .among: "):
        call(*words, "--worker=1/2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--shards=-1"], "--shards=-1: must be 1 to 100,000"),
        (["--include=p"], "--include has a line per line of the input: leave out"),
        (["--prefixes=p"], "--prefixes has a line per line of the input: leave out"),
        (["--encoding=utf-16"], "the input is cut at newlines of one byte: convert"),
        (["--input="], "--input is missing: with --shards, a file or folder"),
        (["--output="], "--output is missing: with --shards, a file or folder"),
        (["--input=absent"], "absent holds no file: name a file, or a folder"),
        (["--output={corpus}/out"], "all of whose files are read: name a folder"),
        (["--output={corpus}/a.txt"], "all of whose files are read"),
        (["--output={corpus}/..", "--input={corpus}/a.txt"], "is not empty, and"),
    ],
)
def test_what_cannot_be_done_by_shards_is_refused(call, corpus, tmp_path, words, says):
    (tmp_path / "file").touch()
    given = "--input", corpus, "--output", tmp_path / "out", "--shards=2"
    with pytest.raises(UserError, match=says):
        call(*given, *(word.format(corpus=corpus) for word in words))
    assert not (tmp_path / "out").exists() and not (corpus / "out").exists()


def test_without_shards_the_output_is_a_file(call, corpus, tmp_path):
    words = "--input", corpus / "a.txt", "--output", tmp_path / "out", "--shards=0"
    assert call(*words) == 0
    assert (tmp_path / "out").is_file()


@pytest.mark.system
def test_processes_of_the_command_give_what_one_gives(call, tiny_run, corpus, tmp_path):
    words = ["--input", corpus, "--shards=4"]
    assert call(*words, "--output", tmp_path / "one") == 1
    command = [sys.executable, "-m", "transformer_jax.predict", "--workdir", tiny_run]
    done = subprocess.run(
        [*command, *words, "--output", tmp_path / "two", "--workers=2"],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "más/b.gz from byte 0: line 5: 2501 pieces" in done.stderr
    one, two = (
        {p.name: p.read_bytes() for p in (tmp_path / name).rglob("*.txt")}
        for name in ("one", "two")
    )
    assert one == two and len(one) == 4
