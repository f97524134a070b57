"""Are the global batches the same, bit for bit, for any number of processes?

    python benchmarks/plan_hash.py --batches 1000 --processes 1,2,8

Starts real JAX processes with one device each. They prepare the same data as a training
does (with BPE-dropout) and put their own rows of each batch on their devices. The
batches on all devices are joined and hashed; then again for processes that start in the
middle, as after a resume. The exit code is 0 if EQUAL. --config.x=y is passed on.
"""

import argparse
import contextlib
import hashlib
import os
import pathlib
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from transformer_jax import cli, hosts, sharding
from transformer_jax import config as configs
from transformer_jax.runs import folder as folders
from transformer_jax.training import log as metrics
from transformer_jax.training.prepare import make_plan, prepare_together
from transformer_jax.training.steps.feed import Feed

SAMPLED = {"tokenizer.kind": "bpe", "tokenizer.sampling": "0.1"}
BATCHINGS = ("buckets", "packed")
DISAGREE = "the processes have different plans of it"  # in the place of a hash
Hashes = list[tuple[str, int]]  # of each batch; and how many samples were too long


def main() -> int:
    """Compare batches for several numbers of processes; exit code 0 if equal."""
    words, given = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(words)
    overrides = {**SAMPLED, **given}
    if args.parts:
        work(args, overrides)
        return 0
    # Whoever stops this stops all processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: stopped"))
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="plan_hash_"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"error: --folder {folder} is not empty")
    print(f"folder     {folder}")
    changes = " ".join(f"{key}={value}" for key, value in overrides.items())
    print(f"config     {args.config} {changes}")
    print("\n| batching | processes | batches | epochs | samples too long | SHA-256 of "
          "the first half | of the second half | seconds |")  # fmt: skip
    print(f"|{'---|' * 8}", flush=True)
    try:
        equal = compare(args, folder, overrides)
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)
    print("EQUAL" if equal else "DIFFERENT")
    return 0 if equal else 1


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line, without its overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    counts = {"type": lambda text: [int(n) for n in text.split(",")]}
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--processes", default="1,2,8", help="their numbers", **counts)
    parser.add_argument("--folder", help="an empty one, kept (default: temporary)")
    parser.add_argument("--begin", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--parts", help=argparse.SUPPRESS)  # a process's place
    return parser.parse_args(words)


def compare(args: argparse.Namespace, folder: pathlib.Path, overrides: dict) -> bool:
    """Print a row per process count and start; return whether all batches agree."""
    expected: dict[str, Hashes] = {}
    different, half = [], args.batches // 2
    for count in args.processes:
        # Each count learns and encodes for itself: nothing is handed on.
        place = folder / str(count)
        for begin in (0, half):
            began = time.monotonic()
            run_processes(args, place, overrides, count, begin)
            seconds = time.monotonic() - began
            for batching in BATCHINGS:
                epoch, found = join(place, batching, count, range(begin, args.batches))
                cells = [batching, count, f"{begin} to {args.batches - 1}"]
                cells += [f"{len(found) / epoch:.2f}", sum(kept for _, kept in found)]
                cells += [digest(found[:half]) if not begin else "(not read)"]
                cells += [digest(found[half - begin :]), f"{seconds:.0f}"]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
                wanted = expected.setdefault(batching, found)[begin:]
                bad = find_difference(found, wanted, begin)
                if bad:
                    name = f"{batching}, {count} processes, from {begin} on"
                    different.append(f"{name}: {bad}")
    print()
    for line in different:
        print(f"different  {line}")
    return not different


def find_difference(found: Hashes, wanted: Hashes, begin: int) -> str:
    """Name the first batch that differs; empty if none does."""
    for number, (batch, other) in enumerate(zip(found, wanted, strict=True), begin):
        if batch[0] == DISAGREE:
            return f"batch {number}, {DISAGREE}"
        if batch != other:
            return f"batch {number} is not what it is in the first row"
    return ""


def run_processes(args, place: pathlib.Path, overrides: dict, count, begin) -> None:
    """Start the processes of one cluster, and wait until all have written."""
    place.mkdir(exist_ok=True)
    # As in launch/two_processes.sh.
    environment = {**os.environ, "TRANSFORMER_JAX_CACHE": str(place / "cache")}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    environment |= {"PJRT_NPROC": "16", "NUM_PROCESSES": str(count)}
    environment.pop("COORDINATOR_ADDRESS", None)
    if count > 1:
        with socket.create_server(("localhost", 0)) as server:
            environment["COORDINATOR_ADDRESS"] = f"localhost:{server.getsockname()[1]}"
    command = [sys.executable, __file__, "--parts", str(place), "--begin", str(begin)]
    command += ["--batches", str(args.batches), "--config", args.config]
    command += [f"--config.{key}={value}" for key, value in overrides.items()]
    logs = [place / f"log-{begin}-{i}.txt" for i in range(count)]
    processes = []
    try:
        for i, log in enumerate(logs):
            with log.open("w") as file:
                own = {**environment, "PROCESS_ID": str(i)}
                processes.append(
                    subprocess.Popen(command, env=own, stdout=file, stderr=file)
                )
        while any(p.poll() is None for p in processes):
            time.sleep(0.1)
            for i, process in enumerate(processes):
                if process.poll():
                    text = "\n".join(logs[i].read_text().splitlines()[-20:])
                    sys.exit(f"error: process {i} of {count} failed:\n{text}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def work(args: argparse.Namespace, overrides: dict[str, str]) -> None:
    """Write this process's share of each batch."""
    place = pathlib.Path(args.parts)
    hosts.connect()
    number, feeds = jax.process_index(), {}
    for batching in BATCHINGS:
        config = configs.load(args.config, {**overrides, "data.batching": batching})
        folder = folders.Folder(place / batching)
        writer = metrics.RunLog(folder, active=number == 0)
        mesh = sharding.make_mesh(config.mesh)
        prepared = prepare_together(config, folder, writer)
        planned = make_plan(config, prepared.task, prepared.train)
        feeds[batching] = Feed(prepared.task, prepared.train.store, planned, mesh)
    # From here on the processes are independent.
    for batching, feed in feeds.items():
        with (place / f"{batching}-{number}").open("wb") as file:
            pickle.dump(feed.plan.steps_per_epoch, file)
            for step in range(args.begin, args.batches):
                placed = feed.place(step)
                arrays, kept = placed.arrays, placed.samples_too_long
                shards = {
                    name: [
                        (s.index[0], np.asarray(s.data)) for s in a.addressable_shards
                    ]
                    for name, a in arrays.items()
                }
                shapes = {name: a.shape for name, a in arrays.items()}
                pickle.dump((step, kept, shapes, shards), file)


def join(
    place: pathlib.Path, batching: str, count: int, steps: range
) -> tuple[int, Hashes]:
    """Return the steps per epoch, and the hash of each batch that was written."""
    paths = [place / f"{batching}-{i}" for i in range(count)]
    hashes = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        epochs = [pickle.load(file) for file in files]
        for step in steps:
            found, kept, shapes, shards = zip(*map(pickle.load, files), strict=True)
            if set(found) != {step}:
                sys.exit(
                    f"error: batch {step} of {batching}: the processes are at {found}"
                )
            if epochs != [epochs[0]] * count or shapes != (shapes[0],) * count:
                hashes.append((DISAGREE, sum(kept)))
                continue
            hashed = hashlib.sha256()
            for name, shape in sorted(shapes[0].items()):
                parts = [part for own in shards for part in own[name]]
                whole = np.empty(shape, parts[0][1].dtype)
                filled = np.zeros(shape[0], int)
                for rows, values in parts:
                    whole[rows] = values
                    filled[rows] += 1
                if (filled != 1).any():
                    sys.exit(f"error: batch {step}, {name}: rows came {filled} times")
                hashed.update(f"{name} {whole.dtype} {shape}\n".encode())
                hashed.update(whole.tobytes())
            hashes.append((hashed.hexdigest(), sum(kept)))
    for path in paths:
        path.unlink()
    return epochs[0], hashes


def digest(hashes: Hashes) -> str:
    """Hash the hashes of several batches."""
    text = "".join(f"{hashed} {kept}\n" for hashed, kept in hashes)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
