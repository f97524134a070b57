"""Report what runs have scored: mean and spread of each setting, tests, and curves.

    python -m transformer_jax.report runs/sweep
    python -m transformer_jax.report 'runs/a_*' 'runs/b_*' --output report.html

Runs of one config with different seeds are a group. Each group is compared with the
first one (or `--baseline`): in pairs if both have the same seeds, otherwise by Welch's
t, and p is corrected for all tests of the report. Nothing is scored: `evaluate` does.
"""

import pathlib
from typing import Any

from absl import flags

from transformer_jax import cli
from transformer_jax.report import page, tables
from transformer_jax.report.collect import collect
from transformer_jax.runs.folder import find_runs

WRITERS = {
    ".html": page.write_page,
    ".csv": tables.write_csv,
    ".txt": tables.write_text,
}


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_multi_string(
        "files",
        [],
        "Runs, folders of runs, or quoted patterns; --files may be left out.",
    )
    flags.DEFINE_string(
        "split", "", "Whose scores (default: test, if all runs have it)."
    )
    flags.DEFINE_string(
        "baseline", "", "The group to compare with: a part of its name, or a run of it."
    )
    flags.DEFINE_string("output", "", "A file to write: .html, .csv or .txt.")


def main(overrides: dict[str, str]) -> None:
    """Print a report, or write it into a file."""
    args: Any = flags.FLAGS
    cli.refuse_overrides(overrides)
    if not args.files:
        cli.fail("name runs, or a folder of runs: report runs/sweep")
    ending = pathlib.Path(args.output).suffix if args.output else ".txt"
    if ending not in WRITERS:
        cli.fail(f"--output={args.output}: end its name in {', '.join(WRITERS)}")
    if args.output:
        cli.check_writable(args.output)
    found = collect(find_runs("files", args.files), args.split, args.baseline)
    text = WRITERS[ending](found)
    if not args.output:
        print(text, end="")
        return
    with cli.open_file(args.output, "w", encoding="utf-8") as sink:
        sink.write(text)
    print(f"written    {args.output}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
