"""Write the tables of results from the files of this folder.

    python results/generate.py
    python results/generate.py --check
    python results/generate.py --curve RUN --reading nll

Each results/<config>_<variant>.json is one run. The first command rewrites what stands
between the two markers in README.md (a table of the runs named in README) and in
docs/results.md (a table of all runs, and a card for each), and in benchmarks/README.md
the table of speeds.json, which benchmarks/compare.py has written. The second writes
nothing, and exits with 1 if a page is not up to date. The third prints what a run read
on its validation split on the way, as the "curve" of its file.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEEDS = pathlib.Path("results", "speeds.json")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
README = (  # real data, one or two for each kind; the others are in docs/results.md
    "multi30k.py:muon_de_en",
    "multi30k.py:fine_tuned_de_en",
    "multi30k.py:en_de_lower",
    "multi30k.py:en_fr",
    "tatoeba.py:de_en",
    "language.py:shakespeare",
    "parsing.py:ptb_sample",
    "sst2.py",
    "images.py:mnist",
)
CORE = ("translation", "language", "masked", "classification", "images")  # come first
ON_THE_WAY = (
    "Is a training of yours as it should be? This is what the validation split gave on "
    "the way, by\nthe number of updates; `metrics.jsonl` of a run has the same."
)
KEYS = {  # key → type; an unknown value is an empty string
    "config": str,  # file of configs/, with the variant
    "command": str,
    "task": str,
    "data": str,
    "parameters": str,
    "updates": str,
    "time": str,
    "hardware": str,
    "commit": str,
    "protocol": str,
    "score": Decimal,  # a number, printed with the digits that the file gives
    "metric": str,
    "further": list,  # other readings of the same run
    "published": str,
    "note": str,
    "curve": dict,  # "reading": what is read, "points": [[updates, value], …]; or empty
}


def main(arguments: Sequence[str] | None = None, root: pathlib.Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--curve", metavar="RUN", help="print the curve of this run")
    parser.add_argument(
        "--reading", default="loss", help="its key in metrics.jsonl (default: loss)"
    )
    args = parser.parse_args(arguments)
    try:
        if args.curve:
            print(json.dumps(curve(pathlib.Path(args.curve), args.reading)))
            return 0
        stale = out_of_date(root)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, text in stale.items():
        if args.check:
            print(f"{name} is stale: run python results/generate.py", file=sys.stderr)
        else:
            (root / name).write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return int(args.check and bool(stale))


def out_of_date(root: pathlib.Path) -> dict[str, str]:
    """Return the pages whose table is stale, by name, as they should be."""
    runs = read(root / "results")
    tables = {
        "README.md": compact_table(runs),
        "docs/results.md": cards(runs),
        "benchmarks/README.md": speeds(root / SPEEDS),
    }
    stale = {}
    for name, table in tables.items():
        before = (root / name).read_text(encoding="utf-8")
        after = replace(before, table, name)
        if after != before:
            stale[name] = after
    return stale


def read(folder: pathlib.Path) -> list[dict]:
    """Read every run of a folder, by file name. Refuse other keys and types."""
    paths = sorted(folder.glob("*.json"))
    return [read_run(path) for path in paths if path.name != SPEEDS.name]


def read_run(path: pathlib.Path) -> dict:
    """Read one run."""
    run = json.loads(
        path.read_text(encoding="utf-8"), parse_float=Decimal, parse_int=Decimal
    )
    if not isinstance(run, dict) or set(run) != set(KEYS):
        raise ValueError(f"{path.name} must have the keys {', '.join(KEYS)}")
    for key, kind in KEYS.items():
        if not isinstance(run[key], kind):
            raise ValueError(f"{path.name}: {key!r} must be {kind.__name__}")
    if not all(isinstance(reading, str) for reading in run["further"]):
        raise ValueError(f"{path.name}: 'further' must be a list of strings")
    if run["curve"] and {*run["curve"]} != {"reading", "points"}:
        raise ValueError(f"{path.name}: 'curve' must have a reading and points")
    return run


def curve(run: pathlib.Path, reading: str) -> dict:
    """Return what a run read on its validation split, by the number of updates."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} does not exist: give the folder of a run")
    points = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        # The score at the end has a schema, and may be of other weights.
        if record["kind"] == "validation" and "schema" not in record:
            if reading not in record:
                raise ValueError(
                    f"{path} has no {reading!r}: give one of {', '.join(record)}"
                )
            points[record["step"]] = float(f"{record[reading]:.4g}")
    return {"reading": reading, "points": [*map(list, sorted(points.items()))]}


def speeds(path: pathlib.Path) -> str:
    """Return the table of a comparison with other packages."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import record

    return record.table(json.loads(path.read_text(encoding="utf-8")))


def replace(text: str, table: str, name: str) -> str:
    """Put a table between the markers of a page."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{name} must have {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def compact_table(runs: Sequence[Mapping]) -> str:
    """Return one line for each run that the README shows, in its order."""
    header = ("config", "trained on", "score (protocol)", "published", "time")
    by_config = {run["config"]: run for run in runs}
    if missing := [config for config in README if config not in by_config]:
        raise ValueError(f"README names {', '.join(missing)}, but no file has it")
    rows = [
        (code(config), run["data"], score(run), run["published"], trained(run))
        for config in README
        for run in [by_config[config]]
    ]
    return markdown(header, rows)


def cards(runs: Sequence[Mapping]) -> str:
    """Return a table of all runs with links to a card for each, task by task."""
    tasks = dict.fromkeys((*CORE, *sorted(run["task"] for run in runs)))
    runs = sorted(runs, key=lambda run: [*tasks].index(run["task"]))
    rows = [(link(run), run["task"], measured(run), run["time"]) for run in runs]
    parts = [markdown(("config", "task", "score", "time"), rows)]
    parts += ["## On the way", ON_THE_WAY, on_the_way(runs)]
    for task in dict.fromkeys(run["task"] for run in runs):
        parts.append(f"## {task.capitalize()}")
        parts += [card(run) for run in runs if run["task"] == task]
    return "\n\n".join(parts)


def on_the_way(runs: Sequence[Mapping]) -> str:
    """Return a table of what the validation split gave during training."""
    rows = []
    for run in runs:
        if points := run["curve"].get("points"):
            text = ", ".join(f"{value} ({updates:,})" for updates, value in points)
            rows.append((link(run), run["curve"]["reading"], text))
    return markdown(("config", "reading", "value (updates)"), rows)


def card(run: Mapping) -> str:
    """Return everything about a run, an entry a line."""
    protocol = f": {run['protocol']}" if run["protocol"] else ""
    size = " of ".join(
        f"{run[key]} {key}" for key in ("updates", "parameters") if run[key]
    )
    entries = [("Trained on", run["data"]), ("Training", trained(run, size))]
    entries += [("Published", run["published"]), ("Note", run["note"])]
    lines = [f"### {run['config']}", "", f"**{measured(run)}**{protocol}", ""]
    lines += [f"- {name}: {text}" for name, text in entries if text]
    if run["further"]:
        lines += ["- Further readings:", *(f"  - {text}" for text in run["further"])]
    return "\n".join([*lines, "", "```", run["command"], "```"])


def link(run: Mapping) -> str:
    """Return a link to the card of a run."""
    anchor = "".join(c for c in run["config"] if c.isalnum() or c in "-_")
    return f"[`{run['config']}`](#{anchor})"


def measured(run: Mapping) -> str:
    """Return the score with its metric."""
    return f"{run['score']} {run['metric']}"


def score(run: Mapping) -> str:
    """Return the score with its metric and protocol."""
    value = measured(run)
    return f"{value} ({run['protocol']})" if run["protocol"] else value


def trained(run: Mapping, size: str = "") -> str:
    """Return size, time, hardware and commit, as far as they are known."""
    text = " on ".join(part for part in (run["time"], run["hardware"]) if part)
    text = ", ".join(part for part in (size, text) if part)
    return f"{text} ({run['commit']})" if run["commit"] else text


def code(text: str) -> str:
    return f"`{text}`"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. A bar in a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


if __name__ == "__main__":
    sys.exit(main())
