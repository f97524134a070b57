"""Export what a run has trained, such as its adapters, without the rest.

python -m transformer_jax.convert.trained --workdir RUN --output FOLDER

The folder answers like a run, beside the run, bundle or folder of Hugging Face that the
training began with (`train.initial`).
"""

from transformer_jax import cli
from transformer_jax.convert import define_flags, open_run
from transformer_jax.runs import bundle
from transformer_jax.runs.run import read_params


def main(overrides: dict[str, str]) -> None:
    """Write the trained parameters as a bundle and print its size."""
    run, folder = open_run(overrides)
    weights = {"averaged": "average"}.get(run.weights, run.weights)
    params, _, _ = read_params(run.folder, run.task, run.mesh, weights, merged=False)
    bundle.export_trained(run, params, folder)
    size = sum(p.stat().st_size for p in folder.rglob("*")) / 1e6
    print(
        f"exported   what was trained until step {run.step} to {folder} "
        f"({size:.1f} MB); the rest is that of {run.config.train.initial}"
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
