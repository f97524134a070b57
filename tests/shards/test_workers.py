"""Processes share shards: none is lost with its process, none is done for nothing."""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import types

import pytest
from absl import flags
from waiting import wait_for

from transformer_jax import cli, shards
from transformer_jax.base.errors import UserError
from transformer_jax.shards import workers
from transformer_jax.shards.work import Work

SHARDS = 5
# A command whose shards do what acts.json says of each of their tries.
COMMAND = """
import errno, json, os, pathlib, signal, sys, time

from absl import flags

from transformer_jax import cli, shards
from transformer_jax.base.errors import UserError
from transformer_jax.shards import workers
from transformer_jax.shards.work import Work

# A job in the background is started deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
HERE = pathlib.Path(__file__).parent
ACTS = json.loads((HERE / "acts.json").read_text())


def make(parts, file):
    shard = str(int(file.stem))
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    with (HERE / f"tries_{shard}").open("a") as tries:
        print(os.getpid(), *cores, file=tries)
    number = len((HERE / f"tries_{shard}").read_text().splitlines()) - 1
    act = [*ACTS.get(shard, []), *[""] * 9][number]
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "exit":
        sys.exit(7)
    if act == "mistake":
        raise UserError("the file a is gone: restore it")
    if act == "print":
        print("a print", flush=True)
        os.write(1, b"a write\\n")
    if act == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    if act == "wait":
        while not (HERE / "go").exists():
            time.sleep(0.01)
    file.write_text(shard)
    return {"lines": 10, "refused": int(act == "refuse")}


def open_maker(work):
    if "load" in ACTS:
        time.sleep(ACTS["load"])  # as long as the other processes need to start
        raise UserError("the run is gone: restore it")
    return workers.Maker(work, {"run": "r"}, make)


def begin():
    shards = [[("a", i, i + 1)] for i in range(5)]
    return Work.begin(str(HERE / "out"), "test", shards, {}, {}, ".txt")


def main(overrides):
    print("a greeting")
    shards.check_flags(flags.FLAGS)
    return workers.run(flags.FLAGS, begin, open_maker)


shards.define_flags(flags)
cli.run(main)
"""


@pytest.fixture
def start(tmp_path):
    """A function: starts the command, whose shards act as they are told."""
    (tmp_path / "command.py").write_text(COMMAND)
    path = os.pathsep.join([str(pathlib.Path(__file__).parents[2]), *sys.path])

    def start(*words, load=None, acts=None):
        told = {str(shard): text.split() for shard, text in (acts or {}).items()}
        told |= {"load": load} if load else {}
        (tmp_path / "acts.json").write_text(json.dumps(told))
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "command.py"), "--shards=5", *words],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def call(start):
    """A function: what the command has printed, on stderr, and its exit code."""

    def call(*words, lines="", **acts):
        process = start(*words, **acts)
        out, said = process.communicate(lines, timeout=100)
        return types.SimpleNamespace(out=out, said=said, code=process.returncode)

    return call


@pytest.fixture
def tries(tmp_path):
    """A function: the process of each try of a shard, and its cores."""

    def tries(shard):
        lines = (tmp_path / f"tries_{shard}").read_text().splitlines()
        return [tuple(map(int, line.split())) for line in lines]

    return tries


def flag_values(*words):
    values = flags.FlagValues()
    names = "DEFINE_integer", "DEFINE_string"
    define = {
        name: functools.partial(getattr(flags, name), flag_values=values)
        for name in names
    }
    shards.define_flags(types.SimpleNamespace(**define))
    values(["command", *words])
    return values


@pytest.fixture
def work(tmp_path):
    shards = [[("a", i, i + 1)] for i in range(SHARDS)]
    return Work.begin(str(tmp_path / "out"), "test", shards, {}, {}, ".txt")


class Made(list):
    """The shards that a maker of this process has made."""

    def __call__(self, work):
        return workers.Maker(work, {"run": "r"}, self.make)

    def make(self, parts, file):
        self.append(int(file.stem))
        file.touch()
        return {"lines": 10}


@pytest.fixture
def run(work):
    """A function: runs a share in this process; returns the code and what was made."""

    def run(*words, **options):
        made = Made()
        args = flag_values("--shards=5", *words)
        return workers.run(args, lambda: work, made, **options), made

    return run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--workers=2"], "--workers shares shards: give their number: --shards"),
        (["--worker=0/2"], "--worker shares shards: give their number"),
        (["--shards=-1"], "--shards=-1: must be 1 to 100,000"),
        (["--shards=100001"], "--shards=100001: must be 1 to 100,000"),
        (["--shards=2", "--workers=-1"], "--workers=-1: must be at least 1"),
        (
            ["--shards=2", "--workers=2", "--worker=0/2"],
            "--workers starts processes with a --worker each: give one",
        ),
        *(
            (["--shards=2", f"--worker={share}"], "give a share such as 0/8 to 7/8")
            for share in ("8/8", "0/0", "-1/8", "1", "1/8x", "all")
        ),
    ],
)
def test_flags_that_make_no_sense_are_refused(words, says):
    with pytest.raises(UserError, match=re.escape(says)):
        shards.check_flags(flag_values(*words))


@pytest.mark.parametrize("share", ["7/8", "stdin", "plan"])
def test_other_flags_are_taken(share):
    shards.check_flags(flag_values("--shards=2", f"--worker={share}"))
    shards.check_flags(flag_values())


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_are_all_shards_and_each_once(run, work, count):
    shares = []
    for index in range(count):
        code, made = run(f"--worker={index}/{count}")
        assert code == 0
        shares.append(list(made))
    assert shares == [list(range(i, SHARDS, count)) for i in range(count)]
    assert work.missing() == []


def test_a_share_does_not_change_with_what_is_done(run, work):
    work.do(0, {"run": "r"}, Made().make)
    assert run("--worker=1/2") == (0, [1, 3])


def test_what_another_run_has_begun_is_refused_before_more_is_made(run, work):
    work.do(2, {"run": "another"}, Made().make)
    with pytest.raises(UserError, match="shard 2 was done by another .run: "):
        run("--worker=0/4")
    assert work.missing() == [0, 1, 3, 4]


def test_without_a_share_all_is_done_and_a_second_start_loads_nothing(run, work):
    assert run() == (0, [0, 1, 2, 3, 4])

    def refuse(work):
        raise AssertionError

    for words in ([], ["--workers=2"], ["--worker=0/2"]):
        args = flag_values("--shards=5", *words)
        assert workers.run(args, lambda: work, refuse) == 0


def test_the_plan_is_shown_and_nothing_done(run, capsys):
    assert run("--worker=plan") == (0, [])
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"shards": 5, "missing": [0, 1, 2, 3, 4]}


def test_work_is_completed_whenever_all_is_done_and_then_cleared(run, work, tmp_path):
    (tmp_path / "out" / ".killed.tmp").mkdir()
    completed = []

    def complete(work, markers):
        completed.append((len(markers), (tmp_path / "out" / ".killed.tmp").exists()))

    run("--worker=0/2", complete=complete)
    assert completed == []
    run("--worker=1/2", complete=complete)
    run(complete=complete)
    assert completed == [(5, True), (5, False)]


def test_a_share_says_how_much_of_the_work_is_done(run, caplog):
    caplog.set_level("INFO", "transformer_jax")
    run("--worker=0/2")
    assert "3 done in " in caplog.text and "30 lines" in caplog.text
    assert "3 of 5 are done" in caplog.messages[-1]
    caplog.clear()
    run()
    assert "3 of 5 are done already" in caplog.messages[0]
    assert "done       5 shards in " in caplog.messages[-1]


def test_progress_is_lines_now_and_then_without_a_terminal(run, caplog, monkeypatch):
    monkeypatch.setattr(workers, "QUIET", -1)
    monkeypatch.setattr(cli, "is_terminal", lambda: False)
    caplog.set_level("INFO", "transformer_jax")
    run()
    found = [m for m in caplog.messages if re.search(r"\d of 5, [\d,]+ lines/s, ", m)]
    assert len(found) == 5 and "5 of 5" in found[-1]


def test_progress_is_a_bar_on_a_terminal(run, caplog, capsys, monkeypatch):
    monkeypatch.setattr(workers, "QUIET", -1)
    monkeypatch.setattr(cli, "is_terminal", lambda: True)
    caplog.set_level("INFO", "transformer_jax")
    run()
    assert re.search(r"1/5 shards, .*left", capsys.readouterr().err)
    assert "of 5, " not in caplog.text


def test_refused_lines_are_counted_and_give_code_1(run, work, caplog):
    caplog.set_level("INFO", "transformer_jax")
    for shard in (1, 2):
        counts = {"lines": 10, "refused": shard}
        work.do(shard, {"run": "r"}, lambda parts, file, c=counts: file.touch() or c)
    for _ in range(2):  # and again when nothing is left to do
        assert run()[0] == 1
        assert "5 shards in " in caplog.messages[-1]
        assert caplog.messages[-1].endswith(", 3 lines refused")
    assert run("--worker=0/1")[0] == 0  # an engine would repeat what ends with 1


@pytest.mark.parametrize(
    ("count", "shares"),
    [(2, [[0, 1], [2, 3, 4]]), (5, [[0], [1], [2], [3], [4]]), (6, [[]] * 6)],
)
def test_cores_are_shared_out_if_each_process_can_have_one(monkeypatch, count, shares):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)), raising=False)
    assert workers._split_cores(count) == shares
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert workers._split_cores(count) == [[]] * count


@pytest.mark.system
def test_shards_are_asked_for_on_stdin_and_answered_with_json(call, tmp_path):
    done = call("--worker=stdin", lines="2\n0\n2\n", acts={0: "print"})
    assert done.code == 0
    greeting, *answers = done.out.splitlines()
    assert greeting == "a greeting"
    assert [json.loads(line) for line in answers] == [
        {"shard": shard, "lines": 10, "refused": 0} for shard in (2, 0, 2)
    ]
    assert "a print\na write\n" in done.said
    assert {p.name for p in (tmp_path / "out").glob("*.txt")} == {
        "00000.txt", "00002.txt"
    }  # fmt: skip


@pytest.mark.system
def test_a_process_says_more_on_stdin_only_if_it_is_told_to(call):
    assert call("--worker=stdin").said == ""


@pytest.mark.system
def test_processes_share_the_shards_whatever_they_print(call, tries, tmp_path):
    done = call("--workers=2", acts={0: "print", 4: "print"})
    assert done.code == 0, done.said
    assert sorted((tmp_path / "out").glob("*.txt"))[4].read_text() == "4"
    found = [tries(shard) for shard in range(SHARDS)]
    assert all(len(one) == 1 for one in found)
    cores = {one[0][0]: one[0][1:] for one in found}
    assert len(cores) == 2
    if sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1:
        first, second = cores.values()
        assert not set(first) & set(second)
    assert done.said.count("a greeting") == 2 and "\r" not in done.said
    assert "5 done in " in done.said and "50 lines" in done.said
    assert "5 shards in " in done.said


@pytest.mark.system
def test_the_shard_of_a_process_that_dies_is_given_to_another(call, tries):
    done = call("--workers=1", acts={1: "kill", 3: "exit kill"})
    assert done.code == 0, done.said
    assert "a process ended with -9 in shard 1: once more" in done.said
    assert "a process ended with 7 in shard 3: once more" in done.said
    first, second = tries(1)
    assert first[0] != second[0]
    assert [len(tries(shard)) for shard in range(SHARDS)] == [1, 2, 1, 3, 1]
    assert "Traceback" not in done.said


@pytest.mark.system
def test_a_shard_is_given_up_after_three_tries_and_the_others_done(call, tries):
    done = call("--workers=2", acts={1: "kill kill kill"})
    assert done.code == 1
    assert "shard 1: 3 processes ended in it" in done.said
    assert "4 of 5 are done" in done.said
    assert len(tries(1)) == workers.TRIES
    done = call("--workers=2")
    assert done.code == 0 and "4 of 5 are done already" in done.said
    assert [len(tries(shard)) for shard in range(SHARDS)] == [1, 4, 1, 1, 1]


@pytest.mark.system
def test_a_mistake_in_a_shard_ends_all_with_its_message_and_code(call):
    done = call("--workers=2", acts={3: "mistake"})
    assert done.code == 2
    assert done.said.count("error: ") == 1 and "Traceback" not in done.said
    assert "error: the file a is gone: restore it" in done.said


@pytest.mark.system
def test_a_full_disk_is_a_message_of_one_line(call):
    done = call("--workers=2", acts={3: "full"})
    assert done.code == 2 and "Traceback" not in done.said
    assert "00003.txt: No space left on device" in done.said


@pytest.mark.system
def test_a_mistake_that_all_processes_make_is_said_once(call):
    done = call("--workers=3", load=0.5)
    assert done.code == 2
    assert done.said.count("the run is gone: restore it") == 1


@pytest.mark.system
def test_a_mistake_on_stdin_is_an_answer(call):
    done = call("--worker=stdin", lines="3\n", acts={3: "mistake"})
    assert done.code == 2 and done.said == ""
    answer = json.loads(done.out.splitlines()[-1])
    assert answer == {"mistake": ["the file a is gone: restore it"]}


@pytest.mark.system
def test_refused_lines_of_other_processes_give_code_1(call):
    done = call("--workers=2", acts={3: "refuse"})
    assert done.code == 1 and "1 lines refused" in done.said


@pytest.mark.system
def test_processes_end_when_their_parent_is_killed(start, call, tries, tmp_path):
    process = start("--workers=1", acts={0: "wait"})
    wait_for(lambda: (tmp_path / "tries_0").exists() and tries(0))
    process.kill()
    process.wait()
    (tmp_path / "go").touch()
    process.communicate()  # until the other has closed its stderr
    assert not list(tmp_path.glob("tries_[1-9]"))
    assert call("--workers=1").code == 0


@pytest.mark.system
def test_an_interrupt_ends_the_processes_too(start, tries, tmp_path):
    process = start("--workers=1", acts={0: "wait"})
    wait_for(lambda: (tmp_path / "tries_0").exists() and tries(0))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(tries(0)[0][0], 0)
