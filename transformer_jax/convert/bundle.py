"""Export a run as a bundle.

python -m transformer_jax.convert.bundle --workdir RUN --output FOLDER
"""

import pathlib

from absl import flags

from transformer_jax import cli
from transformer_jax.errors import UserError
from transformer_jax.runs import run as runs
from transformer_jax.runs.bundle import export


def define_flags() -> None:
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_string("output", "", "The folder to make.")
    cli.define_weights()


def main(overrides: dict[str, str]) -> None:
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to export")
    cli.require("output", args.output, "the folder to make")
    folder = pathlib.Path(args.output)
    if folder.exists():
        raise UserError(f"--output={folder} exists: name a new folder")
    cli.check_weights(args.weights)
    run = runs.load(args.workdir, args.weights)
    export(run, folder)
    size = sum(p.stat().st_size for p in folder.rglob("*")) / 1e6
    print(
        f"exported   {run.weights} parameters of step {run.step} to {folder} "
        f"({size:.1f} MB)"
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
