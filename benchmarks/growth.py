"""How do the costs of training and of answers grow?

    python benchmarks/growth.py --output growth.json --figure growth.png

One size at a time is doubled, the others stay: length, vocabulary, layers, width and
rows of a translator's training step, and the same with the beams of a search whose
answers have a fixed length. For each there are the milliseconds (of a step, or of a
token that is written), their slope on logarithmic axes over the last two doublings, and
the slope of the operations that the products of the traced program need; 1.0 means that
the cost doubles with the size. A slope of time above that of the operations by more
than 0.2 is marked. Other parts are the preparation by the number of
training pairs, memory by the number of runs that are held, and compilation by the
number of batch shapes; --only=length,corpus measures some parts.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import record

import transformer_jax
from transformer_jax import config, losses, sharding
from transformer_jax.base.ids import EOS
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.decoding.engine import Engine
from transformer_jax.models.transformer import Seq2Seq
from transformer_jax.models.transformer_config import TransformerConfig
from transformer_jax.runs import environment
from transformer_jax.runs import folder as folders
from transformer_jax.training import prepare
from transformer_jax.training.steps import programs

ROUNDS, SPARE = 5, 0.2
HEADER = f"{'size':11}{'':18}{'cost':23}{'':43}slope  least"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a step of training or a search is of."""

    length: int = 32
    vocabulary: int = 2048
    layers: int = 3
    width: int = 128
    rows: int = 64
    beams: int = 4


AXES = {  # the size that grows, and what the others are then
    "length": ([32, 64, 128, 256, 512], Sizes(rows=8)),
    "vocabulary": ([2048, 4096, 8192, 16384, 32768], Sizes()),
    "layers": ([1, 2, 4, 8, 16], Sizes()),
    "width": ([64, 128, 256, 512, 1024], Sizes(rows=16)),
    "rows": ([16, 32, 64, 128, 256], Sizes()),
    "beams": ([1, 2, 4, 8, 16], Sizes(rows=32)),
}


@dataclasses.dataclass
class Curve:
    """The costs of one kind by one size."""

    cost: str
    unit: str
    axis: str
    sizes: list[int]
    costs: list[float]
    needed: list[float]  # what the algorithm needs, in any unit; may be empty

    def slope(self, values: Sequence[float]) -> float:
        """Return the slope over the last two doublings, or over all if there are less.

        Both axes are logarithmic.
        """
        first = max(len(values) - 3, 0)
        steps = math.log2(self.sizes[-1] / self.sizes[first])
        return math.log2(values[-1] / values[first]) / steps

    def row(self) -> str:
        """Return the row of a table."""
        found = self.slope(self.costs)
        least = f"{self.slope(self.needed):.2f}" if self.needed else ""
        fast = bool(self.needed) and found > self.slope(self.needed) + SPARE
        costs = ", ".join(f"{x:,.3g}" for x in self.costs)
        title = f"{self.cost} ({self.unit})"
        mark = "  grows faster than it must" if fast else ""
        sizes = f"{self.sizes[0]:,} to {self.sizes[-1]:,}"
        return (
            f"{self.axis:11}{sizes:17}{title:23}{costs:43}{found:5.2f}{least:>7}{mark}"
        )


def make_model(sizes: Sizes) -> tuple[Seq2Seq, Any]:
    """Draw a translator of these sizes."""
    shape = TransformerConfig(
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        d_model=sizes.width,
        d_ff=4 * sizes.width,
        num_heads=4,
        vocab_size=sizes.vocabulary,
        vocab_rows=sizes.vocabulary,
        norm="pre",
    )
    module, one = Seq2Seq(shape), jnp.ones((1, 2), jnp.int32)
    return module, jax.jit(module.init)(jax.random.key(0), one, one)["params"]


def open_training(sizes: Sizes) -> tuple[Callable[[], Any], float]:
    """Return a function that takes a step of training, and the operations it needs."""
    module, params = make_model(sizes)
    optimizer = optax.adam(1e-3)
    tokens = jnp.ones((sizes.rows, sizes.length), jnp.int32)

    def loss(params, key):
        logits = module.apply(
            {"params": params}, tokens, tokens, train=True, rngs={"dropout": key}
        ).logits
        weights = jnp.ones(tokens.shape)
        return losses.cross_entropy(logits, tokens, weights, 0.1, sizes.vocabulary).loss

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, key):
        grads = jax.grad(loss)(params, key)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    key, held = jax.random.key(1), [(params, optimizer.init(params))]
    needed = programs.count(jax.grad(loss), params, key)

    def take():
        held.append(step(*held.pop(), key))
        jax.block_until_ready(held)

    return take, needed


def open_search(sizes: Sizes) -> tuple[Callable[[], Any], float]:
    """Return a function that searches, and the operations that its tokens need."""
    module, params = make_model(sizes)
    engine = Engine(module, sharding.local_mesh(1), sizes.rows, 1)
    draw = np.random.default_rng(0)
    pieces = draw.integers(8, sizes.vocabulary, (sizes.rows, sizes.length - 1))
    requests = [DecodeRequest(source=(*line, EOS)) for line in pieces.tolist()]
    options = Options(
        beams=sizes.beams, max_length=sizes.length, min_length=sizes.length
    )
    needed = _count_search(module, params, sizes)
    return lambda: list(engine.search(params, requests, options)), needed


def _count_search(module: Seq2Seq, params: Any, sizes: Sizes) -> float:
    """Count the operations of sources that are read once and hypotheses written once.

    A pass over whole hypotheses has the products of all steps with a cache.
    """

    def read(params, tokens):
        batch = {"source": tokens, "source_segments": tokens}
        return module.apply({"params": params}, batch, 0, method="start")[0]

    def write(params, tokens):
        return module.apply({"params": params}, tokens, tokens).logits

    once, wide = (
        jnp.ones((rows, sizes.length), jnp.int32)
        for rows in (sizes.rows, sizes.rows * sizes.beams)
    )
    both = programs.count(write, params, wide) - programs.count(read, params, wide)
    return both + programs.count(read, params, once)


KINDS = {
    "training": (open_training, "ms a step", lambda sizes: 1),
    "answers": (open_search, "ms a token", lambda sizes: sizes.rows * sizes.length),
}


def measure(axis: str) -> list[Curve]:
    """Measure what a training step and a search cost by one size.

    The sizes take turns, so that other load on the machine disturbs all of them. A call
    that is not timed begins each turn: memory that the process has given back since the
    last one comes from the host of a virtual machine again. No training waits for it.
    """
    values, others = AXES[axis]
    curves = []
    for kind, (opens, unit, parts) in KINDS.items():
        if kind == "training" and axis == "beams":
            continue
        all_sizes = [dataclasses.replace(others, **{axis: one}) for one in values]
        opened = [opens(sizes) for sizes in all_sizes]
        for take, _ in opened:
            take()  # compiles
        taken: list[list[float]] = [[] for _ in opened]
        for _ in range(ROUNDS):
            for times, (take, _) in zip(taken, opened, strict=True):
                take()
                began = time.perf_counter()
                take()
                times.append(time.perf_counter() - began)
        costs = [
            1e3 * statistics.median(times) / parts(sizes)
            for times, sizes in zip(taken, all_sizes, strict=True)
        ]
        needed = [
            operations / parts(sizes)
            for (_, operations), sizes in zip(opened, all_sizes, strict=True)
        ]
        curves += _shown([Curve(kind, unit, axis, values, costs, needed)])
    return curves


def measure_corpus() -> list[Curve]:
    """Measure the preparation of generated pairs, each number in its own process."""
    sizes = [10_000, 20_000, 40_000, 80_000, 160_000]
    return _measure_apart(
        "corpus", "pairs", sizes, {"preparation": "s", "memory": "MB"}
    )


def prepare_corpus(pairs: int) -> list[float]:
    """Make and prepare so many pairs; return the seconds and the megabytes."""
    given = config.load("quickstart", {"data.train_size": str(pairs)})
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = folders.Folder(pathlib.Path(place))
        prepare.prepare(given, folder, lambda line: None)
    return [time.perf_counter() - began, _megabytes()]


def measure_runs() -> list[Curve]:
    """Measure the memory of a process that has loaded runs of one translator."""
    return _measure_apart("runs", "runs", [1, 2, 4, 8], {"memory": "MB"})


def load_runs(count: int) -> list[float]:
    """Load a translator so many times, and let each answer; return the megabytes."""
    runs = [transformer_jax.load("tatoeba:de_en") for _ in range(count)]
    for run in runs:
        run.predict("Ein Hund läuft.")
    return [_megabytes()]


def measure_shapes() -> list[Curve]:
    """Measure the compilation of training steps for batches of several shapes."""
    sizes, total, costs = [1, 2, 4, 8], 0.0, []
    for count in range(1, sizes[-1] + 1):
        take, _ = open_training(Sizes(length=8 * count))
        began = time.perf_counter()
        take()
        total += time.perf_counter() - began
        if count in sizes:
            costs.append(total)
    return _shown(
        [Curve("compilation", "s", "shapes", sizes, costs, [*map(float, sizes)])]
    )


def _measure_apart(
    part: str, axis: str, sizes: list[int], costs: dict[str, str]
) -> list[Curve]:
    found = []
    with tempfile.TemporaryDirectory() as cache:
        for size in sizes:
            words = [sys.executable, __file__, "--apart", part, "--size", str(size)]
            given = {**os.environ, "TRANSFORMER_JAX_CACHE": f"{cache}/{size}"}
            done = subprocess.run(words, env=given, stdout=subprocess.PIPE, check=True)
            found.append(json.loads(done.stdout))
    least = [float(size) for size in sizes]
    return _shown(
        Curve(cost, unit, axis, sizes, [values[i] for values in found], least)
        for i, (cost, unit) in enumerate(costs.items())
    )


def _shown(curves: Iterable[Curve]) -> list[Curve]:
    curves = list(curves)
    for curve in curves:
        print(curve.row(), flush=True)
    return curves


def _megabytes() -> float:
    """Return the most memory that this process has had, without that of its parent."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6


APART = {"corpus": prepare_corpus, "runs": load_runs}
PARTS: dict[str, Callable[[], list[Curve]]] = {
    **{axis: functools.partial(measure, axis) for axis in AXES},
    "corpus": measure_corpus,
    "runs": measure_runs,
    "shapes": measure_shapes,
}


def draw(curves: list[Curve], path: str) -> None:
    """Draw costs by size on logarithmic axes, with the least beside them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = list(dict.fromkeys(curve.axis for curve in curves))
    rows = -(-len(axes) // 3)
    figure, places = plt.subplots(rows, 3, figsize=(11, 3.2 * rows), squeeze=False)
    for place in places.flat[len(axes) :]:
        place.axis("off")
    for axis, place in zip(axes, places.flat, strict=False):
        for number, curve in enumerate(c for c in curves if c.axis == axis):
            costs, colour = np.array(curve.costs) / curve.costs[0], f"C{number}"
            label = f"{curve.cost}, {curve.slope(curve.costs):.2f}"
            place.loglog(curve.sizes, costs, "o-", color=colour, label=label, base=2)
            if curve.needed:
                least = np.array(curve.needed) / curve.needed[0]
                place.loglog(curve.sizes, least, ":", color=colour, base=2)
        place.set_xlabel(axis)
        place.legend(frameon=False, fontsize=8)
        place.grid(alpha=0.3)
    for place in places[:, 0]:
        place.set_ylabel("cost, first = 1")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> int:
    """Measure the curves, print and keep them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--output", default="", help="a JSON file that is not there")
    parser.add_argument("--figure", default="", help="a picture of the curves")
    parser.add_argument("--apart", choices=APART, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.apart:
        print(json.dumps(APART[args.apart](args.size)))
        return 0
    chosen = args.only.split(",") if args.only else list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only={','.join(sorted(unknown))}: {', '.join(PARTS)}")
    if args.output and os.path.exists(args.output):
        parser.error(f"{args.output} exists: name another --output, or remove it")
    environment.use_large_pages()
    machine = record.describe_machine()
    print(f"{machine['commit']}; {machine['host']}; load {machine['load']}\n")
    print(HEADER)
    curves = [curve for part in chosen for curve in PARTS[part]()]
    if args.output:
        found = {"machine": machine, "curves": [*map(dataclasses.asdict, curves)]}
        text = json.dumps(found, indent=1) + "\n"
        pathlib.Path(args.output).write_text(text, encoding="utf-8")
    if args.figure:
        draw(curves, args.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
