"""How many labels does pretraining save? Accuracy by labels, with and without it.

    python -m transformer_jax.train --config configs/masked.py:opinions \\
        --workdir runs/masked_opinions
    python benchmarks/pretraining.py --initial runs/masked_opinions \\
        --output pretraining.jsonl --figure pretraining.png
    python benchmarks/pretraining.py --initial runs/masked_wikitext2 \\
        --config tagging:ptb_sample --split validation --output tags.jsonl

Trains the classifier of configs/opinions.py:pretrained, or the classifier or tagger of
another --config, for each number of labelled texts, each seed and both initialisations,
and scores each on the same --split. Both have the pretrained run's vocabulary;
otherwise the random one would know only the words of its few labelled texts. All seeds
have the same labelled texts, which are the first of the training split, and differ in
everything else that is random. Texts are drawn in batches of --rows, and the learning
rate falls to 0 over --steps, whatever the number of labels.
If it is stopped, the same command continues and skips the trainings that the output
already contains. Other options (--config.key=value) apply to every training.
"""

import argparse
import json
import pathlib
import sys
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax import cli, sharding, train
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.report import significance
from transformer_jax.runs import environment
from transformer_jax.runs import folder as folders
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.prepare import Prepared, prepare
from transformer_jax.training.steps.feed import assemble
from transformer_jax.training.warm_start import Origin

BEGINNINGS = ("pretrained", "random")


class Laboratory(NamedTuple):
    """The parts that all trainings share, prepared and compiled once."""

    config: Any
    mesh: Mesh
    prepared: Prepared
    init: Any
    update: Any
    test: Evaluator


def main() -> int:
    """Train the missing models, print the table, and draw the curves if asked."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(words)
    output = pathlib.Path(args.output)
    done = read(output)
    environment.use_compile_cache()
    wanted = [
        (labels, seed, beginning)
        for seed in range(args.seeds)
        for labels in args.labels
        for beginning in BEGINNINGS
    ]
    try:
        with tempfile.TemporaryDirectory() as folder:
            laboratory = None
            for labels, seed, beginning in wanted:
                if (labels, seed, beginning) in done:
                    continue
                laboratory = laboratory or furnish(folder, args, overrides)
                score = measure(laboratory, args, labels, seed, beginning)
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
    parser.add_argument("--initial", required=True, help="a run of configs/masked.py")
    parser.add_argument("--config", default="opinions:pretrained", help="what to train")
    parser.add_argument("--split", default="test", help="on which it is scored")
    parser.add_argument("--output", required=True, help="JSON lines; is gone on with")
    parser.add_argument("--labels", default="20,50,100,500,1000", help="by comma")
    parser.add_argument("--seeds", type=int, default=5, help="at least 2")
    parser.add_argument("--steps", type=int, default=200, help="updates of a training")
    parser.add_argument("--rows", type=int, default=16, help="texts of a batch")
    parser.add_argument("--figure", help="a file for the curves, such as .png")
    args = parser.parse_args(words)
    args.labels = [int(n) for n in args.labels.split(",")]
    if args.seeds < 2:
        parser.error("--seeds must be at least 2: one has no standard deviation")
    return args


def read(output: pathlib.Path) -> dict[tuple[int, int, str], float]:
    """Read the results of earlier calls."""
    lines = output.read_text().splitlines() if output.exists() else []
    found = map(json.loads, lines)
    return {(x["labels"], x["seed"], x["beginning"]): x["accuracy"] for x in found}


def furnish(
    folder: str, args: argparse.Namespace, overrides: dict[str, str]
) -> Laboratory:
    """Encode the texts with the pretrained run's vocabulary, and make the update."""
    origin = folders.Folder(args.initial)
    files = sorted(map(str, origin.tokenizer.glob("*.model")))
    if not files:
        raise UserError(f"--initial={args.initial}: there is no run with a vocabulary")
    changes = {
        "train.initial": args.initial,
        "tokenizer.kind": "file",
        "tokenizer.file": ",".join(files),
        "data.train_size": str(max(args.labels)),
        "train.steps": str(args.steps),
        "optim.warmup_steps": str(max(args.steps // 10, 1)),
        "eval.splits": args.split,
    }
    config = configs.load(args.config, changes | overrides)
    mesh = sharding.make_mesh(config.mesh, config.mesh.platform)
    prepared = prepare(config, folders.Folder(folder), lambda line: None)
    Origin(config).check(prepared.task)
    init, _, update = train.make_update(config, prepared.task, mesh)
    test = Evaluator(prepared.task, prepared.held_out[args.split], mesh)
    return Laboratory(config, mesh, prepared, init, update, test)


def measure(
    laboratory: Laboratory,
    args: argparse.Namespace,
    labels: int,
    seed: int,
    beginning: str,
) -> float:
    """Train one model; return its accuracy on the split."""
    config, mesh, prepared = laboratory[:3]
    task, store = prepared.task, prepared.train.store
    width = int(task.data.lengths(store).max())
    shape = Shape(args.rows, (width,))
    with jax.set_mesh(mesh):
        state = laboratory.init(jax.random.key(seed))
        if beginning == "pretrained":
            filled = Origin(config).fill(task, state.params, mesh, lambda line: None)
            # A copy, because the update donates the memory of its state.
            state = state.replace(params=jax.tree.map(lambda x: x.copy(), filled))
        for examples in draw_batches(min(labels, len(store)), args, seed):
            batch = Batch(shape, examples[:, None])
            arrays = assemble(task, store, batch, mesh)[0]
            state, outcome = laboratory.update(state, arrays)
            jax.block_until_ready(outcome)
        return laboratory.test.teacher_forced(state.params)["accuracy"]


def draw_batches(labels: int, args: argparse.Namespace, seed: int) -> np.ndarray:
    """Draw the texts of each batch; every text occurs once before any is repeated."""
    random, needed = np.random.default_rng(seed), args.steps * args.rows
    epochs = [random.permutation(labels) for _ in range(-(-needed // labels))]
    return np.concatenate(epochs)[:needed].reshape(args.steps, args.rows)


def compare(done: dict, labels: int) -> significance.Difference:
    """Compare both initialisations over the seeds."""
    random, pretrained = (
        tuple(x for (n, _, kind), x in done.items() if (n, kind) == (labels, name))
        for name in ("random", "pretrained")
    )
    return significance.Difference(
        "accuracy", "random", "pretrained", random, pretrained
    )


def print_table(done: dict, args: argparse.Namespace) -> None:
    """Print mean ± standard deviation over the seeds, and Welch's 95 % interval."""
    print("| labels | pretrained | random | difference |")
    print("|---|---|---|---|")
    for labels in args.labels:
        found = compare(done, labels)
        cells = [
            f"{mean:.1%} ± {100 * deviation:.1f}"
            for mean, deviation in zip(found.means, found.deviations, strict=True)
        ]
        difference = f"{100 * found.measured:+.1f}"
        if found.interval is not None:
            difference += f" ± {100 * found.interval:.1f}"
        print(f"| {labels} | {cells[1]} | {cells[0]} | {difference} |")


def draw(done: dict, args: argparse.Namespace) -> None:
    """Draw a curve per initialisation, with a band of one standard deviation."""
    from transformer_jax.visualize.style import LINES, make_figure, save

    figure = make_figure(5.2, 3.4)
    axes = figure.subplots()
    for kind, marker, color in zip(BEGINNINGS, "os", LINES, strict=False):
        column = ("random", "pretrained").index(kind)
        found = [compare(done, labels) for labels in args.labels]
        means = [100 * one.means[column] for one in found]
        spread = [100 * one.deviations[column] for one in found]
        axes.plot(args.labels, means, marker=marker, label=kind, color=color)
        low = [m - s for m, s in zip(means, spread, strict=True)]
        high = [m + s for m, s in zip(means, spread, strict=True)]
        axes.fill_between(args.labels, low, high, alpha=0.2, color=color, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks(args.labels, [str(n) for n in args.labels])
    axes.minorticks_off()
    axes.set_xlabel("labelled texts")
    axes.set_ylabel(f"% right on {args.split}")
    axes.legend()
    save(figure, args.figure)


if __name__ == "__main__":
    sys.exit(main())
