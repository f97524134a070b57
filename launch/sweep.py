"""Train every combination of configs, values of options and seeds, each as its own run.

    python launch/sweep.py --workdir runs/sweep --config configs/language.py \\
        --vary optim.constant=0.1,0.35,1.0 --seeds 1,2,3,5,7

Each combination is a cell, and trains in a folder of its name below --workdir. All
cells are checked before the first is trained. If the command is stopped or killed,
start it again to continue. --config.key=value applies to all cells.

Commas separate the values of --vary, except within brackets or quotes. Values with
other commas are all separated by | instead:

    --vary "data.train_weights=(3,1),(1,1)"
    --vary "eval.splits=test|test,test_combinations"

A training that crashes is started again after the others, and fails if it crashes twice
without a new step. One that is preempted is started again at once, and fails after five
times without a new step. A mistake (exit code 2) stops the sweep. Exit codes: 0 all
cells are done, 1 some have failed, 2 a mistake, 75 or 130 stopped by a signal.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from transformer_jax import cli
from transformer_jax.base.errors import UserError

TRAINER = (sys.executable, "-m", "transformer_jax.train")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FAILED = 1
INTERRUPTED = 130
PREEMPTIONS = 5  # starts in a row without a new step, as in supervise.sh
CRASHES = 2
SHOWN = 5  # lines of the output of a training that failed
LONGEST = 200  # bytes of a folder's name; file systems allow 255
PR_SET_PDEATHSIG = 1  # of Linux's prctl

# Unlike `print`, it does not end the sweep when nobody reads its lines any more.
console = logging.getLogger("sweep")
console.setLevel(logging.INFO)
console.propagate = False
console.handlers = [cli.PlainHandler("stdout")]


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """A run of the sweep."""

    number: int
    config: str
    options: Mapping[str, str]
    folder: pathlib.Path
    log: pathlib.Path | None  # for the output of its training; None shows it

    def __str__(self):
        return f"cell {self.number}, {self.folder.name}"


def main() -> int:
    args, overrides = read_arguments()
    cells = make_cells(args, overrides)
    chosen = choose(cells, args.cell)
    done, problems = in_fresh_process(check, chosen, args, overrides)
    if problems:
        raise UserError(*problems)
    if args.write:
        sys.stdout.write(WRITERS[args.write](args, len(cells)))
        return 0
    say("cells", f"{len(chosen)} in {args.workdir}, {sum(done)} done")
    left = [cell for cell, is_done in zip(chosen, done, strict=True) if not is_done]
    if args.list:
        for cell in chosen:
            console.info(f"{cell}{' (done)' * (cell not in left)}")
        return 0
    code = train(left, args, overrides)
    if args.cell is None and code in (0, FAILED):
        report(args.workdir)
    return code


def read_arguments() -> tuple[argparse.Namespace, dict[str, str]]:
    """Return the options of the sweep, and those of the config of every cell."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--workdir", required=True, help="a folder for all runs")
    add("--config", required=True, nargs="+", action="extend", help="one or several")
    add("--vary", action="append", default=[], metavar="KEY=A,B", help="repeatable")
    add("--seeds", metavar="A,B", help="the same as --vary seed=A,B")
    add(
        "--at_once",
        type=int,
        metavar="N",
        help="number of trainings at a time (1), among which the GPUs of "
        "CUDA_VISIBLE_DEVICES are divided",
    )
    add("--list", action="store_true", help="check and list the cells, train none")
    add("--cell", type=int, metavar="N", help="train only the cell with this number")
    add("--write", choices=WRITERS, help="print a job array that trains the cells")
    add("--start_from", default="", metavar="RUN", help="as of train")
    add("--accept_changes", action="store_true", help="as of train")
    add("--smoke", action="store_true", help="as of train")
    args, others = parser.parse_known_args()
    others, overrides = cli.split_overrides(others)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return args, overrides


def make_cells(args: argparse.Namespace, overrides: Mapping[str, str]) -> list[Cell]:
    """Combine configs, values and seeds; refuse cells that would share a folder."""
    if "://" in args.workdir:
        raise UserError(f"--workdir={args.workdir}: a sweep needs a folder or a mount")
    axes: dict[str, list[str]] = {}
    for given in args.vary + [f"seed={args.seeds}"] * bool(args.seeds):
        key, equals, text = given.partition("=")
        if not equals:
            raise UserError(f"--vary {given}: give its values, as in {given}=1,2,3")
        if key in axes or key in overrides:
            raise UserError(f"{key} is given twice: give all its values in one --vary")
        axes[key] = split_values(key, text)
    cells: dict[str, Cell] = {}
    for config, *values in itertools.product(args.config, *axes.values()):
        options = dict(zip(axes, values, strict=True))
        path, _, variant = config.partition(":")
        own = clean(pathlib.Path(path).stem) + f"-{clean(variant)}" * bool(variant)
        parts = {key: f"{key}={clean(text)}" for key, text in options.items()}
        name = "__".join([own, *parts.values()])
        way_out = "name its settings as a variant of a config file (--config mine.py:a)"
        if name in cells:
            raise UserError(f"two cells have the name {name}: drop one, or {way_out}")
        if (size := len(name.encode())) > LONGEST:
            raise UserError(
                f"the name {name} has {size} bytes, at most {LONGEST} are allowed: "
                f"{way_out}"
            )
        folder = pathlib.Path(args.workdir, name)
        log = folder.with_name(f"{name}.log")
        cells[name] = Cell(len(cells), config, options, folder, log)
    return list(cells.values())


def split_values(key: str, text: str) -> list[str]:
    """Split at each | outside brackets and quotes or, if there is none, each comma."""
    depth, quote, cuts = 0, "", {"|": [], ",": []}
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter in cuts and not depth:
            cuts[letter].append(place)
    if depth or quote:
        raise UserError(f"--vary {key}={text}: a bracket or a quote is not closed")
    ends = [-1, *(cuts["|"] or cuts[","]), len(text)]
    return [text[a + 1 : b].strip() for a, b in itertools.pairwise(ends)]


def clean(text: str) -> str:
    """Write a value in letters that shells, patterns and file systems leave alone."""
    return re.sub(r"[^\w.+=-]+", "_", text.strip("()[] "))


def choose(cells: Sequence[Cell], number: int | None) -> Sequence[Cell]:
    """Return all cells, or that of a number, whose output the job of the cell shows."""
    if number is None:
        return cells
    if not 0 <= number < len(cells):
        raise UserError(f"--cell {number}: must be a number from 0 to {len(cells) - 1}")
    return [dataclasses.replace(cells[number], log=None)]


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that uses JAX, with whose threads this process could not fork."""
    with concurrent.futures.ProcessPoolExecutor(
        1,
        multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # Ctrl-C is answered here
    ) as pool:
        return pool.submit(function, *args).result()


def check(
    cells: Sequence[Cell], args: argparse.Namespace, overrides: Mapping[str, str]
) -> tuple[list[bool], list[str]]:
    """Return which cells are done, and the problems with which a training would end.

    The files that a manifest for Kubernetes names need not be on this machine.
    """
    import jax

    from transformer_jax import train as trainer

    jax.config.update("jax_platforms", "cpu")  # the GPUs are for the trainings
    here, done, problems = args.write != "k8s", [], {}
    for cell in cells:
        options, workdir = {**overrides, **cell.options}, str(cell.folder)
        try:
            config = trainer.read_config(
                cell.config, options, workdir, args.start_from, args.smoke, here
            )
            is_done = here and trainer.check(config, workdir, args.accept_changes)
            done.append(is_done)
        except UserError as error:
            for problem in error.problems:  # mostly the same one in several cells
                problems.setdefault(problem, f"{cell}: {problem}")
    return done, [*problems.values()]


def train(
    cells: Sequence[Cell], args: argparse.Namespace, overrides: Mapping[str, str]
) -> int:
    """Train cells, `args.at_once` at a time; return the exit code of the sweep."""
    queue, taken = Queue(cells), {}
    shares = share_devices(max(args.at_once or 1, 1))
    with Trainings() as trainings:
        while True:
            while queue.waiting and shares and not (queue.mistakes or trainings.signal):
                cell = queue.waiting.popleft()
                taken[cell] = shares.pop(0)
                say("continues" if queue.steps[cell] else "begins", cell)
                command = make_command(cell, args, overrides)
                trainings.start(cell, command, cell.log, **taken[cell])
            if not taken:
                break
            cell, code, seconds = trainings.wait()
            shares.append(taken.pop(cell))
            queue.settle(cell, code, seconds, bool(trainings.signal))
            if queue.mistakes:
                trainings.pass_on(signal.SIGTERM)
    if queue.mistakes:
        raise UserError(*queue.mistakes)
    if queue.waiting:
        say("stopped", f"{len(queue.waiting)} cells are left; this command continues:")
        console.info(shlex.join(sys.orig_argv))
        return INTERRUPTED if trainings.signal == signal.SIGINT else cli.PREEMPTED
    for cell in queue.failed:
        say("failed", f"{cell}" + f", see {cell.log}" * (cell.log is not None))
    return FAILED if queue.failed else 0


class Queue:
    """The cells that wait, and what became of the others."""

    def __init__(self, cells: Sequence[Cell]):
        self.waiting = collections.deque(cells)
        self.failed: list[Cell] = []
        self.mistakes: list[str] = []
        self.steps = {cell: newest_step(cell.folder) for cell in cells}
        self._in_vain: dict[Cell, int] = collections.Counter()  # starts in a row

    def settle(self, cell: Cell, code: int, seconds: float, stopping: bool) -> None:
        """Decide by an exit code whether a cell is done, starts again or has failed."""
        before, self.steps[cell] = self.steps[cell], newest_step(cell.folder)
        new = self.steps[cell] > before
        self._in_vain[cell] = 0 if new else self._in_vain[cell] + 1
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        how = f"{cell}: {how} at step {self.steps[cell]}"
        if code == 0:
            say("done", f"{cell} ({cli.duration(seconds)})")
        elif code == cli.USER_MISTAKE:
            said = read_end(cell.log)
            self.mistakes += [f"{cell}: {line}" for line in said] or [how]
        elif stopping or self.mistakes:
            say("stopped", cell)
            self.waiting.append(cell)
        elif code == cli.PREEMPTED and self._in_vain[cell] < PREEMPTIONS:
            say("preempted", f"{how}; starts again")
            self.waiting.appendleft(cell)
        elif code != cli.PREEMPTED and self._in_vain[cell] < CRASHES:
            say("crashed", f"{how}; starts again after the others")
            self.waiting.append(cell)
        else:
            say("failed", "\n  ".join([how, *read_end(cell.log)]))
            self.failed.append(cell)


def make_command(
    cell: Cell, args: argparse.Namespace, overrides: Mapping[str, str]
) -> list[str]:
    """Write the command that trains a cell."""
    command = [*TRAINER, "--config", cell.config, "--workdir", str(cell.folder)]
    command += ["--start_from", args.start_from] if args.start_from else []
    command += ["--accept_changes"] * args.accept_changes + ["--smoke"] * args.smoke
    options = {**overrides, **cell.options}
    return command + [f"--config.{key}={text}" for key, text in options.items()]


def share_devices(count: int) -> list[dict[str, str]]:
    """Divide the GPUs of CUDA_VISIBLE_DEVICES among trainings, if there are enough."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    each = len(devices) // count if all(devices) else 0
    shares = [devices[i * each : (i + 1) * each] for i in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(s)} if s else {} for s in shares]


class Trainings:
    """Processes that train, which get the signals that this one gets, and die with it.

    Each is in a group of its own. Otherwise Ctrl-C in a terminal would reach it twice,
    and the second one ends a training that has not saved yet.
    """

    def __init__(self):
        self.signal = 0  # the last one that asked for a stop
        self._asked: collections.deque[int] = collections.deque()
        self._running: dict[Hashable, tuple[subprocess.Popen, float]] = {}

    def __enter__(self) -> "Trainings":
        self._before = {
            number: signal.signal(number, self._notice)
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
        }
        return self

    def __exit__(self, *_) -> None:
        self.pass_on(signal.SIGTERM)  # after an error; otherwise all have ended
        for process, _ in self._running.values():
            process.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _notice(self, number: int, _: Any) -> None:
        self.signal = number
        self._asked.append(number)

    def pass_on(self, number: int) -> None:
        """Send a signal to all trainings."""
        for process, _ in self._running.values():
            process.send_signal(number)

    def start(
        self,
        key: Hashable,
        command: Sequence[str],
        log: pathlib.Path | None = None,
        **variables: str,
    ) -> None:
        """Start a training, whose output is appended to a log or shown."""
        with contextlib.ExitStack() as stack:
            output = None
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                output = stack.enter_context(log.open("a", encoding="utf-8"))
                output.write(f"\n$ {shlex.join(command)}\n")
                output.flush()
            process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                process_group=0,
                preexec_fn=make_mortal(),
            )
        self._running[key] = process, time.monotonic()

    def wait(self) -> tuple[Any, int, float]:
        """Wait until a training ends; return its key, exit code and seconds."""
        while True:
            while self._asked:
                self.pass_on(self._asked.popleft())
            for key, (process, began) in self._running.items():
                if (code := process.poll()) is not None:
                    del self._running[key]
                    return key, code, time.monotonic() - began
            time.sleep(0.1)


def make_mortal() -> Callable[[], None] | None:
    """Return a function by which a new process asks to be killed when this one dies.

    Otherwise, after a SIGKILL, trainings that nobody knows of would go on.
    """
    if sys.platform != "linux":
        return None
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def run_to_the_end(command: Sequence[str]) -> int:
    """Run one training, whose output is shown; return its exit code."""
    with Trainings() as trainings:
        trainings.start("", command)
        return trainings.wait()[1]


def newest_step(folder: pathlib.Path) -> int:
    """Return the newest step of a run, saved or logged; 0 if there is none."""
    saved = [*folder.glob("checkpoints/[0-9]*"), *folder.glob("preempted/[0-9]*")]
    steps = [path.name for path in saved if path.name.isdigit()]
    if (metrics := folder / "metrics.jsonl").exists():
        steps += re.findall(r'"step": (\d+)', metrics.read_text(encoding="utf-8"))
    return max(map(int, steps), default=0)


def read_end(log: pathlib.Path | None) -> list[str]:
    """Return the errors of the last training in a log or, without any, its end."""
    if log is None:
        return []
    text = log.read_text(encoding="utf-8", errors="replace").rpartition("\n$ ")[2]
    lines = [line for line in text.split("\n")[1:] if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return [line.removeprefix("error: ") for line in errors] or lines[-SHOWN:]


def report(folder: str) -> None:
    """Show the mean and the spread of each setting, in a process of its own."""
    command = [sys.executable, "-m", "transformer_jax.report", folder]
    sys.stdout.flush()
    if subprocess.run(command, check=False).returncode:
        say("report", f"not written; try: {shlex.join(['python', *command[1:]])}")


def say(word: str, text: Any) -> None:
    console.info("%-10s %s", word, text)


def write_slurm(args: argparse.Namespace, count: int) -> str:
    """Write a job array for SLURM, in which each job trains a cell."""
    at_once = f"%{args.at_once}" if args.at_once else ""
    return f"""\
#!/usr/bin/env bash
#SBATCH --job-name=sweep
#SBATCH --array=0-{count - 1}{at_once}
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@180
# Trains the {count} cells of a sweep, each in a job with one GPU.
#
#   sbatch FILE
#
# Three minutes before the time limit a training saves, and its job is queued again.
# When all have ended, start the command below without --cell to see the report.
set -euo pipefail

export JAX_PLATFORMS="${{JAX_PLATFORMS:-cuda}}"

code=0
srun python {" ".join(map(shlex.quote, own_words()))} \
  --cell "$SLURM_ARRAY_TASK_ID" || code=$?

if ((code == 75)); then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""


def write_kubernetes(args: argparse.Namespace, count: int) -> str:
    """Write an indexed job for Kubernetes, in which each pod trains a cell."""
    command = ["python", *own_words(), "--cell=$(JOB_COMPLETION_INDEX)"]
    lines = "".join(f"            - {json.dumps(word)}\n" for word in command)
    return f"""\
# Trains the {count} cells of a sweep with Kubernetes, each in a pod with one GPU.
#
#   kubectl apply -f FILE
#
# The image's working directory is a checkout, and --workdir is below /runs. A pod that
# is preempted (75) is replaced, one whose cell has failed is tried once more, a mistake
# (2) fails the job. When all have ended, start the command without --cell to see the
# report.
apiVersion: batch/v1
kind: Job
metadata:
  name: sweep
spec:
  completionMode: Indexed
  completions: {count}
  parallelism: {args.at_once or count}
  backoffLimitPerIndex: 1
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes:
          containerName: train
          operator: In
          values: [2]
      - action: Ignore
        onExitCodes:
          containerName: train
          operator: In
          values: [75]
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 150 # timeout.preemption is 120
      containers:
        - name: train
          image: REGISTRY/transformer_jax:latest
          command:
{lines}\
          env:
            - name: NUM_PROCESSES # each pod trains alone
              value: "1"
            - name: JAX_PLATFORMS
              value: cuda
            - name: TRANSFORMER_JAX_CACHE
              value: /runs/cache
          resources:
            limits:
              nvidia.com/gpu: 1
          volumeMounts:
            - name: runs
              mountPath: /runs
      volumes:
        - name: runs # one folder for all pods
          persistentVolumeClaim:
            claimName: runs
"""


def own_words() -> list[str]:
    """Return the words of this command without --write."""
    words, own = iter(sys.argv), []
    for word in words:
        if word == "--write":
            next(words)
        elif not word.startswith("--write="):
            own.append(word)
    return own


WRITERS = {"slurm": write_slurm, "k8s": write_kubernetes}

if __name__ == "__main__":
    try:
        cli.prepare_streams()
        sys.exit(main())
    except UserError as error:
        cli.fail(*error.problems)
    except KeyboardInterrupt:  # before anything is trained
        sys.exit(INTERRUPTED)
