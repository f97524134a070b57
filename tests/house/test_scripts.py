"""Each benchmark and each sweep starts: its imports and its options are there."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("launch/*.py")])


# Import once what most scripts import, and fork for each script.
PROGRAM = """
import os, runpy, sys
import transformer_jax.runs.run
folder, *paths = sys.argv[1:]
for number, path in enumerate(paths):
    if os.fork() == 0:
        sys.argv = [path, "--help"]
        sys.path[0] = os.path.dirname(path)
        for stream in (1, 2):
            place = os.path.join(folder, f"{number}_{stream}")
            os.dup2(os.open(place, os.O_CREAT | os.O_WRONLY), stream)
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    os.wait()
"""


@pytest.fixture(scope="module")
def helped(tmp_path_factory):
    """What each script writes to its two streams when it is asked for help."""
    folder = tmp_path_factory.mktemp("help")
    subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, *SCRIPTS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    return {
        path: [(folder / f"{i}_{stream}").read_text("utf-8") for stream in (1, 2)]
        for i, path in enumerate(SCRIPTS)
    }


@pytest.mark.system
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_says_what_its_options_are(path, helped):
    out, error = helped[path]
    if "No module named 'torch'" in error:
        pytest.skip("PyTorch is not installed")
    assert "Traceback" not in error, error
    assert "--" in out


def test_a_search_tries_each_setting_and_keeps_the_fastest(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import settings

    tried = []

    def measure(given):
        tried.append(dict(given))
        if given["B"] == "2" and given["batch"] == 1:
            raise RuntimeError("first\nno such library")
        return given["batch"] + 10.0 * (given["B"] == "2")

    choices = {"batch": (1, 5, 3), "B": ("", "2")}
    every = settings.combine(choices)
    assert len(every) == 6 and every[0] == {"batch": 1, "B": ""}
    assert settings.search("peer", every, measure) == {"batch": 5, "B": "2"}
    assert tried == every
    out = capsys.readouterr().out
    assert "tried      peer: batch=1: 1.0\n" in out
    assert "batch=1, B=2: does not run: no such library\n" in out
    assert out.endswith("chosen     peer: batch=5, B=2\n")
    tried.clear()
    assert settings.search_in_turn("peer", choices, measure) == {"batch": 5, "B": "2"}
    assert len(tried) == 5
    monkeypatch.setenv("B", "before")
    assert "B" not in settings.environment_of({"B": "", "batch": 1})
    assert settings.environment_of({"B": "2"})["B"] == "2"
    with pytest.raises(SystemExit, match="runs with none of its settings"):
        settings.search("peer", every, lambda given: 0.0)


def test_a_record_of_speeds_has_its_machine_and_a_table(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from record import Comparison, add, begin, table

    path = tmp_path / "peers.json"
    speeds = {"ours": [30.0, 10.0, 20.0], "other": [10.0, 10.0, 10.0]}
    one = Comparison("answers", "lines/s", speeds, {}, {"other": "9 of 10 the same"})
    add("", [one])
    begin("")
    begin(str(path))
    add(str(path), [one])
    add(str(path), [one])
    found = json.loads(path.read_text(encoding="utf-8"))
    assert len(found["comparisons"]) == 2
    assert found["machine"]["gflops"] > 0 and found["machine"]["versions"]["jax"]
    row = table(found).split("\n")[2]
    assert row == (
        "| answers | 20.0 lines/s | other | 10.0 | 2.00 (1.00 to 3.00, 3 rounds) | "
        "9 of 10 the same |"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--parts=speed", "--parts=speed: some of decode, int8, train"),
        ("--joeynmt=python", "--joeynmt needs --config"),
        ("--config.seed=1", "unknown options --config.seed=1"),
        ("--output={0}", "exists: name another --output, or remove it"),
    ],
)
def test_a_comparison_with_strange_options_is_refused(tmp_path, words, says):
    (there := tmp_path / "there.json").write_text("{}", encoding="utf-8")
    words = words.format(there) if "{0}" in words else f"{words} --output=new.json"
    done = run_benchmark(f"compare.py --input lines {words}")
    assert done.returncode and says in done.stderr


def test_a_curve_that_grows_faster_than_it_must_is_marked(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from growth import Curve, Sizes, draw, open_search

    sizes, squares = [8, 16, 32, 64], [9.0, 1.0, 4.0, 16.0]
    curve = Curve("answers", "ms", "width", sizes, squares, [1.0, 2.0, 4.0, 8.0])
    assert curve.slope(squares) == 2.0  # of the last two doublings
    assert curve.row().endswith(" 2.00   1.00  grows faster than it must")
    assert curve.row().startswith("width      8 to 64 ")
    assert dataclasses.replace(curve, needed=squares).row().endswith("2.00")
    draw([curve], str(tmp_path / "curve.png"))
    assert (tmp_path / "curve.png").stat().st_size > 1000

    # Twice the hypotheses write twice as much, but the source is read once.
    small = Sizes(length=4, vocabulary=64, layers=1, width=8, rows=2, beams=1)
    operations = [
        open_search(dataclasses.replace(small, beams=beams))[1] for beams in (1, 2, 3)
    ]
    assert operations[2] - operations[1] == operations[1] - operations[0]
    assert operations[1] < 2 * operations[0]
    answer = [*open_search(small)[0]()]
    assert [len(found[0].tokens) for _, found in answer] == [4, 4]


SHORTEST = (
    "attention.py --lengths 256 --repeats 2",
    "batching.py --steps 10 --rounds 1 --shapes 2 --rows 64",
    "collectives.py --config quickstart --target cpu-8 --rows 16 --length 24"
    " --vocab 420",
    "depth.py --output RUNS --depths 1 --forms post --steps 2"
    " --config.optim.warmup_steps=1",
    "decisions.py --episodes 5",
    "drawings.py --examples 20",
    "growth.py --only shapes,runs --figure RUNS.png",
    "large_corpus.py --pairs 5000",
    "limit.py --config quickstart --config.data.train_size=2000"
    " --config.data.validation_size=20 --config.data.test_size=20"
    " --config.model.d_model=16",
    "norms.py --output RUNS --texts long --rows 16 --forms layer,batch --steps 2"
    " --config.optim.warmup_steps=1",
    "overlap.py --config tagging",
    "plan_hash.py --batches 20 --processes 1,2",
    "positions.py --workdir RUNS --sentences 20 --config.train.steps=4"
    " --config.optim.warmup_steps=2 --config.data.train_size=2000"
    " --config.data.validation_size=20 --config.data.test_size=20"
    " --config.model.d_model=16 --config.model.d_ff=16 --config.model.num_heads=2",
    "recurrent.py speed --lengths 8 --rounds 1 --steps 1 --tokens 64",
)


def run_benchmark(command):
    name, *options = command.split()
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", SHORTEST, ids=lambda command: command.split()[0])
def test_a_benchmark_runs_in_its_shortest_form(command, tmp_path):
    """Not what it measures, which a machine that tests cannot tell."""
    done = run_benchmark(command.replace("RUNS", str(tmp_path / "runs")))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_a_run_that_is_killed_twice_ends_equal():
    done = run_benchmark(
        "kill_resume.py --kills 2 --steps 60 --config.model.d_model=16"
        " --config.optim.warmup_steps=30 --config.data.train_size=2000"
        " --config.data.validation_size=20 --config.data.test_size=20"
    )
    assert "\nEQUAL\n" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    # 2: a kill missed its moment, as it may on a busy machine.
    assert done.returncode in (0, 2)
