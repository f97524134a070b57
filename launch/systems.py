"""Train every system of the README in turn, on generated or bundled data.

    python launch/systems.py --workdir runs/systems [CONFIG …] [--config.key=value …]

Each system is a separate run below --workdir. If the command is stopped, start it again
to continue. At the end it prints the time and the scores of each run. Other configs can
be named instead; --config options apply to all.
"""

import argparse
import importlib.util
import json
import pathlib
import sys
import time
from collections.abc import Iterable, Sequence

from sweep import TRAINER, run_to_the_end

SYSTEMS = (
    "quickstart",
    "smalltalk",
    "language",
    "language:stories",
    "masked",
    "opinions",
    "opinions:score",
    "tagging",
    "parsing",
    "images",
    "images:colour",
    "speech",
    "speech:sounds",
    "coordinates",
    "decisions",
    "decisions:cloning",
    "drawings",
    "similarity",
    "sets",
    "recurrent",
    "recurrent:lstm",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, help="a folder for all runs")
    parser.add_argument(
        "configs", nargs="*", help="configs to train instead of those of the README"
    )
    args, overrides = parser.parse_known_args()
    folder = pathlib.Path(args.workdir)
    specs = {c.replace(":", "-"): c for c in args.configs or SYSTEMS}
    if "images" in specs and importlib.util.find_spec("sklearn") is None:
        parser.error(
            "the digits of the system images come with scikit-learn: pip install "
            "-e '.[images]', or name the configs that you want"
        )
    code = train_in_turn(specs.items(), folder, overrides)
    if code == 0:
        print_table(specs, folder)
    return code


def train_in_turn(
    runs: Iterable[tuple[str, str]], folder: pathlib.Path, overrides: Sequence[str]
) -> int:
    """Train each (name, config) below a folder; stop at the first failure."""
    runs = list(runs)
    for number, (name, config) in enumerate(runs, 1):
        print(f"run {number} of {len(runs)}: {config}", flush=True)
        command = [*TRAINER, "--config", config, "--workdir", str(folder / name)]
        command += overrides
        done, began = (folder / name / "result.json").exists(), time.monotonic()
        code = run_to_the_end(command)
        if not done:
            note_time(folder / f"{name}.seconds", time.monotonic() - began)
        if code:
            return code
    return 0


def note_time(file: pathlib.Path, seconds: float) -> None:
    """Add up the seconds of a continued run; parts that were killed do not count."""
    before = float(file.read_text()) if file.exists() else 0.0
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{before + seconds:.1f}\n")


def print_table(specs: dict[str, str], folder: pathlib.Path) -> None:
    total = 0.0
    for name, config in specs.items():
        result = json.loads((folder / name / "result.json").read_text())
        noted = (
            folder / f"{name}.seconds"
        )  # missing if this script was gone when the run ended
        seconds = float(noted.read_text()) if noted.exists() else result["seconds"]
        total += seconds
        for split, found in result["scores"].items():
            print(f"{config:16} {seconds / 60:5.1f} min  {split}: {found['summary']}")
    print(f"all {len(specs):12} {total / 60:5.1f} min")


if __name__ == "__main__":
    sys.exit(main())
