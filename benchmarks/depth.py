"""From which depth on does post-norm fail to train, and which arrangements still train?

    python benchmarks/depth.py --output depth.jsonl
    python benchmarks/depth.py --output depth.jsonl --forms post,deepnorm

Trains a narrow model on the quickstart's pairs, once for each arrangement of its layers
and each depth, and prints the accuracy of the next piece on the validation split. If it
is stopped, the same command continues and skips the trainings that the output already
contains. Other options (--config.key=value) apply to every training.
"""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
import time

import jax

from transformer_jax import cli, sharding, train
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.runs import environment
from transformer_jax.runs import folder as folders
from transformer_jax.training import log as metrics
from transformer_jax.training.prepare import prepare

SIZES = {
    "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 4,
    "model.scan_layers": True, "data.batch_tokens": 512, "data.shapes": 1,
    "data.max_length": 16, "optim.warmup_steps": 100, "optim.constant": 0.12,
}  # fmt: skip
FORMS: dict[str, dict] = {
    "post": {},
    "post_drop": {"model.dropout_layers": 0.2},
    "post_shared": {"model.shared_layers": "all", "model.scan_layers": False},
    "post_universal": {"model.shared_layers": "universal", "model.scan_layers": False},
    "deepnorm": {"model.norm": "deepnorm"},
    "pre": {"model.norm": "pre"},
    "pre_parallel": {"model.norm": "pre", "model.parallel_sublayers": True},
    "sandwich": {"model.norm": "sandwich"},
}
FAILED = 0.15  # right of all pieces: 0.07 are the most frequent one


def main() -> int:
    """Train the missing models, and print the table."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(words)
    output = pathlib.Path(args.output)
    done = read(output)
    environment.use_compile_cache()
    try:
        for depth in args.depths:
            for form in args.forms:
                if (form, depth) not in done:
                    found = measure(form, depth, args.steps, overrides)
                    done[form, depth] = found
                    with output.open("a") as file:
                        file.write(json.dumps(found) + "\n")
                    print(json.dumps(found), flush=True)
    except UserError as error:
        cli.fail(*error.problems)
    print_table(done, args)
    return 0


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line, without its overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", required=True, help="JSON lines; is gone on with")
    parser.add_argument("--forms", default=",".join(FORMS), help="by comma")
    parser.add_argument("--depths", default="6,18,48", help="of each stack, by comma")
    parser.add_argument("--steps", type=int, default=200, help="updates of a training")
    args = parser.parse_args(words)
    args.forms = args.forms.split(",")
    args.depths = [int(n) for n in args.depths.split(",")]
    for form in args.forms:
        if form not in FORMS:
            parser.error(f"there is no form {form!r}: {', '.join(FORMS)}")
    return args


def read(output: pathlib.Path) -> dict[tuple[str, int], dict]:
    """Read the results of earlier calls."""
    lines = output.read_text().splitlines() if output.exists() else []
    found = map(json.loads, lines)
    return {(one["form"], one["depth"]): one for one in found}


def measure(form: str, depth: int, steps: int, overrides: dict[str, str]) -> dict:
    """Train one model, and score it on the validation split."""
    changes = SIZES | FORMS[form]
    changes |= {"model.encoder_layers": depth, "model.decoder_layers": depth}
    changes |= {"train.steps": steps, "eval.splits": ""}
    texts = {key: str(value) for key, value in changes.items()}
    config = configs.load("quickstart", texts | overrides)
    mesh = sharding.make_mesh(config.mesh, config.mesh.platform)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = folders.Folder(folder)
        prepared = prepare(config, place, lambda line: None)
        log = metrics.RunLog(place, active=False)
        with (
            contextlib.closing(train.build(config, place, mesh, prepared, log)) as run,
            jax.set_mesh(mesh),
        ):
            state = run.init(jax.random.key(config.seed))
            for _, batch in run.feed.batches(0, steps):
                state, outcome = run.update(state, batch.arrays)
                jax.block_until_ready(outcome)
            scores = run.validation.teacher_forced(state.params)
            parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return {
        "form": form,
        "depth": depth,
        "accuracy": round(scores["accuracy"], 4),
        "perplexity": round(scores["perplexity"], 2),
        "parameters": parameters,
        "seconds": round(time.monotonic() - began),
    }


def print_table(done: dict, args: argparse.Namespace) -> None:
    """Print the accuracies, with those of models that failed to learn in brackets."""
    print(f"| arrangement | {' | '.join(f'{n}+{n}' for n in args.depths)} |")
    print(f"|---|{'---|' * len(args.depths)}")
    for form in args.forms:
        cells = []
        for depth in args.depths:
            found = done[form, depth]["accuracy"]
            cells.append(f"({found:.1%})" if found < FAILED else f"{found:.1%}")
        print(f"| {form} | {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
