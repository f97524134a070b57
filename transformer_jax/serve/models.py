"""Runs that answer the requests of many clients at once.

Answers that are written share batches (`decoding.live`). Other answers are computed in
one pass, for all requests that have arrived while the last pass was computed.
"""

import collections
import contextlib
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.base import schema
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import UNK
from transformer_jax.data.images import arrays as images
from transformer_jax.decoding import DecodeRequest, Options, Reply, answering
from transformer_jax.decoding.live import Caller, Cancelled, calling, round_lengths
from transformer_jax.decoding.requests import one_line
from transformer_jax.runs.run import Run, decode_options
from transformer_jax.sharding import Params
from transformer_jax.tasks import protocols

SETTINGS = 100  # different programs that clients may ask a run to compile
NUMBER = (bool, int, float)


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that a client may ask for; what costs more is refused."""

    lines: int = 1000  # of a request
    characters: int = 20_000  # of a line
    beams: int = 16  # also answers of a line
    pieces: int = 2048  # of an answer
    no_repeat: int = 16  # length of an n-gram, which is compiled piece by piece
    pixels: int = 25_000_000  # of a picture


class Model:
    """A run with its name, ready to answer from many threads."""

    def __init__(self, name: str, run: Run, limits: Limits):
        """Serve a run; `serving` must be entered before it answers."""
        self.name, self.run, self.limits = name, run, limits
        self.inference = run.task.inference
        self.options = decode_options(run.config)
        self.longest = run.config.data.get("max_length", 0)  # pieces of a line
        self._reads: Any = getattr(self.inference, "reads", None)
        self._writer: Any = getattr(self.inference, "writer", None)
        self._settings: set[Options] = set()
        self._pass = _Gathered(self.inference.answers)

    @property
    def writes(self) -> bool:
        """Return whether answers are written piece by piece."""
        return isinstance(self.inference, protocols.Writes)

    @property
    def streams(self) -> bool:
        """Return whether a client can read an answer while it grows.

        A tree or a picture is only shown whole.
        """
        return self.writes and self.shows == "text" and not self.nests

    @property
    def nests(self) -> bool:
        """Return whether answers are trees."""
        return isinstance(self.inference, protocols.WritesTrees)

    @property
    def converses(self) -> bool:
        """Return whether earlier turns are read."""
        return isinstance(self.inference, protocols.Converses)

    @property
    def continues(self) -> bool:
        """Return whether an answer is the line with its continuation."""
        return isinstance(self.run.task.inspector, protocols.ReadsTexts)

    @property
    def reads_file(self) -> str:
        """Return the kind of file that is read instead of a line; "" if none is."""
        return getattr(self.inference, "reads_file", "")

    @property
    def shows(self) -> str:
        """The kind of an answer: "text", or "picture" for the codes of one."""
        return "picture" if hasattr(self.inference, "book") else "text"

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Let the clients share batches."""
        if not isinstance(self.inference, protocols.Writes):
            yield
            return
        with self.inference.writer.shared(self.run.mesh):
            yield

    def describe(self) -> dict[str, Any]:
        """Describe the run: its task, what it can do, and its options."""
        inspector = self.run.task.inspector
        return {
            "task": self.run.config.task,
            "weights": self.run.weights,
            "step": self.run.step,
            "streams": self.streams,
            "converses": self.converses,
            "continues": self.continues,
            "reads": self.reads_file or "text",
            "shows": "tree" if self.nests else self.shows,
            "aligns": isinstance(inspector, protocols.Aligns),
            "attention": isinstance(inspector, protocols.ShowsAttention),
            "options": self._describe_options(),
        }

    def choose(self, given: Mapping[str, Any]) -> Options:
        """Return the run's search options with those that a client gives."""
        for name, value in given.items():
            if type(value) not in NUMBER:
                raise UserError(f"options.{name} must be a number, or true or false")
        changes = dict(given)
        default = dataclasses.asdict(self.options)
        for name, value in given.items():  # 1 for 1.0
            if isinstance(default.get(name), float) and type(value) is int:
                changes[name] = float(value)
        if changes and not self.writes:
            raise UserError(
                f"options.{next(iter(changes))}: the answers of {self.name} are not "
                "searched, and so have no options"
            )
        options = decode_options(self.run.config, **changes)
        limits = self.limits
        for name, most in (
            ("beams", limits.beams),
            ("n_best", limits.beams),
            ("mbr", limits.beams),
            ("max_length", limits.pieces),
            ("extra_length", limits.pieces),
            ("min_length", limits.pieces),
            ("no_repeat", limits.no_repeat),
        ):
            value = getattr(options, name)
            if value > max(most, default.get(name, 0)):
                raise UserError(f"options.{name} is {value}: at most {most} here")
        if options.contrast and options.top_k > limits.beams:
            raise UserError(
                f"options.top_k is {options.top_k}, and with contrast each is read: at "
                f"most {limits.beams} here"
            )
        kind = round_lengths(options.without_numbers())
        if kind not in self._settings:
            if len(self._settings) >= SETTINGS:
                raise UserError(
                    f"{SETTINGS} combinations of options have been asked for, and each "
                    "is a program of its own: use one of them, or alpha, temperature, "
                    "top_p and seed, which need no program"
                )
            self._settings.add(kind)
        return options

    def answer(
        self,
        caller: Caller,
        lines: Sequence[Any],
        options: Options,
        prefixes: Sequence[str] = (),
        include: Sequence[Sequence[str]] = (),
    ) -> list[Reply]:
        """Answer lines; a line that is refused has an error."""
        if caller.cancelled:  # while it waited for a thread
            raise Cancelled
        with caller.searching():
            found = answering.answer_lines(
                self.inference,
                self.run.params,
                self.run.mesh,
                lines,
                options,
                max_length=self.longest,
                prefixes=prefixes,
                include=include,
                answers=None if self.writes else self._pass.answers,
            )
            return list(found)

    def check_file(self, path: pathlib.Path) -> None:
        """Refuse a picture whose pixels would take too much memory."""
        if self.reads_file != "image":
            return
        with contextlib.suppress(images.NoImage):  # then it is refused when it is read
            width, height = images.size_of(path)
            if width * height > self.limits.pixels:
                raise UserError(
                    f"a picture of {width:,} times {height:,} pixels: at most "
                    f"{self.limits.pixels:,} are read. Make it smaller"
                )

    def stream(
        self,
        show: Callable[[str], None],
        line: str,
        options: Options,
        prefix: str = "",
    ) -> tuple[Caller, Callable[[], Reply]]:
        """Return a caller and a function that answers, showing the text as it grows.

        Each text that is shown is complete up to now.
        """
        before: list[int] = []  # pieces of earlier turns, and what they go on from
        given: list[str] = []  # what these pieces begin with that is not new

        def watch(request: DecodeRequest, tokens: Sequence[int], ended: bool) -> None:
            decode = self._writer.tokenizer.decode
            if not given:  # the first turn, or the only one
                before.extend(request.prefix)
                given.append(decode(before) if self.continues else "")
            text = decode([*before, *tokens])
            if ended:
                before.extend(tokens)
            if not self.continues:
                show(one_line(text))
            elif text.startswith(given[0]):
                show(self.begun(line) + text[len(given[0]) :])

        # Copies of a text that is written in turns come one after the other, and of
        # candidates nobody knows yet which one is chosen.
        in_turns = self.continues and options.n_best > 1
        watched = self.streams and not in_turns and not options.mbr
        caller = Caller(watch if watched else None)

        def answer() -> Reply:
            prefixes = [prefix] if prefix else ()
            return self.answer(caller, [line], options, prefixes)[0]

        return caller, answer

    def begun(self, line: str) -> str:
        """Return a line as an answer that continues it begins: as it is read."""
        if not self.continues:
            return ""
        try:
            request = self.inference.parse(self._reads.compose(line))
        except Refused:  # then it has no answer
            return line
        return self._writer.tokenizer.decode(request.prefix)

    def continuation(self, line: str, reply: Reply) -> str:
        """Return the text that was written after a line."""
        text, begun = reply.details.get("text", reply.text), self.begun(line)
        return text[len(begun) :] if text.startswith(begun) else text

    def count_pieces(self, text: str) -> int:
        """Count the pieces of a text."""
        return len(self._reads.encode(text)) if self._reads and text else 0

    def read_turns(self, turns: Sequence[str]) -> tuple[str, int]:
        """Return the line that holds the last turns, and how many are left out."""
        if not isinstance(self.inference, protocols.Converses):
            raise UserError(f"{self.name} answers single lines, and reads no turns")
        return self.inference.context(turns)

    def warm_up(self) -> None:
        """Compile the usual programs, so that the first clients need not wait."""
        if not isinstance(self.inference, protocols.Writes):
            return
        run, kinds = self.run, [(32, self.options), (64, self.options)]
        if self.continues:
            kinds = [(n, self.options) for n in (16, 12, 24, 32, 48, 64)]
        if self.options.beams > 1 and self.streams:  # other answers, as the page asks
            several = dataclasses.replace(self.options, n_best=self.options.beams)
            kinds.append((kinds[0][0], several))
        watched = Caller(lambda *told: None)
        with contextlib.suppress(Refused), watched.searching():
            for number, (length, options) in enumerate(kinds):
                length = min(length, self.longest or length)
                request = self.inference.longest_request(length)
                if self.continues:
                    request = dataclasses.replace(request, prefix=(UNK,) * (length - 1))
                if number == 0:  # for many clients at once; the others for a few
                    self._writer.compile(run.params, request, run.mesh, options)
                for asked in [request], [request] * 2:  # alone, and with others
                    list(self._writer.write(run.params, asked, run.mesh, options))

    def _describe_options(self) -> dict[str, Any]:
        if not self.writes:
            return {}
        return {
            field.name: {
                "default": getattr(self.options, field.name),
                "meaning": field.metadata["meaning"],
            }
            for field in schema.fields(type(self.options))
            if isinstance(field.default, NUMBER)
        }


class _Gathered:
    """Compute the answers to requests of many threads in one pass after another."""

    def __init__(self, answers: Callable[..., Iterator[tuple[int, Reply]]]):
        self._answers = answers
        self._waiting: collections.deque[_Share] = collections.deque()
        self._lock, self._busy = threading.Lock(), threading.Lock()

    def answers(
        self, params: Params, requests: Sequence[DecodeRequest], mesh: Any, options: Any
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its reply)."""
        share = _Share(list(requests), calling())
        with self._lock:
            self._waiting.append(share)
        with self._busy:  # whoever is here first answers for all who wait
            with self._lock:
                shares = [s for s in self._waiting if not s.caller.cancelled]
                self._waiting.clear()
            if shares:
                self._compute(shares, params, mesh, options)
        if share.error:
            raise share.error
        if share.caller.cancelled:
            raise Cancelled
        yield from share.replies.items()

    def _compute(self, shares: list["_Share"], params, mesh, options) -> None:
        asked = [request for share in shares for request in share.requests]
        owners = [(s, i) for s in shares for i in range(len(s.requests))]
        try:
            for number, reply in self._answers(params, asked, mesh, options):
                share, place = owners[number]
                share.replies[place] = reply
        except BaseException as error:  # raised again by the caller
            if len(shares) == 1:
                shares[0].error = error
                return
            for share in shares:  # only one of them may be at fault
                share.replies.clear()
                self._compute([share], params, mesh, options)


@dataclasses.dataclass
class _Share:
    """The requests of one caller, and the replies to them."""

    requests: list[DecodeRequest]
    caller: Caller
    replies: dict[int, Reply] = dataclasses.field(default_factory=dict)
    error: BaseException | None = None
