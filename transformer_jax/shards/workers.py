"""Share the shards of a work among processes.

- `--workers=8`: this command starts 8 processes, feeds each with shards, and starts
  those that die again.
- `--worker=3/8`: this process does shards 3, 11, 19, … of those that are not done, for
  SLURM arrays and indexed jobs of Kubernetes.
- `--worker=stdin`: this process reads the numbers of shards, and answers each with a
  line of JSON, for other launchers, such as launch/ray_shards.py.
- `--worker=plan`: this process writes the plan and prints which shards are missing, to
  be started once before any number of the others.
"""

import collections
import contextlib
import dataclasses
import json
import logging
import os
import select
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.shards import PLAN, STDIN
from transformer_jax.shards.work import Marker, Work

logger = logging.getLogger(__name__)

TRIES = 3  # how often a shard is begun whose process dies
QUIET = 30.0  # seconds between two lines about progress, unless on a terminal


def run(
    args: Any,
    begin: Callable[[], Work],
    open_maker: Callable[[Work], "Maker"],
    complete: Callable[[Work, list[Marker]], None] = lambda work, markers: None,
) -> int:
    """Do the share of the work that the flags ask for; return the exit code.

    `open_maker` loads what does a shard. The process that only starts others does not.
    `complete` is called whenever all shards are done, perhaps by several processes.
    A share ends with 0 also if lines were refused, as engines would repeat it.
    """
    work = begin()
    missing = work.missing()
    if args.worker == PLAN:
        print(json.dumps({"shards": len(work), "missing": missing}), flush=True)
        return 0
    if args.worker == STDIN:
        if not args.verbose:
            logging.getLogger("transformer_jax").setLevel(logging.WARNING)
        with _only_for_answers() as answers:
            _end_without_reader(answers)
            try:
                return serve(open_maker(work), sys.stdin, answers)
            except UserError as error:  # said once, by the process that gave the shard
                print(json.dumps({"mistake": error.problems}), file=answers)
                return cli.USER_MISTAKE
    if args.workers:
        return finish(work, share(work, missing, args.workers), complete)
    if args.worker:
        index, count = map(int, args.worker.split("/"))
        missing = [shard for shard in missing if shard % count == index]
    if missing:
        maker = open_maker(work)
        progress = Progress(len(work), len(missing))
        for shard in missing:
            progress.note(maker.do(shard))
        progress.end()
    code = finish(work, 0, complete)
    return 0 if args.worker else code


@dataclasses.dataclass
class Maker:
    """Does shards by a function; refuses to continue those of another run."""

    work: Work
    by: dict[str, Any]
    make: Callable[..., Any]

    def __post_init__(self):
        """Refuse work of which another run, or other settings, made some shards."""
        self.work.check_by(self.by)

    def do(self, shard: int) -> Marker:
        """Do a shard unless it is done."""
        return self.work.do(shard, self.by, self.make)


def serve(maker: Maker, numbers: Iterable[str], answers: IO[str]) -> int:
    """Do the shards whose numbers come, one a line, and answer each with its counts."""
    for line in numbers:
        marker = maker.do(int(line))
        print(json.dumps({"shard": int(line), **marker.counts}), file=answers)
        answers.flush()
    return 0


def finish(
    work: Work, code: int, complete: Callable[[Work, list[Marker]], None]
) -> int:
    """Say how much of the work is done, and complete it; return the exit code."""
    missing = work.missing()
    if missing:
        logger.info(f"shards     {len(work) - len(missing)} of {len(work)} are done")
        return code
    markers = work.markers()
    complete(work, markers)
    work.clear()
    refused = sum(marker.counts.get("refused", 0) for marker in markers)
    logger.info(
        f"done       {len(work)} shards in {work.folder.address}"
        + (f", {refused} lines refused" if refused else "")
    )
    return code or int(refused > 0)


def share(work: Work, shards: Sequence[int], count: int) -> int:
    """Do shards in processes on this host; return the exit code.

    Each process gets its part of the cores, so that they do not hinder each other.
    """
    command = [*sys.orig_argv, "--workers=0"]
    queue, progress = Queue(shards), Progress(len(work), len(shards))
    cores = _split_cores(count)
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(selectors.DefaultSelector())

        def start(number: int) -> None:
            worker = Worker(command, cores[number])
            stack.callback(worker.stop)
            events.register(worker.answers, selectors.EVENT_READ, (number, worker))
            feed(worker)

        def feed(worker: Worker) -> None:
            if queue.waiting:
                worker.give(queue.waiting.popleft())
            else:
                worker.end()

        for number in range(min(count, len(shards))):
            start(number)
        while events.get_map():
            for key, _ in events.select():
                number, worker = key.data
                if answer := worker.read():
                    progress.note(answer)
                    feed(worker)
                    continue
                events.unregister(worker.answers)
                code, shard = worker.wait(), worker.shard
                if code == cli.USER_MISTAKE:  # its message is on stderr
                    return code
                if shard is None:
                    continue
                queue.put_back(shard, f"a process ended with {code}")
                if queue.waiting:
                    start(number)
        progress.end()
    return queue.end()


class Queue:
    """Shards that wait for a process, some of them once more."""

    def __init__(self, shards: Iterable[int]):
        self.waiting = collections.deque(shards)
        self._tries: collections.Counter[int] = collections.Counter()
        self._failed: list[int] = []

    def put_back(self, shard: int, why: str) -> None:
        """Let a shard wait again that was not finished, unless it was tried enough."""
        self._tries[shard] += 1
        if self._tries[shard] < TRIES:
            logger.warning(f"note       {why} in shard {shard}: once more")
            self.waiting.append(shard)
        else:
            self._failed.append(shard)

    def end(self) -> int:
        """Say which shards were tried in vain; return the exit code."""
        for shard in self._failed:
            logger.error(f"shard {shard}: {TRIES} processes ended in it")
        return 1 if self._failed else 0


class Worker:
    """A process that does the shards that it is given."""

    def __init__(self, command: Sequence[str], cores: Sequence[int] = ()):
        """Start the process; pin it to `cores`, if any are given."""
        self.shard: int | None = None
        self._process = subprocess.Popen(
            [*command, f"--worker={STDIN}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        if cores:
            os.sched_setaffinity(self._process.pid, cores)

    @property
    def answers(self) -> IO[str]:
        """The pipe from which its answers are read."""
        assert self._process.stdout
        return self._process.stdout

    def give(self, shard: int) -> None:
        """Give it a shard to do."""
        self.shard = shard
        with contextlib.suppress(OSError):  # it has died: reading will say so
            self._pipe.write(f"{shard}\n")
            self._pipe.flush()

    def read(self) -> dict[str, Any] | None:
        """Wait for an answer; return None if the process has ended.

        Raise the mistake of the user that it has found.
        """
        while (line := self.answers.readline()).endswith("\n"):
            if line.startswith('{"mistake": '):
                raise UserError(*json.loads(line)["mistake"])
            if line.startswith('{"shard": '):
                self.shard = None
                return json.loads(line)
            sys.stderr.write(line)  # printed by a config before the work began
        return None

    def end(self) -> None:
        """Let it end, as there is nothing more to do."""
        with contextlib.suppress(OSError):
            self._pipe.close()

    def wait(self) -> int:
        """Return the exit code of a process that has closed its pipe."""
        return self._process.wait()

    def stop(self) -> None:
        """Kill it if it runs; what it has not finished is done again later."""
        self.end()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self.answers.close()

    @property
    def _pipe(self) -> IO[str]:
        assert self._process.stdin
        return self._process.stdin


@contextlib.contextmanager
def _only_for_answers() -> Iterator[IO[str]]:
    """Keep the standard output for answers; send everything else to stderr."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        yield answers


def _end_without_reader(answers: IO[str]) -> None:
    """End this process as soon as nobody reads its answers, since its launcher died.

    It would otherwise hold its device until its shard is done.
    """
    poll = select.poll()
    poll.register(answers, 0)  # that the other end of a pipe is closed is always told

    def watch() -> None:
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Progress:
    """Tell how many shards are done: a bar on a terminal, else a line now and then."""

    def __init__(self, shards: int, missing: int):
        """Take the number of all shards, and of those that are still missing."""
        self.total, self.done = missing, 0
        if skipped := shards - missing:
            logger.info(f"shards     {skipped} of {shards} are done already")
        self._bar = cli.Bar(cli.is_terminal())
        self._began = self._said = time.monotonic()
        self._lines = 0

    def note(self, found: Marker | dict[str, Any]) -> None:
        """Count a shard that is done."""
        counts = found.counts if isinstance(found, Marker) else found
        self._lines += counts.get("lines", 0)
        self.done += 1
        now = time.monotonic()
        seconds = now - self._began
        left = cli.duration(seconds / self.done * (self.total - self.done))
        text = f"shards, {self._lines / max(seconds, 1e-3):,.0f} lines/s, left {left}"
        self._bar.show(self.done, self.total, text)
        if now - self._said > QUIET and not self._bar.shown:
            self._said = now
            logger.info(f"shards     {self.done} of {self.total}, {text[8:]}")

    def end(self) -> None:
        """Say how many were done in which time."""
        self._bar.clear()
        seconds = time.monotonic() - self._began
        logger.info(
            f"shards     {self.done} done in {cli.duration(seconds)}: {self._lines:,} "
            f"lines, {self._lines / max(seconds, 1e-3):,.0f} per second"
        )


def _split_cores(count: int) -> list[list[int]]:
    """Share the cores of this process out among others, if each can have one."""
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return [[] for _ in range(count)]
    cores = sorted(os.sched_getaffinity(0))
    if count > len(cores):
        return [[] for _ in range(count)]
    return [
        cores[i * len(cores) // count : (i + 1) * len(cores) // count]
        for i in range(count)
    ]
