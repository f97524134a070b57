"""Buckets or packed rows: which way to batch a config trains faster on this machine?

    python benchmarks/batching.py --config configs/multi30k.py:en_de \\
        --config.data.folder=PATH --steps 200 --shapes 4,8,12 --rows 64,128,256

Measures real (unpadded) target tokens per second in the package's own training loop:
from a cold compile cache, including all compiling, and again when everything is
compiled. The ways take turns, each in its own process, without evaluations and
checkpoints.
"""

import argparse
import multiprocessing
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time
import types
from concurrent import futures
from unittest import mock

from transformer_jax import cli, sharding, train
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.data.store import summary
from transformer_jax.runs import environment
from transformer_jax.runs import folder as folders
from transformer_jax.training import scoring
from transformer_jax.training.log import RunLog
from transformer_jax.training.prepare import prepare
from transformer_jax.training.steps.profile import Profile
from transformer_jax.training.steps.window import LogWindow

GOES_ON = types.SimpleNamespace(  # never preempted
    requested=lambda step: False, requested_meanwhile=lambda: False
)


def main() -> int:
    """Compare the ways to batch, and print a table."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(words)
    signal.signal(signal.SIGTERM, stop)
    try:
        ways = find_ways(args, overrides)
    except UserError as error:
        cli.fail(*error.problems)
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="batching_"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"error: --folder {folder} is not empty")
    os.environ["TRANSFORMER_JAX_CACHE"] = str(folder / "cache")
    try:
        return compare(args, folder, ways)
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line, without its overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="--config.x=y is passed on to the training.",
    )
    numbers = {"type": lambda text: [int(n) for n in text.split(",") if n]}
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--steps", type=int, default=200, help="updates of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every way")
    parser.add_argument("--shapes", default="4,8,12", help="of buckets", **numbers)
    parser.add_argument("--rows", default="64,128,256", help="packed tokens", **numbers)
    parser.add_argument("--folder", help="an empty one, kept (default: temporary)")
    args = parser.parse_args(words)
    if not args.shapes + args.rows:
        parser.error("--shapes and --rows are both empty: name a way to batch")
    return args


def find_ways(args: argparse.Namespace, overrides: dict) -> dict[str, dict[str, str]]:
    """Return the overrides of each way by name; raise an error for impossible ways."""
    ways = {
        f"buckets of {n} shapes": {"data.batching": "buckets", "data.shapes": str(n)}
        for n in args.shapes
    }
    for n in args.rows:
        packed = {"data.batching": "packed", "data.pack_length": str(n)}
        ways[f"packed rows of {n}"] = packed
    given = configs.load(args.config, overrides | {"data.batching": "buckets"})
    limit = min([given.data.max_length, *(n - 1 for n in args.rows)])
    if limit < given.data.max_length:
        # All ways must train on the same examples, and no row may be too short for one.
        overrides["data.max_length"] = str(limit)
        print(
            f"note       data.max_length is {limit} here, not {given.data.max_length}: "
            "longer examples do not fit into the shortest rows"
        )
    ways = {name: overrides | way for name, way in ways.items()}
    for way in ways.values():
        configs.load(args.config, way)
    return ways


def compare(args: argparse.Namespace, folder: pathlib.Path, ways: dict) -> int:
    """Let the ways take turns, and print the time of each."""
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    print(f"folder     {folder}")
    print(f"machine    {os.cpu_count()} cores, load {load} (1, 5, 15 minutes)")
    first, *_ = ways
    data = apart(prepare_data, args.config, ways[first], folder / "data")
    print(f"data       {data}", flush=True)
    turns: dict[str, list[dict]] = {name: [] for name in ways}
    for number in range(args.rounds):
        # The first way changes as well, so that a drift favours none.
        cut = number % len(ways)
        for name in [*ways][cut:] + [*ways][:cut]:
            shutil.rmtree(folder / "cache" / "compiled", ignore_errors=True)
            place = folder / f"{len(turns[first])}-{name}"
            turn = apart(measure, args.config, ways[name], place, args.steps)
            turns[name].append(turn)
            print(
                f"round {number + 1:<4} {name:<20} {turn['cold']:>8,.0f} tokens/s with "
                f"compiling, {turn['steady']:>8,.0f} without",
                flush=True,
            )
    print_table(args.steps, turns)
    print(conclude(args.steps, turns))
    return 0


def print_table(steps: int, turns: dict[str, list[dict]]) -> None:
    """Print the medians of each way, and their ratios to the first."""
    print(
        "\n| way to batch | padding, both sides | shapes | steps per epoch | "
        f"tokens per step | lost at the start, s | tokens/s, {steps} steps from cold | "
        f"ratio | tokens/s, compiled | ratio |\n|{'---|' * 10}"
    )
    first = next(iter(turns.values()))
    for name, found in turns.items():
        plan = found[0]
        cells = [name, f"{plan['padding']:.1%}", plan["shapes"], f"{plan['epoch']:,}"]
        cells += [f"{plan['tokens'] / steps:,.0f}", f"{middle(found, 'lost'):.1f}"]
        for key in ("cold", "steady"):
            pairs = zip(found, first, strict=True)
            ratios = [mine[key] / theirs[key] for mine, theirs in pairs]
            cells.append(f"{middle(found, key):,.0f}")
            cells.append(f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to "
                         f"{max(ratios):.3f})")  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")
    print()


def conclude(steps: int, turns: dict[str, list[dict]]) -> str:
    """Name the fastest way for the tokens of the first way in these steps.

    Also print from how many tokens on another way is faster, because seconds = time
    lost at the start + tokens / steady rate.
    """
    lost = {name: middle(found, "lost") for name, found in turns.items()}
    rate = {name: middle(found, "steady") for name, found in turns.items()}
    first, *_ = turns
    tokens = turns[first][0]["tokens"]
    now = min(turns, key=lambda name: lost[name] + tokens / rate[name])
    later = max(turns, key=lambda name: rate[name])
    if now == later:
        return f"FASTER: {now}, for {steps} steps and for more"
    even = (lost[later] - lost[now]) / (1 / rate[now] - 1 / rate[later])
    return (
        f"FASTER: {now}, for {steps} steps; {later}, from about "
        f"{steps * even / tokens:,.0f} on (steps of {first}; {even:,.0f} target tokens)"
    )


def middle(found: list[dict], key: str) -> float:
    """Return the median of a measurement over the turns."""
    return statistics.median(turn[key] for turn in found)


def apart(function, *arguments):
    """Call a function in its own process."""
    with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def stop(*_) -> None:
    """Also stop the way that is running."""
    for child in multiprocessing.active_children():
        child.kill()
    sys.exit("error: stopped")


def prepare_data(spec: str, overrides: dict, folder: pathlib.Path) -> str:
    """Fill the cache, so that preparation takes the same time for every way."""
    config = configs.load(spec, overrides)
    prepared = prepare(config, folders.Folder(folder), print)
    store = prepared.train.store
    sides = prepared.task.data.lengths(store).mean(axis=0)
    return (
        f"{len(store):,} examples of {' and '.join(f'{n:.1f}' for n in sides)} pieces, "
        f"left out: {summary(store.ledger) or 'none'}"
    )


class Clock(RunLog):
    """A training log that records tokens and time, and writes nothing."""

    def note(self, window: LogWindow) -> None:
        """Record the only window, which ends with the last step."""
        self.ended, self.tokens = time.monotonic(), window.tokens
        self.seconds = self.ended - window.began  # without waiting for compilation


@mock.patch.object(LogWindow, "write", lambda window, clock: clock.note(window))
@mock.patch.object(scoring, "validate", lambda *step: None)
def measure(spec: str, overrides: dict, folder: pathlib.Path, steps: int) -> dict:
    """Measure one way: the same steps from a cold start, and when compiled."""
    config = configs.load(spec, overrides)
    # The schedule stays the config's own, though only its first steps are taken.
    config.train.steps = config.log.every = steps
    config.eval.every = config.checkpoint.every = steps
    environment.use_compile_cache()
    mesh = sharding.make_mesh(config.mesh, config.mesh.platform)
    place = folders.Folder(folder)
    prepared = prepare(config, place, lambda line: None)
    clock = Clock(place, active=False)
    began = time.monotonic()
    run = train.build(config, place, mesh, prepared, clock)
    run.saver.save = lambda *state: None
    train.train_steps(run, GOES_ON, Profile("", folder))
    cold = clock.tokens / (clock.ended - began)
    for shape in run.compiled.shapes:
        run.compiled.get(shape)
    train.train_steps(run, GOES_ON, Profile("", folder))
    run.close()
    steady = clock.tokens / clock.seconds
    plan = run.feed.plan
    return {
        "cold": cold,
        "steady": steady,
        "lost": clock.tokens / cold - clock.tokens / steady,
        "tokens": clock.tokens,
        "padding": plan.padding_share(),
        "shapes": len(plan.shapes),
        "epoch": plan.steps_per_epoch,
    }


if __name__ == "__main__":
    sys.exit(main())
