"""The launch scripts: a mesh, and two processes, train what one device trains."""

import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import yaml

from transformer_jax import config, load
from transformer_jax.hosts import clusters

FOLDER = pathlib.Path(__file__).parent.parent / "launch"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), FOLDER / "slurm.sbatch"])
WHOLE = {
    ".lock",
    ".scores.lock",
    "config.json",
    "versions.json",
    "card.md",
    "ledger.json",
    "metrics.jsonl",
    "result.json",
    "scores.json",
    "tokenizer",
    "checkpoints",
    "averaged",
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Of a model that trains in seconds, on sentences of four numbers."""
    folder = tmp_path_factory.mktemp("numbers")
    words = {
        "source": "um dois três quatro cinco seis".split(),
        "target": "one two three four five six".split(),
    }
    dice = random.Random(0)
    config = {
        "data.source": "text",
        "data.batch_tokens": 256,
        "data.max_length": 31,
        "data.shapes": 1,
        "data.length_multiple": 8,
        "tokenizer.vocab_size": 300,
        "model.encoder_layers": 1,
        "model.decoder_layers": 1,
        "model.d_model": 16,
        "model.d_ff": 32,
        "model.num_heads": 2,
        "train.steps": 4,
        "optim.warmup_steps": 2,
        "eval.every": 4,
        "eval.samples": 0,
        "eval.splits": "test",
        "decode.beams": 1,
        "decode.extra_length": 1,
        "checkpoint.every": 2,
        "checkpoint.keep_last": 2,
        "checkpoint.average": 2,
        "log.every": 1,
        "log.tensorboard": False,
    }
    for split, size in (("train", 64), ("validation", 8), ("test", 8)):
        numbers = [[dice.randrange(6) for _ in range(4)] for _ in range(size)]
        for side, names in words.items():
            path = folder / f"{split}.{side}"
            lines = (" ".join(names[n] for n in row) + "\n" for row in numbers)
            path.write_text("".join(lines), encoding="utf-8")
            config[f"data.{split}_{side}"] = path
    overrides = [f"--config.{key}={value}" for key, value in config.items()]
    return ["--config", "quickstart", *overrides]


@pytest.fixture(scope="module")
def environment():
    """A fresh shell's, with this Python first; programs compiled for a short life."""
    settings = ("JAX_", "XLA_", "PJRT_", "NUM_PROC", "PROCESS_ID", "COORDINATOR_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(settings)}
    here = str(pathlib.Path(sys.executable).parent)
    path = os.pathsep.join([here, kept.get("PATH", "")])
    flags = os.environ["XLA_FLAGS"]
    return {**kept, "PATH": path, "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture(scope="module")
def launch(arguments, environment):
    """A function: starts a command with the arguments of a small run."""

    def start(command, workdir, *more, **variables):
        return subprocess.Popen(
            [*command, *arguments, f"--workdir={workdir}", *more],
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture(scope="module")
def alone(launch, tmp_path_factory):
    """The run directory of one process with one device."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    command = [sys.executable, "-m", "transformer_jax.train"]
    process = launch(command, workdir, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="1")
    finish(process)
    return workdir


def finish(process, code=0):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    return output


def entries_of(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return {(e["kind"], e["step"]): e for e in map(json.loads, lines)}


def assert_same_run(workdir, reference):
    assert {path.name for path in workdir.iterdir()} == WHOLE
    found, expected = entries_of(workdir), entries_of(reference)
    assert found.keys() == expected.keys()
    for key, entry in expected.items():
        names = entry.keys() & {"loss", "nll", "accuracy", "grad_norm", "bleu", "chrf"}
        assert "loss" in names
        wanted = {name: entry[name] for name in names}
        given = {name: found[key][name] for name in names}
        assert given == pytest.approx(wanted, rel=1e-4, abs=1e-4), key


@pytest.mark.system
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_only_call_train(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    assert set(re.findall(r"python -m (\S+)", text)) == {"transformer_jax.train"}
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, str(script)], check=True)
    assert os.access(script, os.X_OK)


def test_the_readme_names_every_script():
    text = (FOLDER / "README.md").read_text()
    assert all(f"launch/{script.name}" in text for script in SCRIPTS)


@pytest.mark.system
def test_a_mesh_of_eight_devices_trains_what_one_device_trains(launch, alone, tmp_path):
    mesh = [f"--config.mesh.{axis}=2" for axis in ("data", "fsdp", "tensor")]
    output = finish(launch([FOLDER / "laptop.sh"], tmp_path / "run", *mesh))
    assert "8 × cpu (cpu), mesh data 2 × fsdp 2 × tensor 2 × sequence 1" in output
    assert_same_run(tmp_path / "run", alone)


@pytest.mark.system
def test_two_processes_train_what_one_device_trains(launch, alone, tmp_path):
    output = finish(launch([FOLDER / "two_processes.sh"], tmp_path / "run"))
    assert "4 × cpu (cpu), mesh data 4" in output
    assert output.count("done: ") == 1  # only process 0 reports
    assert_same_run(tmp_path / "run", alone)


@pytest.mark.slow
def test_two_processes_train_two_seeds_in_turn(launch, tmp_path):
    one, words = {"LOCAL_DEVICES": "1"}, ["--seeds=3,5", "--config.mesh.data=2"]
    output = finish(
        launch([FOLDER / "two_processes.sh"], tmp_path / "runs", *words, **one)
    )
    assert re.findall(r"^seed +(\d)", output, re.MULTILINE) == ["3", "5"]
    assert output.count("done: ") == 2
    for seed in (3, 5):
        assert (tmp_path / "runs" / f"seed_{seed}" / "result.json").is_file()


@pytest.mark.system
def test_sigterm_preempts_both_processes(launch, tmp_path):
    endless = [f"--config.{key}=100000" for key in ("train.steps", "eval.every")]
    endless += ["--config.checkpoint.every=100000", "--config.log.every=5"]
    one = {"LOCAL_DEVICES": "1"}
    process = launch([FOLDER / "two_processes.sh"], tmp_path, *endless, **one)
    output = ""
    while not re.search(r"^step +5 ", output, re.MULTILINE):
        line = process.stdout.readline()
        assert line, output
        output += line
    process.send_signal(signal.SIGTERM)
    output += finish(process, code=75)
    step = re.search(r"^preempted  saved step (\d+)", output, re.MULTILINE).group(1)
    assert (tmp_path / "preempted" / step / "_CHECKPOINT_METADATA").is_file()


@pytest.mark.system
def test_a_mistake_ends_both_processes_with_its_code(launch, tmp_path):
    began = time.monotonic()
    wrong = "--config.model.num_heads=3"
    process = launch([FOLDER / "two_processes.sh"], tmp_path / "run", wrong)
    assert "model.num_heads 3" in finish(process, code=2)
    assert time.monotonic() - began < 60


@pytest.mark.system
@pytest.mark.parametrize("key", ["optim.constant", "train.steps"])
def test_processes_with_different_configs_are_refused(launch, tmp_path, key):
    with socket.create_server(("", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    place = {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2"}
    place |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-m", "transformer_jax.train"]
    started = []
    for i in range(2):
        here, given = {**place, "PROCESS_ID": str(i)}, f"--config.{key}={4 * (i + 1)}"
        started.append(launch(command, tmp_path / "run", given, **here))
    for process in started:
        output = finish(process, code=2)
        assert re.search(rf"^error: process 1 .* started with {key} = 8", output, re.M)
        assert "all processes with the same command and code" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.system
def test_a_process_that_dies_takes_the_other_with_it(launch, environment, tmp_path):
    """A stand-in for python, of which process 1 fails and process 0 would go on."""
    stub = tmp_path / "python"
    stub.write_text(
        "#!/usr/bin/env bash\n"
        "if [[ $1 == -c ]]; then echo 1; exit; fi\n"
        "if ((PROCESS_ID)); then exit 7; fi\n"
        "exec sleep 100\n"
    )
    stub.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), environment["PATH"]])
    began = time.monotonic()
    finish(launch([FOLDER / "two_processes.sh"], tmp_path, PATH=path), code=7)
    assert time.monotonic() - began < 30


@pytest.fixture
def stub(environment, tmp_path):
    """A function: an environment in which commands are these bash programs."""

    def write(**programs):
        folder = tmp_path / "stubs"
        folder.mkdir(exist_ok=True)
        for name, text in programs.items():
            (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (folder / name).chmod(0o755)
        path = os.pathsep.join([str(folder), environment["PATH"]])
        return {**environment, "PATH": path, "HERE": str(tmp_path)}

    return write


# Stands in for a training: exits with the next of CODES, each time one step further.
TRAINING = """
turn=$(cat $HERE/turns 2>/dev/null || echo 0); echo $((turn + 1)) >$HERE/turns
codes=($CODES)
((${ADVANCES:-1})) && mkdir -p $HERE/run/checkpoints/$((turn + 1))
exit "${codes[$turn]}"
"""


def supervise(variables, workdir, **changes):
    return subprocess.run(
        [FOLDER / "supervise.sh", "--config", "quickstart", "--workdir", workdir],
        env={**variables, "RESTART_DELAY": "0", **changes},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("codes", "turns", "code"),
    [("0", 1, 0), ("75 1 124 0", 4, 0), ("75 2 0", 2, 2)],
    ids=["done", "failed and done", "a mistake"],
)
def test_supervision_starts_again_by_exit_code(stub, tmp_path, codes, turns, code):
    done = supervise(stub(python=TRAINING), tmp_path / "run", CODES=codes)
    assert done.returncode == code, done.stderr
    assert int((tmp_path / "turns").read_text()) == turns


def test_supervision_gives_up_when_no_step_is_new(stub, tmp_path):
    variables = stub(python=TRAINING)
    done = supervise(
        variables, tmp_path / "run", CODES="1 " * 9, ADVANCES="0", MAX_RESTARTS="3"
    )
    assert done.returncode == 1
    assert int((tmp_path / "turns").read_text()) == 3
    assert "3 starts brought no step beyond 0" in done.stderr


def test_supervision_sees_progress_in_the_metrics_too(stub, tmp_path):
    (tmp_path / "run").mkdir()
    log = 'echo "{\\"step\\": $turn, \\"kind\\": 1}" >>$HERE/run/metrics.jsonl\nexit'
    variables = stub(python=TRAINING.replace("exit", log))
    codes = "1 1 1 1 0"
    done = supervise(
        variables, tmp_path / "run", CODES=codes, ADVANCES="0", MAX_RESTARTS="2"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_supervision_passes_sigterm_on_and_ends(stub, tmp_path):
    training = "trap 'exit 75' TERM; touch $HERE/up; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        [FOLDER / "supervise.sh", "--workdir", tmp_path], env=stub(python=training)
    )
    while not (tmp_path / "up").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75


@pytest.mark.system
@pytest.mark.parametrize(("code", "again"), [(75, True), (1, False), (0, False)])
def test_a_preempted_slurm_job_is_queued_again(stub, tmp_path, code, again):
    variables = stub(
        srun='while [[ $1 == -* ]]; do shift; done; exec "$@"',
        python=f'echo "$@" >$HERE/arguments; exit {code}',
        scontrol='echo "$@" >$HERE/queued',
    )
    command = ["bash", FOLDER / "slurm.sbatch", "--workdir", "/a b"]
    variables["SLURM_JOB_ID"] = "7"
    assert subprocess.run(command, env=variables, timeout=60).returncode == code
    arguments = (tmp_path / "arguments").read_text()
    assert arguments == "-m transformer_jax.train --workdir /a b\n"
    assert (tmp_path / "queued").exists() == again


@pytest.mark.system
def test_the_command_for_a_tpu_is_shown_by_a_dry_run(environment):
    done = subprocess.run(
        [FOLDER / "tpu.sh", "--config", "wmt14", "--workdir=/mnt/a b"],
        env={**environment, "DRY_RUN": "1", "TPU_NAME": "v5e", "TPU_ZONE": "west"},
        capture_output=True,
        text=True,
        check=True,
    )
    _, remote = shlex.split(done.stdout)[-1].split("=", 1)
    assert shlex.split(done.stdout)[:6] == "gcloud compute tpus tpu-vm ssh v5e".split()
    words = shlex.split(remote)
    assert words[:4] == "nohup python -m transformer_jax.train".split()
    assert words[4:8] == [
        *("--config", "wmt14", "--workdir=/mnt/a b", "--config.mesh.platform=tpu"),
    ]


@pytest.mark.system
def test_gpus_are_asked_for_in_both_languages(stub, tmp_path):
    variables = stub(python='echo "$JAX_PLATFORMS $@" >$HERE/arguments')
    subprocess.run([FOLDER / "gpu.sh", "--workdir=w"], env=variables, check=True)
    given = (tmp_path / "arguments").read_text().split()
    assert given[0] == "cuda" and given[-1] == "--config.mesh.platform=gpu"


def test_the_jobset_agrees_with_itself():
    manifest = yaml.safe_load((FOLDER / "jobset.yaml").read_text())
    assert manifest["kind"] == "JobSet" and manifest["spec"]["network"]
    [replicated] = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    variables = {v["name"]: v["value"] for v in container["env"]}
    assert job["completionMode"] == "Indexed"
    assert int(variables["NUM_PROCESSES"]) == job["parallelism"] == job["completions"]
    assert container["ports"] == [{"containerPort": clusters.PORT}]
    assert container["command"][:3] == ["python", "-m", "transformer_jax.train"]
    assert pod["terminationGracePeriodSeconds"] > config.base().timeout.preemption
    mounts = {m["name"] for m in container["volumeMounts"]}
    assert mounts == {v["name"] for v in pod["volumes"]}


@pytest.fixture
def pair(launch, tmp_path):
    """A function: two processes that train without end, up and running, and a port."""
    started = []

    def start(*more, workdirs=(tmp_path / "run",) * 2, until="step +5 ", **variables):
        with socket.create_server(("", 0)) as free:
            address = f"localhost:{free.getsockname()[1]}"
        endless = [f"--config.{key}=100000" for key in ("train.steps", "eval.every")]
        command = [sys.executable, "-m", "transformer_jax.train"]
        for i in range(2):
            place = {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2"}
            place |= {"PROCESS_ID": str(i), "JAX_PLATFORMS": "cpu"}
            place |= {"JAX_NUM_CPU_DEVICES": "1", **variables}
            started.append(launch(command, workdirs[i], *endless, *more, **place))
        output = ""
        while until and not re.search(rf"^{until}", output, re.MULTILINE):
            line = started[0].stdout.readline()
            assert line, output
            output += line
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def last_line(output):
    return output.strip().split("\n")[-1]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_ends_the_other_in_a_minute(pair, lost, how):
    processes = pair()
    processes[lost].send_signal(how)
    output, _ = processes[1 - lost].communicate(timeout=60)
    assert processes[1 - lost].returncode == 75
    assert last_line(output).startswith(f"error: process {lost} (")


@pytest.mark.slow
def test_disks_that_are_not_shared_are_refused(pair, tmp_path):
    folders = tmp_path / "a", tmp_path / "b"
    for process in pair(workdirs=folders, until=""):
        output = finish(process, code=2)
        assert "is not one folder for all processes" in last_line(output)
        assert "process 1 (" in last_line(output)


@pytest.mark.slow
def test_sigterm_ends_processes_that_cannot_save(pair):
    processes = pair("--config.timeout.preemption=5")
    processes[1].send_signal(signal.SIGSTOP)  # so that no step can be agreed on
    time.sleep(2)
    processes[0].send_signal(signal.SIGTERM)
    output, _ = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 75
    assert "SIGTERM came 5 s ago" in last_line(output)


@pytest.mark.slow
def test_two_tasks_of_slurm_find_each_other(launch, alone, stub, tmp_path):
    tasks = """
while [[ $1 == -* ]]; do shift; done
export SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=2
for i in 0 1; do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & done
wait -n && wait
"""
    variables = stub(srun=tasks, scontrol="exit 1")
    variables |= {"SLURM_JOB_ID": str(random.randrange(4096)), "JAX_PLATFORMS": "cpu"}
    command = ["bash", FOLDER / "slurm.sbatch"]
    output = finish(launch(command, tmp_path / "run", **variables))
    assert "cluster    2 processes (SLURM) on 1 host" in output
    assert_same_run(tmp_path / "run", alone)


@pytest.fixture
def run_pair(environment):
    """A function: two processes of a command; returns the output of each."""

    def run(module, *arguments, folders=(), code=0):
        with socket.create_server(("", 0)) as free:
            address = f"localhost:{free.getsockname()[1]}"
        started = []
        for i in range(2):
            place = {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2"}
            place |= {"PROCESS_ID": str(i), "JAX_PLATFORMS": "cpu"}
            place |= {"JAX_NUM_CPU_DEVICES": "2"}
            if folders:
                place["TRANSFORMER_JAX_CACHE"] = str(folders[i])
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", f"transformer_jax.{module}", *arguments],
                    env={**environment, **place},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        found = [process.communicate(timeout=200) for process in started]
        assert [process.returncode for process in started] == [code] * 2, found
        return found

    return run


@pytest.mark.slow
def test_two_processes_predict_and_evaluate_what_one_does(run_pair, alone, tmp_path):
    lines = "".join(f"a{i} b\n" for i in range(5)) + "\nlast"
    (tmp_path / "lines").write_text(lines)
    run = load(alone)
    (first, said), (second, _) = run_pair(
        "predict", f"--workdir={alone}", f"--input={tmp_path / 'lines'}"
    )
    assert first.splitlines() == run.predict(lines.split("\n"))
    assert second == "" and "cluster    2 processes" in said
    scored = tmp_path / "scored"
    shutil.copytree(alone, scored)
    (scored / "scores.json").unlink()
    (first, _), (second, _) = run_pair(
        "evaluate", f"--workdir={scored}", "--split=test"
    )
    assert "given the truth so far" in first and second == ""
    wanted = json.loads((alone / "scores.json").read_text())["test"]
    found = json.loads((scored / "scores.json").read_text())["test"]
    for name in ("loss", "bleu", "chrf", "accuracy"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-4)


@pytest.mark.slow
def test_hosts_with_caches_of_their_own_prepare_the_same_data(
    run_pair, arguments, alone, tmp_path
):
    folders = tmp_path / "a", tmp_path / "b"
    run_pair("train", *arguments, f"--workdir={tmp_path / 'run'}", folders=folders)
    stores = [sorted(p.name for p in (f / "stores").iterdir()) for f in folders]
    assert stores[0] == stores[1] != []
    assert_same_run(tmp_path / "run", alone)
