"""Launchers of shards: what is killed and started again gives the bytes of one process.

KILLS=20 kills as many processes per launcher. COMMAND="prepare --config=… --shards=…",
or predict, does it with other data than made-up text.
"""

import collections
import contextlib
import importlib
import importlib.util
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types

import pytest
import yaml
from waiting import wait_for

from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.shards import workers
from transformer_jax.shards.work import PLAN, Work

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
KILLS = int(os.environ.get("KILLS", "4"))
MARK = "SHARDS_TEST"  # a variable by which the processes of a launcher are found
PACE = 3.0  # seconds between two kills, at most, once enough shards are done


@pytest.fixture(scope="module")
def environment():
    """A fresh shell's, with this Python first and one device."""
    settings = ("JAX_", "XLA_", "PJRT_", "SLURM_", "RAY_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(settings)}
    here = str(pathlib.Path(sys.executable).parent)
    return {
        **kept,
        "PATH": os.pathsep.join([here, kept.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
    }


@pytest.fixture(scope="module")
def words_of(tmp_path_factory):
    """A function: the words by which `prepare` encodes made-up text into shards."""
    folder = tmp_path_factory.mktemp("text")
    dice = random.Random(0)
    names = ["".join(dice.choices("abcdefghij", k=6)) for _ in range(300)]

    def write(size, shards):
        for number in range(3):
            lines = (" ".join(dice.choices(names, k=12)) + "\n" for _ in range(size))
            (folder / f"{number}.txt").write_text("".join(lines))
        options = {
            "data.source": "text",
            "data.train_text": f"{folder}/*.txt",
            "data.validation_text": f"{folder}/0.txt",
            "data.test_text": f"{folder}/0.txt",
        }
        given = [f"--config.{key}={value}" for key, value in options.items()]
        config = ROOT / "configs" / "language.py"
        return ["prepare", f"--config={config}", *given, f"--shards={shards}"]

    return write


@pytest.fixture
def answers_of(tiny_run, tmp_path):
    """A function: the words by which a tiny run answers made-up lines in shards."""

    def write(size, shards):
        (tmp_path / "lines").write_text("".join(f"o gato {i}\n" for i in range(size)))
        given = [f"--workdir={tiny_run}", f"--input={tmp_path / 'lines'}"]
        return ["predict", *given, f"--shards={shards}"]

    return write


def execute(words, environment, *more, code=0):
    """Run a command of the package to its end; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"transformer_jax.{words[0]}", *words[1:], *more],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def contents(folder):
    """Return the bytes of all files of a folder, hidden ones too."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_plan_has_the_tokenizers(words_of, environment, tmp_path):
    words = [*words_of(size=50, shards=3), f"--output={tmp_path / 'out'}"]
    planned = execute(words, environment, "--worker=plan")
    assert json.loads(planned) == {"shards": 3, "missing": [0, 1, 2]}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"shards.json", "tokenizer"}
    assert (tmp_path / "out" / "tokenizer" / ".learnt").exists()


def test_a_worker_ends_when_its_launcher_has_died(environment):
    code = (
        "import sys, time; from transformer_jax.shards import workers;"
        "workers._end_without_reader(sys.stdout);"
        "print('up', flush=True); time.sleep(100)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    process.stdout.close()
    assert process.wait(50) == 1


def test_what_killed_processes_left_is_removed_at_the_end(tmp_path):
    work = Work.begin(str(tmp_path), "a test", [[("a", 0, 1)]], {}, {}, ".txt")
    (tmp_path / ".x.tmp" / "inside").mkdir(parents=True)
    for folder in ("done", "tokenizer"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ".00000.json.ab.tmp").touch()
    work.clear()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {PLAN}
    assert not (tmp_path / ".x.tmp").exists()


@pytest.mark.parametrize(
    ("task", "worker"),
    [({}, "plan"), ({"ID": "3", "COUNT": "100"}, "3/100")],
    ids=["plan", "task"],
)
@pytest.mark.parametrize(("code", "queued"), [(137, True), (1, False), (2, False)])
def test_a_task_of_the_array_does_its_share(
    environment, tmp_path, task, worker, code, queued
):
    programs = {
        "srun": 'exec "$@"',
        "python": f'printf "%s\\n" "$@" >{tmp_path}/given; exit {code}',
        "scontrol": f'echo "$@" >{tmp_path}/queued',
    }
    variables = {f"SLURM_ARRAY_TASK_{name}": value for name, value in task.items()}
    variables |= {"PATH": write_stubs(tmp_path / "stubs", programs, environment)}
    variables |= {"SLURM_JOB_ID": "7"}
    command = ["bash", LAUNCH / "shards.sbatch", "predict", "--input", "/a b"]
    done = subprocess.run(command, env=environment | variables)
    assert done.returncode == code
    words = ["-m", "transformer_jax.predict", "--input", "/a b", f"--worker={worker}"]
    assert (tmp_path / "given").read_text().splitlines() == words
    assert (tmp_path / "queued").exists() == queued
    again = environment | variables | {"SLURM_RESTART_COUNT": "20"}
    (tmp_path / "queued").unlink(missing_ok=True)
    assert subprocess.run(command, env=again).returncode == code
    assert not (tmp_path / "queued").exists()


@pytest.fixture(scope="module")
def jobs():
    """The two jobs of Kubernetes: the one that plans, and the one that works."""
    text = (LAUNCH / "shards.yaml").read_text()
    plan, work = yaml.safe_load_all(text)
    for job, step in ((plan, "plan"), (work, "work")):
        assert job["metadata"]["labels"] == {"step": step}
        assert f"kubectl apply -f launch/shards.yaml -l step={step}\n" in text
    return plan["spec"], work["spec"]


def container_of(job):
    [container] = job["template"]["spec"]["containers"]
    return container


def test_the_jobs_of_kubernetes_agree_with_each_other(jobs):
    plan, work = jobs
    assert work["completionMode"] == "Indexed" and work["backoffLimitPerIndex"] > 0
    assert work["parallelism"] <= work["completions"]
    *words, last = container_of(plan)["command"]
    assert last == "--worker=plan"
    share = f"--worker=$(JOB_COMPLETION_INDEX)/{work['completions']}"
    assert container_of(work)["command"] == [*words, share]
    for job in jobs:
        mistake = job["podFailurePolicy"]["rules"][0]
        assert mistake["action"] == "FailJob"
        assert mistake["onExitCodes"]["values"] == [cli.USER_MISTAKE]
        assert mistake["onExitCodes"]["containerName"] == container_of(job)["name"]
        mounts = {mount["name"] for mount in container_of(job)["volumeMounts"]}
        assert mounts == {v["name"] for v in job["template"]["spec"]["volumes"]}


@pytest.mark.system
def test_the_pods_of_kubernetes_do_all_shards(jobs, words_of, environment, tmp_path):
    words = words_of(size=50, shards=7)
    execute(words, environment, f"--output={tmp_path / 'alone'}")
    plan, work = (container_of(job)["command"][-1] for job in jobs)
    execute(words, environment, f"--output={tmp_path / 'out'}", plan)
    for index in range(3):
        place = work.replace("$(JOB_COMPLETION_INDEX)", str(index))
        place = place.replace("/100", "/3")
        execute(words, environment, f"--output={tmp_path / 'out'}", place)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


@pytest.mark.system
@pytest.mark.parametrize("command", ["prepare", "predict"])
def test_any_number_of_workers_gives_the_same_bytes(
    command, words_of, answers_of, environment, tmp_path
):
    words = words_of(200, 9) if command == "prepare" else answers_of(40, 9)
    found = []
    for count in (0, 1, 2, 4):
        output = tmp_path / f"out_{count}"
        execute(words, environment, f"--output={output}", f"--workers={count}")
        found.append(contents(output))
    assert found[0].keys() >= {"shards.json", "done/00008.json"}
    assert found == found[:1] * 4


class Scripted:
    """Stands in for `Actors`: what each call gives, by shard; None is a start."""

    def __init__(self, **answers):
        self.answers = {int(name[1:]): given for name, given in answers.items()}
        self.calls, self.given, self.has_cluster = [], [], True
        self.at_start = []

    def are_working(self):
        return any(shard is not None for shard in self.calls)

    def count_starting(self):
        return self.calls.count(None)

    def start(self, wanted):
        self.calls += [None] * (wanted - self.count_starting())

    def give(self, actor, shard):
        self.given.append(shard)
        self.calls.append(shard)

    def have_cluster(self):
        return self.has_cluster

    def wait(self):
        if self.at_start == "never":
            return None
        shard = self.calls.pop(0)
        if shard is None:
            return "actor", None, self.at_start.pop(0) if self.at_start else {}
        given = self.answers.get(shard)
        return "actor", shard, given.pop(0) if given else {"shard": shard, "lines": 1}


@pytest.fixture
def ray_shards(monkeypatch):
    monkeypatch.syspath_prepend(str(LAUNCH))
    return importlib.import_module("ray_shards")


def test_the_shard_of_a_lost_actor_is_given_to_others(ray_shards, caplog):
    lost = {"lost": "its node has died"}
    actors = Scripted(s1=[lost, lost], s2=[lost] * workers.TRIES)
    with caplog.at_level("INFO", "transformer_jax"):
        assert ray_shards.share(actors, 4, [1, 2, 3]) == 1
    assert sorted(actors.given) == [1, 1, 1, 2, 2, 2, 3]
    assert "its node has died in shard 1: once more" in caplog.text
    assert "shard 2: 3 processes ended in it" in caplog.text
    assert "1 of 4 are done already" in caplog.text
    assert ray_shards.share(Scripted(s1=[lost, lost]), 4, [1, 2, 3]) == 0


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([{"mistake": ["a.txt has changed: restore it"]}], "a.txt has changed"),
        ([{"lost": "a process ended with 2", "code": 2}], "a node refuses the command"),
    ],
)
def test_a_mistake_in_a_worker_ends_all(ray_shards, answers, said):
    with pytest.raises(UserError, match=said):
        ray_shards.share(Scripted(s1=answers), 3, [0, 1, 2])


def test_actors_that_cannot_start_are_given_up(ray_shards):
    actors = Scripted()
    actors.at_start = [{"lost": "no module"}] * ray_shards.UNSTARTED
    with pytest.raises(UserError, match="they started, 10 times in a row: no module"):
        ray_shards.share(actors, 1, [0])
    actors.at_start = [{"lost": "no module"}] * (ray_shards.UNSTARTED - 1)
    assert ray_shards.share(actors, 1, [0]) == 0


def test_actors_that_are_lost_together_are_one_loss(ray_shards):
    """As when the head of the cluster is killed while they wait for a place."""
    actors, many = Scripted(), 2 * ray_shards.UNSTARTED
    actors.at_start = [{"lost": "cancelled"}] * many
    assert ray_shards.share(actors, many, list(range(many))) == 0


def test_without_a_place_one_waits_until_the_cluster_is_lost(ray_shards, caplog):
    actors = Scripted()
    actors.at_start = "never"
    looks = iter([True, True, False])
    actors.have_cluster = lambda: next(looks)
    with caplog.at_level("INFO", "transformer_jax"):
        assert ray_shards.share(actors, 3, [0, 1, 2]) == cli.PREEMPTED
    assert caplog.text.count("none has a place in the cluster yet") == 1
    assert "the cluster was lost: start the same command again" in caplog.text


def test_a_device_says_how_its_process_ended(ray_shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = json.dumps({"shard": 5})
    code = f"input(); print({shown!r}, flush=True); exit(29 + int(input()))"
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(ray_shards, "make_command", lambda words: command)
    device = ray_shards.Device()
    assert device.start([], str(tmp_path)) == {}
    assert device.do(5) == {"shard": 5}
    lost = {"lost": "a process ended with 35", "code": 35}
    assert device.do(6) == lost
    device.worker.stop()
    [problem] = device.start([], "/not/here")["mistake"]
    assert "start in a folder that all nodes have" in problem


def test_what_ray_lacks_is_said(ray_shards, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="Ray is not installed: use pip"):
        ray_shards.connect(None)

    def init(*words, **options):
        raise ConnectionError("no answer")

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(init=init))
    with pytest.raises(UserError, match="--address here:1: no answer: give that of a"):
        ray_shards.connect("here:1")


class Launcher:
    """Starts the same command again and again, and finds its processes."""

    def __init__(self, environment, here):
        self.environment = {**environment, MARK: str(here)}
        self.log = here / "log"

    def command(self, words):
        raise NotImplementedError

    def start(self, words):
        with self.log.open("a") as log:
            return subprocess.Popen(
                self.command(words), env=self.environment, stdout=log, stderr=log
            )

    def processes(self, mark=None):
        """Return the command lines of all that run, by their ids."""
        found, mark = {}, f"{MARK}={mark or self.environment[MARK]}".encode()
        for place in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (place / "environ").read_bytes():
                    line = (place / "cmdline").read_bytes()
                    found[int(place.name)] = line.replace(b"\0", b" ").decode()
        return found

    def victims(self):
        """Group the processes by what they are; each group is as likely to be hit."""
        groups = collections.defaultdict(list)
        for number, line in self.processes().items():
            groups["worker" if "--worker=" in line else "launcher"].append(number)
        return groups

    def mend(self):
        """Start again what is not of the command."""

    def stop(self):
        for number in self.processes():
            kill(number)


class Workers(Launcher):
    def command(self, words):
        words = f"transformer_jax.{words[0]}", *words[1:]
        return [sys.executable, "-m", *words, "--workers=2"]


# Stands in for SLURM: plans, then runs an array of 5 tasks, 2 at a time, and queues
# again those that ask for it or were killed.
SLURM = """
import collections, os, pathlib, subprocess, sys

script, queued, words = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]

def start(task, **variables):
    job = {"SLURM_JOB_ID": f"{os.getpid()}_{task}", "HERE": str(queued), **variables}
    return subprocess.Popen(["bash", script, *words], env=os.environ | job)

def is_queued_again(task, code):
    asked = queued / f"{os.getpid()}_{task}"
    if code and not asked.exists() and code > 0:
        sys.exit(code)
    asked.unlink(missing_ok=True)
    return code != 0

while is_queued_again("plan", start("plan").wait()):
    pass
waiting, running = collections.deque(range(5)), {}
while waiting or running:
    while waiting and len(running) < 2:
        task = waiting.popleft()
        place = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "5"}
        running[start(task, **place).pid] = task
    number, status = os.wait()
    task = running.pop(number)
    if is_queued_again(task, os.waitstatus_to_exitcode(status)):
        waiting.append(task)
"""
STUBS = {"srun": 'exec "$@"', "scontrol": 'touch "$HERE/$2"'}


class Slurm(Launcher):
    def __init__(self, environment, here):
        super().__init__(environment, here)
        self.script, self.here = here / "slurm.py", here
        self.script.write_text(SLURM)
        self.environment |= {"PATH": write_stubs(here / "stubs", STUBS, environment)}

    def command(self, words):
        script = LAUNCH / "shards.sbatch"
        return [sys.executable, self.script, script, self.here, *words]


class Ray(Launcher):
    """A head without CPUs, and nodes with one each, all on this machine."""

    count = 2

    def __init__(self, environment, here):
        super().__init__(environment, here)
        self.folder = tempfile.mkdtemp(prefix="ray")  # paths of sockets are short
        self.environment["RAY_AUTH_MODE"] = "disabled"
        self.cluster = f"{here}/cluster"  # the mark of its processes
        with socket.create_server(("", 0)) as free:
            self.port = free.getsockname()[1]
        self.more = [f"--temp-dir={self.folder}", "--include-dashboard=false"]
        self.nodes = []
        self.mend()

    def command(self, words):
        address = f"127.0.0.1:{self.port}"
        script = LAUNCH / "ray_shards.py"
        return [sys.executable, script, "--address", address, "--", *words]

    def victims(self):
        names = {"ray_shards.py": "driver", "ray::Device": "actor"}
        names |= {"--worker=stdin": "worker", "raylet/raylet": "node"}
        names |= {"gcs/gcs_server": "head"}
        groups = collections.defaultdict(list)
        for number, line in self.processes().items():
            for name in [name for part, name in names.items() if part in line][:1]:
                groups[name].append(number)
        return groups

    def mend(self):
        """Start the nodes that have ended again, or all if the head has."""
        if self.nodes and self.nodes[0].poll() is not None:
            self.stop_cluster()
        self.nodes = [node for node in self.nodes if node.poll() is None]
        if not self.nodes:
            self.add("--head", f"--port={self.port}", "--num-cpus=0", *self.more)
        while len(self.nodes) <= self.count:
            self.add(f"--address=127.0.0.1:{self.port}", "--num-cpus=1")

    def add(self, *words):
        """Start a node; two at the same time would take the same name of a socket."""
        options = ["--block", "--disable-usage-stats", *words]
        options += ["--min-worker-port=0", "--max-worker-port=0"]
        with tempfile.TemporaryFile(dir=self.folder) as log:
            node = subprocess.Popen(
                ["ray", "start", *options],
                env={**self.environment, MARK: self.cluster},
                stdout=log,
                stderr=log,
            )
            self.nodes.append(node)
            wait_for(
                lambda: (
                    b"Ray runtime started" in os.pread(log.fileno(), 1 << 20, 0)
                    or any(one.poll() is not None for one in (node, self.nodes[0]))
                )
            )

    def stop_cluster(self):
        while found := self.processes(self.cluster):
            for number in found:
                kill(number)
            time.sleep(0.1)
        for node in self.nodes:
            node.wait()

    def stop(self):
        super().stop()
        self.stop_cluster()
        shutil.rmtree(self.folder, ignore_errors=True)


class RayOfThree(Ray):
    count = 3


def kill(number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def write_stubs(folder, programs, environment):
    """Write bash programs that stand in for commands; return the PATH to find them."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), environment["PATH"]])


class Chaos:
    """Kills processes of a launcher, each kind of them equally often."""

    def __init__(self, launcher, kills):
        self.launcher, self.kills = launcher, kills
        self.starts, self.hit = 0, collections.Counter()
        self.dice = random.Random(kills)

    def run(self, words, output):
        """Start a command again until it ends with 0; kill meanwhile."""
        words = [*words, f"--output={output}"]
        while (code := self._start(words, output / "done")) != 0:
            said = self.launcher.log.read_text()
            assert code != cli.USER_MISTAKE and self.starts < 9 + 2 * self.kills, said
        wait_for(lambda: not self.launcher.victims().get("worker"))

    def _start(self, words, done):
        process = self.launcher.start(words)
        self.starts += 1
        while process.poll() is None:
            wanted = count(done) + self.dice.choice((0, 1, 5, 25))
            until = time.monotonic() + self.dice.uniform(0, PACE)
            while process.poll() is None and time.monotonic() < until:
                self.launcher.mend()
                time.sleep(0.05)
                if count(done) < wanted:
                    until += 0.05
            groups = self.launcher.victims()
            if process.poll() is None and groups and self.hit.total() < self.kills:
                name = self.dice.choice(sorted(groups))
                kill(self.dice.choice(groups[name]))
                self.hit[name] += 1
        return process.returncode


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed")
def test_ray_on_this_machine_gives_the_same_bytes(words_of, environment, tmp_path):
    words = words_of(size=50, shards=7)
    execute(words, environment, f"--output={tmp_path / 'alone'}")
    command = [sys.executable, LAUNCH / "ray_shards.py", "--actors=2", "--", *words]
    for _ in range(2):  # the second start finds that all is done
        done = subprocess.run(
            [*command, f"--output={tmp_path / 'out'}"],
            env=environment | {"RAY_AUTH_MODE": "disabled"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert "done       7 shards" in done.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def count(folder):
    return len(os.listdir(folder)) if folder.exists() else 0


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the processes")
@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (Workers, "prepare"),
        pytest.param(Workers, "predict", marks=pytest.mark.slow),
        (Slurm, "prepare"),
        pytest.param(Ray, "prepare", marks=pytest.mark.slow),
        pytest.param(RayOfThree, "prepare", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_whatever_is_killed_the_bytes_are_those_of_one_process(
    kind, command, request, environment, tmp_path
):
    if issubclass(kind, Ray):
        pytest.importorskip("ray", reason="Ray is not installed")
    write, size = ("words_of", 1000) if command == "prepare" else ("answers_of", 200)
    words = os.environ.get("COMMAND", "").split()
    words = words or request.getfixturevalue(write)(size * KILLS, 40 * KILLS)
    execute(words, environment, f"--output={tmp_path / 'alone'}")
    alone = contents(tmp_path / "alone")
    launcher = kind(environment, tmp_path)
    chaos = Chaos(launcher, KILLS)
    try:
        for turn in itertools.count():
            folder = tmp_path / f"out_{turn}"
            chaos.run(words, folder)
            assert contents(folder) == alone
            if chaos.hit.total() == KILLS:
                break  # else all was done before
    finally:
        launcher.stop()
    print(
        f"{kind.__name__}: {dict(chaos.hit)}, {chaos.starts} starts, {turn + 1} folders"
    )
