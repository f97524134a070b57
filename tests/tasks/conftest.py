"""Runs for tests of what a task answers."""

import json
import re
import shutil

import pytest

from transformer_jax import evaluate


@pytest.fixture(scope="session")
def quick_run_of(tiny_run_of):
    """A function: the directory of a tiny run that is rarely saved and scored."""
    few = {
        "eval.answers": "1", "eval.batch_rows": "8", "eval.every": "12",
        "checkpoint.every": "6",
    }  # fmt: skip
    return lambda spec, **changes: tiny_run_of(spec, **few | changes)


@pytest.fixture
def compare_seeds(run_main, tmp_path):
    """A function: the metrics by which groups of copies of a run are compared."""

    def compare(path):
        for seed in (1, 2, 3, 4):
            copy = shutil.copytree(path, tmp_path / f"run_{seed}")
            stored = json.loads((copy / "config.json").read_text())
            (copy / "config.json").write_text(json.dumps(stored | {"seed": seed}))
        runs = [f"{tmp_path}/run_{seed}" for seed in (1, 2, 3, 4)]
        out = run_main(
            evaluate,
            f"--workdir={','.join(runs[:2])}",
            f"--compare={','.join(runs[2:])}",
            "--split=test",
        )
        assert out.count("scores.json") == 4
        means = re.findall(
            r"^(.*): mean ±.*\n +2 seeds +(\S+) ± 0.00", out, re.MULTILINE
        )
        assert out.count("the means are equal") == len(means)
        return {name: float(mean) for name, mean in means}

    return compare
