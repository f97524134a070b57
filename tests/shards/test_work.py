"""Work goes on where it was, whoever does it and whenever it is killed."""

import errno
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.shards.storage import Storage
from transformer_jax.shards.work import DONE, PLAN, Work

SHARDS = [[("a.txt", 0, 4)], [("a.txt", 4, 9), ("b", 0, 3)], [("b", 3, 8)]]
FILES = [("a.txt", {"size": 9, "version": "1"}), ("b", {"size": 8, "version": "1"})]
BY = {"run": "r", "step": 7}


def begin(address, shards=SHARDS, files=FILES, **options):
    inputs = {"files": files, "single": False}
    return Work.begin(address, "test", shards, options, inputs, ".txt")


def make(parts, file):
    text = "".join(f"{part.file} {part.begin}\n" for part in parts)
    file.write_text(text)
    return {"lines": len(parts)}


def do_all(work, make=make, by=BY):
    return [work.do(shard, by, make) for shard in range(len(work))]


def contents(folder):
    """All files of a folder, hidden ones too, with what they hold."""
    folder = pathlib.Path(folder)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "out")


@pytest.fixture
def done(out):
    work = begin(out)
    do_all(work)
    return work


@pytest.mark.parametrize("form", ["{}", "memory:/{}"])
def test_shards_become_files_and_markers(form, out):
    address = form.format(out)
    work = begin(address)
    assert work.missing() == [0, 1, 2]
    markers = do_all(work)
    folder = Storage(address)
    assert folder.read("00001.txt") == b"a.txt 4\nb 0\n"
    assert folder.names(deep=True) == [
        *(f"0000{i}.txt" for i in range(3)),
        *(f"{DONE}/0000{i}.json" for i in range(3)),
        PLAN,
    ]
    again = Work.open(address)
    assert again.missing() == [] and again.markers() == markers
    assert [marker.counts for marker in markers] == [
        {"lines": 1}, {"lines": 2}, {"lines": 1}
    ]  # fmt: skip
    assert b"".join(again.contents(1, markers[1])) == b"a.txt 4\nb 0\n"
    if "memory" in form:
        folder.system.rm(folder.root, recursive=True)


def test_the_same_plan_goes_on_and_is_written_once(out):
    begin(out, beams=4).do(1, BY, make)
    before = contents(out)
    assert begin(out, beams=4).missing() == [0, 2]
    assert contents(out) == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"beams": 5}, r"\(options beams: 4 there, 5 now\)"),
        ({"beams": 4, "n_best": 2}, r"\(options n_best: None there, 2 now\)"),
        ({"beams": 4, "shards": SHARDS[:2]}, r"\(shards: 3 there, 2 now\)"),
        (
            {"beams": 4, "files": [FILES[0], ("b", {"size": 8, "version": "2"})]},
            r"\(inputs files b version: '1' there, '2' now\)",
        ),
        ({"beams": 4, "files": FILES[:1]}, r"\(inputs files: 2 there, 1 now\)"),
    ],
)
def test_another_plan_is_refused_and_the_first_difference_named(out, changes, says):
    begin(out, beams=4)
    before = contents(out)
    with pytest.raises(UserError, match=f"holds other work {says}: give the same"):
        begin(out, **changes)
    assert contents(out) == before


def test_a_folder_with_other_files_is_refused(out, tmp_path):
    (tmp_path / ".hidden").touch()
    begin(tmp_path)
    (tmp_path / PLAN).unlink()
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="is not empty, and holds no shards.json"):
        begin(tmp_path)
    with pytest.raises(UserError, match="is not empty, and holds no shards.json"):
        begin(tmp_path / "mine")


def test_two_processes_may_begin_at_the_same_time(out, monkeypatch):
    """The other one writes its plan after this one has looked for it."""
    look = Storage.names

    def names(folder, *arguments, **options):
        monkeypatch.setattr(Storage, "names", look)
        begin(out)
        return look(folder, *arguments, **options)

    monkeypatch.setattr(Storage, "names", names)
    assert len(begin(out)) == 3
    assert Storage.names is look


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', "\udcff"])
def test_a_plan_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / PLAN).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match="is no plan of this version: name another"):
        begin(tmp_path)


def test_a_folder_without_a_plan_is_not_opened(out):
    with pytest.raises(UserError, match="has no shards.json: name the --output"):
        Work.open(out)


def test_names_of_files_may_be_no_text(out):
    files = [("\udcff\n", {"size": 9, "version": "1"})]
    begin(out, files=files)
    assert begin(out, files=files).plan["inputs"]["files"][0][0] == "\udcff\n"


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"plan": 1}', "\udcff"])
def test_a_shard_whose_marker_is_lost_or_damaged_is_done_again(done, text):
    before = contents(done.folder.root)
    marker = pathlib.Path(done.folder.path(f"{DONE}/00001.json"))
    marker.unlink()
    if text is not None:
        marker.write_bytes(text.encode(errors="surrogateescape"))
    assert done.missing() == [1]
    with pytest.raises(UserError, match="1 of 3 shards are not done, such as 1: start"):
        done.markers()
    done.do(1, BY, make)
    assert contents(done.folder.root) == before


@pytest.mark.parametrize("content", [None, b"", b"a.txt 4\nb 0\nmore\n"])
def test_a_shard_whose_file_is_lost_or_has_another_size_is_done_again(done, content):
    before = contents(done.folder.root)
    file = pathlib.Path(done.folder.path("00001.txt"))
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert done.missing() == [1]
    done.do(1, BY, make)
    assert contents(done.folder.root) == before


def test_a_marker_of_another_plan_is_none(done, out, tmp_path):
    other = begin(tmp_path / "other", beams=9)
    do_all(other)
    shutil.copy(tmp_path / "other" / DONE / "00002.json", f"{out}/{DONE}")
    assert done.missing() == [2]


def test_a_file_that_was_changed_in_place_is_refused(done):
    file = pathlib.Path(done.folder.path("00001.txt"))
    file.write_bytes(file.read_bytes().swapcase())
    with pytest.raises(UserError, match="00001.txt does not hold the bytes that were"):
        list(done.contents(1, done.markers()[1]))


def test_a_shard_that_is_done_is_not_made_again(done):
    def refuse(parts, file):
        raise AssertionError

    assert do_all(done, refuse) == done.markers()


def test_work_that_another_run_has_begun_is_refused(done):
    with pytest.raises(
        UserError, match=r"shard 1 was done by another \(step: 7 there, 8 now\): give"
    ):
        done.do(1, {**BY, "step": 8}, make)


def test_shards_of_two_runs_are_not_joined(out):
    work = begin(out)
    do_all(work)
    pathlib.Path(work.folder.path(f"{DONE}/00001.json")).unlink()
    work.do(1, {**BY, "step": 8}, make)
    with pytest.raises(UserError, match="shard 1 was done by another"):
        work.markers()


def test_missing_shards_are_found_without_a_look_at_each(out, monkeypatch):
    work = begin(out, shards=[[("b", i, i + 1)] for i in range(1000)])
    work.do(7, BY, make)
    pathlib.Path(out, DONE, "notes.txt").touch()
    looks = []
    monkeypatch.setattr(Storage, "read", spy(Storage.read, looks))
    monkeypatch.setattr(Storage, "about", spy(Storage.about, looks))
    assert len(work.missing()) == 999 and 7 not in work.missing()
    assert set(looks) == {f"{DONE}/00007.json", "00007.txt"}


def spy(function, calls):
    def call(self, name):
        calls.append(name)
        return function(self, name)

    return call


def test_a_make_that_fails_leaves_nothing(out):
    work = begin(out)
    before = contents(out)

    def fail(parts, file):
        file.write_text("half")
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        work.do(0, BY, fail)
    assert contents(out) == before and os.listdir(out) == [PLAN]
    assert work.missing() == [0, 1, 2]


def test_a_kill_before_the_marker_leaves_the_shard_to_be_done(out, monkeypatch):
    work = begin(out)

    def fail(self, name, content):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", fail)
        with pytest.raises(KeyboardInterrupt):
            work.do(0, BY, make)
    assert os.path.exists(f"{out}/00000.txt") and work.missing() == [0, 1, 2]
    do_all(work)
    assert work.missing() == []


def test_unfinished_files_are_cleared_and_nothing_else(done, out, tmp_path):
    before = contents(out)
    killed, link = pathlib.Path(out, ".x7.tmp"), pathlib.Path(out, ".x8.tmp")
    killed.mkdir()
    (killed / "00000.txt").write_text("half")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    link.symlink_to(precious)
    for half in (".store.json.1.tmp", f"{DONE}/.00000.json.2.tmp"):
        pathlib.Path(out, half).touch()
    done.clear()
    assert not killed.exists() and (precious / "file").exists()
    link.unlink()
    assert contents(out) == before


def test_who_is_late_takes_what_another_has_done_and_cleared(out):
    work = begin(out)

    def make_late(parts, file):
        first = begin(out)
        do_all(first)
        first.clear()
        return make(parts, file)

    assert work.do(0, BY, make_late) == work.markers()[0]


def test_a_lost_file_that_nobody_made_is_an_error(out):
    def lose(parts, file):
        raise FileNotFoundError(errno.ENOENT, "of the model")

    with pytest.raises(FileNotFoundError, match="of the model"):
        begin(out).do(0, BY, lose)


@pytest.mark.parametrize("anew", [True, False])
def test_a_folder_that_is_begun_anew_meanwhile_is_not_added_to(out, anew):
    work = begin(out)

    def make_late(parts, file):
        os.remove(f"{out}/{PLAN}")
        if anew:
            begin(out, beams=1)
        return make(parts, file)

    with pytest.raises(UserError, match="shards.json was removed or replaced while"):
        work.do(0, BY, make_late)
    assert not os.path.exists(f"{out}/00000.txt")


def test_the_same_plan_written_by_another_at_the_same_time_is_no_reason_to_end(out):
    work = begin(out)
    content = pathlib.Path(out, PLAN).read_bytes()
    os.utime(f"{out}/{PLAN}", (0, 0))
    do_all(work)
    assert work.missing() == [] and pathlib.Path(out, PLAN).read_bytes() == content


PROCESS = """
import sys
from tests_of_work import begin, do_all
do_all(begin(sys.argv[1]))
"""


@pytest.mark.system
def test_processes_at_the_same_time_give_what_one_gives(done, out, tmp_path):
    copy = tmp_path / "tests_of_work.py"
    copy.write_text(pathlib.Path(__file__).read_text())
    path = os.pathsep.join([str(tmp_path), *sys.path])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path / "both")],
            env={**os.environ, "PYTHONPATH": path},
        )
        for _ in range(3)
    ]
    assert [process.wait(100) for process in started] == [0, 0, 0]
    assert contents(tmp_path / "both") == contents(out)


def test_a_full_disk_ends_the_shard_and_leaves_nothing(out, monkeypatch):
    work = begin(out)
    before = contents(out)

    def fail(self, name, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Storage, "adopt", fail)
    with pytest.raises(OSError, match="No space"):
        work.do(0, BY, make)
    assert contents(out) == before
