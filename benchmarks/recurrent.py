"""Compare recurrent models with the Transformer: reach of gradients, speed and scores.

    python benchmarks/recurrent.py reach RUN RUN … --output reach.png
    python benchmarks/recurrent.py speed
    python benchmarks/recurrent.py scores RUN RUN …

`reach` draws how much the log-probability of an output token depends on the embedding
of a source token, by the number of tokens read in between. `speed` trains both models
in turn on sentences of given lengths. `scores` translates short and long sentences.
RUNs are translation runs of any model, for example of configs/quickstart.py and
configs/recurrent.py.
"""

import argparse
import functools
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import transformer_jax
from transformer_jax import config as configs
from transformer_jax import optim
from transformer_jax.models import registry
from transformer_jax.runs import environment
from transformer_jax.runs.checkpoint import TrainState
from transformer_jax.runs.run import Run
from transformer_jax.tasks.parts.pairs import Seq2SeqObjective
from transformer_jax.train import train_step
from transformer_jax.visualize import figures, gradients

FIRST_ID = 4  # of a token that is a piece of text
SIDES = {"Transformer": "quickstart", "LSTM": "recurrent:lstm_attention"}


def main() -> int:
    """Run a part of the comparison."""
    args = parse_arguments()
    environment.use_compile_cache()
    args.show(args)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="reach | speed | scores")

    reach = commands.add_parser("reach", help="a picture of gradients by distance")
    reach.add_argument("--output", default="reach.png")
    reach.add_argument("--sentences", type=int, default=200)
    reach.add_argument("--fresh", action="store_true", help="as before their training")
    reach.set_defaults(show=draw_reach)

    speed = commands.add_parser("speed", help="tokens/s of training by length")
    speed.add_argument("--lengths", type=numbers, default=(8, 16, 32, 64, 128, 256))
    speed.add_argument(
        "--tokens", type=int, default=2048, help="target tokens per batch"
    )
    speed.add_argument("--steps", type=int, default=5, help="updates of a turn")
    speed.add_argument("--rounds", type=int, default=5, help="turns of each model")
    speed.set_defaults(show=print_speed)

    scores = commands.add_parser("scores", help="BLEU of short and of long sentences")
    scores.add_argument("--words", type=int, default=15, help="a short one has at most")
    scores.set_defaults(show=print_scores)
    for command in (reach, scores):
        command.add_argument("runs", nargs="+", metavar="RUN")
        command.add_argument("--split", default="test", help="of a run's own data")
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    """Read numbers separated by commas."""
    return tuple(int(n) for n in text.split(","))


# What reaches far


def draw_reach(args: argparse.Namespace) -> None:
    """Draw and print how far back gradients reach in each run."""
    curves = {}
    for path in args.runs:
        run = transformer_jax.load(path)
        records = run.records(args.split)
        count = min(args.sentences, len(records))
        if args.fresh:
            run.params = run.task.objective.init(jax.random.key(run.config.seed))
        few = [records[i] for i in range(count)]
        curves[pathlib.Path(path).name] = gradients.reach(run, few)
    figures.reach(curves).savefig(args.output, dpi=150)
    print("tokens back  " + "  ".join(curves))
    for back in (1, 2, 5, 10, 20, 30, 40):
        cells = [
            f"{amounts[back - 1] if back <= len(amounts) else np.nan:{len(name)}.2g}"
            for name, amounts in curves.items()
        ]
        print(f"{back:11}  " + "  ".join(cells))
    print(f"drawn in {args.output}")


# How fast


def print_speed(args: argparse.Namespace) -> None:
    """Print the tokens per second of each side at each length."""
    sides = {name: Side(spec) for name, spec in SIDES.items()}
    print(", ".join(f"{n}: {side.size:,} parameters" for n, side in sides.items()))
    print(f"| length | {', tokens/s | '.join(sides)}, tokens/s | ratio |")
    print(f"|{'---|' * (len(sides) + 2)}")
    for length in args.lengths:
        batch = make_batch(max(args.tokens // length, 1), length)
        speeds = {name: [] for name in sides}
        for side in sides.values():
            side.seconds(batch, steps=2)  # compiles it
        for number in range(args.rounds):
            # Whoever goes first changes too, so that a drift favours neither.
            for name in [*sides][:: -1 if number % 2 else 1]:
                seconds = sides[name].seconds(batch, args.steps)
                speeds[name].append(args.steps * batch["target"].size / seconds)
        ratios = [
            first / second for first, second in zip(*speeds.values(), strict=True)
        ]
        middle = " | ".join(f"{statistics.median(s):,.0f}" for s in speeds.values())
        print(
            f"| {length} | {middle} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |",
            flush=True,
        )


class Side:
    """A model in training, without the rest of the training loop."""

    def __init__(self, spec: str):
        config = configs.load(spec)
        size = config.tokenizer.vocab_size
        sizes = {"vocab_size": size, "source_vocab_size": size}
        module = registry.build(config, "seq2seq", **sizes)
        objective = Seq2SeqObjective(config, module, size)
        optimizer = optim.make_optimizer(config)
        self.update = jax.jit(
            functools.partial(
                train_step,
                loss=objective.loss,
                optimizer=optimizer,
                micro_batches=1,
            ),
            donate_argnums=0,
        )
        params = jax.jit(objective.init)(jax.random.key(0))
        self.size = sum(leaf.size for leaf in jax.tree.leaves(params))
        self.state = TrainState(
            jnp.int32(0), params, optimizer.init(params), jax.random.key(0)
        )

    def seconds(self, batch: dict, steps: int) -> float:
        """Time a number of steps."""
        began = time.monotonic()
        for _ in range(steps):
            self.state, _ = self.update(self.state, batch)
            jax.block_until_ready(self.state)
        return time.monotonic() - began


def make_batch(rows: int, length: int) -> dict[str, jax.Array]:
    """Draw random sentences of one length, without padding."""
    random, most = np.random.default_rng(length), 2000
    return {
        side: jnp.asarray(random.integers(FIRST_ID, most, (rows, length)), jnp.int32)
        for side in ("source", "target")
    }


# How good


def print_scores(args: argparse.Namespace) -> None:
    """Print the scores of each run."""
    print(f"| run | BLEU up to {args.words} words | BLEU above |\n|---|---|---|")
    for path in args.runs:
        run = transformer_jax.load(path)
        groups = {False: [], True: []}
        for record in run.records(args.split):
            groups[len(record["source"].split()) > args.words].append(record)
        cells = [f"{bleu(run, group)} ({len(group)})" for group in groups.values()]
        print(f"| {pathlib.Path(path).name} | {' | '.join(cells)} |", flush=True)


def bleu(run: Run, records: Sequence[dict]) -> str:
    """Score a run's answers to these records."""
    if not records:
        return "none"
    replies = run.replies([record["source"] for record in records])
    scores = run.task.scoring.score(replies, [record["target"] for record in records])
    return f"{scores['bleu']:.2f}"


if __name__ == "__main__":
    sys.exit(main())
