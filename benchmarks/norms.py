"""Layer norm or the statistics of the batch: what do batch size, length and padding do?

    python benchmarks/norms.py --output norms.jsonl --figure norms.png

Trains a narrow Transformer on the quickstart's pairs, once for each norm, number of
sentences in a batch and length of sentences. Prints the validation loss per token, with
the sentences in batches as in training, and each alone. One model of each norm then
reads the same batches with more and more padding. Stopped, the same command goes on;
what the output has is not trained again. Other options (--config.key=value) hold for
every training.

Batch norm replaces the norms of the encoder only. In a decoder, the statistics of a
batch contain the tokens to be predicted, so its loss would not be an honest one;
`batch_everywhere` (--forms) measures that one.
There are no running statistics, so batch norm uses the batch's in evaluation as well.
"""

import argparse
import functools
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from transformer_jax import cli, sharding, tasks, train
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.models import layers
from transformer_jax.models.stack import Stack
from transformer_jax.runs import environment
from transformer_jax.runs import folder as folders
from transformer_jax.tasks.parts.text import segments
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.prepare import Split, prepare
from transformer_jax.training.steps.feed import assemble

FORMS = {  # name → its label in the figure
    "layer": "layer norm",
    "batch": "batch norm, padding left out",
    "batch_padding": "batch norm, padding counted",
    "batch_everywhere": "batch norm, in the decoder also",
}
TEXTS = {"short": (1, 10), "long": (15, 30)}  # pieces of the longer side
STUDIED = ("long", 16)  # what is read with more padding afterwards
WIDTHS = (30, 40, 60, 120)  # tokens of a row
JUDGED = 192  # sentences of the validation split
SIZES = {
    "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 4,
    "optim.warmup_steps": 100, "optim.constant": 0.12, "eval.splits": "",
    "data.validation_size": 1200,
}  # fmt: skip

# What the norms of the stack that is being traced are told: which tokens are real.
_reading: list[tuple[Any, bool]] = []


class BatchNorm(nn.Module):
    """Normalise by the statistics of the batch; in a decoder, layer norm by default."""

    epsilon: float
    dtype: Any
    counts_padding: bool = False
    everywhere: bool = False

    @nn.compact
    def __call__(self, x):
        """Normalise, then scale and shift each feature."""
        real, causal = _reading[-1]
        if causal and not self.everywhere:
            y = layer_norm(x, self.epsilon)
        else:
            y = batch_norm(x, None if self.counts_padding else real, self.epsilon)
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return (y * scale + bias).astype(self.dtype)


layers.NORM_KINDS["batch"] = BatchNorm
layers.NORM_KINDS["batch_padding"] = functools.partial(BatchNorm, counts_padding=True)
layers.NORM_KINDS["batch_everywhere"] = functools.partial(BatchNorm, everywhere=True)


def tell_norms(call, args, kwargs, context):
    """Tell the norms of a stack which tokens are real: a norm is given `x` alone."""
    if not isinstance(context.module, Stack) or context.method_name != "__call__":
        return call(*args, **kwargs)
    mask = args[2]
    _reading.append((mask.query_segments != 0, context.module.causal))
    try:
        return call(*args, **kwargs)
    finally:
        _reading.pop()


def layer_norm(
    x: Float[Array, "B T D"], epsilon: float = 1e-6
) -> Float[Array, "B T D"]:
    """Normalise each token by the mean and the variance of its own features."""
    mean, variance = moments(x, (-1,))
    return normalise(x, mean, variance, epsilon)


def batch_norm(
    x: Float[Array, "B T D"],
    real: Bool[Array, "B T"] | None = None,
    epsilon: float = 1e-6,
) -> Float[Array, "B T D"]:
    """Normalise each feature by its mean and its variance over the batch's tokens.

    `real` is False for padding; without it, padding is counted.
    """
    mean, variance = moments(x, (0, 1), real)
    return normalise(x, mean, variance, epsilon)


def moments(
    x: Float[Array, "B T D"],
    axes: Sequence[int],
    real: Bool[Array, "B T"] | None = None,
) -> tuple[Float[Array, "#B #T #D"], Float[Array, "#B #T #D"]]:
    """Return the mean and the variance over some axes, of the real tokens alone.

    The variance takes a second pass, because E[x²] - E[x]² cancels in float32 if the
    mean is large. If no token is real, both are 0.
    """
    x = x.astype(jnp.float32)
    kept = jnp.ones(x.shape[:2], bool) if real is None else real
    weight = jnp.broadcast_to(kept[..., None], x.shape).astype(jnp.float32)
    count = jnp.maximum(weight.sum(axes, keepdims=True), 1.0)
    mean = (weight * x).sum(axes, keepdims=True) / count
    variance = (weight * jnp.square(x - mean)).sum(axes, keepdims=True) / count
    return mean, variance


def normalise(
    x: Float[Array, "B T D"],
    mean: Float[Array, "#B #T #D"],
    variance: Float[Array, "#B #T #D"],
    epsilon: float,
) -> Float[Array, "B T D"]:
    """Shift and scale to mean 0 and variance 1, in float32."""
    return (x - mean) / jnp.sqrt(variance + epsilon)


class Corpus(NamedTuple):
    """The encoded pairs, and where their tokenizer lies."""

    train: Split
    validation: Split
    folder: folders.Folder
    mesh: Mesh


def main() -> int:
    """Train what is missing, print the tables, and draw the curves if asked."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(words)
    output = pathlib.Path(args.output)
    done = read(output)
    environment.use_compile_cache()
    wanted = [
        (form, texts, rows)
        for texts in args.texts
        for rows in args.rows
        for form in args.forms
    ]
    missing = [one for one in wanted if one not in done]
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            nn.intercept_methods(tell_norms),
        ):
            corpus = None
            for form, texts, rows in missing:
                corpus = corpus or read_corpus(folder, overrides)
                found = measure(corpus, form, texts, rows, args.steps, overrides)
                done[form, texts, rows] = found
                with output.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(json.dumps(found), flush=True)
    except UserError as error:
        cli.fail(*error.problems)
    print_tables(done, args)
    if args.figure:
        draw(done, args)
    return 0


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line, without its overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", required=True, help="JSON lines; is continued")
    parser.add_argument(
        "--forms", default="layer,batch,batch_padding", help="comma-separated"
    )
    parser.add_argument("--texts", default="short,long", help="comma-separated")
    parser.add_argument("--rows", default="4,16,64", help="sentences of a batch")
    parser.add_argument("--steps", type=int, default=200, help="updates of a training")
    parser.add_argument("--figure", help="a file for the curves, such as .png")
    args = parser.parse_args(words)
    args.forms, args.texts = args.forms.split(","), args.texts.split(",")
    args.rows = [int(n) for n in args.rows.split(",")]
    for known, given in ((FORMS, args.forms), (TEXTS, args.texts)):
        if unknown := set(given) - set(known):
            parser.error(f"{unknown.pop()!r} is not one of {', '.join(known)}")
    return args


def read(output: pathlib.Path) -> dict[tuple[str, str, int], dict]:
    """Read what an earlier call has measured."""
    lines = output.read_text().splitlines() if output.exists() else []
    found = map(json.loads, lines)
    return {(one["form"], one["texts"], one["rows"]): one for one in found}


def load(form: str, overrides: dict[str, str]) -> Any:
    """Load the config of a training."""
    texts = {key: str(value) for key, value in SIZES.items()}
    return configs.load("quickstart", texts | {"model.norm_kind": form} | overrides)


def read_corpus(folder: str, overrides: dict[str, str]) -> Corpus:
    """Encode the quickstart's pairs once for all trainings."""
    config, place = load("layer", overrides), folders.Folder(folder)
    mesh = sharding.make_mesh(config.mesh, config.mesh.platform)
    prepared = prepare(config, place, lambda line: None)
    return Corpus(prepared.train, prepared.held_out["validation"], place, mesh)


def choose(task: Task, split: Split, texts: str) -> np.ndarray:
    """Return the numbers of the examples that are of this length."""
    least, most = TEXTS[texts]
    longest = task.data.lengths(split.store).max(axis=1)
    return np.flatnonzero((longest >= least) & (longest <= most))


def measure(
    corpus: Corpus,
    form: str,
    texts: str,
    rows: int,
    steps: int,
    overrides: dict[str, str],
) -> dict:
    """Train one model; return its validation losses."""
    config = load(form, overrides)
    task = tasks.find(config.task).open(config, corpus.folder.tokenizer)
    examples, width = choose(task, corpus.train, texts), TEXTS[texts][1]
    began = time.monotonic()
    with jax.set_mesh(corpus.mesh):
        init, _, update = train.make_update(config, task, corpus.mesh)
        state = init(jax.random.key(config.seed))
        for step in range(steps):
            drawn = np.random.default_rng((config.seed, step))
            batch = drawn.choice(examples, rows, replace=False)
            arrays = place(task, corpus, corpus.train, batch, width)
            state, outcome = update(state, arrays)
            jax.block_until_ready(outcome)
        seconds = time.monotonic() - began
        judge = Judge(task, corpus, texts, state.params)
        found = {
            "form": form,
            "texts": texts,
            "rows": rows,
            "loss": judge.loss(rows, width)[0],
            "alone": judge.loss(1, width)[0],
            "padding": judge.loss(rows, width)[1],
            "seconds": round(seconds),
        }
        if (texts, rows) == STUDIED:
            found["wider"] = [judge.loss(rows, w)[::-1] for w in WIDTHS]
            if form == "layer":
                found["shifts"] = [judge.shift(rows, w) for w in WIDTHS]
    return found


def place(task: Task, corpus: Corpus, split: Split, examples: Any, width: int) -> dict:
    """Put one sentence into each row of a batch that is so many tokens wide."""
    shape = Shape(len(examples), (width, width))
    batch = Batch(shape, np.asarray(examples)[:, None])
    return assemble(task, split.store, batch, corpus.mesh)[0]


class Judge:
    """Scores trained parameters on sentences of the validation split."""

    def __init__(self, task: Task, corpus: Corpus, texts: str, params: Any):
        self.task, self.corpus, self.params = task, corpus, params
        examples = choose(task, corpus.validation, texts)
        if len(examples) < JUDGED:
            raise UserError(
                f"only {len(examples)} {texts} sentences of the validation split, not "
                f"{JUDGED}: raise data.validation_size"
            )
        self.examples = examples[:JUDGED]
        self._sums = jax.jit(functools.partial(task.objective.loss, key=None))

    def loss(self, rows: int, width: int) -> tuple[float, float]:
        """Return the loss per token in batches of so many rows, and their padding."""
        nll = weight = real = places = 0.0
        for arrays in self._batches(rows, width):
            sums = self._sums(self.params, arrays)
            nll, weight = nll + float(sums.metrics["nll"]), weight + float(sums.weight)
            real += float(segments(arrays["source"]).sum())
            places += arrays["source"].size
        return round(nll / weight, 4), round(1 - real / places, 3)

    def shift(self, rows: int, width: int) -> tuple[float, float, float]:
        """Return the share of padding and what counting it does to the statistics.

        That is, by how many standard deviations the mean moves (over the features, the
        root of the mean square), and the factor of the variance (the geometric mean).
        """
        module, moved, factors, shares = self.task.objective.module, [], [], []
        for arrays in self._batches(rows, width):
            tokens, variables = arrays["source"], {"params": self.params}
            real = segments(tokens) != 0
            x, _ = module.apply(variables, tokens, segments(tokens), method="encode")
            mean, variance = moments(x, (0, 1), real)
            counted, spread = moments(x, (0, 1))
            moved.append(jnp.square(counted - mean) / variance)
            factors.append(jnp.log(spread / variance))
            shares.append(1 - real.mean())
        share, shift = float(np.mean(shares)), float(np.sqrt(np.mean(moved)))
        return (
            round(share, 3),
            round(shift, 3),
            round(float(np.exp(np.mean(factors))), 3),
        )

    def _batches(self, rows: int, width: int):
        for begin in range(0, len(self.examples), rows):
            part = self.examples[begin : begin + rows]
            yield place(self.task, self.corpus, self.corpus.validation, part, width)


def print_tables(done: dict, args: argparse.Namespace) -> None:
    """Print the losses by batch size and length, then those with more padding."""
    columns = [(texts, rows) for texts in args.texts for rows in args.rows]
    print(f"| norm | {' | '.join(f'{texts}, {rows}' for texts, rows in columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for form in args.forms:
        found = [done[form, *column] for column in columns]
        cells = [f"{one['loss']:.2f} ({one['alone']:.2f})" for one in found]
        print(f"| {FORMS[form]} | {' | '.join(cells)} |")
    studied = {f: done[f, *STUDIED] for f in args.forms if (f, *STUDIED) in done}
    for form, found in studied.items():
        shares = ", ".join(f"{loss:.2f} at {s:.0%}" for s, loss in found["wider"])
        print(f"{FORMS[form]}, loss by padding: {shares}")
        for share, mean, factor in found.get("shifts", ()):
            print(
                f"padding {share:.0%}, counted: the mean moves by {mean:.2f} standard "
                f"deviations, the variance is {factor:.2f} times as large"
            )


def draw(done: dict, args: argparse.Namespace) -> None:
    """Draw losses by batch size, losses by padding, and the shift of the statistics."""
    from transformer_jax.visualize.style import LINES, make_figure, save

    figure = make_figure(9.6, 3.4)
    sizes, wider, shifts = figure.subplots(1, 3)
    for form, color in zip(args.forms, LINES, strict=False):
        sizes.plot([], [], color=color, label=FORMS[form])  # for the legend alone
        for texts, marker in zip(args.texts, "os", strict=False):
            found = [done[form, texts, rows] for rows in args.rows]
            for key, dashes in (("loss", "-"), ("alone", ":")):
                losses = [one[key] for one in found]
                sizes.plot(args.rows, losses, dashes, marker=marker, color=color, ms=4)
        if studied := done.get((form, *STUDIED)):
            draw_by_padding(wider, studied["wider"], color)
            if rows := studied.get("shifts"):
                names = {"^": "shift of the mean, in σ", "v": "factor of the variance"}
                for column, (mark, name) in enumerate(names.items(), start=1):
                    points = [(row[0], row[column]) for row in rows]
                    draw_by_padding(shifts, points, "black", marker=mark, label=name)
    for texts, marker in zip(args.texts, "os", strict=False):
        style = {"marker": marker, "ms": 4, "label": f"{texts} sentences"}
        sizes.plot([], [], color="black", **style)
    sizes.plot([], [], ":", color="black", label="read alone")
    sizes.set_xscale("log")
    sizes.set_xticks(args.rows, [str(n) for n in args.rows])
    sizes.minorticks_off()
    sizes.set_xlabel("sentences in a batch")
    sizes.set_ylabel("validation loss, nats per token")
    wider.set_xlabel("% padding in the batches that are read")
    wider.set_ylabel("validation loss, nats per token")
    shifts.set_xlabel("% padding, counted")
    shifts.set_ylabel("against the statistics of the tokens")
    if shifts.lines:
        shifts.legend(frameon=False, fontsize=8)
    handles, labels = sizes.get_legend_handles_labels()
    forms = len(args.forms)
    sizes.legend(handles[forms:], labels[forms:], frameon=False, fontsize=8)
    figure.legend(
        handles[:forms],
        labels[:forms],
        loc="outside upper center",
        ncols=forms,
        frameon=False,
        fontsize=8,
    )
    save(figure, args.figure)


def draw_by_padding(axes: Any, points: list, color: str, **style: Any) -> None:
    """Draw values over their percentage of padding."""
    shares, values = zip(*points, strict=True)
    style = {"marker": "o", "markersize": 4, "color": color} | style
    axes.plot([100 * share for share in shares], values, **style)


if __name__ == "__main__":
    sys.exit(main())
