"""The launch scripts: a mesh, and two processes, train what one device trains."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest

FOLDER = pathlib.Path(__file__).parent.parent / "launch"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
WHOLE = {
    ".lock",
    "config.json",
    "versions.json",
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
    flags = "--xla_backend_optimization_level=0"
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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_only_call_train(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    assert set(re.findall(r"python -m (\S+)", text)) == {"transformer_jax.train"}
    assert os.access(script, os.X_OK)


def test_the_readme_names_every_script():
    text = (FOLDER / "README.md").read_text()
    assert all(f"launch/{script.name}" in text for script in SCRIPTS)


def test_a_mesh_of_eight_devices_trains_what_one_device_trains(launch, alone, tmp_path):
    mesh = [f"--config.mesh.{axis}=2" for axis in ("data", "fsdp", "tensor")]
    output = finish(launch([FOLDER / "laptop.sh"], tmp_path / "run", *mesh))
    assert "8 × cpu (cpu), mesh data 2 × fsdp 2 × tensor 2 × sequence 1" in output
    assert_same_run(tmp_path / "run", alone)


def test_two_processes_train_what_one_device_trains(launch, alone, tmp_path):
    output = finish(launch([FOLDER / "two_processes.sh"], tmp_path / "run"))
    assert "4 × cpu (cpu), mesh data 4" in output
    assert output.count("done: ") == 1  # only process 0 reports
    assert_same_run(tmp_path / "run", alone)


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


def test_a_mistake_ends_both_processes_with_its_code(launch, tmp_path):
    began = time.monotonic()
    wrong = "--config.model.num_heads=3"
    process = launch([FOLDER / "two_processes.sh"], tmp_path / "run", wrong)
    assert "model.num_heads 3" in finish(process, code=2)
    assert time.monotonic() - began < 60


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
