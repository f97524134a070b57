"""How does the loss fall with parameters and text? A law, its fit and its forecast.

    python benchmarks/scaling.py --folder=WIKITEXT2 --output=runs/scaling \\
        --forecast=192 --figure=scaling.png
    python benchmarks/scaling.py --folder=WIKITEXT2 --output=runs/rates \\
        --widths=32,64,128 --updates=250 --rates=0.02,0.04,0.08,0.16 --rule=none

Trains language models of characters, of 4 layers, for each width, number of updates (of
4,096 characters; the text of WikiText-2 is read once by 2,600) and learning rate, and
reads the loss of the validation text. Several rates show how the best one changes with
the width: --rule multiplies the rate of the matrices within layers by base / width or
by its square root, base being the first width, as muP does for Adam and for Muon (Yang
et al. 2022; Yang, Simon, Bernstein 2023).

From all runs, the best rate of each, the law of Hoffmann et al. (2022) is fitted,

    loss = E + A / parameters^a + B / characters^b,

without embeddings among the parameters, by a Huber loss of logarithms. The intervals
are those of 95 % of fits to runs that are drawn anew. The widths of --forecast are left
out of the fit, which is then judged by what it foretells of them. If the command is
stopped, it continues; other options (--config.key=value) apply to every training.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import record
from scipy import optimize

from transformer_jax import cli

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEAD, LAYERS, TOKENS = 16, 4, 4096
DRAWS, DELTA, SHARE = 200, 1e-3, 95
POWERS = {"none": 0.0, "root": 0.5, "width": 1.0}
NAMES = ("E", "A", "a", "B", "b")


class Cell(NamedTuple):
    """A training."""

    width: int
    updates: int
    rate: float


class Point(NamedTuple):
    """What a training has shown: its size, its text in characters, and its loss."""

    parameters: int
    characters: int
    loss: float


def main(words: list[str]) -> int:
    words, overrides = cli.split_overrides(words)
    args = parse_arguments(words)
    forecast = [Cell(w, max(args.updates), args.rates[0]) for w in args.forecast]
    grid = itertools.product(args.widths, args.updates, args.rates)
    cells = list(itertools.starmap(Cell, grid))
    losses = {}
    for cell in cells + forecast:
        losses[cell] = train(args, cell, overrides)
        print(
            f"width {cell.width:4}  updates {cell.updates:6,}  rate {cell.rate:<7g}"
            f"  loss {losses[cell]:.4f}",
            flush=True,
        )
    if len(args.rates) > 1:
        print_rates(args, losses)
    best = {}
    for cell in cells:
        key = cell.width, cell.updates
        best[key] = min(best.get(key, np.inf), losses[cell])
    points = [measure(width, updates, best[width, updates]) for width, updates in best]
    held_out = [measure(c.width, c.updates, losses[c]) for c in forecast]
    if len(points) <= len(NAMES):
        print(f"no fit: {len(points)} runs for its {len(NAMES)} numbers")
        return 0
    first = fit(points)
    fits = np.array([first, *fit_again(points, first)])
    print_law(fits, points, held_out)
    print(f"\n{record.find_commit()}")
    if args.figure:
        draw(first, points, held_out, args.figure)
    return 0


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def numbers(kind):
        return lambda text: [kind(part) for part in text.split(",")]

    parser.add_argument("--folder", required=True, help="train.txt.gz, valid.txt.gz")
    parser.add_argument("--output", required=True, help="a folder for the runs")
    widths, updates = "16,32,48,64,80,96,112,128", "125,250,500"
    parser.add_argument("--widths", type=numbers(int), default=widths, help="by comma")
    parser.add_argument("--updates", type=numbers(int), default=updates)
    parser.add_argument("--rates", type=numbers(float), default="0.08")
    parser.add_argument("--rule", choices=POWERS, default="root")
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--forecast", type=numbers(int), default=[], help="widths")
    parser.add_argument("--figure", help="a file for the curves, such as .png")
    args = parser.parse_args(words)
    for width in args.widths + args.forecast:
        if width < HEAD or width % HEAD:
            parser.error(f"width {width}: give multiples of {HEAD}, the size of a head")
    if args.forecast and len(args.rates) > 1:
        parser.error("--forecast needs a single rate in --rates")
    return args


def train(args: argparse.Namespace, cell: Cell, overrides: dict[str, str]) -> float:
    """Train one model; return its loss of the validation text.

    `train` finds out whether it is there already, and refuses one with other options.
    """
    folder = pathlib.Path(args.output, f"w{cell.width}_u{cell.updates}_r{cell.rate:g}")
    options = describe(args, cell) | overrides
    command = [
        *(sys.executable, "-m", "transformer_jax.train"),
        *("--config", f"{ROOT}/configs/language.py:shakespeare"),
        *("--workdir", str(folder)),
        *(f"--config.{key}={value}" for key, value in options.items()),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}{done.stderr[-2000:]}\n{folder} failed")
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [x["loss"] for x in map(json.loads, lines) if x["kind"] == "validation"][-1]


def describe(args: argparse.Namespace, cell: Cell) -> dict[str, str]:
    """Return the options of a training."""
    factor = (args.widths[0] / cell.width) ** POWERS[args.rule]
    options = {
        "data.folder": args.folder,
        "data.validation_text": "valid.txt.gz",
        "data.stride": 256,
        "data.batch_tokens": TOKENS,
        "model.decoder_layers": LAYERS,
        "model.d_model": cell.width,
        "model.d_ff": 4 * cell.width,
        "model.num_heads": cell.width // HEAD,
        "model.dropout_embedding": 0.0,
        "model.dropout_residual": 0.0,
        "optim.name": args.optimizer,
        "optim.constant": cell.rate,
        "optim.rates": repr(((r"layer_\d+/.*kernel", factor),)),
        "optim.warmup_steps": max(cell.updates // 10, 1),
        "train.steps": cell.updates,
        "eval.every": cell.updates,
        "eval.answers": 1,
        "eval.samples": 0,
        "eval.splits": "()",
        "checkpoint.every": cell.updates,
    }
    return {key: str(value) for key, value in options.items()}


def measure(width: int, updates: int, loss: float) -> Point:
    """Count the matrices of the layers, and the characters that were read."""
    return Point(12 * LAYERS * width**2, TOKENS * updates, loss)


def predict(numbers: np.ndarray, points: list[Point]) -> np.ndarray:
    """Return the law's loss of each point, whose own loss is not looked at."""
    least, a_factor, a, b_factor, b = numbers
    parameters, characters, _ = np.array(points, float).T
    return least + a_factor * parameters**-a + b_factor * characters**-b


def fit(points: list[Point], begin: np.ndarray | None = None) -> np.ndarray:
    """Fit the law's five numbers, in the order of NAMES.

    Begin with those of another fit, or search from several beginnings.
    """
    measured = np.log([point.loss for point in points])
    least = min(point.loss for point in points)
    if begin is None:
        grid = itertools.product((0.3, 0.8), (0.2, 0.6), (0.2, 0.6))
        begins = [(share * least, a * 9.0, a, b * 13.0, b) for share, a, b in grid]
    else:
        start = begin * 1.0
        start[[1, 3]] = np.log(begin[[1, 3]])
        begins = [np.minimum(start, (least, np.inf, np.inf, np.inf, np.inf))]

    def residuals(unknown):
        # The factors are of the order of parameters^a, so their logarithms are sought.
        numbers = unknown * 1.0
        numbers[[1, 3]] = np.exp(unknown[[1, 3]])
        return np.log(predict(numbers, points)) - measured

    found = [
        optimize.least_squares(
            residuals,
            start,
            bounds=((1e-3, -30, 0.01, -30, 0.01), (least, 60, 3, 60, 3)),
            loss="huber",
            f_scale=DELTA,
            max_nfev=2000,
        )
        for start in begins
    ]
    numbers = min(found, key=lambda one: one.cost).x
    numbers[[1, 3]] = np.exp(numbers[[1, 3]])
    return numbers


def fit_again(points: list[Point], first: np.ndarray) -> list[np.ndarray]:
    """Fit runs that are drawn with replacement, for the intervals."""
    random = np.random.default_rng(0)
    draws = random.integers(len(points), size=(DRAWS, len(points)))
    return [fit([points[i] for i in draw], first) for draw in draws]


def interval(values: np.ndarray) -> str:
    """Write the first value, and where 95 % of the others lie."""
    low, high = np.percentile(values[1:], ((100 - SHARE) / 2, (100 + SHARE) / 2))
    return f"{values[0]:.4g} ({low:.4g} to {high:.4g})"


def print_rates(args: argparse.Namespace, losses: dict[Cell, float]) -> None:
    """Print the loss of each rate and width, and about which rate is the best."""
    for updates in args.updates:
        print(f"\n{updates:,} updates of {args.optimizer}, rule {args.rule}")
        print("| width | " + " | ".join(f"{rate:g}" for rate in args.rates), "| best |")
        print("|---" * (len(args.rates) + 2) + "|")
        for width in args.widths:
            row = [losses[Cell(width, updates, rate)] for rate in args.rates]
            best = find_best(args.rates, row)
            print(f"| {width} | " + " | ".join(f"{x:.4f}" for x in row), f"| {best} |")


def find_best(rates: list[float], losses: list[float]) -> str:
    """Find the lowest point of the parabola through the least loss and its neighbours.

    It is drawn over the logarithm of the rate. Without a neighbour the side is named.
    """
    order = np.argsort(rates)
    logs, losses = np.log(rates)[order], np.array(losses)[order]
    least = int(np.argmin(losses))
    if least in (0, len(logs) - 1):
        return f"{'≤' if least == 0 else '≥'} {np.exp(logs[least]):g}"
    near = slice(least - 1, least + 2)
    square, slope, _ = np.polyfit(logs[near], losses[near], 2)
    return f"{np.exp(-slope / (2 * square)):.3f}"


def print_law(fits: np.ndarray, points: list[Point], held_out: list[Point]) -> None:
    """Print the numbers, how far the runs are from the law, and its forecasts."""
    print(f"\nloss = E + A / parameters^a + B / characters^b, from {len(points)} runs")
    for name, column in zip(NAMES, fits.T, strict=True):
        print(f"  {name} = {interval(column)}")
    errors = predict(fits[0], points) - [point.loss for point in points]
    print(
        f"  residual {np.sqrt(np.mean(errors**2)):.4f}, at most {abs(errors).max():.4f}"
    )
    for point in held_out:
        forecast = np.array([predict(one, [point])[0] for one in fits])
        print(
            f"  {point.parameters:,} parameters, {point.characters:,} characters: "
            f"forecast {interval(forecast)}, measured {point.loss:.4f}"
        )


def draw(
    numbers: np.ndarray, points: list[Point], held_out: list[Point], path: str
) -> None:
    """Draw the loss by parameters, a curve per number of characters."""
    from transformer_jax.visualize.style import LINES, make_figure, save

    figure = make_figure(5.2, 3.4)
    axes = figure.subplots()
    sizes = sorted({point.parameters for point in points + held_out})
    ends = np.geomspace(sizes[0], sizes[-1], 60)
    texts = sorted({point.characters for point in points})
    for characters, color in zip(texts, itertools.cycle(LINES), strict=False):
        shown = [point for point in points if point.characters == characters]
        later = [point for point in held_out if point.characters == characters]
        curve = predict(numbers, [Point(int(n), characters, 0.0) for n in ends])
        axes.plot(
            ends, curve, color=color, label=f"{characters / 1e6:.1f} M characters"
        )
        for some, filled in ((shown, color), (later, "white")):
            axes.plot(
                [point.parameters for point in some],
                [point.loss for point in some],
                "o",
                color=color,
                markerfacecolor=filled,
            )
    axes.set_xscale("log")
    axes.set_xlabel("parameters of the layers")
    axes.set_ylabel("nats a character")
    axes.legend()
    save(figure, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
