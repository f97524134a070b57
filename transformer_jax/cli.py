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
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TextIO

from absl import app, flags
from absl import logging as absl_logging

from transformer_jax.base import extensions
from transformer_jax.base.errors import UserError, nearest

USER_MISTAKE = 2
PREEMPTED = 75
COMMON = ("allow_imports", "verbose")  # flags of every command
OF_THE_MACHINE = (  # errors that no code can fix
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
    errno.EFBIG,
)
ANALYSE = ("-analyse", "--analyse")  # its value may be left out
HELP = ("-h", "-help", "--help", "--helpshort", "--helpfull")
# The parameters of a run that answer; "auto" takes those that training found best.
WEIGHTS = ("auto", "average", "best", "last", "ema")
ALLOW_IMPORTS = "Import modules that a run names: their code is executed."
WIDTH = 30  # characters of a progress bar, where there is room


def run(main: Callable[[dict[str, str]], int | None]) -> None:
    """Parse the command line, call `main(overrides)`, and exit with its result."""
    prepare_streams()
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
        if "files" in flags.FLAGS:  # a command that takes files without a name
            flags.FLAGS.files, left = [*flags.FLAGS.files, *left[1:]], left[:1]
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
    flags.DEFINE_bool("allow_imports", False, ALLOW_IMPORTS, module_name=sys.argv[0])
    # The libraries' warnings are meant for developers.
    absl_logging.set_verbosity(absl_logging.ERROR)
    app.run(call, flags_parser=parse)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Show text, and end with one line, or none, if the output is closed or full."""
    prepare_streams()
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


def prepare_streams() -> None:
    """Make the standard streams safe to write to, however the command was started.

    A descriptor that is closed (`predict >&-`) would be given to the next file that is
    opened, which libraries then write their messages into. A character that the locale
    lacks (LC_ALL=C) would end the command.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it becomes the lowest free descriptor
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show_help(text: str) -> None:
    """Print the description of a command and the options that this package defines."""
    lines = [text.strip(), "", "Options:"]
    for flag in _own_flags():
        value = "" if flag.boolean else "=…"
        meaning = flag.help.partition(";\n")[0]  # absl adds that it can be repeated
        lines.append(f"  --{flag.name + value:<16} {meaning}")
    if "config" in flags.FLAGS:
        lines += [
            f"  {'--config.KEY=…':<18} Set an option, as in --config.train.steps=1000.",
            "",
            "python -m transformer_jax keys CONFIG lists its options with meanings.",
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
    """Replace a bare -v, which absl takes for its own --verbosity=NUMBER.

    A bare flag of ANALYSE gets the value "-", because absl would take the next word.
    """
    spelled = []
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word == "-v" and not following.lstrip("-").isdigit():
            word = "--verbose"
        spelled.append(f"{word}=-" if word in ANALYSE else word)
    return spelled


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
        """Write to the stream of `sys` with this name: stdout or stderr."""
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


def define_ensemble() -> None:
    """Define --ensemble."""
    flags.DEFINE_multi_string(
        "ensemble",
        [],
        "Further runs: each next token, label or number follows from the mean of all. "
        "A,B,C, a quoted pattern, their folder, or the flag repeated.",
    )


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


def refuse_overwriting(
    flag: str, path: str, read: Iterable[str | os.PathLike[str] | int | None]
) -> None:
    """Refuse an output that is a file which the command reads, by whatever name.

    `read` lists paths, or descriptors of open files; those that do not exist are
    skipped. Opening the output would empty the file before, or after, it is read.
    """
    try:
        written = os.stat(path or 1)
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(written.st_mode):
        return
    for file in read:
        try:
            same = file not in ("", None) and os.path.samestat(written, os.stat(file))
        except (OSError, ValueError):
            continue
        if same:
            output = f"--{flag}={path}" if path else "the standard output"
            other = f" ({file})" if isinstance(file, str) and file != path else ""
            raise UserError(
                f"{output} is the file to be read{other}: name another, which may be "
                "written over"
            )


def standard_input() -> IO[bytes]:
    """Return standard input; raise if it is closed."""
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file with --input")
    return sys.stdin.buffer


def standard_output() -> IO[bytes]:
    """Return standard output; raise if it is closed."""
    if sys.stdout is None:
        raise UserError("standard output is closed: name a file with --output")
    return sys.stdout.buffer


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


class Pace:
    """Tell how fast items are done, and how long the rest takes.

    The clock starts with the first item: what comes before it, mostly compiling, is not
    repeated for the others. Little is known before some time has passed.
    """

    KNOWN = 2.0  # seconds after the first item

    def __init__(self):
        self._first: tuple[float, int] | None = None

    def describe(self, done: int, total: int) -> str:
        """Return "12.5 sentences/s, left 8 s", or nothing while it is not known."""
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
        began, before = self._first
        if now - began < self.KNOWN or done == before:
            return ""
        speed = (done - before) / (now - began)
        return f"{speed:.1f} sentences/s, left {duration((total - done) / speed)}"


def terminal_width() -> int:
    """Return the columns of the terminal on stderr; 80 if it does not say."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class Bar:
    """A progress bar, redrawn in place on a terminal and otherwise not shown."""

    def __init__(self, shown: bool):
        """Draw nothing unless `shown`, as when stderr is not a terminal."""
        self.shown = shown
        self._drawn = 0.0

    def show(self, done: int, total: int, text: str = "") -> None:
        """Draw the bar on one line of the terminal, at most five times per second."""
        if not self.shown or time.monotonic() - self._drawn < 0.2:
            return
        self._drawn = time.monotonic()
        room = terminal_width() - 1
        said = f"{done}/{total} {text}"[:room]
        width = min(WIDTH, room - len(said) - 1)
        filled = width * done // max(total, 1)
        bar = "█" * filled + "·" * (width - filled) + " " if width > 2 else ""
        sys.stderr.write(f"\r\x1b[K{bar}{said}")
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
