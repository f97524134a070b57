"""Answer lines: one line in, one line out, for every task.

    echo "O gato dorme." | python -m transformer_jax.predict --workdir RUN
    python -m transformer_jax.predict --workdir RUN --input F --output G
    python -m transformer_jax.predict --workdir RUN --input DIR --output OUT --shards=99

Every input line gives exactly one output line, in order. Only a newline ends a line. A
line that cannot be answered gives an empty line, a message on stderr, and exit code 1.
Processes on several hosts, started as for training, share the work; the first one reads
and writes. With --shards the input is cut, and each shard's answers are a file of OUT:
any number of processes may do them, be killed and go on (`shards/`).
"""

import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import logging
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import jax
from absl import flags

from transformer_jax import cli, hosts, shards, tasks
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.data.reading import streams
from transformer_jax.data.reading.sources import FIELDS
from transformer_jax.decoding import Options, Reply
from transformer_jax.decoding.answering import ON_LONG, answer_lines
from transformer_jax.decoding.requests import UnknownParts, check_text
from transformer_jax.runs import environment, signature
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder, find_runs
from transformer_jax.tasks import protocols

if TYPE_CHECKING:
    from transformer_jax.data.text.retrieval import Index

logger = logging.getLogger("transformer_jax.predict")  # __name__ may be __main__

LINE_BY_LINE = "prefixes", "include"  # flags of files with a line per line
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: a byte that was no text
Progress = Callable[[int, int], None]  # (done, total)
Entry = dict[str, Any]  # a line of JSON output


class AnswerLines(Protocol):
    """A function from lines to lines of output."""

    def __call__(
        self, lines: list[str], first: int = 0, progress: Progress = ...
    ) -> Iterator[str]:
        """Yield one line of output per line; `first` is the index of the first."""
        ...


def _ignore(done: int, total: int) -> None:
    """Show no progress."""


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_string("input", "", "A file to answer, line by line; default: stdin.")
    flags.DEFINE_string("output", "", "A file for the answers; default: stdout.")
    flags.DEFINE_string(
        "encoding", streams.UTF8, "Of all that is read, such as latin-1 or utf-16."
    )
    cli.define_weights()
    flags.DEFINE_string(
        "engine", "", "Another search engine: int8 | ctranslate2[:int8 | …]."
    )
    cli.define_ensemble()
    flags.DEFINE_string("format", "text", "text | jsonl (scores, all of n_best).")
    flags.DEFINE_integer(
        "max_input", 0, "The most pieces in a line (default: as trained)."
    )
    flags.DEFINE_string(
        "on_long", "refuse", "For longer lines: refuse | split (into sentences)."
    )
    flags.DEFINE_string("prefixes", "", "A file with the beginning of each answer.")
    flags.DEFINE_string(
        "include", "", "A file with the words in each answer, separated by tabs."
    )
    flags.DEFINE_bool("alignment", False, "Append word alignments after a tab.")
    flags.DEFINE_bool("score", False, "Score lines of the form source<TAB>target.")
    flags.DEFINE_bool("embed", False, "Write a vector for each line, not an answer.")
    flags.DEFINE_string("among", "", "A file; answer each line with its nearest line.")
    flags.DEFINE_integer("nearest", 1, "With --among, lines per answer (in jsonl).", 1)
    shards.define_flags(flags)
    # Search options, which default to the run's config.
    tasks.define_flags(flags, "search")


def main(overrides: dict[str, str]) -> int:
    """Check the flags and answer the input; return the exit code."""
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
    refuse_pairs(args)
    if args.on_long == "split" and ((args.n_best or 1) > 1 or args.alignment):
        raise UserError(
            "--on_long=split joins the answers to the parts of a line: leave out "
            "--n_best and --alignment"
        )
    shards.check_flags(args)
    if args.shards:
        return _answer_shards(args)
    with hosts.end_together():
        hosts.connect(say=logger.info)
        return _answer(args)


def refuse_pairs(args: Any) -> None:
    """Refuse flags of which one would be ignored beside the other."""
    names = "score", "embed", "among", "alignment"
    modes = [name for name in names if args[name].value]
    if len(modes) > 1:
        raise UserError(
            f"--{modes[0]} and --{modes[1]} are two different answers to a line: leave "
            "one of them out"
        )
    if args.nearest > 1 and not args.among:
        raise UserError("--nearest needs --among: the file whose lines are searched")
    if not modes or modes[0] == "alignment":
        return
    searched = [*tasks.given_flags(args, "search")]
    searched += [name for name in LINE_BY_LINE if args[name].value]
    searched += ["on_long"] * (args.on_long != "refuse")
    searched += ["engine"] * bool(args.engine) + ["ensemble"] * bool(args.ensemble)
    if searched:
        raise UserError(
            f"--{searched[0]} is for answers that are searched, and --{modes[0]} "
            "searches none: leave one of them out"
        )


def _answer(args: Any) -> int:
    """Answer the input; return the exit code."""
    with contextlib.ExitStack() as opened:
        return _answer_into(args, opened)


def _answer_into(args: Any, opened: contextlib.ExitStack) -> int:
    def open_file(path: str, mode: str) -> IO[bytes]:
        return opened.enter_context(cli.open_file(path, mode))

    first = jax.process_index() == 0
    if not first:  # the first process logs the same
        logging.getLogger("transformer_jax").setLevel(logging.ERROR)
    given = args.input and first
    source = open_file(args.input, "rb") if given else cli.standard_input()
    source = cast(io.BufferedIOBase, source)  # the stubs promise less
    encoding = streams.check_encoding(args.encoding)
    if first:
        read = [args.input or 0, args.prefixes, args.include, args.among]
        own = Folder(args.workdir).files()
        cli.refuse_overwriting("output", args.output, itertools.chain(read, own))
        if not args.output:
            cli.standard_output()
    beside = [
        streams.open_lines(args[name].value, encoding) if args[name].value else ()
        for name in LINE_BY_LINE
    ]
    answerer, answer = _open_answerer(args, encoding, *beside)
    if not args.input and sys.stdin.isatty() and jax.process_count() == 1:
        from transformer_jax.runs.session import Session

        searches = not (args.score or args.embed or args.among)
        return Session(answerer, answer, searches).converse()
    output = args.output if first else os.devnull
    sink = open_file(output, "wb") if output else cli.standard_output()
    chunks = streams.read_chunks(source, encoding, args.input or "standard input")
    return answerer.answer_all(answer, chunks, sink)


def _open_answerer(
    args: Any,
    encoding: str,
    prefixes: Sequence[str] = (),
    include: Sequence[str] = (),
) -> "tuple[LineAnswerer, AnswerLines]":
    """Load the run; return its answerer, and the method that answers lines."""
    environment.use_compile_cache()
    ensemble = find_runs("ensemble", args.ensemble)
    run = runs.load(args.workdir, args.weights, engine=args.engine, ensemble=ensemble)
    if cli.is_terminal():  # tell a waiting user what is happening
        logging.getLogger("transformer_jax.decoding").setLevel(logging.DEBUG)
    answerer = LineAnswerer(
        run,
        runs.decode_options(run.config, **tasks.given_flags(args, "search")),
        args.max_input or run.config.data.get("max_length", 0),
        args.format,
        args.on_long,
        prefixes,
        include,
        args.alignment,
        nearest=args.nearest,
    )
    answer: AnswerLines = answerer.answer
    if args.score:
        protocols.require(run.task, protocols.ReadsPairs, "read")
        answer = answerer.score
    elif args.embed or args.among:
        from transformer_jax.data.text import retrieval

        protocols.require(run.task, protocols.Embeds, "vectors")
        answerer.index = retrieval.open_index(args.among, run.encode, encoding)
        answer = answerer.embed
    return answerer, answer


def _answer_shards(args: Any) -> int:
    """Answer the input shard by shard, or the share of this process."""
    from transformer_jax.shards import workers
    from transformer_jax.shards.cut import Corpus, Part
    from transformer_jax.shards.work import Work

    for name in ("input", "output"):
        cli.require(name, args[name].value, "with --shards, a file or folder")
    encoding = streams.check_encoding(args.encoding)
    for name in LINE_BY_LINE:
        if args[name].value:
            raise UserError(
                f"--{name} has a line per line of the input: leave out --shards"
            )
    if not streams.is_by_line(encoding):
        raise UserError(
            f"--encoding={encoding}: the input is cut at newlines of one byte: convert "
            "it to UTF-8, or leave out --shards"
        )
    corpus = Corpus.find(args.input)
    corpus.refuse_inside(args.output)

    def begin() -> Work:
        return Work.begin(
            args.output,
            "predict",
            corpus.cut(args.shards),
            {name: args[name].value for name in _deciding(args)},
            {"files": corpus.files, "single": corpus.single},
            ".jsonl" if args.format == "jsonl" else ".txt",
        )

    def open_maker(work: Work) -> workers.Maker:
        answerer, answer = _open_answerer(args, encoding)
        run = answerer.run
        members = run.params, *run.partners
        params = [signature.examine(one).fingerprints for one in members]
        among = answerer.index.texts if answerer.index else []
        by = {
            "run": run.config.task,
            "step": run.step,
            "weights": run.weights,
            "parameters": _digest(params),
            "among": _digest(among),
        }

        def make(parts: list[Part], file: pathlib.Path) -> dict[str, Any]:
            refused, lines = answerer.refused, []
            with file.open("xb") as sink:
                for part in parts:
                    answerer.where = f"{part.file} from byte {part.begin:,}: "
                    with corpus.open(part) as source:
                        chunks = streams.read_chunks(source, encoding, part.file)
                        try:
                            lines.append(answerer.write(answer, chunks, sink))
                        except UserError as error:
                            raise UserError(f"{answerer.where}{error}") from None
            refused = answerer.refused - refused
            return {"lines": sum(lines), "by_part": lines, "refused": refused}

        return workers.Maker(work, by, make)

    return workers.run(args, begin, open_maker)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _deciding(args: Any) -> list[str]:
    """List the flags on which the answers depend."""
    names = "workdir weights engine ensemble format encoding max_input on_long"
    modes = "alignment score embed among nearest"
    searched = sorted(tasks.given_flags(args, "search"))
    return [*names.split(), *modes.split(), *searched]


@dataclasses.dataclass
class LineAnswerer:
    """Answer lines with a run: by its task, with scores, or with vectors.

    Lines are answered in chunks and in order. Refused lines are logged and counted.
    """

    run: runs.Run
    options: Options
    max_input: int  # pieces; 0 means any number
    form: str = "text"  # or "jsonl"
    on_long: str = "refuse"  # or "split"
    prefixes: Sequence[str] = ()
    include: Sequence[str] = ()  # words separated by tabs
    alignment: bool = False
    index: "Index | None" = None  # to embed: the lines to answer with
    nearest: int = 1  # how many of these
    where: str = ""  # before the number of a line in messages
    refused: int = 0
    unknown: UnknownParts = dataclasses.field(
        default_factory=lambda: UnknownParts(logger)
    )

    def answer_all(
        self, answer: AnswerLines, chunks: Iterator[list[str]], sink: IO[bytes]
    ) -> int:
        """Answer every line of the chunks; return the exit code."""
        bar = cli.Bar(cli.is_terminal() and jax.process_index() == 0)
        began = time.monotonic()
        count = self.write(answer, _read_together(chunks), sink, bar)
        bar.clear()
        seconds, count_unknown = time.monotonic() - began, self.unknown.lines
        logger.info(
            f"{count} line{'s' * (count != 1)} in {cli.duration(seconds)} "
            f"({count / max(seconds, 1e-3):.1f} per second)"
            + (f", {self.refused} refused" if self.refused else "")
            + (f", {count_unknown} with unknown characters" if count_unknown else "")
        )
        return 1 if self.refused else 0

    def write(
        self,
        answer: AnswerLines,
        chunks: Iterator[list[str]],
        sink: IO[bytes],
        bar: cli.Bar | None = None,
    ) -> int:
        """Write the answer to every line of the chunks; return the number of lines."""
        count, pace = 0, cli.Pace()

        def show(done: int, total: int) -> None:
            if bar:
                bar.show(done, total, pace.describe(done, total))

        for lines in chunks:
            pace = cli.Pace()
            for text in answer(lines, first=count, progress=show):
                sink.write(_HALF.sub("\ufffd", text).encode() + b"\n")
                sink.flush()
            count += len(lines)
        return count

    def answer(
        self, lines: list[str], first: int = 0, progress: Progress = _ignore
    ) -> Iterator[str]:
        """Yield the answer to each line; `first` is the index of the first line."""
        end = first + len(lines)
        for name in LINE_BY_LINE:
            given = getattr(self, name)
            if given and end > len(given):
                raise UserError(
                    f"--{name} has {len(given)} lines, but the input has at least "
                    f"{end}: give a line for each"
                )
        replies = answer_lines(
            self.run.task.inference,
            self.run.params,
            self.run.mesh,
            lines,
            self.options,
            max_length=self.max_input,
            on_long=self.on_long,
            prefixes=[self.prefixes[i] for i in range(first, end)]
            if self.prefixes
            else (),
            include=[self.include[i].split("\t") for i in range(first, end)]
            if self.include
            else (),
            first=first,
            progress=progress,
        )
        aligned: Iterator[Any] = itertools.repeat(None)
        if self.alignment:  # computed for all lines at once
            replies = list(replies)
            answered = [one for one in replies if not one.error]
            read = iter(
                self.run.align(
                    [one.line for one in answered], [one.text for one in answered]
                )
            )
            aligned = (() if one.error else next(read) for one in replies)
        for i, (one, pairs) in enumerate(
            zip(replies, aligned, strict=False), start=first
        ):
            self.unknown.note(f"{self.where}line {i + 1}", one.unknown)
            if one.error:
                self._refuse(i, one.error)
            elif not one.text and str(one.line).strip():
                logger.warning("%sline %d: the answer is empty", self.where, i + 1)
            yield self._show(one, pairs)

    def score(
        self, lines: list[str], first: int = 0, progress: Progress = _ignore
    ) -> Iterator[str]:
        """Yield the log-probability of each line's target, given after a tab."""
        entries: list[Entry] = []
        for i, line in enumerate(lines, start=first):
            parts = line.split("\t")
            if len(parts) == 2:
                entries.append({"input": parts[0], "target": parts[1]})
                continue
            count = f"{len(parts)} column{'s' * (len(parts) != 1)}"
            error = f"{count}: --score needs a source, a tab and a target"
            entries.append({"input": line, "error": error})
            self._refuse(i, error)

        def score(valid: list[Entry]) -> list[float]:
            sides = ([e[key] for e in valid] for key in ("input", "target"))
            return self.run.score(*sides)

        return self._write_entries(entries, first, "score", score, "{:.6f}".format)

    def embed(
        self, lines: list[str], first: int = 0, progress: Progress = _ignore
    ) -> Iterator[str]:
        """Yield the sentence vector of each line, or its nearest lines in the index."""
        entries: list[Entry] = [{"input": line} for line in lines]

        def embed(valid: list[Entry]) -> list[Any]:
            vectors = self.run.encode([e["input"] for e in valid])
            if not self.index:
                return vectors.tolist()
            found = self.index.nearest(vectors, self.nearest)
            return [[match._asdict() for match in matches] for matches in found]

        if self.index:
            return self._write_entries(entries, first, "nearest", embed, _show_nearest)
        return self._write_entries(entries, first, "vector", embed, _show_vector)

    def _write_entries(
        self,
        entries: list[Entry],
        first: int,
        key: str,
        compute: Callable[[list[Entry]], Sequence[Any]],
        show: Callable[[Any], str],
    ) -> Iterator[str]:
        """Yield a line of output per entry, with its computed value under `key`.

        Entries that have an error, or whose text is too long, get no value.
        """
        for i, entry in enumerate(entries, start=first):
            if "error" in entry:
                continue
            try:
                for side, text in zip(FIELDS, list(entry.values()), strict=False):
                    check_text(text)
                    self.run.task.inspector.check_length(side, text, self.max_input)
            except Refused as error:
                entry["error"] = str(error)
                self._refuse(i, entry["error"])
        valid = [entry for entry in entries if "error" not in entry]
        try:
            values = iter(compute(valid))
        except Refused:  # for one of them: find out which
            values = iter(self._compute_alone(entries, first, compute))
        for entry in entries:
            if "error" not in entry:
                entry[key] = next(values)
            text = show(entry[key]) if key in entry else ""
            yield text if self.form == "text" else _json(entry)

    def _compute_alone(
        self,
        entries: list[Entry],
        first: int,
        compute: Callable[[list[Entry]], Sequence[Any]],
    ) -> Iterator[Any]:
        """Yield the values of the entries without error, computed one by one."""
        values = []
        for i, entry in enumerate(entries, start=first):
            if "error" in entry:
                continue
            try:
                values += compute([entry])
            except Refused as error:
                entry["error"] = str(error)
                self._refuse(i, entry["error"])
        return iter(values)

    def _refuse(self, i: int, why: str) -> None:
        self.refused += 1
        logger.warning("%sline %d: %s", self.where, i + 1, why)

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
        if one.unknown:
            entry["unknown"] = list(one.unknown)
        return _json(entry)


def _read_together(chunks: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield in every process the chunks read by the first one."""
    while (lines := hosts.decide_in_first(lambda: next(chunks, None))) is not None:
        yield lines


def _json(entry: Entry) -> str:
    return json.dumps(entry, ensure_ascii=False)


def _show_nearest(matches: list[dict[str, Any]]) -> str:
    return "{cosine:.4f}\t{text}".format(**matches[0])


def _show_vector(vector: list[float]) -> str:
    return " ".join(f"{x:.6g}" for x in vector)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
