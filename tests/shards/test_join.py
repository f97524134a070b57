"""The answers of shards are joined into what one process would have written."""

import json
import pathlib
import types

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.shards import __main__ as command
from transformer_jax.shards.cut import Corpus
from transformer_jax.shards.work import Work

TEXTS = {
    "a.txt": b"one\n\ntwo",
    "b/c.gz": b"three\nfour\n",
    "b/d": b"five\n" * 9,
    "e.txt": b"",
    "f/g.gz": b"six\n",
    "f/g": b"seven\n",
    "h.gz": b"eight\n",
    "h/i": b"nine\n",
}


@pytest.fixture
def corpus(tmp_path):
    """A folder of files, of which .gz is only in the names."""
    for name, text in TEXTS.items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return tmp_path / "corpus"


@pytest.fixture
def begin(tmp_path):
    """A function: begins a work whose answers are the lines in upper case."""

    def begin(address, shards=4, out=f"{tmp_path}/out"):
        corpus = Corpus.find(str(address))
        inputs = {"files": corpus.files, "single": corpus.single}
        work = Work.begin(out, "test", corpus.cut(shards), {}, inputs, ".txt")

        def make(parts, file):
            counts = []
            with file.open("wb") as sink:
                for part in parts:
                    with corpus.open(part) as source:
                        lines = source.read().splitlines()
                    sink.writelines(line.upper() + b"\n" for line in lines)
                    counts.append(len(lines))
            return {"lines": sum(counts), "by_part": counts}

        return types.SimpleNamespace(
            work=work, do=lambda shard: work.do(shard, {"run": "r"}, make)
        )

    return begin


@pytest.fixture
def do_all(begin):
    def do_all(address, shards=4, **options):
        begun = begin(address, shards, **options)
        for shard in range(len(begun.work)):
            begun.do(shard)
        return begun.work

    return do_all


@pytest.fixture
def call(run_main):
    """A function: the exit code of the command, and what it prints."""

    def call(*words):
        codes = []
        module = types.SimpleNamespace(
            define_flags=command.define_flags,
            main=lambda overrides: codes.append(command.main(overrides)),
        )
        out = run_main(module, *words)
        return codes[0], out

    return call


def files_below(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file()
    }


def hidden(folder):
    return list(pathlib.Path(folder).glob(".*"))


def test_the_status_is_json_and_the_code_says_whether_all_is_done(begin, corpus, call):
    begun = begin(corpus)
    out = begun.work.folder.address
    begun.do(2)
    code, shown = call("--work", out)
    assert code == 1 and json.loads(shown) == {"shards": 4, "missing": [0, 1, 3]}
    for shard in (0, 1, 3):
        begun.do(shard)
    code, shown = call("--work", out)
    assert code == 0 and json.loads(shown) == {"shards": 4, "missing": []}


@pytest.mark.parametrize("shards", [1, 3, 9, 1000])
def test_the_answers_to_a_folder_have_its_names_and_lines(
    do_all, corpus, call, tmp_path, shards, monkeypatch
):
    monkeypatch.setattr("transformer_jax.shards.work.COPIED", 7)
    work = do_all(corpus, shards)
    target = tmp_path / "new" / "answers"
    assert call("--work", work.folder.address, "--join", target)[0] == 0
    upper = {name: text.upper() for name, text in TEXTS.items()}
    # A file is as it would be unpacked, unless that name is taken.
    upper["b/c"] = upper.pop("b/c.gz")
    assert files_below(target) == {**upper, "a.txt": b"ONE\n\nTWO\n"}
    assert not hidden(target.parent)


@pytest.mark.parametrize("name", ["a.txt", "b/c.gz"])
def test_the_answers_to_a_file_are_a_file(do_all, corpus, call, tmp_path, name):
    work = do_all(corpus / name)
    target = tmp_path / "answers.txt"
    assert call("--work", work.folder.address, "--join", target) == (0, "")
    lines = TEXTS[name].upper().splitlines()
    assert target.read_bytes() == b"".join(line + b"\n" for line in lines)


def test_answers_are_joined_out_of_a_store_of_objects(do_all, corpus, call, tmp_path):
    work = do_all(corpus / "b" / "d", out=f"memory:/{tmp_path}/out")
    call("--work", work.folder.address, "--join", tmp_path / "answers")
    assert (tmp_path / "answers").read_bytes() == b"FIVE\n" * 9
    work.folder.system.rm(work.folder.root, recursive=True)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_there_is_not_written_over(do_all, corpus, call, tmp_path, kind):
    work, target = do_all(corpus), tmp_path / "there"
    target.touch() if kind == "file" else target.mkdir()
    with pytest.raises(UserError, match="it is there already: name a new one"):
        call("--work", work.folder.address, "--join", target)


def test_a_store_of_objects_is_no_target(do_all, corpus, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = do_all(corpus)
    with pytest.raises(UserError, match="name a file or folder of this machine"):
        call("--work", work.folder.address, "--join=gs://bucket/answers")
    assert not (tmp_path / "gs:").exists()


def test_work_that_is_not_done_is_not_joined(begin, corpus, call, tmp_path):
    begun = begin(corpus)
    begun.do(1)
    with pytest.raises(UserError, match="3 of 4 shards are not done, such as 0: start"):
        call("--work", begun.work.folder.address, "--join", tmp_path / "answers")
    assert not (tmp_path / "answers").exists() and not hidden(tmp_path)


@pytest.mark.parametrize("shard", [0, 3])
def test_changed_bytes_are_not_joined(do_all, corpus, call, tmp_path, shard):
    work = do_all(corpus)
    file = tmp_path / "out" / f"0000{shard}.txt"
    file.write_bytes(file.read_bytes().lower())
    with pytest.raises(UserError, match=f"remove it.* to do shard {shard}"):
        call("--work", work.folder.address, "--join", tmp_path / "answers")
    assert not (tmp_path / "answers").exists() and not hidden(tmp_path)


def test_a_check_names_the_shards_whose_bytes_have_changed(
    do_all, corpus, call, caplog
):
    address = do_all(corpus).folder.address
    code, shown = call("--work", address, "--check")
    assert (code, json.loads(shown)["damaged"]) == (0, [])
    file = pathlib.Path(address) / "00002.txt"
    file.write_bytes(file.read_bytes().lower())  # of the same size
    (pathlib.Path(address) / "00001.txt").unlink()
    assert call("--work", address)[0] == 1  # one is missing
    code, shown = call("--work", address, "--check")
    assert json.loads(shown) == {"shards": 4, "missing": [1], "damaged": [2]}
    assert code == 1 and "00002.txt does not hold the bytes that" in caplog.text


def test_a_count_that_is_too_small_is_noticed(do_all, corpus, call, tmp_path):
    work = do_all(corpus)
    marker = tmp_path / "out" / "done" / "00003.json"
    changed = json.loads(marker.read_text())
    changed["counts"]["by_part"][-1] -= 1
    marker.write_text(json.dumps(changed))
    with pytest.raises(UserError, match="a shard has more lines than counted"):
        call("--work", work.folder.address, "--join", tmp_path / "answers")


def test_what_is_no_text_is_not_joined(call, tmp_path):
    """Such as the shards of a store, whose parts are counted too."""
    inputs = {"files": [("a", "version", "")]}
    out = str(tmp_path / "store")
    work = Work.begin(out, "test", [[("a", 0, 1)]], {}, inputs, ".safetensors")
    work.do(0, {}, lambda parts, file: file.touch() or {"lines": 1, "by_part": [1]})
    with pytest.raises(UserError, match="its shards are not lines to be joined"):
        call("--work", out, "--join", tmp_path / "answers")


def test_a_folder_without_work_is_refused(call, tmp_path):
    with pytest.raises(UserError, match="--work is missing: the --output of a command"):
        call()
    with pytest.raises(UserError, match="has no shards.json"):
        call("--work", tmp_path)
