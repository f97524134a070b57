"""What happens to a training under faults: kills, and file operations that fail?

    python benchmarks/faults.py --kills 200
    python benchmarks/faults.py --errors ENOSPC,EROFS,EIO --every 7

A tiny translator is trained once undisturbed, then repeatedly under faults:

- kills: SIGKILL at a random file operation, or after a random time, repeated until the
  run ends; it must end bit-identical
- errors: every n-th file operation of a training fails, which must cause one line and
  exit code 2, or nothing; the same command started again must end bit-identical

Each command runs in a process forked from this one, which has imported everything but
touched no device. The exit code is 0 if all checks pass. POSIX only. `damage_grid.py`
covers damaged files.
"""

import argparse
import collections
import contextlib
import errno
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

import jax
import numpy as np

from transformer_jax import cli, train
from transformer_jax.runs import run as runs
from transformer_jax.runs import steps
from transformer_jax.runs.checkpoint import Checkpoints, Damaged
from transformer_jax.training import log as metrics

KEYS = {
    "data.train_size": 80, "data.validation_size": 13, "data.test_size": 11,
    "data.batch_tokens": 528, "data.max_length": 64, "data.shapes": 1,
    "tokenizer.vocab_size": 420, "model.encoder_layers": 1, "model.decoder_layers": 1,
    "model.d_model": 16, "model.d_ff": 24, "model.num_heads": 2,
    "train.steps": 12, "optim.warmup_steps": 5, "optim.ema": 0.5,
    "eval.every": 6, "eval.answers": 2, "eval.batch_rows": 16, "eval.splits": "test",
    "eval.weights": "auto", "decode.extra_length": 2, "decode.beams": 1,
    "checkpoint.every": 3, "checkpoint.average": 2, "checkpoint.keep_last": 3,
    "log.every": 1, "log.tensorboard": "false",
}  # fmt: skip
CLOCK = ("time", "seconds", "seconds_left", "tokens_per_second", "answering_seconds")
# The trainings compile much and compute little.
CHEAP = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)
# Audit events of file operations → which of their arguments are paths.
EVENTS = {
    "open": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.mkdir": (0,),
    "os.rmdir": (0,), "os.listdir": (0,), "os.scandir": (0,), "os.truncate": (0,),
    "os.link": (0, 1), "os.symlink": (0, 1), "os.chmod": (0,), "os.utime": (0,),
}  # fmt: skip
DAMAGED = "damaged"  # instead of the digest of a checkpoint
READS = ("os.listdir", "os.scandir")
FREES = ("os.remove", "os.rmdir")


class Operations:
    """Count the file operations below some folders, and inject a fault into one."""

    def __init__(self, folders, strike_at=0, error="", sustained=False, count_in=None):
        self.folders = tuple(str(folder) for folder in folders)
        self.strike_at, self.error, self.sustained = strike_at, error, sustained
        self.done, self.count_in, self.names = 0, count_in, []
        self.lock = threading.Lock()
        self.busy = False
        sys.addaudithook(self.hear)

    def hear(self, event, args):
        """Count an event if it is a file operation, and inject the fault when due."""
        if event not in EVENTS or self.busy or not self.counts(event, args):
            return
        with self.lock:
            self.done += 1
            done = self.done
        if self.count_in:
            with self.quietly(), open(self.count_in, "a") as file:
                file.write(f"{event} {args[0]}\n")
        if not self.strike_at or done < self.strike_at:
            return
        if not self.error:
            os.kill(os.getpid(), signal.SIGKILL)
        if done == self.strike_at or self.sustained:
            number = getattr(errno, self.error)
            raise OSError(number, os.strerror(number), str(args[0]))

    @contextlib.contextmanager
    def quietly(self):
        """Do not count file operations inside this context."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def counts(self, event, args):
        """Return whether this operation is below the folders, and can fail this way."""
        paths = [args[i] for i in EVENTS[event]]
        if not any(str(p).startswith(self.folders) for p in paths):
            return False
        if self.error in ("", "EIO"):
            return True
        if self.error == "ENOSPC" and event in FREES:
            return False
        if event == "open":
            mode, bits = args[1] or "", args[2] or 0
            return bool(set("wax+") & set(mode)) or bool(
                bits & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
        return event not in READS


def run_forked(work, output: pathlib.Path, stdin: str = "") -> int:
    """Call a function in a forked process; return its exit code, or -signal."""
    source = output.with_suffix(".in")
    source.write_text(stdin)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 70
        try:
            for number, path in ((1, output), (2, output.with_suffix(".err"))):
                file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                os.dup2(file, number)
            os.dup2(os.open(source, os.O_RDONLY), 0)
            code = work() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def command(module, **given):
    """Return a function that runs a command as the shell would."""

    def work():
        sys.argv = [module.__name__]
        for name, value in given.items():
            sys.argv.append(f"--{name}={value}")
        if module is train:
            sys.argv += [f"--config.{key}={value}" for key, value in KEYS.items()]
        sys.modules[module.main.__module__] = module
        module.define_flags()
        cli.run(module.main)

    return work


def describe(workdir: pathlib.Path):
    """Return a function that prints a finished run's contents, without its times."""

    def work():
        opened = runs.load(workdir)
        found = {"weights": opened.weights, "answers": digest(opened.params)}
        saved = Checkpoints(workdir / "checkpoints")
        found["checkpoints"], found["best"] = saved.steps(), saved.best_step()
        like = runs.abstract_params(opened.task, opened.mesh)
        for step in saved.steps():
            for item in ("params", "ema"):
                try:
                    params = saved.restore_params(step, like, item)
                    found[f"{item} {step}"] = digest(params)
                except Damaged:
                    found[f"{item} {step}"] = DAMAGED
        entries = metrics.read_entries(workdir / "metrics.jsonl")
        found["curves"] = without_times(entries)
        found["result"] = without_times(
            json.loads((workdir / "result.json").read_text())
        )
        print(json.dumps(found, sort_keys=True))

    return work


def without_times(value):
    """Drop everything that depends on the clock."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in CLOCK}
    return [without_times(x) for x in value] if isinstance(value, list) else value


def digest(tree) -> str:
    """Hash the path, dtype, shape and bytes of every leaf."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        name = jax.tree_util.keystr(path)
        found.update(f"{name} {array.dtype} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:16]


class Bench:
    """A folder with the undisturbed run, its bundle, and copies for the trials."""

    def __init__(self, folder: pathlib.Path, seed: int):
        self.folder, self.chance = folder, random.Random(seed)
        self.cache = folder / "cache"
        os.environ["TRANSFORMER_JAX_CACHE"] = str(self.cache)
        jax.config.update("jax_platforms", "cpu")
        os.environ["XLA_FLAGS"] = CHEAP
        self.output = folder / "output.txt"
        self.failures: list[str] = []
        self.tally: collections.Counter = collections.Counter()

    def train(self, workdir, rule=None) -> int:
        """Train, or continue, in a separate process that calls `rule()`."""
        work = command(train, config="quickstart", workdir=workdir)

        def ruled():
            if rule:
                rule()
            work()

        return run_forked(ruled, self.output)

    def prepare(self) -> None:
        """Train the undisturbed run twice, so that the second finds a full cache."""
        self.reference = self.folder / "reference"
        for turn in range(2):
            shutil.rmtree(self.reference, ignore_errors=True)
            began = time.monotonic()
            count_in = self.folder / f"operations{turn}.txt"
            folders = (self.reference, self.cache)
            code = self.train(
                self.reference, lambda f=folders, c=count_in: Operations(f, count_in=c)
            )
            if code:
                sys.exit(f"error: undisturbed: {code}\n{self.said()}")
            self.seconds = time.monotonic() - began
        self.operations = (self.folder / "operations1.txt").read_text().count("\n")
        self.first = (self.folder / "operations0.txt").read_text().count("\n")
        self.end = self.look(self.reference)
        print(
            f"undisturbed: {self.operations} file operations ({self.first} with an "
            f"empty cache), {self.seconds:.1f} s",
            flush=True,
        )

    def look(self, workdir) -> str:
        """Describe a finished run."""
        if code := run_forked(describe(workdir), self.output):
            return f"cannot be opened: {code} {self.said()}"
        return self.output.read_text()

    def said(self) -> str:
        """Return the stderr output of the last process."""
        return self.output.with_suffix(".err").read_text(errors="replace")

    def fail(self, what: str) -> None:
        """Record a failed check."""
        self.failures.append(what)
        print(f"WRONG      {what}", flush=True)

    def check_end(self, workdir, what: str) -> None:
        """Compare a finished run with the undisturbed one."""
        found = self.look(workdir)
        self.tally["ends"] += 1
        if found != self.end:
            self.fail(f"{what}: another end\n{self.end}{found}")
        if left := [p for p in workdir.rglob("*") if steps.PARTIAL in p.name]:
            self.fail(f"{what}: left {left[0]}")
        if (workdir / "damaged").is_dir():
            names = [p.name for p in (workdir / "damaged").iterdir()]
            self.tally[f"set aside: {sorted(names)}"] += 1

    def report(self) -> int:
        """Print the tally; return the exit code."""
        for what, times in sorted(self.tally.items()):
            print(f"{times:>6} × {what}")
        print(f"{len(self.failures)} failures")
        return 1 if self.failures else 0

    def kill(self, count: int, until: float) -> None:
        """Kill trainings at random until all kills are made and the run ends."""
        number, workdir = 0, self.folder / "killed"
        while self.tally["kills"] < count and time.monotonic() < until:
            shutil.rmtree(workdir, ignore_errors=True)
            number += 1
            while True:
                code = self.train(workdir, self.draw_kill(workdir))
                if code != -signal.SIGKILL:
                    break
                self.tally["kills"] += 1
            if code:
                self.fail(f"run {number}: exit code {code}\n{self.said()}")
                continue
            self.check_end(workdir, f"run {number}")

    def draw_kill(self, workdir):
        """Return a function that arranges for a kill of the process that calls it."""
        if self.chance.random() < 0.6:
            at = self.chance.randrange(1, self.operations)
            return lambda: Operations((workdir, self.cache), at)
        seconds = self.chance.random() * self.seconds

        def die_later():
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()

        return die_later

    def fail_operations(self, names: list[str], every: int, until: float) -> None:
        """Let the file operations of a training fail, one after another."""
        workdir = self.folder / "failing"
        cells = [
            (name, n) for n in range(1, self.operations + 1, every) for name in names
        ]
        self.chance.shuffle(cells)
        for name, n in cells:
            if time.monotonic() > until:
                break
            shutil.rmtree(workdir, ignore_errors=True)
            sustained = name != "EIO"
            folders = (workdir, self.cache)
            code = self.train(
                workdir,
                lambda: Operations(folders, n, name, sustained),  # noqa: B023
            )
            what, said = f"{name} at operation {n}", self.said()
            self.judge(code, said, what)
            if self.train(workdir):
                self.fail(f"{what}: cannot be continued\n{self.said()}")
            else:
                self.check_end(workdir, what)

    def judge(self, code: int, said: str, what: str) -> None:
        """Check a command's reaction to a fault."""
        lines = [x for x in said.splitlines() if x.startswith("error: ")]
        self.tally[f"exit code {code}"] += 1
        if code not in (0, 2) or "Traceback" in said or (code == 2 and not lines):
            self.fail(f"{what}: exit code {code}\n{said[-3000:]}")
        elif len(lines) > 2:
            self.fail(f"{what}: {len(lines)} lines\n{said[-3000:]}")


def main() -> int:
    """Run the trials that the command line asks for; exit code 0 if all pass."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--errors", default="", help="such as ENOSPC,EIO")
    parser.add_argument("--every", type=int, default=1, help="n-th operation")
    parser.add_argument("--minutes", type=float, default=1e9, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        bench = Bench(pathlib.Path(folder).resolve(), args.seed)
        bench.prepare()
        if args.kills:
            bench.kill(args.kills, until)
        if args.errors:
            bench.fail_operations(args.errors.split(","), args.every, until)
    return bench.report()


if __name__ == "__main__":
    sys.exit(main())
