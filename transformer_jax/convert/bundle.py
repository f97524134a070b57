"""Export a run as a bundle.

python -m transformer_jax.convert.bundle --workdir RUN --output FOLDER

With --int8 matrices are rounded to 8 bits, which takes a quarter of the space.
"""

from absl import flags

from transformer_jax import cli, convert
from transformer_jax.convert import open_run
from transformer_jax.runs.bundle import export


def define_flags() -> None:
    """Define the flags of the command."""
    convert.define_flags()
    flags.DEFINE_bool("int8", False, "Round matrices to 8 bits.")


def main(overrides: dict[str, str]) -> None:
    """Write a run as a bundle and print its size."""
    run, folder = open_run(overrides)
    export(run, folder, flags.FLAGS.int8)
    size = sum(p.stat().st_size for p in folder.rglob("*")) / 1e6
    print(
        f"exported   {run.weights} parameters of step {run.step} to {folder} "
        f"({size:.1f} MB)"
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
