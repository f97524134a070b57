"""A line in, a line out, for every task.

    echo "O gato dorme." | python -m transformer_jax.predict --workdir RUN
    python -m transformer_jax.predict --workdir RUN --input F --output F

As many lines come out as went in, in order. A line ends at a newline only. A line that
cannot be answered gives an empty line, a message on stderr, and exit code 1.
"""

import json
import select
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from absl import flags

from transformer_jax import cli, metrics
from transformer_jax.errors import UserError
from transformer_jax.tasks import Refused

CHUNK = 2000  # lines read, sorted and answered together


def define_flags() -> None:
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_string("input", "", "A file to answer, line by line; default: stdin.")
    flags.DEFINE_string("output", "", "A file for the answers; default: stdout.")
    flags.DEFINE_string("weights", "", "average | best | last (default: the run's).")
    flags.DEFINE_string("format", "text", "text | jsonl (with scores).")
    flags.DEFINE_integer("beams", 0, "Beam width; 1 is greedy (default: the run's).")
    flags.DEFINE_float("alpha", None, "Length penalty (default: the run's).")
    flags.DEFINE_integer(
        "max_length", 0, "Pieces a line may have (default: as trained)."
    )


def main(overrides: dict[str, str]) -> int:
    from transformer_jax import run as runs

    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to predict with")
    cli.check_choice("format", args.format, ("text", "jsonl"))
    if args.weights:
        cli.check_choice("weights", args.weights, ("average", "best", "last"))
    if args.beams < 0 or args.max_length < 0:
        raise UserError("--beams and --max_length are at least 1")
    source = _open(args.input, "rb", sys.stdin.buffer)
    runs.use_compile_cache()
    run = runs.load(args.workdir, args.weights)
    changes: dict[str, Any] = {}
    if args.beams:
        changes["beams"] = args.beams
    if args.alpha is not None:
        changes["alpha"] = args.alpha
    shell = Shell(
        run,
        runs.decode_options(run.config, **changes),
        args.max_length or run.config.data.max_length,
        args.format,
    )
    if not args.input and sys.stdin.isatty():
        return shell.converse()
    sink = _open(args.output, "wb", sys.stdout.buffer)
    return shell.answer_all(source, sink)


class Shell:
    """Order, batching, progress and errors around a task's answers."""

    def __init__(self, run: Any, options: Any, max_length: int, form: str = "text"):
        self.run, self.options, self.max_length, self.form = (
            run,
            options,
            max_length,
            form,
        )
        self.refused = 0

    def answer_all(self, source: BinaryIO, sink: BinaryIO) -> int:
        """Answers every line; returns the exit code."""
        bar = metrics.Bar(cli.is_terminal())
        began, count = time.monotonic(), 0
        for lines in read_chunks(source):
            for text in self.answer(lines, first=count + 1, progress=bar.show):
                sink.write(text.encode("utf-8", "replace") + b"\n")
            sink.flush()
            count += len(lines)
        bar.clear()
        seconds = time.monotonic() - began
        print(
            f"{count} lines in {metrics.duration(seconds)} "
            f"({count / max(seconds, 1e-3):.1f} a second)"
            + (f", {self.refused} refused" if self.refused else ""),
            file=sys.stderr,
        )
        return 1 if self.refused else 0

    def answer(self, lines: list[str], first: int = 1, progress=lambda d, t: None):
        """One line of output for each line; `first` is the number of the first."""
        task, items, reasons = self.run.task, [], {}
        for i, line in enumerate(lines):
            try:
                items.append(task.parse(line, self.max_length))
            except Refused as error:
                reasons[i] = str(error)
                items.append(task.parse(""))
                self.refused += 1
                print(f"line {first + i}: {error}", file=sys.stderr)
        answers = task.answer(
            self.run.params, items, self.run.mesh, self.options, progress
        )
        for i, (line, answer) in enumerate(zip(lines, answers, strict=True)):
            text = task.render(answer)
            if self.form == "jsonl":
                entry = {"input": line, "output": text, "score": answer.score}
                if i in reasons:
                    entry["error"] = reasons[i]
                text = json.dumps(entry, ensure_ascii=False)
            yield text

    def converse(self) -> int:
        """A line typed, a line answered, until the end of input."""
        run = self.run
        print(
            f"{run.folder.path}: {run.config.task}, {run.weights} parameters of step "
            f"{run.step}. One line at a time; end with Ctrl-D.",
            file=sys.stderr,
        )
        while True:
            try:
                line = input("> ")
            except EOFError:
                print(file=sys.stderr)
                return 0
            for text in self.answer([line]):
                print(text, flush=True)


def read_chunks(source: BinaryIO) -> Iterator[list[str]]:
    """Lines as text: only a newline ends one; bytes that are not UTF-8 become U+FFFD.

    A chunk also ends where waiting for more would begin, so a pipe that is written line
    by line is answered line by line.
    """
    lines: list[bytes] = []
    rest = b""
    while data := source.read1(1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        lines += whole
        while len(lines) >= CHUNK or (lines and not _has_more(source)):
            yield [_decode(line) for line in lines[:CHUNK]]
            lines = lines[CHUNK:]
    lines += [rest] if rest else []
    for i in range(0, len(lines), CHUNK):
        yield [_decode(line) for line in lines[i : i + CHUNK]]


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _has_more(source: BinaryIO) -> bool:
    """Whether a read would return at once (files always do, at their end too)."""
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # no file descriptor: a buffer in memory
        return True


def _open(path: str, mode: str, standard: BinaryIO) -> BinaryIO:
    if not path:
        return standard
    try:
        return open(path, mode)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


if __name__ == "__main__":
    define_flags()
    cli.run(main)
