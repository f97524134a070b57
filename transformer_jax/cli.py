"""The shell around every entry point: flags, config overrides, exit codes.

0 done · 1 some lines failed · 2 the user's mistake · 75 preempted and saved. A user's
mistake is shown in plain words, never with a traceback.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import IO

from absl import app, flags, logging

from transformer_jax.errors import UserError, nearest

USER_MISTAKE = 2
PREEMPTED = 75
WEIGHTS = ("average", "best", "last", "ema")  # of a run: which of them answer


def run(main: Callable[[dict[str, str]], int | None]) -> None:
    """Parses the command line and exits with what `main(overrides)` returns."""
    overrides: dict[str, str] = {}

    def parse(argv: Sequence[str]) -> list[str]:
        rest, found = split_overrides(argv)
        overrides.update(found)
        try:
            left = flags.FLAGS(rest)
        except flags.Error as error:
            fail(str(error).replace("\n", " "))
        if len(left) > 1:
            fail(f"unexpected argument {left[1]!r}: options are given as --name=value")
        return left

    def call(_: Sequence[str]) -> int | None:
        try:
            return main(overrides)
        except UserError as error:
            fail(*error.problems)
        except BrokenPipeError:  # the reader has seen enough: `predict … | head`
            sys.stderr.close()
            return 0
        except KeyboardInterrupt:
            return 130

    logging.set_verbosity(logging.ERROR)  # the libraries' remarks are for developers
    app.run(call, flags_parser=parse)


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Takes `--config.key=value` and `--config.key value` out of a command line."""
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
    if not value:
        raise UserError(f"--{name} is missing: {meaning}")


def fail(*problems: str) -> None:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(USER_MISTAKE)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        hint = nearest(value, choices)
        raise UserError(f"--{name}={value}: choose {' | '.join(choices)}.{hint}")


def define_weights() -> None:
    choices = " | ".join(WEIGHTS)
    flags.DEFINE_string("weights", "", f"{choices} (default: the run's).")


def check_weights(asked: str) -> None:
    if asked:
        check_choice("weights", asked, WEIGHTS)


def open_file(path: str, mode: str, **how: str) -> IO:
    try:
        return open(path, mode, **how)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def refuse_overrides(overrides: dict[str, str]) -> None:
    """A run is used with the config it was trained with."""
    if overrides:
        key = next(iter(overrides))
        raise UserError(
            f"--config.{key} is for training: this run's config is in its directory"
        )


def is_terminal() -> bool:
    return sys.stderr.isatty()


class Bar:
    """One line on a terminal, redrawn in place; silent where there is none."""

    def __init__(self, shown: bool):
        self.shown = shown
        self._drawn = 0.0

    def show(self, done: int, total: int, text: str = "") -> None:
        if not self.shown or time.monotonic() - self._drawn < 0.2:
            return
        self._drawn = time.monotonic()
        filled = 30 * done // max(total, 1)
        bar = "█" * filled + "·" * (30 - filled)
        print(
            f"\r\x1b[K{bar} {done}/{total} {text}", end="", file=sys.stderr, flush=True
        )

    def clear(self) -> None:
        if self.shown and self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """'52 s', '7 min 05 s', '3 h 20 min'."""
    seconds = int(round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"
