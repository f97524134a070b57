"""The law of losses is found again in losses that follow one."""

import importlib.util
import pathlib

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
WORDS = ["--folder=text", "--output=runs"]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    path = FOLDER / "scaling.py"
    spec = importlib.util.spec_from_file_location("scaling", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def follow(benchmark, law, widths, updates, noise=0.0):
    """Return points whose losses are the law's, but for some noise."""
    random = np.random.default_rng(0)
    sizes = [benchmark.measure(w, u, 0.0) for w in widths for u in updates]
    losses = benchmark.predict(np.array(law), sizes)
    losses = losses * np.exp(random.normal(0, noise, len(sizes)))
    return [
        size._replace(loss=float(loss))
        for size, loss in zip(sizes, losses, strict=True)
    ]


WIDTHS, UPDATES = (16, 32, 64, 128, 192), (250, 500, 1000)
LAW = (1.0, 30.0, 0.3, 200.0, 0.4)


def test_a_law_is_found_again(benchmark):
    points = follow(benchmark, LAW, WIDTHS, UPDATES)
    found = benchmark.fit(points)
    np.testing.assert_allclose(found[[0, 2, 4]], [1.0, 0.3, 0.4], rtol=0.02)
    np.testing.assert_allclose(
        benchmark.predict(found, points), [point.loss for point in points], rtol=1e-4
    )
    parameters, characters, loss = points[4]
    assert (parameters, characters) == (12 * 4 * 32**2, 500 * 4096)
    assert loss == pytest.approx(
        1 + 30 * parameters**-0.3 + 200 * characters**-0.4
    )  # the formula of Hoffmann et al.


def test_a_forecast_has_an_interval_and_what_was_measured(
    benchmark, monkeypatch, capsys
):
    monkeypatch.setattr(benchmark, "DRAWS", 12)
    points = follow(benchmark, LAW, WIDTHS, UPDATES, noise=0.002)
    [larger] = follow(benchmark, LAW, [320], [1000])
    first = benchmark.fit(points)
    fits = np.array([first, *benchmark.fit_again(points, first)])
    assert len(fits) == 13 and fits[1:, 2].std() > 0
    benchmark.print_law(fits, points, [larger])
    said = capsys.readouterr().out
    assert "from 15 runs" in said and "4,915,200 parameters, 4,096,000" in said
    assert f"measured {larger.loss:.4f}" in said
    [foretold] = benchmark.predict(first, [larger])
    assert foretold == pytest.approx(larger.loss, rel=0.01)


@pytest.mark.parametrize(
    ("rule", "factor"), [("none", 1), ("root", 0.5), ("width", 0.25)]
)
def test_a_rule_scales_the_rate_of_the_matrices_by_the_width(benchmark, rule, factor):
    args = benchmark.parse_arguments([*WORDS, "--widths=32,128", f"--rule={rule}"])
    found = benchmark.describe(args, benchmark.Cell(128, 250, 0.01))
    assert found["optim.rates"] == repr(((r"layer_\d+/.*kernel", float(factor)),))
    assert (found["model.d_ff"], found["model.num_heads"]) == ("512", "8")


def test_the_options_of_a_training_are_those_of_a_config(benchmark):
    from transformer_jax import config

    args = benchmark.parse_arguments(WORDS)
    options = benchmark.describe(args, benchmark.Cell(48, 250, 0.01))
    loaded = config.load("language:shakespeare", options, data=False)
    assert loaded.model.d_model == 48 and loaded.optim.rates[0][1] == 3**-0.5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--widths=24", "width 24: give multiples of 16, the size of a head"),
        ("--forecast=8", "width 8: give multiples of 16"),
        ("--forecast=64 --rates=0.1,0.2", "--forecast needs a single rate"),
    ],
)
def test_what_cannot_be_measured_is_refused(benchmark, words, says, capsys):
    with pytest.raises(SystemExit):
        benchmark.parse_arguments([*WORDS, *words.split()])
    assert says in capsys.readouterr().err


def test_the_best_rate_of_each_width_is_shown(benchmark, capsys):
    args = benchmark.parse_arguments(
        [*WORDS, "--widths=16,32", "--updates=9", "--rates=0.1,0.2"]
    )
    losses = dict(
        zip(
            [(16, 9, 0.1), (16, 9, 0.2), (32, 9, 0.1), (32, 9, 0.2)],
            [2.0, 1.5, 1.0, 1.25],
            strict=True,
        )
    )
    benchmark.print_rates(args, losses)
    said = capsys.readouterr().out
    assert "| 16 | 2.0000 | 1.5000 | ≥ 0.2 |\n| 32 | 1.0000 | 1.2500 | ≤ 0.1 |" in said


def test_the_best_rate_lies_at_the_lowest_point_of_a_parabola(benchmark):
    rates = [0.16, 0.02, 0.04, 0.08]  # in any order
    losses = [1.5 + (np.log(rate) - np.log(0.05)) ** 2 for rate in rates]
    assert benchmark.find_best(rates, losses) == "0.050"


def test_the_curves_are_drawn(benchmark, tmp_path):
    points = follow(benchmark, LAW, WIDTHS, UPDATES)
    later = follow(benchmark, LAW, [320], [1000])
    benchmark.draw(np.array(LAW), points, later, str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size > 1000
