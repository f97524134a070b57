"""Answer lines as they are typed, with commands to look at an answer.

    > O gato dorme.
    The cat sleeps.
    > :attention

A line that begins with a colon is a command, unless it begins with two, of which one is
left out.
"""

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data.text.numerals import is_whole
from transformer_jax.decoding import Options, Reply
from transformer_jax.runs.run import Run, decode_options
from transformer_jax.tasks import protocols

BEST = 3  # input words shown for each word of an answer


class Answerer(Protocol):
    """The run that answers the lines of a session, and the options of its search."""

    run: Run
    options: Options
    form: str  # of a line of output: text or jsonl


class Session:
    """A conversation with a run at a terminal."""

    def __init__(
        self,
        answerer: Answerer,
        answer: Callable[..., Iterator[str]],
        searches: bool = True,
    ):
        """Open a session; `answer` turns lines into lines of output.

        Commands about answers are for those that are searched, not for scores or
        vectors.
        """
        self.answerer, self.answer, self.run = answerer, answer, answerer.run
        self.turns: list[str] = []
        self.last = ("", "")  # what was read, and the answer
        self.commands: dict[str, Callable[[str], None]] = {":help": self.show_help}
        if searches:
            self.commands |= {
                ":beams": self.set_beams,
                ":scores": self.show_scores,
                ":attention": self.show_attention,
            }

    def converse(self) -> int:
        """Answer until the end of input or `:quit`; return the exit code."""
        with contextlib.suppress(ImportError):  # some Pythons have none
            importlib.import_module("readline")  # gives `input` history and editing
        if isinstance(sys.stdin, io.TextIOWrapper):
            # As in a file of lines, under any locale.
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        run = self.run
        say(
            f"{run.folder.place}: {run.config.task}, {run.weights} parameters of step "
            f"{run.step}. One line at a time; :help lists commands, Ctrl-D ends."
        )
        while True:
            try:
                line = input("> ")
            except EOFError:
                say()
                return 0
            if line.strip() == ":quit":
                return 0
            try:
                if line.startswith(":") and not line.startswith("::"):
                    self.execute(line)
                else:
                    self.reply(line.removeprefix(":") if line[:2] == "::" else line)
            except UserError as error:
                for problem in error.problems:
                    say(f"error: {problem}")

    def reply(self, line: str) -> None:
        """Print the answer to a line, or to the turns that end with it."""
        self.turns.append(line)
        context, forgotten = line, 0
        if isinstance(self.run.task.inference, protocols.Converses):
            context, forgotten = self.run.task.inference.context(self.turns)
        first, is_json = len(self.turns) // 2, self.answerer.form == "jsonl"
        try:
            texts = list(self.answer([context], first=first))
        except UserError:
            self.turns.pop()  # it was not answered
            raise
        for text in texts:
            print(text, flush=True)
            shown = json.loads(text).get("output", "") if is_json else text
            self.last = context, shown.partition("\t")[0]
            self.turns.append(text)
        if forgotten:
            kept = len(self.turns) - 1 - forgotten
            say(f"(read: the last {kept} turns of {len(self.turns) - 1})")

    def execute(self, line: str) -> None:
        """Execute a command."""
        name, _, value = line.strip().partition(" ")
        if name not in self.commands:
            known = [*self.commands, ":quit"]
            raise UserError(
                f"{name} is no command.{nearest(name, known)} There are "
                f"{', '.join(known)}; a line of text that begins with a colon takes two"
            )
        self.commands[name](value.strip())

    def show_help(self, _: str = "") -> None:
        """List the commands."""
        say(":help         list the commands")
        if ":beams" in self.commands:
            say(":beams N      search with N beams from now on; 1 is greedy")
            say(":scores       score the last answer, and the others that were found")
            say(":attention    what each word of the last answer looked at most")
        say(":quit         end, as Ctrl-D does")

    def set_beams(self, value: str) -> None:
        """Search with another number of beams from now on."""
        if not is_whole(value):
            raise UserError(f":beams {value[:20]}: give a whole number, as in :beams 4")
        changes = self._options() | {"beams": int(value)}
        self.answerer.options = decode_options(self.run.config, **changes)

    def show_scores(self, _: str = "") -> None:
        """Print the hypotheses for the last line, best first, with their scores."""
        context, changes = self._require_last()[0], self._options()
        if "n_best" in changes:
            changes["n_best"] = changes["beams"]
        found: Reply = self.run.replies(context, **changes)
        if found.error:
            raise UserError(found.error)
        for label, chance in found.details.get("chances", {}).items():
            say(f"{chance:9.3f}  {label}")
        for one in (found, *found.others):
            if one.score is not None:
                say(f"{one.score:9.3f}  {one.text}")

    def show_attention(self, _: str = "") -> None:
        """Print which words of the input each word of the last answer looked at."""
        context, text = self._require_last()
        aligner = protocols.require(self.run.task, protocols.Aligns, "alignment")
        [reading] = aligner.read(self.run.params, [(context, text)], self.run.mesh)
        for line in describe_attention(*aligner.attend_words(reading)):
            say(line)

    def _options(self) -> dict[str, Any]:
        """Return the options of the session, as far as the run has them."""
        own = self.run.config.get("decode", {})
        return {k: v for k, v in vars(self.answerer.options).items() if k in own}

    def _require_last(self) -> tuple[str, str]:
        if not self.last[1]:
            raise UserError("there is no answer yet: type a line first")
        return self.last


def describe_attention(written: Any, read: Any, weights: Any) -> list[str]:
    """Write for each written word the words that it looked at most, with their shares.

    `weights` [written, read] are rows of attention.
    """
    width = max(map(len, written), default=0)
    lines = []
    for word, row in zip(written, weights, strict=False):
        total = max(float(row.sum()), 1e-9)
        best = sorted(range(len(read)), key=lambda i, row=row: -row[i])[:BEST]
        shares = (f"{read[i]} {100 * row[i] / total:.0f} %" for i in best)
        lines.append(f"{word:<{width}}  {', '.join(shares)}")
    return lines


def say(text: str = "") -> None:
    """Print to stderr, because stdout has the answers and may be a file."""
    print(text, file=sys.stderr, flush=True)
