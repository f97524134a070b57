"""Export a run as a bundle.

python -m transformer_jax.convert.bundle --workdir RUN --output FOLDER
"""

from transformer_jax import cli
from transformer_jax.convert import define_flags, open_run
from transformer_jax.runs.bundle import export


def main(overrides: dict[str, str]) -> None:
    """Write a run as a bundle and print its size."""
    run, folder = open_run(overrides)
    export(run, folder)
    size = sum(p.stat().st_size for p in folder.rglob("*")) / 1e6
    print(
        f"exported   {run.weights} parameters of step {run.step} to {folder} "
        f"({size:.1f} MB)"
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
