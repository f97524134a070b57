"""How many labels does pretraining save? Accuracy by labels, with and without it.

    python -m transformer_jax.train --config configs/masked.py:opinions \\
        --workdir runs/masked_opinions
    python benchmarks/pretraining.py --initial runs/masked_opinions \\
        --output pretraining.jsonl --figure pretraining.png

Trains the classifier of configs/opinions.py:pretrained for each number of labels, each
seed and both initialisations, and scores each on the same test set. All seeds have the
same labelled texts, and differ in everything else that is random. If it is stopped, the
same command continues and skips the trainings that the output already contains. Other
options (--config.key=value) apply to every training.
"""

import argparse
import contextlib
import io
import json
import pathlib
import statistics
import sys
import tempfile

from transformer_jax import cli, train
from transformer_jax import config as configs
from transformer_jax.errors import UserError
from transformer_jax.runs import environment

BEGINNINGS = ("pretrained", "random")


def main() -> int:
    """Train the missing models, print the table, and draw the curves if asked."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(words)
    output = pathlib.Path(args.output)
    done = read(output)
    environment.use_compile_cache()
    try:
        for seed in range(args.seeds):
            for labels in args.labels:
                for beginning in BEGINNINGS:
                    if (labels, seed, beginning) not in done:
                        initial = args.initial if beginning == "pretrained" else ""
                        score = measure(labels, seed, initial, overrides)
                        done[labels, seed, beginning] = score
                        keys = {"labels": labels, "seed": seed, "beginning": beginning}
                        with output.open("a") as file:
                            file.write(json.dumps(keys | {"accuracy": score}) + "\n")
                        print(*keys.values(), f"{score:.1%}", flush=True)
    except UserError as error:
        cli.fail(*error.problems)
    print_table(done, args)
    if args.figure:
        draw(done, args)
    return 0


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line, without its overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--initial", required=True, help="a run of masked:opinions")
    parser.add_argument("--output", required=True, help="JSON lines; is gone on with")
    parser.add_argument("--labels", default="20,50,100,500,1000", help="by comma")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--figure", help="a file for the curves, such as .png")
    args = parser.parse_args(words)
    args.labels = [int(n) for n in args.labels.split(",")]
    return args


def read(output: pathlib.Path) -> dict[tuple[int, int, str], float]:
    """Read the results of earlier calls."""
    lines = output.read_text().splitlines() if output.exists() else []
    found = map(json.loads, lines)
    return {(x["labels"], x["seed"], x["beginning"]): x["accuracy"] for x in found}


def measure(labels: int, seed: int, initial: str, overrides: dict[str, str]) -> float:
    """Train one classifier; return its accuracy on the test set."""
    changes = {
        "seed": str(seed),
        "data.train_size": str(labels),
        "train.initial": initial,
        "eval.splits": "test",
        "eval.weights": "auto",
    }
    config = configs.load("opinions:pretrained", changes | overrides)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            train.train(config, pathlib.Path(folder) / "run")
        result = (pathlib.Path(folder) / "run" / "result.json").read_text()
    return json.loads(result)["scores"]["test"]["accuracy"]


def summarise(done: dict, labels: int, beginning: str) -> tuple[float, float]:
    """Return the mean and the standard deviation over the seeds."""
    found = [x for (n, _, kind), x in done.items() if (n, kind) == (labels, beginning)]
    return statistics.mean(found), statistics.stdev(found) if found[1:] else 0.0


def print_table(done: dict, args: argparse.Namespace) -> None:
    """Print the accuracies, mean ± standard deviation over the seeds."""
    print(f"| labels | {' | '.join(BEGINNINGS)} |")
    print(f"|---|{'---|' * len(BEGINNINGS)}")
    for labels in args.labels:
        cells = [summarise(done, labels, kind) for kind in BEGINNINGS]
        said = (f"{mean:.1%} ± {100 * deviation:.1f}" for mean, deviation in cells)
        print(f"| {labels} | {' | '.join(said)} |")


def draw(done: dict, args: argparse.Namespace) -> None:
    """Draw a curve per initialisation, with a band of one standard deviation."""
    from transformer_jax.visualize.style import make_figure, save

    figure = make_figure(5.2, 3.4)
    axes = figure.subplots()
    for kind, marker in zip(BEGINNINGS, "os", strict=True):
        found = [summarise(done, labels, kind) for labels in args.labels]
        means = [100 * mean for mean, _ in found]
        spread = [100 * deviation for _, deviation in found]
        (line,) = axes.plot(args.labels, means, marker=marker, label=kind)
        low = [m - s for m, s in zip(means, spread, strict=True)]
        high = [m + s for m, s in zip(means, spread, strict=True)]
        axes.fill_between(
            args.labels, low, high, alpha=0.2, color=line.get_color(), linewidth=0
        )
    axes.set_xscale("log")
    axes.set_xticks(args.labels, [str(n) for n in args.labels])
    axes.set_xlabel("labelled texts")
    axes.set_ylabel("% right on the test")
    axes.legend()
    save(figure, args.figure)


if __name__ == "__main__":
    sys.exit(main())
