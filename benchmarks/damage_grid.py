"""What happens to a command if a file of its run, bundle or cache is damaged?

    python benchmarks/damage_grid.py --cells 300

Every file × (a flipped bit, cut, deleted, empty, swapped, another type, a folder) ×
(train, predict, evaluate, bundle, predict with a bundle): either the output is the same
as without the damage, or it is one line with exit code 2, or there is a warning. The
exit code is 0 if this holds for all. POSIX only; see `faults.py`.
"""

import argparse
import itertools
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

from faults import DAMAGED, Bench, command, run_forked, without_times

from transformer_jax import evaluate, predict, train
from transformer_jax.convert import bundle

LINES = "O gato dorme.\nA menina vê o cão.\n"


def flip(path):
    """Flip a bit in the middle."""
    content = bytearray(path.read_bytes() or b"\0")
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def swap(path):
    """Swap the file with the next one in its folder, or with unrelated content."""
    others = [p for p in sorted(path.parent.iterdir()) if p.is_file() and p != path]
    content = path.read_bytes()
    path.write_bytes(others[0].read_bytes() if others else b"another file\n")
    if others:
        others[0].write_bytes(content)


def without(text, names):
    """Drop the entries with these names from a JSON object."""
    kept = {k: v for k, v in json.loads(text).items() if k not in names}
    return json.dumps(kept, sort_keys=True)


def make_folder(path):
    """Replace a file with a folder."""
    path.unlink()
    path.mkdir()


DAMAGE = {
    "a flipped bit": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "swapped": swap,
    "another type": lambda path: path.write_text('{"a": [3]}'),
    "a folder": make_folder,
}


class Grid:
    """Commands that run after a file is damaged."""

    def __init__(self, bench: Bench):
        self.bench, folder = bench, bench.folder
        self.run, self.bundle = folder / "damaged_run", folder / "damaged_bundle"
        self.stopped = folder / "stopped"  # a run that has still to go on
        shutil.copytree(bench.reference, self.stopped)
        (self.stopped / "result.json").unlink()
        shutil.rmtree(self.stopped / "averaged")
        shutil.rmtree(self.stopped / "checkpoints" / "12")
        self.exported = folder / "exported"
        code = run_forked(
            command(bundle, workdir=bench.reference, output=self.exported),
            bench.output,
        )
        if code:
            sys.exit(f"error: the bundle: {bench.said()}")
        self.kept_cache = folder / "kept_cache"
        shutil.copytree(bench.cache, self.kept_cache)
        self.out = folder / "out"
        self.expected = {name: self.call(name)[1] for name in self.commands()}

    def commands(self):
        """Return the commands by name: the place to damage and the function to call."""
        run, sealed, whole = self.run, self.bundle, self.bench.reference
        calls = {
            "train": command(train, config="quickstart", workdir=run),
            "predict": command(predict, workdir=run),
            "evaluate": command(evaluate, workdir=run, split="test"),
            "bundle": command(bundle, workdir=run, output=self.out),
        }
        found = {name: (whole, run, call) for name, call in calls.items()}
        found["train"] = (self.stopped, *found["train"][1:])
        found["predict a bundle"] = (
            self.exported, sealed, command(predict, workdir=sealed)
        )  # fmt: skip
        return found

    def call(self, name: str, place: str = "", path: str = "", damage: str = ""):
        """Damage a file and call a command; return its exit code and output."""
        source, copy, work = self.commands()[name]
        for folder in (copy, self.out, self.bench.cache):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, copy)
        shutil.copytree(self.kept_cache, self.bench.cache)
        if damage:
            DAMAGE[damage]((copy if place == "run" else self.bench.cache) / path)
        code = run_forked(work, self.bench.output, LINES)
        found = self.bench.output.read_text(errors="replace")
        if code:
            return code, ""
        if name == "train":
            said = self.bench.said()
            found = self.bench.look(copy)
            self.bench.output.with_suffix(".err").write_text(said)
        elif name == "evaluate":
            scores = json.loads((copy / "scores.json").read_text())
            found = json.dumps(without_times(scores["test"]), sort_keys=True)
        elif name == "bundle":
            found = (self.out / "bundle.json").read_text()
        return code, found

    def cells(self):
        """List (command, place, file, damage)."""
        for name, (source, _, _) in self.commands().items():
            for place, folder in (("run", source), ("cache", self.kept_cache)):
                if place == "cache" and name not in ("train", "evaluate"):
                    continue
                files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
                names = [str(p.relative_to(folder)) for p in files]
                names = [n for n in names if not n.startswith("compiled")]
                yield from itertools.product([name], [place], names, DAMAGE)

    def try_all(self, count: int, until: float) -> None:
        """Try cells in random order, until the requested number is done."""
        cells = list(self.cells())
        print(f"the grid has {len(cells)} cells", flush=True)
        self.bench.chance.shuffle(cells)
        for cell in cells[:count]:
            if time.monotonic() > until:
                break
            code, found = self.call(*cell)
            said = self.bench.said()
            self.bench.tally["cells"] += 1
            self.bench.judge(code, said, " / ".join(cell))
            expected = self.expected[cell[0]]
            if not code and found.startswith("{") and cell[0] == "train":
                left = [k for k, v in json.loads(found).items() if v == DAMAGED]
                if left:
                    self.bench.tally["an older checkpoint stays damaged"] += 1
                found, expected = (without(text, left) for text in (found, expected))
            if not code and found != expected:
                if "warning" in said:
                    self.bench.tally["another result, with a warning"] += 1
                    print(f"warned     {' / '.join(cell)}", flush=True)
                else:
                    self.bench.fail(f"{' / '.join(cell)}: silently another result")


def main() -> int:
    """Try as many cells as the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=10**9, help="of the grid")
    parser.add_argument("--minutes", type=float, default=1e9, help="at most")
    parser.add_argument("--seed", type=int, default=0, help="of the cells' order")
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory(prefix="damage_grid_") as folder:
        bench = Bench(pathlib.Path(folder).resolve(), args.seed)
        bench.prepare()
        Grid(bench).try_all(args.cells, until)
    return bench.report()


if __name__ == "__main__":
    sys.exit(main())
