"""How fast is a corpus prepared in shards, by how many processes?

    python benchmarks/shards.py --pairs 4000000 --shards 32 --workers 1,2,4
    python benchmarks/shards.py --pairs 1000000 --config.filter.near_duplicates=0.8

Generates parallel text (2 × 120 bytes a pair, see large_corpus.py), learns its pieces,
and prepares it by each number of workers, each time from the beginning. Prints pairs,
pieces and bytes per second, the size of the store, and whether all stores are equal,
byte by byte; the exit code is 1 if they are not. --config.x=y changes the config, which
is quickstart's. `hours` are those of a corpus of this many bytes by one core.
"""

import argparse
import filecmp
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import large_corpus
import numpy as np

from transformer_jax import cli
from transformer_jax.data.sharded import ShardedStore

SIZES = {"10 GB": 1e10, "1 TB": 1e12, "10 TB": 1e13}


def main() -> int:
    """Prepare a corpus by each number of workers, and print the tables."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=4_000_000)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--seed", type=int, default=0, help="of the text")
    parser.add_argument("--folder", help="an empty one, kept (default: temporary)")
    args = parser.parse_args(words)
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="shards_"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TRANSFORMER_JAX_CACHE"] = str(folder / "cache")
    try:
        return measure(args, folder, overrides)
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)


def measure(args: argparse.Namespace, folder: pathlib.Path, changes: dict) -> int:
    """Print a row for each number of workers, and what follows for large corpora."""
    print(f"machine    {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]}")
    large_corpus.say(large_corpus.generate(folder, args.pairs, args.seed))
    config = {**large_corpus.make_config(folder), **changes}
    size = sum((folder / f"train.{side}").stat().st_size for side in ("aa", "bb"))
    stores, rows, rate = [], [], 0.0
    for workers in map(int, args.workers.split(",")):
        store = folder / f"store_{workers}"
        learning = prepare(store, args.shards, config, "--worker=plan")
        seconds = prepare(store, args.shards, config, f"--workers={workers}")
        pieces = count_pieces(store)
        rate = rate or size / seconds / workers
        speeds = (args.pairs / seconds, pieces / seconds, size / seconds / 1e6)
        rows.append(
            [workers, f"{learning:.0f}", f"{seconds:.1f}"]
            + [f"{speed:,.1f}" for speed in speeds]
            + [f"{size / seconds / rate:.2f}"]
        )
        stores.append(store)
    large_corpus.print_table(
        "workers | learned, s | prepared, s | pairs/s | pieces/s | MB of text/s | "
        "times the first core",
        rows,
    )
    own = sum(file.stat().st_size for file in stores[0].glob("*.safetensors"))
    print(f"text       {size / 1e9:.2f} GB, {size / pieces:.2f} bytes a piece")
    print(f"store      {own / 1e9:.2f} GB, {own / pieces:.2f} bytes a piece")
    hours = [[name, f"{n / rate / 3600:,.1f}"] for name, n in SIZES.items()]
    large_corpus.print_table("text | core hours", hours)
    equal = all(is_same(stores[0], other) for other in stores[1:])
    print(f"stores     {'equal' if equal else 'NOT EQUAL'}, byte by byte")
    return int(not equal)


def prepare(store: pathlib.Path, shards: int, config: dict, share: str) -> float:
    """Run the command; return how many seconds it took."""
    command = [sys.executable, "-m", "transformer_jax.prepare", "--config=quickstart"]
    command += [f"--config.{key}={value}" for key, value in config.items()]
    command += [f"--output={store}", f"--shards={shards}", share]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def count_pieces(store: pathlib.Path) -> int:
    """Count the pieces of a store, of both sides."""
    opened = ShardedStore(str(store))
    return sum(int(np.sum(opened.lengths(side))) for side in ("source", "target"))


def is_same(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Return whether two folders hold the same files."""
    names = {str(p.relative_to(one)) for p in one.rglob("*") if p.is_file()}
    if names != {str(p.relative_to(other)) for p in other.rglob("*") if p.is_file()}:
        return False
    return not filecmp.cmpfiles(one, other, names, shallow=False)[1]


if __name__ == "__main__":
    sys.exit(main())
