"""What benchmarks beside other packages have measured: a record, and its table.

    python benchmarks/record.py RECORD.json

prints the table of a record that `compare.py` has written. Every benchmark that lets
sides take turns adds its comparisons to the file that its --output names.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZE, TIMES = 1024, 5  # of the matrix product that shows how fast the machine is now
PACKAGES = ("jax", "jaxlib", "flax", "ctranslate2", "torch", "transformers")


@dataclasses.dataclass
class Comparison:
    """The speeds of sides that took turns; the first side is this package."""

    what: str
    unit: str  # of a speed: more is better
    speeds: dict[str, list[float]]  # of each side, by round
    settings: dict[str, str]  # of each side, in words
    notes: dict[str, str] = dataclasses.field(default_factory=dict)  # of other sides

    def ratios(self, other: str) -> list[float]:
        """Return how many times as fast as another side this package was, by round."""
        ours, *_ = self.speeds.values()
        return [a / b for a, b in zip(ours, self.speeds[other], strict=True)]


def begin(path: str) -> None:
    """Begin a file, if one is named that is not there, before anything is measured.

    So its load is that of other work.
    """
    if path and not os.path.exists(path):
        _write(path, {"machine": describe_machine(), "comparisons": []})


def add(path: str, comparisons: Sequence[Comparison]) -> None:
    """Add comparisons to a file that has begun, if one is named."""
    if path:
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        content["comparisons"] += map(dataclasses.asdict, comparisons)
        _write(path, content)


def _write(path: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1) + "\n"
    pathlib.Path(path).write_text(text, encoding="utf-8")


def describe_machine() -> dict[str, Any]:
    """Say on what is measured: machine, load before, speed of products, versions."""
    from transformer_jax.runs import environment  # a table needs the file alone

    return {
        "commit": find_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "host": environment.versions()["host"],
        "load": round(os.getloadavg()[0], 2),
        "gflops": round(measure_speed()),
        "versions": {
            name: version for name in PACKAGES if (version := find_version(name))
        },
    }


def find_version(package: str) -> str:
    """Return the version of a package; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def measure_speed() -> float:
    """Return GFLOP/s of NumPy's matrix product, the best of a few."""
    import numpy as np

    a, times = np.ones((SIZE, SIZE), np.float32), []
    for _ in range(TIMES):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    return 2e-9 * SIZE**3 / min(times)


def find_commit() -> str:
    """Return the commit of this copy, with a mark if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def table(record: dict[str, Any]) -> str:
    """Return the Markdown table of a record, and a line about its machine."""
    lines = [
        "| what | this package | beside | its speed | ratio, median (range) | |",
        "|---|---|---|---|---|---|",
    ]
    for entry in record["comparisons"]:
        one = Comparison(**entry)
        ours, *others = one.speeds
        for other in others:
            found = one.ratios(other)
            mine, theirs = (statistics.median(one.speeds[s]) for s in (ours, other))
            lines.append(
                f"| {one.what} | {mine:,.1f} {one.unit} | {other} | {theirs:,.1f} | "
                f"{statistics.median(found):.2f} ({min(found):.2f} to "
                f"{max(found):.2f}, {len(found)} rounds) | {one.notes.get(other, '')} |"
            )
    about = record["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    lines.append(
        f"\n{about['commit']}, {about['date']}; {about['host']}; load {about['load']} "
        f"and {about['gflops']} GFLOP/s of a NumPy product before; {versions}."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", help="a JSON file")
    given = parser.parse_args().record
    print(table(json.loads(pathlib.Path(given).read_text(encoding="utf-8"))))
