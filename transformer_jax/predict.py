"""Answer lines: a line in, a line out, for every task.

    echo "O gato dorme." | python -m transformer_jax.predict --workdir RUN
    python -m transformer_jax.predict --workdir RUN --input F --output G

As many lines come out as went in, in order. A line ends at a newline only. A line that
cannot be answered gives an empty line, a message on stderr, and exit code 1. The
processes of several hosts, started as for a training, share the work; the first one
reads and writes.
"""

import contextlib
import io
import itertools
import json
import logging
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, cast

import jax
from absl import flags

from transformer_jax import cli, hosts, keys, tasks
from transformer_jax.data import retrieval
from transformer_jax.data.sources import FIELDS
from transformer_jax.data.text import Lines
from transformer_jax.decoding import Options, Reply
from transformer_jax.decoding.answering import ON_LONG, answer_lines
from transformer_jax.errors import Refused, UserError
from transformer_jax.runs import environment
from transformer_jax.runs import run as runs
from transformer_jax.tasks import protocols

logger = logging.getLogger("transformer_jax.predict")  # as a command it is __main__

CHUNK = 2000  # lines read, sorted and answered together
LONGEST = 1 << 24  # bytes of a line

Progress = Callable[[int, int], None]  # called with what is done, and the total


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_string("input", "", "A file to answer, line by line; default: stdin.")
    flags.DEFINE_string("output", "", "A file for the answers; default: stdout.")
    cli.define_weights()
    flags.DEFINE_string("format", "text", "text | jsonl (scores, all of n_best).")
    flags.DEFINE_integer(
        "max_input", 0, "Pieces a line may have (default: as trained)."
    )
    flags.DEFINE_string(
        "on_long", "refuse", "A longer line: refuse | split (sentences)."
    )
    flags.DEFINE_string("prefixes", "", "A file: what each answer must begin with.")
    flags.DEFINE_bool("alignment", False, "Behind a tab, which words belong together.")
    flags.DEFINE_bool("score", False, "Lines are source<TAB>target: how likely is it?")
    flags.DEFINE_bool("embed", False, "A vector for each line, instead of an answer.")
    flags.DEFINE_string("among", "", "A file: answer with its nearest line to each.")
    flags.DEFINE_integer("nearest", 1, "among: lines (several with --format=jsonl).", 1)
    # How to search; without one of these, as the run's config says.
    keys.define_flags(flags, *tasks.option_classes())


def main(overrides: dict[str, str]) -> int:
    """Answer the input as the flags say; return the exit code."""
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to predict with")
    cli.check_choice("format", args.format, ("text", "jsonl"))
    cli.check_choice("on_long", args.on_long, ON_LONG)
    cli.check_weights(args.weights)
    if args.max_input < 0:
        raise UserError(
            f"--max_input={args.max_input}: must be at least 0 (as trained)"
        )
    if (args.n_best or 1) > 1 and args.format == "text":
        raise UserError(
            "--n_best needs --format=jsonl: a line of text holds one answer"
        )
    if args.nearest > 1 and args.format == "text":
        raise UserError("--nearest needs --format=jsonl: a line of text holds one")
    if args.on_long == "split" and ((args.n_best or 1) > 1 or args.alignment):
        raise UserError(
            "--on_long=split makes one answer of those to the parts of a line: "
            "without --n_best and --alignment"
        )
    with hosts.end_together():
        hosts.connect(say=logger.info)
        return _answer(args)


def _answer(args: Any) -> int:
    """Answer the input; return the exit code."""
    first = jax.process_index() == 0
    if not first:  # what it would say, the first one says
        logging.getLogger("transformer_jax").setLevel(logging.ERROR)
    given = args.input and first
    source = cli.open_file(args.input, "rb") if given else cli.standard_input()
    source = cast(io.BufferedIOBase, source)  # both are; their stubs say less
    _refuse_overwriting(args.output, source, args.prefixes)
    prefixes = Lines(args.prefixes) if args.prefixes else ()
    environment.use_compile_cache()
    run = runs.load(args.workdir, args.weights)
    if cli.is_terminal():  # somebody waits, and is told for what
        logging.getLogger("transformer_jax.decoding").setLevel(logging.DEBUG)
    shell = Shell(
        run,
        runs.decode_options(
            run.config, **keys.given_flags(args, *tasks.option_classes())
        ),
        args.max_input or run.config.data.get("max_length", 0),
        args.format,
        args.on_long,
        prefixes,
        args.alignment,
    )
    if args.score:
        protocols.require(run.task, protocols.ReadsPairs, "read")
        shell.answer = shell.score
    elif args.embed or args.among:
        protocols.require(run.task, protocols.Embeds, "vectors")
        shell.answer, shell.nearest = shell.embed, args.nearest
        shell.index = retrieval.open_index(args.among, run.encode)
    if not args.input and sys.stdin.isatty() and jax.process_count() == 1:
        return shell.converse()
    output = args.output if first else os.devnull
    sink = cli.open_file(output, "wb") if output else sys.stdout.buffer
    return shell.answer_all(source, sink)


class Shell:
    """Keep order, batch, and show progress and errors around a task's answers."""

    def __init__(
        self,
        run: runs.Run,
        options: Options,
        max_input: int,
        form: str = "text",
        on_long: str = "refuse",
        prefixes: Sequence[str] = (),
        alignment: bool = False,
    ):
        self.alignment = alignment
        self.run, self.options, self.max_input = run, options, max_input
        self.form, self.on_long, self.prefixes = form, on_long, prefixes
        self.index: retrieval.Index | None = None
        self.nearest, self.refused = 1, 0

    def answer_all(self, source: io.BufferedIOBase, sink: IO[bytes]) -> int:
        """Answer every line; return the exit code."""
        bar = cli.Bar(cli.is_terminal() and jax.process_index() == 0)
        began, count = time.monotonic(), 0

        def show(done, total):
            speed = (count + done) / (time.monotonic() - began)
            left = cli.duration((total - done) / speed)
            bar.show(done, total, f"{speed:.1f} sentences/s, left {left}")

        for lines in _read_together(source):
            for text in self.answer(lines, first=count + 1, progress=show):
                sink.write(text.encode("utf-8", "replace") + b"\n")
                sink.flush()
            count += len(lines)
        bar.clear()
        seconds = time.monotonic() - began
        logger.info(
            f"{count} line{'s' * (count != 1)} in {cli.duration(seconds)} "
            f"({count / max(seconds, 1e-3):.1f} a second)"
            + (f", {self.refused} refused" if self.refused else "")
        )
        return 1 if self.refused else 0

    def answer(
        self, lines: list[str], first: int = 1, progress: Progress = lambda d, t: None
    ) -> Iterator[str]:
        """Yield a line of output for each line; `first` numbers the first one."""
        last = first - 1 + len(lines)
        if self.prefixes and last > len(self.prefixes):
            raise UserError(
                f"there are {len(self.prefixes)} prefixes, but at least {last} lines: "
                "they go together line by line"
            )
        replies = answer_lines(
            self.run.task.inference,
            self.run.params,
            self.run.mesh,
            lines,
            self.options,
            max_length=self.max_input,
            on_long=self.on_long,
            prefixes=[self.prefixes[i] for i in range(first - 1, last)]
            if self.prefixes
            else (),
            first=first - 1,
            progress=progress,
        )
        aligned: Iterator[Any] = itertools.repeat(None)
        if self.alignment:  # of all lines at once
            replies = list(replies)
            answered = [one for one in replies if not one.error]
            read = iter(
                self.run.align(
                    [one.line for one in answered], [one.text for one in answered]
                )
            )
            aligned = (() if one.error else next(read) for one in replies)
        for number, (one, pairs) in enumerate(
            zip(replies, aligned, strict=False), start=first
        ):
            if one.error:
                self._refuse(number, one.error)
            elif not one.text and str(one.line).strip():
                logger.warning("line %d: the answer is empty", number)
            yield self._show(one, pairs)

    def score(
        self, lines: list[str], first: int = 1, progress: Progress = lambda d, t: None
    ) -> Iterator[str]:
        """Yield the log-probability of the target behind each line's tab."""
        entries = []
        for number, line in enumerate(lines, start=first):
            parts = line.split("\t")
            if len(parts) == 2:
                entries.append({"input": parts[0], "target": parts[1]})
                continue
            count = f"{len(parts)} column{'s' * (len(parts) != 1)}"
            error = f"{count}: --score wants a source, a tab and a target"
            entries.append({"input": line, "error": error})
            self._refuse(number, error)

        def read(kept):
            return self.run.score(*([e[k] for e in kept] for k in ("input", "target")))

        return self._read(entries, first, "score", read, "{:.6f}".format)

    def embed(
        self, lines: list[str], first: int = 1, progress: Progress = lambda d, t: None
    ) -> Iterator[str]:
        """Yield the sentence vector of each line, or what the index has near it."""
        entries = [{"input": line} for line in lines]

        def read(kept):
            vectors = self.run.encode([e["input"] for e in kept])
            if not self.index:
                return vectors.tolist()
            found = self.index.nearest(vectors, self.nearest)
            return [[match._asdict() for match in matches] for matches in found]

        if self.index:
            show = lambda found: "{cosine:.4f}\t{text}".format(**found[0])  # noqa: E731
            return self._read(entries, first, "nearest", read, show)
        show = lambda vector: " ".join(f"{x:.6g}" for x in vector)  # noqa: E731
        return self._read(entries, first, "vector", read, show)

    def _read(self, entries, first, name, read, show) -> Iterator[str]:
        """Yield each entry with what is read of it, or why it is too long."""
        for number, entry in enumerate(entries, start=first):
            if "error" in entry:
                continue
            try:
                for side, text in zip(FIELDS, list(entry.values()), strict=False):
                    self.run.task.inspector.check_length(side, text, self.max_input)
            except Refused as error:
                entry["error"] = str(error)
                self._refuse(number, entry["error"])
        found = iter(read([entry for entry in entries if "error" not in entry]))
        for entry in entries:
            if "error" not in entry:
                entry[name] = next(found)
            text = show(entry[name]) if name in entry else ""
            yield text if self.form == "text" else _json(entry)

    def _refuse(self, number: int, why: str) -> None:
        self.refused += 1
        logger.warning("line %d: %s", number, why)

    def _show(self, one: Reply, pairs: Any) -> str:
        pharaoh = " ".join(f"{source}-{target}" for source, target in pairs or ())
        if self.form == "text":
            return f"{one.text}\t{pharaoh}" if self.alignment else one.text
        entry = {"input": one.line, "output": one.text}
        if self.alignment:
            entry["alignment"] = pharaoh
        if one.error:
            entry["error"] = one.error
        else:
            entry |= one.details
        return _json(entry)

    def converse(self) -> int:
        """Answer each line as it is typed, until the end of input."""
        run = self.run
        turns: list[str] = []
        count = 0
        print(
            f"{run.folder.place}: {run.config.task}, {run.weights} parameters of step "
            f"{run.step}. One line at a time; end with Ctrl-D.",
            file=sys.stderr,
        )
        while True:
            try:
                line = input("> ")
            except EOFError:
                print(file=sys.stderr)
                return 0
            count += 1
            turns.append(line)
            context, forgotten = line, 0
            if isinstance(run.task.inference, protocols.Converses):
                context, forgotten = run.task.inference.context(turns)
            for text in self.answer([context], first=count):
                print(text, flush=True)
                turns.append(text)
            if forgotten:
                kept = len(turns) - 1 - forgotten
                print(
                    f"(read: the last {kept} turns of {len(turns) - 1})",
                    file=sys.stderr,
                )


def read_chunks(source: io.BufferedIOBase) -> Iterator[list[str]]:
    """Yield chunks of lines; bytes that are not UTF-8 become U+FFFD.

    Only a newline ends a line. A chunk ends where reading would block, too, so a pipe
    that is written line by line is answered line by line.
    """
    lines: list[bytes] = []
    rest: list[bytes] = []  # of a line whose end is not yet read
    count, size = 0, 0
    while data := source.read1(1 << 16):
        *whole, begun = data.split(b"\n")
        if whole:
            whole[0], rest, size = b"".join([*rest, whole[0]]), [], 0
        rest.append(begun)
        lines, count, size = lines + whole, count + len(whole), size + len(begun)
        if size > LONGEST:
            yield [_decode(line) for line in lines]
            raise UserError(
                f"line {count + 1} has more than {LONGEST:,} bytes and no end: is this "
                "a text file, with an answer wanted for each line?"
            )
        while len(lines) >= CHUNK or (lines and not _has_more(source)):
            yield [_decode(line) for line in lines[:CHUNK]]
            lines = lines[CHUNK:]
    lines += [b"".join(rest)] if any(rest) else []
    for i in range(0, len(lines), CHUNK):
        yield [_decode(line) for line in lines[i : i + CHUNK]]


def _read_together(source: io.BufferedIOBase) -> Iterator[list[str]]:
    """Yield in every process the chunks that the first one reads."""
    chunks = read_chunks(source)
    while lines := hosts.decide_in_first(lambda: next(chunks, [])):
        yield lines


def _json(entry: dict[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False)


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _has_more(source: io.BufferedIOBase) -> bool:
    """Say whether a read would return at once (of a file it always does)."""
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # no file descriptor: a buffer in memory
        return True


def _refuse_overwriting(sink: str, source: io.BufferedIOBase, prefixes: str) -> None:
    """Refuse an output that is also read: opening it would empty it."""
    if not os.path.exists(sink):
        return
    read = [os.stat(prefixes)] if os.path.exists(prefixes) else []
    with contextlib.suppress(OSError, ValueError):  # it may be a buffer in memory
        read.append(os.fstat(source.fileno()))
    written = os.stat(sink)
    if stat.S_ISREG(written.st_mode) and any(
        os.path.samestat(written, other) for other in read
    ):
        raise UserError(f"--output={sink} is the file to be read: name another")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
