"""Write the viewer's page for lines of text.

python -m transformer_jax.visualize view --workdir RUN --text "…" --output F.html
"""

import itertools
import logging
import os
from typing import Any

from absl import flags

from transformer_jax import cli, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.data.text.numerals import is_whole
from transformer_jax.runs import environment
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder
from transformer_jax.visualize.viewer import page

logger = logging.getLogger("transformer_jax.visualize")  # as a command it is __main__


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_string("beside", "", "A second run, shown beside the first.")
    flags.DEFINE_multi_string(
        "text", [], "A line, or an image's path; may be repeated."
    )
    flags.DEFINE_multi_string("example", [], "One of the run's data, such as test:0.")
    flags.DEFINE_string("output", "attention.html", "The file to write.")
    cli.define_weights()
    # How to search; the defaults come from the run's config.
    tasks.define_flags(flags, "search")


def main(overrides: dict[str, str]) -> int:
    """Write the page; return the exit code."""
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to look into")
    cli.check_weights(args.weights)
    if not args.text and not args.example:
        raise UserError("--text is missing: what the run is to answer")
    folders = [args.workdir, *([args.beside] if args.beside else [])]
    read = itertools.chain(args.text, *(Folder(path).files() for path in folders))
    cli.refuse_overwriting("output", args.output, read)
    environment.use_compile_cache()
    opened = [(name, runs.load(f, args.weights)) for name, f in _named(folders)]
    first = opened[0][1]
    lines = [*args.text, *(find_example(first, text) for text in args.example)]
    changes = tasks.given_flags(args, "search")
    size = page.write(args.output, opened, lines, **changes)
    logger.info("wrote %s (%d KB)", args.output, -(-size // 1000))
    return 0


def _named(folders: list[str]) -> list[tuple[str, str]]:
    """Name folders by their last parts, or by their full paths if those are equal."""
    names = [os.path.basename(os.path.normpath(f)) for f in folders]
    unique = len(set(names)) == len(names)
    return list(zip(names if unique else folders, folders, strict=True))


def find_example(run: runs.Run, text: str) -> Any:
    """Return the input line of an example such as test:0."""
    split, _, number = text.partition(":")
    records = run.records(split)
    if not is_whole(number) or int(number) >= len(records):
        raise UserError(
            f"--example={text}: name a split and a number below {len(records)}, such "
            f"as {split}:0"
        )
    return run.task.inference.question(records[int(number)])
