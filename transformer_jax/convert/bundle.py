"""Export a run as a bundle.

python -m transformer_jax.convert.bundle --workdir RUN --output FOLDER

With --int8 matrices are rounded to 8 bits, which takes a quarter of the space. With
--trained only what the run has trained is written, such as its adapters: the folder
answers beside the place that the training began with (`train.initial`).
"""

from absl import flags

from transformer_jax import cli, convert
from transformer_jax.base.errors import UserError
from transformer_jax.convert import open_run
from transformer_jax.runs.bundle import export, export_trained
from transformer_jax.runs.run import read_params


def define_flags() -> None:
    """Define the flags of the command."""
    convert.define_flags()
    flags.DEFINE_bool("int8", False, "Round matrices to 8 bits.")
    flags.DEFINE_bool("trained", False, "Write only what the run has trained.")


def main(overrides: dict[str, str]) -> None:
    """Write a run as a bundle and print its size."""
    args = flags.FLAGS
    if args.int8 and args.trained:
        raise UserError(
            "--int8 rounds the matrices of a whole run, and --trained leaves most of "
            "them out: leave one of the two flags out"
        )
    run, folder = open_run(overrides)
    what = f"{run.weights} parameters"
    if args.trained:
        weights = {"averaged": "average"}.get(run.weights, run.weights)
        place = run.folder, run.task, run.mesh
        params, _, _ = read_params(*place, weights, merged=False)
        export_trained(run, params, folder)
        what = f"what was trained beside {run.config.train.initial}, {what}"
    else:
        export(run, folder, args.int8)
    size = sum(p.stat().st_size for p in folder.rglob("*")) / 1e6
    print(f"exported   {what} of step {run.step} to {folder} ({size:.1f} MB)")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
