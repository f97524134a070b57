"""Convert a run to a bundle or to another inference engine."""

import pathlib

from absl import flags

from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.runs import run as runs


def define_flags() -> None:
    """Define the flags that all converters share."""
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_string("output", "", "The folder to make.")
    cli.define_weights()


def open_run(overrides: dict[str, str]) -> tuple[runs.Run, pathlib.Path]:
    """Load the run named by the flags; return it and the folder to make."""
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to export")
    cli.require("output", args.output, "the folder to make")
    folder = pathlib.Path(args.output)
    if folder.exists():
        raise UserError(f"--output={folder} exists: name a new folder")
    cli.check_weights(args.weights)
    return runs.load(args.workdir, args.weights), folder
