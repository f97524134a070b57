"""Where does the time of a step go, and what is the least that this machine needs?

    python benchmarks/limit.py --workdir RUN --input FILE --rows 128 --beams 4
    python benchmarks/limit.py --config multi30k:de_en --config.data.folder=PATH

The first form takes steps of a search for the first lines of a file, the second one
steps of a training on its largest batch. A table has, for each part of the model, the
operations of its products (from the traced program), the bytes that they read and write
once, the least time that follows from the machine's peaks, and the time measured: a
clock says how long a step takes, and a profile how that is divided. The peaks are
measured, too: a product of square matrices, and a sum of as many bytes as a step moves,
of which caches may hold a part; products of 8 bits (--engine int8) have a peak of their
own, which is not measured. What is fused with a product counts with it; `rest` is
the search itself, or the optimizer. Time of no instruction is the host's. --names lists
the instructions that take longest.
"""

import argparse
import collections
import dataclasses
import glob
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import transformer_jax
from transformer_jax import cli, config, sharding, train
from transformer_jax.decoding.engine import Batch
from transformer_jax.planning import forecast
from transformer_jax.runs import environment
from transformer_jax.runs import folder as folders
from transformer_jax.training import prepare
from transformer_jax.training.steps import programs

STEPS, ROUNDS = 8, 5
PARTS = {  # by the path of an operation in the model; the first that fits
    "attention": r"_attend",
    "projections": r"attention|\bproject|\bquery|\bkey|\bvalue|\bout\b",
    "feed-forward": r"feed_forward",
    "norms": r"norm",
    "vocabulary": r"logits|cross_entropy|log_softmax|logsumexp",
    "embedding": r"embed|positions",
}
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.+)$", re.M)
PATH = re.compile(r"op_name=\"([^\"]*)\"")


@dataclasses.dataclass
class Step:
    """A step that can be traced, compiled and taken."""

    traced: Any  # by `jax.jit(…).trace`
    begin: Callable[[], None]  # what is not measured
    take: Callable[[], int]  # take steps; return how many
    title: str

    def seconds(self) -> float:
        """Measure a step."""
        self.begin()
        began = time.perf_counter()
        steps = self.take()
        return (time.perf_counter() - began) / steps


def main() -> int:
    """Print the table."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", help="a run, for steps of its search")
    parser.add_argument("--input", help="lines, for --workdir")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--engine", default="", help="int8, for --workdir")
    parser.add_argument("--config", help="for steps of a training")
    parser.add_argument("--names", type=int, default=0, help="instructions to list")
    args = parser.parse_args(words)
    search = bool(args.workdir), bool(args.input)
    if search != (not args.config,) * 2:
        parser.error("give either --workdir with --input, or --config")
    if args.rows < 1 or args.beams < 1:
        parser.error("--rows and --beams must be at least 1")
    if args.config:
        environment.use_large_pages()  # as `train` does
    cores = len(os.sched_getaffinity(0))
    print(f"machine      {cores} cores, load {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        if args.workdir:
            step = open_search(args)
        else:
            step = open_training(args.config, overrides, pathlib.Path(place))
        print(f"step         {step.title}", flush=True)
        step.seconds()  # compiles
        counted = count(step.traced.jaxpr.jaxpr)
        peaks = measure_peaks(sum(moved for _, moved in counted.values()))
        seconds = statistics.median(step.seconds() for _ in range(ROUNDS))
        shares, names = profile(step)
    print(f"peaks        {peaks[0] / 1e9:,.0f} GFLOP/s, {peaks[1] / 1e9:.1f} GB/s")
    show(counted, shares, seconds, peaks)
    for name, share in names.most_common(args.names):
        print(f"{1000 * seconds * share:9.3f} ms  {name}")
    return 0


def measure_peaks(size: float) -> np.ndarray:
    """Measure the operations of products, and the bytes read, a second, at best.

    A step reads `size` bytes, of which caches hold a part.
    """
    side = 1024
    square = jnp.ones((side, side), jnp.float32)
    product = jax.jit(lambda x: x @ x)
    read = jnp.ones(int(size) // 4, jnp.float32)
    total = jax.jit(jnp.sum)
    return np.array([2 * side**3 / best(product, square), size / best(total, read)])


def best(function: Callable[[Any], Any], argument: Any) -> float:
    """Return the seconds of the quickest of several calls."""
    jax.block_until_ready(function(argument))
    found = []
    for _ in range(9):
        began = time.perf_counter()
        jax.block_until_ready(function(argument))
        found.append(time.perf_counter() - began)
    return min(found)


def open_search(args: argparse.Namespace) -> Step:
    """Open a run, and begin a search of its first lines."""
    mesh = sharding.local_mesh(1)
    run = transformer_jax.load(args.workdir, mesh=mesh, engine=args.engine)
    text = pathlib.Path(args.input).read_text(encoding="utf-8")
    change = run.task.inference.writer.change
    params = change(run.params) if change else run.params
    engine = run.task.inference.writer.engine(mesh)
    options = transformer_jax.runs.run.decode_options(run.config, beams=args.beams)
    rows = engine.rows_of(args.rows)
    lines = text.splitlines()[: min(args.rows, rows)]
    asked = {i: (run.task.inference.parse(x), options) for i, x in enumerate(lines)}
    batch = Batch(engine, params, asked, options, rows)

    def begin() -> None:
        with jax.set_mesh(mesh):
            batch.begin(list(asked))
            jax.block_until_ready(batch.carry)

    def take() -> int:
        with jax.set_mesh(mesh):
            list(batch.advance(rows, most=STEPS))
            jax.block_until_ready(batch.carry)
        return int(batch.steps.max())

    begin()
    with jax.set_mesh(mesh):
        limits = 0, batch.step_limit, STEPS
        kind = options.without_numbers()
        traced = engine._advance.jitted.trace(
            params, batch.carry, *limits, options=kind
        )
    shape = f"{batch.shape.source} pieces of source, {batch.step_limit} slots"
    title = f"of the search: {rows} rows x {args.beams} beams, {shape}"
    return Step(traced, begin, take, title)


def open_training(spec: str, overrides: dict, place: pathlib.Path) -> Step:
    """Prepare the data of a config, and the training's step on the largest batch."""
    given = config.load(spec, overrides)
    found = prepare.prepare(given, folders.Folder(place), lambda line: None)
    given, mesh = found.task.config, sharding.local_mesh(1)
    planned = prepare.make_plan(given, found.task, found.train)
    feed = train.Feed(found.task, found.train.store, planned, mesh)
    shape = max(planned.plan.shapes, key=lambda one: one.tokens)
    arrays, state = feed.empty(shape), []
    functions = train.make_update(given, found.task, mesh)
    with jax.set_mesh(mesh):
        traced = functions.update.jitted.trace(functions.abstract, arrays)
        state.append(functions.init(jax.random.key(0)))

    def take() -> int:
        with jax.set_mesh(mesh):
            for _ in range(STEPS):
                state.append(functions.update(state.pop(), arrays)[0])
            jax.block_until_ready(state)
        return STEPS

    title = f"of a training: {forecast.name_of(shape)}, {shape.tokens:,} tokens"
    return Step(traced, lambda: None, take, title)


def part_of(path: str) -> str:
    """Return the part of a model to which an operation belongs."""
    return next((part for part, by in PARTS.items() if re.search(by, path)), "rest")


def count(jaxpr: Any) -> dict[str, np.ndarray]:
    """Count the floating-point operations and bytes of products, by part."""
    found: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(2))
    for product in programs.find_products(jaxpr):
        found[part_of(product.path)] += product.operations, product.bytes
    return found


def find_paths(text: str) -> dict[str, str]:
    """Return the path in the model of each instruction of a compiled program.

    One that the compiler has rewritten may have lost its own: it is where what it reads
    is.
    """
    found, reads = {}, {}
    for name, content in INSTRUCTION.findall(text):
        path = PATH.search(content)
        found[name] = path[1] if path else ""
        reads[name] = re.findall(r"%([\w.\-]+)", content)
    for name, path in found.items():
        near = [found.get(one, "") for one in reads[name]]
        if not path:
            found[name] = next((p for p in near if part_of(p) != "rest"), "")
    return found


def profile(step: Step) -> tuple[dict[str, float], collections.Counter[str]]:
    """Return the share of each part in a step's time, and of each instruction."""
    paths = find_paths(step.traced.lower().compile().as_text())
    spent: collections.Counter[str] = collections.Counter()
    passed = 0.0
    for _ in range(ROUNDS):
        step.begin()
        with tempfile.TemporaryDirectory() as place:
            with jax.profiler.trace(place):
                began = time.perf_counter()
                step.take()
                passed += time.perf_counter() - began
            [file] = glob.glob(f"{place}/**/*.xplane.pb", recursive=True)
            for plane in jax.profiler.ProfileData.from_file(file).planes:
                for event in (one for line in plane.lines for one in line.events):
                    if event.name in paths:
                        spent[event.name] += event.duration_ns / 1e9
    names = collections.Counter(
        {f"{name}  {paths[name]}": took / passed for name, took in spent.items()}
    )
    shares: collections.Counter[str] = collections.Counter()
    for name, took in spent.items():
        shares[part_of(paths[name])] += took / passed
    return shares, names


def show(
    counted: dict[str, np.ndarray],
    shares: dict[str, float],
    seconds: float,
    peaks: np.ndarray,
) -> None:
    """Print a row for each part, and their sum."""
    print("part            GFLOP      MB   least ms   measured ms   least / measured")
    total, least = np.zeros(2), 0.0
    for part in [*PARTS, "rest"]:
        both = counted.get(part, np.zeros(2))
        total, needed = total + both, max(both / peaks)
        least += needed
        show_row(part, both, needed, shares.get(part, 0.0) * seconds)
    show_row("host", np.zeros(2), 0.0, max(1 - sum(shares.values()), 0) * seconds)
    show_row("step", total, least, seconds)


def show_row(part: str, counted: np.ndarray, least: float, took: float) -> None:
    """Print a row of the table."""
    sizes = f"{counted[0] / 1e9:8.3f} {counted[1] / 1e6:7.1f}" if counted.any() else ""
    share = f"{least / took:18.2f}" if least and took else ""
    print(f"{part:12} {sizes:>16} {1e3 * least:10.2f} {1e3 * took:13.2f} {share}")


if __name__ == "__main__":
    sys.exit(main())
