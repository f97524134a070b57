"""Train every row of Table 3 in turn, and prints the table next to the paper's.

    python launch/table3.py --workdir runs/table3 [--rows base,e_learned] [--full]
        [--config.key=value …]

Each row is a separate run below --workdir. If the command is stopped, start it again to
continue; finished rows are not repeated. `--print` trains nothing.
"""

import argparse
import json
import pathlib
import runpy
import sys

from systems import train_in_turn

CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "table3.py"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, help="a folder for all rows")
    parser.add_argument(
        "--rows", default="", help="rows, separated by commas; default: all"
    )
    parser.add_argument("--full", action="store_true", help="use the paper's sizes")
    parser.add_argument("--print", action="store_true", help="only print the table")
    args, overrides = parser.parse_known_args()
    table = runpy.run_path(str(CONFIG))["ROWS"]
    rows = args.rows.split(",") if args.rows else list(table)
    for row in rows:
        if row not in table:
            parser.error(f"there is no row {row!r}: {', '.join(table)}")
    folder = pathlib.Path(args.workdir)
    if not args.print:
        size = "" if args.full else "tiny_"
        runs = [(row, f"{CONFIG}:{size}{row}") for row in rows]
        code = train_in_turn(runs, folder, overrides)
        if code:
            return code
    print_table({row: table[row] for row in rows}, folder)
    return 0


def print_table(rows: dict, folder: pathlib.Path) -> None:
    print("              |          here           |          paper")
    print("row           |    PPL   BLEU  params M |    PPL   BLEU  params M")
    for row, (_, perplexity, bleu, millions) in rows.items():
        result = folder / row / "result.json"
        here = "          not done       "
        if result.exists():
            found = json.loads(result.read_text())
            scores = found["scores"]["validation"]
            here = f" {scores['perplexity']:6.2f} {scores['bleu']:6.2f}"
            here += f"{found['parameters'] / 1e6:10.2f} "
        stated = "" if millions is None else millions
        print(f"{row:13} |{here}| {perplexity:6.2f} {bleu:6.1f} {stated:>9}")


if __name__ == "__main__":
    sys.exit(main())
