"""Run a command: flags, config overrides, messages, exit codes.

Exit codes: 0 done; 1 some lines failed; 2 user error; 75 preempted and saved, or
another process was lost, so start again; 124 hung. A user error is shown as a plain
message, never with a traceback. With -v the package's loggers also write debug
messages to stderr.
"""

import contextlib
import errno
import io
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TextIO

from absl import app, flags
from absl import logging as absl_logging

from transformer_jax import extensions
from transformer_jax.errors import UserError, nearest

USER_MISTAKE = 2
PREEMPTED = 75
COMMON = ("allow_imports", "verbose")  # flags of every command
OF_THE_MACHINE = (  # errors that no code can fix
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EFBIG,
)  # fmt: skip
HELP = ("-h", "-help", "--help", "--helpshort", "--helpfull")
# The parameters of a run that answer; "auto" takes those that training found best.
WEIGHTS = ("auto", "average", "best", "last", "ema")
ALLOW_IMPORTS = "Import modules that a run names: their code is executed."
CHUNK = 2000  # lines read, sorted and answered together
LONGEST = 1 << 24  # the most bytes in a line


def run(main: Callable[[dict[str, str]], int | None]) -> None:
    """Parse the command line, call `main(overrides)`, and exit with its result."""
    overrides: dict[str, str] = {}

    def parse(argv: Sequence[str]) -> list[str]:
        if any(word in HELP for word in argv[1:]):
            with reported():
                show_help(sys.modules[main.__module__].__doc__ or "")
            sys.exit(0)
        rest, found = split_overrides(_spell_out(argv))
        overrides.update(found)
        try:
            left = flags.FLAGS(rest)
        except flags.Error as error:
            fail(str(error).replace("\n", " "))
        if len(left) > 1:
            fail(f"unexpected argument {left[1]!r}: options are given as --name=value")
        show_messages(flags.FLAGS.verbose)
        if flags.FLAGS.allow_imports:
            extensions.allow()
        return left

    def call(_: Sequence[str]) -> int | None:
        try:
            return main(overrides)
        except UserError as error:
            fail(*error.problems)
        except BrokenPipeError:  # the reader has closed the pipe: `predict … | head`
            sys.stderr.close()
            return 0
        except OSError as error:  # such as a full disk or a read-only folder
            if error.errno not in OF_THE_MACHINE:
                raise
            fail(f"{error.filename or 'writing the output'}: {error.strerror}")
        except KeyboardInterrupt:
            return 130

    flags.DEFINE_bool(
        "verbose", False, "Say more on stderr; short: -v.", module_name=sys.argv[0]
    )
    flags.DEFINE_bool(
        "allow_imports", False, ALLOW_IMPORTS, module_name=sys.argv[0]
    )
    # The libraries' warnings are meant for developers.
    absl_logging.set_verbosity(absl_logging.ERROR)
    app.run(call, flags_parser=parse)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Show text, and end with one line, or none, if the output is closed or full."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except UserError as error:
        fail(*error.problems)
    except BrokenPipeError:  # the reader has seen enough: `keys quickstart | head`
        discard(sys.stdout)
        sys.exit(0)
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            raise
        discard(sys.stdout)
        fail(f"writing the output: {error.strerror}")


def show_help(text: str) -> None:
    """Print the description of a command and the options that this package defines."""
    lines = [text.strip(), "", "Options:"]
    for flag in _own_flags():
        value = "" if flag.boolean else "=…"
        meaning = flag.help.partition(";\n")[0]  # absl adds that it can be repeated
        lines.append(f"  --{flag.name + value:<16} {meaning}")
    if "config" in flags.FLAGS:
        lines += [
            f"  {'--config.KEY=…':<18} Set a key, as in --config.train.steps=1000.",
            "",
            "python -m transformer_jax keys CONFIG lists all keys with their meanings.",
        ]
    print("\n".join(lines))


def _own_flags() -> list[flags.Flag]:
    """List the flags of this package in order of definition, then -v."""
    by_module = flags.FLAGS.flags_by_module_dict()
    own = [
        flag
        for module, defined in by_module.items()
        if module in ("__main__", sys.argv[0]) or module.startswith("transformer_jax")
        for flag in defined
    ]
    return sorted(own, key=lambda flag: flag.name in COMMON)


def _spell_out(argv: Sequence[str]) -> list[str]:
    """Replace a bare -v, which absl takes for its own --verbosity=NUMBER."""
    following = [*argv[1:], ""]
    return [
        "--verbose" if word == "-v" and not number.lstrip("-").isdigit() else word
        for word, number in zip(argv, following, strict=True)
    ]


def show_messages(verbose: bool = False) -> None:
    """Send the package's log messages to stderr, debug messages only if verbose."""
    logger = logging.getLogger("transformer_jax")
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False  # absl's format is meant for developers
    logger.handlers = [PlainHandler("stderr")]


class PlainHandler(logging.Handler):
    """Write messages to sys.stdout or sys.stderr, without time and level.

    The stream is looked up for each message, because notebooks and tests replace it.
    """

    def __init__(self, stream: str):
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message; discard it if the stream is closed, so that work goes on."""
        stream = getattr(sys, self.stream)
        if stream is None:  # closed before the command began
            return
        try:
            stream.write(self.format(record) + "\n")
            stream.flush()
        except OSError:  # `train … | head`, a full disk
            discard(stream)


def discard(stream: TextIO | None) -> None:
    """Discard everything written to a stream from now on, also when Python exits."""
    if stream is None:  # closed before the command began
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate `--config.key=value` and `--config.key value` from other arguments."""
    rest, found, words = [], {}, iter(argv)
    for word in words:
        name = word.lstrip("-")
        if not word.startswith("-") or not name.startswith("config."):
            rest.append(word)
            continue
        key, equals, value = name.removeprefix("config.").partition("=")
        found[key] = value if equals else next(words, "")
    return rest, found


def require(name: str, value: str, meaning: str) -> None:
    """Refuse an empty value for a required flag."""
    if not value:
        raise UserError(f"--{name} is missing: {meaning}")


def fail(*problems: str) -> None:
    """Print user errors on stderr, and exit."""
    for problem in problems:
        sys.stderr.write(f"error: {problem}\n")
    sys.exit(USER_MISTAKE)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a flag's value that is not one of the choices; suggest the nearest."""
    if value not in choices:
        hint = nearest(value, choices)
        raise UserError(f"--{name}={value}: choose {' | '.join(choices)}.{hint}")


def define_weights() -> None:
    """Define --weights."""
    choices = " | ".join(WEIGHTS)
    flags.DEFINE_string("weights", "", f"{choices} (default: the run's).")


def check_weights(asked: str) -> None:
    """Refuse an unknown value of --weights."""
    if asked:
        check_choice("weights", asked, WEIGHTS)


def open_file(path: str, mode: str, encoding: str | None = None) -> IO[Any]:
    """Open a file named by the user."""
    try:
        return open(path, mode, encoding=encoding)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def check_writable(path: str) -> None:
    """Check early that a file can be written, without changing it."""
    new = not os.path.exists(path)
    open_file(path, "ab").close()
    if new:
        os.remove(path)


def standard_input() -> IO[bytes]:
    """Return standard input; raise if it is closed."""
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file with --input")
    return sys.stdin.buffer


def read_chunks(source: io.BufferedIOBase) -> Iterator[list[str]]:
    """Yield chunks of lines; bytes that are not UTF-8 become U+FFFD.

    Only a newline ends a line. A chunk also ends where reading would block, so a pipe
    that is written line by line is answered line by line.
    """
    lines: list[bytes] = []
    rest: list[bytes] = []  # parts of a line whose end has not been read
    count, size = 0, 0
    while data := source.read1(1 << 16):
        *ended, begun = data.split(b"\n")
        if ended:
            ended[0], rest, size = b"".join([*rest, ended[0]]), [], 0
        rest.append(begun)
        lines, count, size = lines + ended, count + len(ended), size + len(begun)
        if size > LONGEST:
            yield [_decode(line) for line in lines]
            raise UserError(
                f"line {count + 1} has more than {LONGEST:,} bytes and no end: is this "
                "a text file, to be answered line by line?"
            )
        while len(lines) >= CHUNK or (lines and not _would_not_block(source)):
            yield [_decode(line) for line in lines[:CHUNK]]
            lines = lines[CHUNK:]
    lines += [b"".join(rest)] if any(rest) else []
    for i in range(0, len(lines), CHUNK):
        yield [_decode(line) for line in lines[i : i + CHUNK]]


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _would_not_block(source: io.BufferedIOBase) -> bool:
    """Return whether a read would return at once, as it always does for a file."""
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # no file descriptor: a buffer in memory
        return True


def refuse_overrides(overrides: dict[str, str]) -> None:
    """Refuse config overrides in a command that uses a trained run as it is."""
    if overrides:
        key = next(iter(overrides))
        raise UserError(
            f"--config.{key} is for training: this run's config is in its directory"
        )


def is_terminal() -> bool:
    """Return whether stderr is a terminal, where a progress bar can be redrawn."""
    return sys.stderr.isatty()


class Bar:
    """A progress bar, redrawn in place on a terminal and otherwise not shown."""

    def __init__(self, shown: bool):
        self.shown = shown
        self._drawn = 0.0

    def show(self, done: int, total: int, text: str = "") -> None:
        """Draw the bar, at most five times per second."""
        if not self.shown or time.monotonic() - self._drawn < 0.2:
            return
        self._drawn = time.monotonic()
        filled = 30 * done // max(total, 1)
        bar = "█" * filled + "·" * (30 - filled)
        sys.stderr.write(f"\r\x1b[K{bar} {done}/{total} {text}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the bar from the terminal."""
        if self.shown and self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def duration(seconds: float) -> str:
    """Write seconds as '52 s', '7 min 05 s' or '3 h 20 min'."""
    seconds = int(round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"
