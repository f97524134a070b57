"""The comparison of pretrained with random starts draws and judges fairly."""

import argparse
import importlib.util
import pathlib

import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "pretraining.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("pretraining", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_the_first_labels_are_drawn_each_once_in_an_epoch(benchmark):
    args = argparse.Namespace(steps=10, rows=7)
    drawn = benchmark.draw_batches(14, args, seed=3)
    assert drawn.shape == (10, 7)
    for epoch in drawn.reshape(-1, 14):
        assert sorted(epoch) == list(range(14))
    assert (drawn != benchmark.draw_batches(14, args, seed=4)).any()


def test_a_batch_may_have_more_rows_than_there_are_labels(benchmark):
    args = argparse.Namespace(steps=2, rows=16)
    drawn = benchmark.draw_batches(5, args, seed=0)
    counts = np.bincount(drawn.ravel(), minlength=5)
    assert counts.sum() == 32 and counts.max() - counts.min() <= 1


def test_the_table_has_the_difference_with_welchs_interval(benchmark, capsys):
    scores = {"pretrained": (0.8, 0.82, 0.84), "random": (0.6, 0.62, 0.64)}
    done = {
        (50, seed, kind): value
        for kind, values in scores.items()
        for seed, value in enumerate(values)
    }
    benchmark.print_table(done, argparse.Namespace(labels=[50]))
    # Equal variances and sizes: t(0.975, 4) · 0.02 · √(2/3) = 2.776 · 0.01633.
    expected = "| 50 | 82.0% ± 2.0 | 62.0% ± 2.0 | +20.0 ± 4.5 |"
    assert expected in capsys.readouterr().out


def test_one_seed_is_refused(benchmark, capsys):
    with pytest.raises(SystemExit):
        benchmark.parse_arguments(["--initial=x", "--output=y", "--seeds=1"])
    assert "--seeds must be at least 2" in capsys.readouterr().err
