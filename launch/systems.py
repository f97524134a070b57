"""Trains every system of the README in turn, on the data that it makes or brings along.

    python launch/systems.py --workdir runs/systems [CONFIG …] [--config.key=value …]

Each is a run of its own below --workdir. Stopped in whatever way, the same command goes
on where it was. At the end: how long each took, and how well it does. Other configs may
be named instead; what is set by --config is set for all.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

SYSTEMS = (
    "quickstart",
    "smalltalk",
    "language",
    "masked",
    "opinions",
    "opinions:score",
    "tagging",
    "parsing",
    "images",
    "images:colour",
    "coordinates",
    "decisions",
    "decisions:cloning",
    "drawings",
    "similarity",
    "sets",
    "recurrent",
    "recurrent:lstm",
)
# A training step on a CPU takes hundreds of megabytes anew, and the system clears them
# page by page: in large pages that is soon done.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, help="a folder for all runs")
    parser.add_argument("configs", nargs="*", help="others than those of the README")
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
    """Trains each (name, config) below a folder; stops at the first that fails."""
    runs = list(runs)
    for number, (name, config) in enumerate(runs, 1):
        print(f"run {number} of {len(runs)}: {config}", flush=True)
        command = [sys.executable, "-m", "transformer_jax.train", "--config", config]
        command += ["--workdir", str(folder / name), *overrides]
        done, began = (folder / name / "result.json").exists(), time.monotonic()
        code = run_to_the_end(command)
        if not done:
            note_time(folder / f"{name}.seconds", time.monotonic() - began)
        if code:
            return code
    return 0


def run_to_the_end(command: Sequence[str]) -> int:
    """Its exit code. Being asked to stop is passed on: it saves first."""
    with subprocess.Popen(command, env=HUGE_PAGES | os.environ) as training:
        before = signal.signal(signal.SIGTERM, lambda *_: training.terminate())
        try:
            return training.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def note_time(file: pathlib.Path, seconds: float) -> None:
    """Adds up what a run took when it was continued; a killed part is not counted."""
    before = float(file.read_text()) if file.exists() else 0.0
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{before + seconds:.1f}\n")


def print_table(specs: dict[str, str], folder: pathlib.Path) -> None:
    total = 0.0
    for name, config in specs.items():
        result = json.loads((folder / name / "result.json").read_text())
        noted = folder / f"{name}.seconds"  # none, if it ended when nobody waited
        seconds = float(noted.read_text()) if noted.exists() else result["seconds"]
        total += seconds
        for split, found in result["scores"].items():
            print(f"{config:16} {seconds / 60:5.1f} min  {split}: {found['summary']}")
    print(f"all {len(specs):12} {total / 60:5.1f} min")


if __name__ == "__main__":
    sys.exit(main())
