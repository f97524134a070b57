"""The flags of the commands that draw, and of `explain`.

python -m transformer_jax.visualize attention --workdir RUN --text "…" --output F
python -m transformer_jax.visualize explain --numbers=greeting
"""

import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from transformer_jax import cli
from transformer_jax import config as configs
from transformer_jax.base import entry_points
from transformer_jax.base.errors import UserError
from transformer_jax.runs import environment
from transformer_jax.runs.folder import Folder
from transformer_jax.visualize import (
    aligning,
    capture,
    commands,
    explain,
    figures,
    style,
)
from transformer_jax.visualize.figures import training

logger = logging.getLogger("transformer_jax.visualize")  # as a command it is __main__
FORMATS = (".png", ".svg", ".pdf")


def define_flags() -> None:
    """Define the flags of all figures; each figure reads those that it needs."""
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_multi_string("run", [], "Run directories: the words after NAME.")
    flags.DEFINE_string("config", "", "shapes: a config file: path.py[:variant].")
    cli.define_weights()
    flags.DEFINE_string("output", "", "A .png, .svg or .pdf file; default: NAME.png.")
    flags.DEFINE_integer("dpi", 150, "Pixels per inch of a .png.")
    flags.DEFINE_string("text", "", "What the model reads: a line, or an image's path.")
    flags.DEFINE_string("example", "", "Instead of --text: SPLIT:NUMBER of its data.")
    flags.DEFINE_string(
        "target", "", "The answer that the model reads; default: its own."
    )
    flags.DEFINE_string("kind", "", "encoder | decoder | cross.")
    flags.DEFINE_integer("layer", -1, "A layer, from 0; default: the last, or all.")
    flags.DEFINE_integer("head", -1, "A head, from 0.")
    flags.DEFINE_string("word", "", "arcs: the word that looks; smoothing: the truth.")
    flags.DEFINE_string("words", "", "neighbours: words, separated by commas.")
    flags.DEFINE_integer(
        "count", 6, "neighbours: how many per word; drawings: captions."
    )
    flags.DEFINE_string("when", "writing", "words, alignment: writing | reading.")
    flags.DEFINE_string(
        "split", "test", "alignment, reach, drawings: a split of the run's data."
    )
    flags.DEFINE_integer("sentences", 200, "alignment, reach: how many.")
    flags.DEFINE_integer("length", 64, "positions: how many.")
    flags.DEFINE_integer("d_model", 512, "Width of the positions.")
    flags.DEFINE_string("depths", "1,5,15,20", "slices: columns of the encoding.")
    flags.DEFINE_string("d_models", "256,512,1024", "schedule: widths.")
    flags.DEFINE_string("warmups", "4000,8000", "schedule: updates of warmup.")
    flags.DEFINE_integer("steps", 30_000, "schedule: updates.")
    flags.DEFINE_float("smoothing", 0.1, "smoothing: the share of all wrong words.")
    flags.DEFINE_integer("pad", 3, "padding: how many pieces.")
    flags.DEFINE_integer("beams", 0, "beam: its width; default: the run's.")
    flags.DEFINE_integer("candidates", 2, "beam: next tokens shown per hypothesis.")
    flags.DEFINE_integer(
        "steps_shown", 0, "beam: cut the tree off after this step; 0: never."
    )
    flags.DEFINE_string("numbers", "", "explain: a JSON file, or an example's name.")
    flags.DEFINE_bool("whole", False, "explain: follow all tensors of a layer.")
    flags.DEFINE_integer("columns", 8, "explain: numbers shown per vector.")


class Drawing:
    """The command that draws the figure with a given name."""

    takes_runs = True
    define_flags = staticmethod(define_flags)

    def __init__(self, name: str):
        self.name = name

    def main(self, overrides: dict[str, str]) -> int:
        """Draw the figure; return the exit code."""
        args = flags.FLAGS
        path = _prepare(args, overrides, self.name)
        draw = entry_points.require("figures", self.name)
        _write(draw(args), path, args.dpi)
        return 0


class Explain:
    """The command that prints an attention computation, and draws it with --output."""

    takes_runs = False
    define_flags = staticmethod(define_flags)

    @staticmethod
    def main(overrides: dict[str, str]) -> int:
        """Print the computation, draw it if --output is set; return the exit code."""
        args = flags.FLAGS
        path = _prepare(args, overrides, "explain") if args.output else None
        if args.whole:
            if path:
                raise UserError("--whole is printed, not drawn: leave out --output")
            print("\n".join(explain_layer(args)))
            return 0
        found = explain.read_numbers(args.numbers) if args.numbers else follow(args)
        print("\n".join(explain.lines(found, args.columns)))
        if path:
            _write(figures.computation(found, args.columns), path, args.dpi)
        return 0


def follow(args: Any) -> explain.Computation:
    """Follow a head of the run in --workdir while it reads --text."""
    if not args.workdir:
        raise UserError(
            "--workdir is missing: the run to follow; or --numbers: a JSON file, or "
            f"one of the examples {', '.join(explain.EXAMPLES)}"
        )
    run, line, target, maps = commands.read(args)
    kind = commands.chosen(args, maps)
    layer = commands.layer_of(args, maps, kind)
    return capture.follow_head(run, line, target, kind, layer, max(args.head, 0))


def explain_layer(args: Any) -> list[str]:
    """Write all tensors of a layer of the run in --workdir as text."""
    run, line, target, maps = commands.read(args)
    kind = commands.chosen(args, maps, own=True)
    layer = commands.layer_of(args, maps, kind)
    labels, steps = capture.follow_layer(run, line, target, kind, layer)
    shown = [f"{kind} layer {layer}, {run.config.model.norm}-norm", ""]
    for number, step in enumerate(steps, start=1):
        rows = (
            labels
            if len(labels) == len(step.values)
            else [str(i) for i in range(len(step.values))]
        )
        values = np.reshape(step.values, (len(step.values), -1))
        shown += explain.table(f"{number}. {step.name}", rows, values, args.columns)
    return shown


def _prepare(args: Any, overrides: dict[str, str], name: str) -> pathlib.Path:
    """Check the flags that all figures share; return the file to write."""
    cli.refuse_overrides(overrides)
    training.require_matplotlib()
    cli.check_choice("when", args.when, aligning.WHEN)
    for flag in ("length", "d_model", "steps", "sentences", "columns", "dpi", "count"):
        if args[flag].value < 1:
            raise UserError(f"--{flag}={args[flag].value}: at least 1")
    path = pathlib.Path(args.output or f"{name}.png")
    if path.suffix not in FORMATS:
        raise UserError(f"--output={path}: name a {', '.join(FORMATS)} file")
    if not path.parent.is_dir():
        raise UserError(f"--output={path}: there is no folder {path.parent}")
    cli.refuse_overwriting("output", str(path), files_read(args))
    environment.use_compile_cache()
    return path


def files_read(args: Any) -> Iterator[str | pathlib.Path]:
    """Yield the files that a figure may be drawn from."""
    yield from (args.text, args.numbers)
    if args.config:
        yield configs.find_file(args.config)
    for workdir in (args.workdir, *args.run):
        yield from Folder(workdir).files() if workdir else ()


def _write(figure: Any, path: pathlib.Path, dpi: int) -> None:
    try:
        style.save(figure, path, dpi)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    logger.info("wrote %s", path)
