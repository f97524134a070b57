"""Sweeps: every cell is checked, trained, continued or given up, and summed up."""

import importlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

import pytest
import yaml
from waiting import wait_for

from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.runs.folder import Folder

LAUNCH = pathlib.Path(__file__).parents[1] / "launch"
# Stands in for a training: acts by the next word of its cell in plan.json, "0" if there
# is none. What it was given is appended to started.jsonl.
TRAINER = """
import json, os, pathlib, signal, sys, time

HERE = pathlib.Path(__file__).parent
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--workdir") + 1])
given = [w.removeprefix("--config.") for w in words if "--config." in w]
options = dict(w.split("=", 1) for w in given)
with (HERE / "started.jsonl").open("a") as file:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    file.write(json.dumps([folder.name, words, gpus]) + "\\n")
starts = [json.loads(line)[0] for line in (HERE / "started.jsonl").open()]
plan = json.loads((HERE / "plan.json").read_text()).get(folder.name, [])
word = [*plan, "0"][min(starts.count(folder.name) - 1, len(plan))]
code, how = int(word.strip("+!&?")), word.strip("0123456789")
if how == "+":  # a new step
    (folder / "preempted" / str(len(starts))).mkdir(parents=True)
if how == "&":  # wait for another cell
    until = time.monotonic() + 60
    while len(set(starts)) < 2 and time.monotonic() < until:
        starts = [json.loads(line)[0] for line in (HERE / "started.jsonl").open()]
    code = 0 if len(set(starts)) > 1 else 1
if how == "?":  # wait for one that trains until a signal
    while not (HERE / "ready").exists():
        time.sleep(0.01)
if how == "!":  # train until a signal
    def stop(number, _):
        with (HERE / "signals").open("a") as file:
            file.write(signal.Signals(number).name + "\\n")
        sys.exit(code)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    (HERE / "ready.part").write_text(str(os.getpid()))
    (HERE / "ready.part").rename(HERE / "ready")
    time.sleep(200)  # longer than a test waits
    sys.exit(1)
print("one\\ntwo\\nthree\\nfour\\nfive\\nlast words", flush=True)
if code == 2:
    print("error: the file a.txt is gone", file=sys.stderr)
if code == 0:
    folder.mkdir(parents=True, exist_ok=True)
    loss = float(options.get("optim.constant", 1)) + int(options.get("seed", 0))
    entry = {"step": 600, "kind": "validation", "loss": 10 * loss}
    (folder / "metrics.jsonl").write_text(json.dumps(entry) + "\\n")
    (folder / "config.json").write_text("{}")
    result = {"step": 600, "stopped_early": False, "weights": "last", "seconds": 1.0}
    scores = {"test": {"loss": loss, "summary": "", "examples": 1}}
    (folder / "result.json").write_text(json.dumps({**result, "scores": scores}))
sys.exit(code)
"""


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(LAUNCH))
    return importlib.import_module("sweep")


class Sweep:
    """A sweep of stand-ins in this process: its exit code, its output, its starts."""

    def __init__(self, sweep, here, monkeypatch, capfd):
        self.module, self.here, self.capfd = sweep, here, capfd
        self.patch, self.folder = monkeypatch, here / "runs"
        (here / "trainer.py").write_text(TRAINER)
        monkeypatch.setattr(
            sweep, "TRAINER", (sys.executable, str(here / "trainer.py"))
        )
        # JAX is in this process, beside which it warns of a function after a fork.
        monkeypatch.setattr(sweep, "make_mortal", lambda: None)
        monkeypatch.setattr(sweep, "report", lambda folder: print("report", folder))
        monkeypatch.setattr(sweep, "in_fresh_process", lambda f, *given: f(*given))

    def __call__(self, *words, **plan):
        """Run it; `plan` has what the stand-ins of a seed, or of a cell, do."""
        names = {
            re.sub(r"^s(\d)$", r"language__seed=\1", k): v for k, v in plan.items()
        }
        acts = {name: text.split() for name, text in names.items()}
        (self.here / "plan.json").write_text(json.dumps(acts))
        (self.here / "started.jsonl").unlink(missing_ok=True)
        given = ["--workdir", str(self.folder), "--config", "language", *words]
        self.patch.setattr(sys, "argv", ["launch/sweep.py", *given])
        self.capfd.readouterr()
        code = self.module.main()
        return code, self.capfd.readouterr().out

    @property
    def started(self):
        file = self.here / "started.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def names(self):
        return [name.removeprefix("language__") for name, *_ in self.started]


@pytest.fixture
def run(sweep, tmp_path, monkeypatch, capfd):
    return Sweep(sweep, tmp_path, monkeypatch, capfd)


def test_every_combination_is_trained_in_a_folder_of_its_name(run):
    code, out = run(
        *("--vary", "optim.constant=0.5,2", "--vary", "eval.splits=test|(),"),
        *("--seeds", "3,7", "--config.train.steps=600", "--config", "language:stories"),
    )
    assert code == 0
    names = [
        f"{config}__optim.constant={rate}__eval.splits={splits}__seed={seed}"
        for config in ("language", "language-stories")
        for rate in ("0.5", "2")
        for splits in ("test", "_")
        for seed in (3, 7)
    ]
    assert [name for name, *_ in run.started] == names
    assert out.startswith(f"cells      16 in {run.folder}, 0 done\n")
    assert f"done       cell 3, {names[3]} (" in out
    name, words, _ = run.started[-1]
    assert words == [
        *("--config", "language:stories", "--workdir", str(run.folder / name)),
        *("--config.train.steps=600", "--config.optim.constant=2"),
        *("--config.eval.splits=(),", "--config.seed=7"),
    ]
    log = (run.folder / f"{name}.log").read_text()
    assert f"$ {sys.executable} " in log and log.endswith("last words\n")


def test_the_report_ends_a_sweep_also_if_a_cell_has_failed(run):
    words = "--vary", "optim.constant=0.5,2.0", "--seeds", "1,2"
    code, out = run(*words, **{"language__optim.constant=2.0__seed=2": "1 1"})
    assert code == 1 and out.endswith(f"report {run.folder}\n")


def test_what_is_done_is_left_out_and_what_has_begun_is_continued(run):
    assert run("--seeds", "1,2,3", s2="75+ 1 1")[0] == 1
    assert run.names == ["seed=1", "seed=2", "seed=2", "seed=3", "seed=2"]
    for seed in (1, 3):  # what the stand-in does not write is written as of a run
        folder = Folder(run.folder / f"language__seed={seed}")
        (folder.path / "config.json").unlink()
        folder.adopt(configs.load("language", {"seed": str(seed)}), False)
    code, out = run("--seeds", "1,2,3")
    assert code == 0 and run.names == ["seed=2"]
    assert f"cells      3 in {run.folder}, 2 done\ncontinues  cell 1" in out
    # More steps than a run was trained for are more to do.
    code, out = run("--seeds", "1", "--config.train.steps=700", "--list")
    assert out.endswith("0 done\ncell 0, language__seed=1\n")
    code, out = run("--seeds", "1", "--list")
    assert out.endswith("1 done\ncell 0, language__seed=1 (done)\n")


def test_preempted_cells_go_on_at_once_and_crashed_ones_after_the_others(run):
    code, out = run("--seeds", "1,2,3", s1="75 75+ 75 0", s2="1 0")
    assert code == 0
    assert run.names == [*["seed=1"] * 4, "seed=2", "seed=3", "seed=2"]
    assert "preempted  cell 0, language__seed=1: exit code 75 at step 0" in out
    assert "crashed    cell 1, language__seed=2: exit code 1 at step 0" in out


@pytest.mark.parametrize(
    ("plan", "starts"),
    [("75 " * 9, 5), ("1 1 1", 2), ("1+ 1+ 1 1 1", 4), ("75 1 75 75", 2)],
    ids=["preempted", "crashed", "crashed after new steps", "both"],
)
def test_a_cell_without_new_steps_is_given_up_and_the_others_are_trained(
    run, plan, starts
):
    code, out = run("--seeds", "1,2", s1=plan)
    assert code == 1 and run.names.count("seed=1") == starts
    assert "seed=2" in run.names
    assert "failed     cell 0, language__seed=1: exit code" in out
    assert "\n  two\n  three\n  four\n  five\n  last words\n" in out
    assert f"language__seed=1, see {run.folder / 'language__seed=1.log'}\n" in out


def test_a_killed_training_is_said_to_have_been_killed(run):
    trainer = run.here / "trainer.py"
    trainer.write_text("import os\nos.kill(os.getpid(), 9)")
    code, out = run("--seeds", "1")
    assert code == 1 and "failed     cell 0, language__seed=1: SIGKILL at step 0" in out


def test_a_mistake_stops_the_sweep_and_what_trains_beside_it(run):
    with pytest.raises(UserError) as stop:
        run("--seeds", "1,2,3", "--at_once", "2", s1="75!", s2="2?")
    assert stop.value.problems == ("cell 1, language__seed=2: the file a.txt is gone",)
    assert sorted(run.names) == ["seed=1", "seed=2"]
    assert (run.here / "signals").read_text() == "SIGTERM\n"


def test_as_many_as_asked_for_train_at_once(run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    code, out = run("--seeds", "1,2,3", "--at_once", "2", s1="0&", s2="0&")
    assert code == 0 and len(run.names) == 3
    begun = [line.split()[0] for line in out.splitlines()[1:]]
    assert begun[:3] == ["begins", "begins", "done"]
    assert sorted(gpus for *_, gpus in run.started[:2]) == ["4", "7"]


@pytest.mark.parametrize(
    ("devices", "count", "shares"),
    [
        ("", 2, ["", ""]),
        ("0,1,2,3,4", 2, ["0,1", "2,3"]),
        ("4,7", 1, ["4,7"]),
        ("0", 2, ["", ""]),
    ],
)
def test_gpus_are_divided_among_trainings(sweep, monkeypatch, devices, count, shares):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    found = sweep.share_devices(count)
    assert [one.get("CUDA_VISIBLE_DEVICES", "") for one in found] == shares


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--vary optim.constnat=1,2", "no such option. Did you mean 'optim.constant'"),
        ("--vary optim.constant=1,x", "'x' is not of type float"),
        ("--vary model.num_heads=4,3", "model.d_model 128 does not divide over"),
        ("--config langauge", "there is no config file langauge. Did you mean"),
        ("--config.optim.schedule=x", "optim.schedule = 'x': choose"),
        ("--start_from nowhere", "names no run directory"),
    ],
)
def test_all_cells_are_checked_before_the_first_is_trained(run, words, said):
    with pytest.raises(UserError) as caught:
        run("--seeds", "1,2", *words.split())
    [problem] = caught.value.problems  # of several cells, it is said once
    assert said in problem and re.match(r"cell \d, lang\w+__\S+: ", problem)
    assert not run.started and not run.folder.exists()


def test_a_folder_with_a_run_of_other_settings_is_refused_before_the_first(run):
    folder = run.folder / "language__seed=2"
    Folder(folder).adopt(configs.load("language", {"seed": "2"}), False)
    with pytest.raises(UserError) as caught:
        run("--seeds", "1,2", "--config.optim.constant=0.7")
    first, second = caught.value.problems
    assert f"language__seed=2: {folder} is a run of another config" in first
    assert "optim.constant: 0.35 in the run, now 0.7" in second
    assert not run.started
    assert run("--seeds", "1,2", "--config.optim.constant=0.7", "--accept_changes")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.35, 1.0", ["0.1", "0.35", "1.0"]),
        ("(1,2),[3, 4]", ["(1,2)", "[3, 4]"]),
        ("1,2|3", ["1,2", "3"]),
        ("(('a|b', 0.1),)|()", ["(('a|b', 0.1),)", "()"]),
        ("('(',1),2", ["('(',1)", "2"]),
        ("test,|", ["test,", ""]),
        ("one", ["one"]),
    ],
)
def test_values_may_have_commas(sweep, text, values):
    assert sweep.split_values("key", text) == values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--vary seed", "--vary seed: give its values, as in seed=1,2,3"),
        ("--vary seed=1 --seeds 2", "seed is given twice: give all its values in one"),
        ("--vary seed=1,2 --config.seed=1", "seed is given twice"),
        ("--vary a=(1,2", "--vary a=(1,2: a bracket or a quote is not closed"),
        ("--vary a=1,1", "two cells have the name language__a=1: drop one, or name"),
        ("--config b/language.py", "two cells have the name language: drop one"),
        (f"--vary a={'x' * 200}", "has 212 bytes, at most 200 are allowed: name its"),
        ("--workdir gs://bucket/a", "--workdir=gs://bucket/a: a sweep needs a folder"),
        ("--seeds 1,2 --cell 2", "--cell 2: must be a number from 0 to 1"),
    ],
)
def test_mistakes_of_the_sweep_itself_are_said(run, words, said):
    with pytest.raises(UserError, match=re.escape(said)):
        run(*words.split())
    assert not run.started


@pytest.mark.system
def test_the_command_says_a_mistake_as_the_trainer_does(tmp_path):
    words = "--config", "language", "--config.optim.constnat=1"
    done = subprocess.run(
        [sys.executable, LAUNCH / "sweep.py", "--workdir", tmp_path / "runs", *words],
        env={**os.environ, "PYTHONPATH": str(LAUNCH.parent)},
        capture_output=True,
        text=True,
    )
    said = "error: cell 0, language: --config.optim.constnat: there is no such option."
    assert done.returncode == 2 and done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_an_option_that_is_not_known_is_refused(run):
    with pytest.raises(SystemExit) as stop:
        run("--seed", "1")
    assert stop.value.code == 2
    assert "unrecognized arguments: --seed 1" in run.capfd.readouterr().err


def test_a_job_of_one_cell_trains_it_alone_and_shows_its_output(run):
    code, out = run("--seeds", "1,2,3", "--cell", "1")
    assert code == 0 and run.names == ["seed=2"]
    assert out.endswith("done       cell 1, language__seed=2 (0 s)\n")
    assert "\nlast words\n" in out
    assert [path.name for path in run.folder.iterdir()] == ["language__seed=2"]


def write_script(kind, *words):
    command = [sys.executable, "launch/sweep.py", "--workdir", "a b/runs", "--write"]
    command += [kind, "--config", "language", "--seeds", "1,2,3,5,7", *words]
    root = LAUNCH.parent
    return subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


WRITTEN = ["launch/sweep.py", "--workdir", "a b/runs", "--config", "language"]
WRITTEN += ["--seeds", "1,2,3,5,7"]


@pytest.mark.system
@pytest.mark.parametrize(("code", "queued"), [(75, True), (1, False), (0, False)])
def test_the_array_of_slurm_trains_a_cell_in_each_job(tmp_path, code, queued):
    text = write_script("slurm", "--vary", "eval.splits=test|()", "--at_once", "4")
    assert "\n#SBATCH --array=0-9%4\n" in text
    script, stubs = tmp_path / "sweep.sbatch", tmp_path / "stubs"
    script.write_text(text)
    stubs.mkdir()
    for name, line in {
        "srun": 'exec "$@"',
        "python": f'printf "%s\\n" "$@" >{tmp_path}/given; exit {code}',
        "scontrol": f'echo "$@" >{tmp_path}/queued',
    }.items():
        (stubs / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (stubs / name).chmod(0o755)
    subprocess.run(["bash", "-n", script], check=True)
    variables = {**os.environ, "PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}"}
    variables |= {"SLURM_JOB_ID": "71", "SLURM_ARRAY_TASK_ID": "3"}
    assert subprocess.run(["bash", script], env=variables).returncode == code
    varied = ["--vary", "eval.splits=test|()", "--at_once", "4"]
    given = (tmp_path / "given").read_text().splitlines()
    assert given == [*WRITTEN, *varied, "--cell", "3"]
    assert (tmp_path / "queued").exists() == queued


@pytest.mark.system
def test_the_job_of_kubernetes_trains_a_cell_in_each_pod():
    # Files of the cluster need not be here.
    absent = ["--config.data.source=text", "--config.data.train_text=/runs/t.txt"]
    job = yaml.safe_load(write_script("k8s", *absent))["spec"]
    assert (job["completionMode"], job["completions"]) == ("Indexed", 5)
    assert job["parallelism"] == 5
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    cell = "--cell=$(JOB_COMPLETION_INDEX)"
    assert container["command"] == ["python", *WRITTEN, *absent, cell]
    assert {"name": "NUM_PROCESSES", "value": "1"} in container["env"]
    rules = {
        code: rule["action"]
        for rule in job["podFailurePolicy"]["rules"]
        for code in rule["onExitCodes"]["values"]
    }
    assert rules == {2: "FailJob", 75: "Ignore"}
    assert pod["terminationGracePeriodSeconds"] > configs.base().timeout.preemption
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def start(here, *words, trainer=True):
    """Start a sweep as a command, with stand-ins for the trainings or without."""
    stand_in = f"sweep.TRAINER = (sys.executable, {str(here / 'trainer.py')!r}); "
    # Ctrl-C is ignored where the tests run in the background of a script.
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = f"import signal, sys, sweep; {heard}{stand_in * trainer}"
    code += "sys.exit(sweep.main())"
    paths = os.pathsep.join([str(LAUNCH), str(LAUNCH.parent)])
    return subprocess.Popen(
        [sys.executable, "-c", code, "--workdir", str(here / "runs"), *words],
        env={**os.environ, "PYTHONPATH": paths, "JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


STOPS = ["--config", "language", "--seeds", "1,2,3"]


@pytest.fixture
def stand_in(tmp_path):
    """A folder with stand-ins, of which that of seed 2 trains until a signal."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    plan = {"language__seed=2": ["75!"]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return tmp_path


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 75), ("SIGINT", 130), ("SIGHUP", 75)]
)
def test_a_signal_is_passed_on_and_the_command_that_continues_is_said(
    stand_in, name, code
):
    process = start(stand_in, *STOPS)
    wait_for((stand_in / "ready").exists)
    training = int((stand_in / "ready").read_text())
    assert os.getpgid(training) == training  # which Ctrl-C in a terminal does not reach
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=60)
    if name == "SIGHUP":  # the stand-in does not save
        assert "cell 1, language__seed=2\nstopped    2 cells are left" in out
    else:
        assert (stand_in / "signals").read_text() == f"{name}\n"
    assert process.returncode == code, out
    *_, line, command = out.splitlines()
    assert line == "stopped    2 cells are left; this command continues:"
    assert shlex.split(command)[3:] == ["--workdir", str(stand_in / "runs"), *STOPS]
    assert "seed=3" not in (stand_in / "started.jsonl").read_text()


@pytest.mark.system
def test_a_sweep_goes_on_when_nobody_reads_its_lines(stand_in):
    (stand_in / "plan.json").write_text("{}")
    process = start(stand_in, *STOPS)
    assert "3 in" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
    assert (stand_in / "started.jsonl").read_text().count("\n") == 3


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_trainings_do_not_outlive_a_sweep_that_is_killed(stand_in):
    process = start(stand_in, *STOPS)
    wait_for((stand_in / "ready").exists)
    status = pathlib.Path(f"/proc/{(stand_in / 'ready').read_text()}/status")
    assert status.exists()
    process.kill()
    process.communicate()

    def ended():
        try:
            return "State:\tZ" in status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_for(ended)
    assert not (stand_in / "signals").exists()


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_stopped_is_continued_to_its_end(tiny, tmp_path):
    small = tiny(train__steps=200, checkpoint__every=50, eval__every=200)
    small |= {"checkpoint.best": "loss"}
    words = ["--config", "quickstart", "--vary", "optim.constant=0.1,0.5", "--seeds"]
    words += ["1,2", *(f"--config.{k}={v}" for k, v in small.items())]
    cells = [
        tmp_path / "runs" / f"quickstart__optim.constant={rate}__seed={seed}"
        for rate in ("0.1", "0.5")
        for seed in (1, 2)
    ]
    for cell, how, code in (
        (cells[1], signal.SIGKILL, -9),
        (cells[2], signal.SIGTERM, 75),
    ):
        process, log = start(tmp_path, *words, trainer=False), cell / "metrics.jsonl"
        wait_for(lambda log=log: log.exists() and log.read_text().count("\n") > 60)
        process.send_signal(how)
        process.communicate(timeout=200)
        assert process.returncode == code
    process = start(tmp_path, *words, trainer=False)
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 0, out
    assert "2 done\ncontinues  cell 2, " in out
    losses = []
    for cell in cells:
        lines = (cell / "metrics.jsonl").read_text().splitlines()
        *trained, last = map(json.loads, lines)
        assert [entry["step"] for entry in trained] == [*range(1, 201)]
        assert (last["step"], last["kind"]) == (200, "validation")
        losses.append(last["loss"])
    assert "4 runs in 2 groups, scores of validation" in out
    for rate, pair in (("0.1", losses[:2]), ("0.5", losses[2:])):
        mean, deviation = sum(pair) / 2, abs(pair[0] - pair[1]) / 2**0.5
        shown = rf"optim.constant={rate} +2 .* {mean:.4f} ± {deviation:.4f} "
        assert re.search(shown, out), (shown, out)
