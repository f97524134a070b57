"""The files of results/, and the tables that are made of them."""

import importlib.util
import json
import pathlib
import runpy
import shutil

import pytest

from transformer_jax import config

ROOT = pathlib.Path(__file__).parents[2]
SPEEDS = ROOT / "results" / "speeds.json"  # beside other packages
RUNS = sorted({*(ROOT / "results").glob("*.json")} - {SPEEDS})
TEXTS = (
    "config command task data parameters updates time hardware commit protocol metric "
    "published note"
).split()


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location(
        "generate", ROOT / "results" / "generate.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path):
    """A copy of what the tables are made of."""
    shutil.copytree(ROOT / "results", tmp_path / "results")
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks").mkdir()
    for name in ("README.md", "docs/results.md", "benchmarks/README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_run_has_every_key_of_its_type_and_a_config_that_is_shipped(path):
    run = json.loads(path.read_text())
    assert set(run) == {*TEXTS, "score", "further", "curve"}
    for key in TEXTS:
        assert isinstance(run[key], str), key
    assert isinstance(run["score"], int | float) and not isinstance(run["score"], bool)
    assert isinstance(run["further"], list)
    assert all(isinstance(reading, str) for reading in run["further"])
    for key in ("config", "command", "task", "data", "protocol", "metric"):
        assert run[key], key

    file, _, variant = run["config"].partition(":")
    name = file.removesuffix(".py")
    assert (ROOT / "configs" / file).is_file()
    assert name in config.shipped()
    assert path.stem == (f"{name}_{variant}" if variant else name)
    get_config = runpy.run_path(str(config.shipped()[name]))["get_config"]
    made = get_config(variant) if variant else get_config()
    assert made.task == run["task"]


def test_the_tables_are_in_step(generate):
    assert generate.out_of_date(ROOT) == {}
    assert generate.main(["--check"]) == 0


@pytest.mark.parametrize(
    "name, pages",
    [
        ("multi30k_muon_de_en", ["README.md", "docs/results.md"]),
        ("quickstart", ["docs/results.md"]),  # on generated data
    ],
)
def test_a_changed_score_is_found_and_written(generate, copy, capsys, name, pages):
    path = copy / "results" / f"{name}.json"
    run = json.loads(path.read_text()) | {"score": 12.345}
    path.write_text(json.dumps(run))
    before = {page: (copy / page).read_text() for page in pages}

    assert generate.main(["--check"], copy) == 1
    said = capsys.readouterr().err
    assert [line.split()[0] for line in said.splitlines()] == pages
    assert {page: (copy / page).read_text() for page in pages} == before

    assert generate.main([], copy) == 0
    assert all("12.345" in (copy / page).read_text() for page in pages)
    assert generate.main(["--check"], copy) == 0


def test_a_changed_speed_is_found_and_written(generate, copy, capsys):
    path = copy / "results" / "speeds.json"
    record = json.loads(path.read_text())
    first = record["comparisons"][0]
    first["speeds"] = {"ours": [1234.5], "theirs": [2469.0]}
    path.write_text(json.dumps(record))
    assert generate.main(["--check"], copy) == 1
    assert capsys.readouterr().err.startswith("benchmarks/README.md is stale")
    assert generate.main([], copy) == 0
    page = (copy / "benchmarks" / "README.md").read_text()
    assert (
        f"| {first['what']} | 1,234.5 {first['unit']} | theirs | 2,469.0 | 0.50 "
        in page
    )


@pytest.mark.parametrize(
    "change",
    [
        {"score": "40.40"},
        {"further": "none"},
        {"speed": ""},
        {"time": 28},
        {"curve": {"points": []}},
    ],
)
def test_a_wrong_key_or_type_is_refused(generate, copy, capsys, change):
    path = copy / "results" / "multi30k_de_en.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert generate.main([], copy) == 1
    assert "multi30k_de_en.json" in capsys.readouterr().err


def test_the_curve_of_a_run_is_read_and_shown(generate, copy, capsys, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    lines = [
        {"step": 10, "kind": "train", "loss": 9.0},
        {"step": 10, "kind": "validation", "loss": 1.23456, "nll": 1.5},
        {"step": 1200, "kind": "validation", "loss": 0.98765, "nll": 1.25},
        {"step": 1200, "kind": "validation", "loss": 0.5, "nll": 0.5, "schema": 2},
    ]
    metrics = run / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert generate.main(["--curve", str(run)], copy) == 0
    curve = json.loads(capsys.readouterr().out)
    assert curve == {"reading": "loss", "points": [[10, 1.235], [1200, 0.9877]]}

    path = copy / "results" / "sst2.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"curve": curve}))
    assert generate.main([], copy) == 0
    page = (copy / "docs" / "results.md").read_text()
    assert "| [`sst2.py`](#sst2py) | loss | 1.235 (10), 0.9877 (1,200) |" in page

    capsys.readouterr()
    assert generate.main(["--curve", str(run), "--reading", "bleu"], copy) == 1
    assert "'bleu': give one of step, kind, loss, nll" in capsys.readouterr().err
    assert generate.main(["--curve", str(tmp_path)], copy) == 1
    assert "give the folder of a run" in capsys.readouterr().err


def test_a_run_that_the_readme_shows_must_have_a_file(generate, copy, capsys):
    (copy / "results" / "sst2.json").unlink()
    assert generate.main([], copy) == 1
    assert "sst2.py" in capsys.readouterr().err


def test_a_page_without_markers_is_named(generate, copy, capsys):
    (copy / "README.md").write_text("nothing here\n")
    assert generate.main(["--check"], copy) == 1
    assert "README.md" in capsys.readouterr().err


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_config_that_is_measured_names_its_results(path):
    name = json.loads(path.read_text())["config"].partition(".")[0]
    assert f"results/{name}" in (ROOT / "configs" / f"{name}.py").read_text()
