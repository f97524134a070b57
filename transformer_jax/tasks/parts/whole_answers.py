"""Inference of tasks whose answers are not written piece by piece.

`WholeAnswers` answers requests by one forward pass over all of them; `TextAnswers` is
its form for models that read one text. `MeanAnswers` is for answers that follow from
numbers of which the mean of several runs is a better estimate.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax.base.errors import Refused
from transformer_jax.base.ids import BOS, EOS
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.decoding.forward import BatchedForward
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.text import (
    SHORTEN_OR_RAISE,
    check_count,
    check_positions,
    check_room,
)
from transformer_jax.tasks.protocols import Record


class WholeAnswers:
    """Inference of a task that answers at once, so that no answer has a prefix."""

    equal = False  # whether all that a model reads has one shape

    def __init__(self, config: ConfigDict):
        self.config = config
        rows, multiple = config.eval.batch_rows, config.data.row_multiple
        self.forward = BatchedForward(
            self.outputs, rows, multiple, self.made_from, self.equal
        )

    def made_from(self) -> tuple[Any, ...]:
        """Return what `outputs` depends on: all but the programs themselves."""
        fields = {name: one for name, one in vars(self).items() if name != "forward"}
        return type(self), fields

    def parse(
        self,
        line: Any,
        max_length: int = 0,
        prefix: str = "",
        draw_seed: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        """Read a line of input; refuse a prefix."""
        if prefix:
            raise Refused("answers of this task cannot begin with a given prefix")
        return self.read_line(line, max_length)

    def read_line(self, line: Any, max_length: int) -> DecodeRequest:
        """Read a line of at most `max_length` pieces (0 means no limit)."""
        raise NotImplementedError

    def outputs(self, params: Params, batch: Mapping[str, Array]) -> Any:
        """Apply the model to a batch of `sides`; return arrays [rows, …]."""
        raise NotImplementedError

    def sides(self, requests: Sequence[DecodeRequest]) -> dict[str, Sequence[Any]]:
        """Return the model's inputs for requests, by their names in a batch."""
        return {"tokens": [request.source for request in requests]}

    def reply(self, request: DecodeRequest, output: Any) -> Reply:
        """Make a reply from the model's outputs for a request."""
        raise NotImplementedError

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its reply), in any order."""
        for i, output in self.forward(params, self.sides(requests), mesh):
            yield i, self.reply(requests[i], output)


class MeanAnswers(WholeAnswers):
    """Answer with one of several labels or with a number, alone or with other runs.

    Each run reads the line in its own way: tokenizers and sizes may differ.
    """

    labels: Sequence[str] = ()  # none: the answers are numbers
    partners: Sequence[tuple["MeanAnswers", Params]] = ()

    def value(self, output: Any) -> np.ndarray:
        """Return the chances of the labels, or the number, that an output means."""
        raise NotImplementedError

    def say(self, request: DecodeRequest, value: np.ndarray) -> Reply:
        """Make a reply from chances or a number."""
        raise NotImplementedError

    def join(self, partners: Sequence[tuple["MeanAnswers", Params]]) -> None:
        """Answer with the mean of the values of this run and of others."""
        self.partners = partners

    def made_from(self) -> tuple[Any, ...]:
        """Leave out the partners, which have programs of their own."""
        kind, fields = super().made_from()
        return kind, {name: x for name, x in fields.items() if name != "partners"}

    def parse(self, line: Any, *arguments: Any, **named: Any) -> DecodeRequest:
        """Read a line of input, as each partner does; refuse what one cannot read."""
        request = super().parse(line, *arguments, **named)
        joined = [partner.parse(line) for partner, _ in self.partners]
        return dataclasses.replace(request, joined=joined)

    def reply(self, request: DecodeRequest, output: Any) -> Reply:
        """Make a reply from the model's outputs for a request."""
        return self.say(request, self.value(output))

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its reply), in any order."""
        if not self.partners:
            yield from super().answers(params, requests, mesh, options)
            return
        members: list[tuple[MeanAnswers, Params, Sequence[DecodeRequest]]]
        members = [(self, params, requests)]
        for k, (partner, theirs) in enumerate(self.partners):
            members.append((partner, theirs, [one.joined[k] for one in requests]))
        sums: list[Any] = [0.0] * len(requests)
        for member, own, asked in members:
            for i, output in member.forward(own, member.sides(asked), mesh):
                sums[i] += member.value(output)
        for i, (request, total) in enumerate(zip(requests, sums, strict=True)):
            yield i, self.say(request, np.asarray(total / len(members)))


class TextAnswers(WholeAnswers):
    """Whole answers of a model that reads one text, with both of its ends."""

    def __init__(self, config: ConfigDict, module: Any, tokenizer: Tokenizer):
        super().__init__(config)
        self.module, self.reads = module, tokenizer

    def read_line(self, line: str, max_length: int) -> DecodeRequest:
        """Encode a line with its ends."""
        return DecodeRequest(self.read(line, max_length), line=line)

    def read(self, text: str, max_length: int = 0, what: str = "a line") -> list[int]:
        """Encode a text with its ends; refuse one that is too long."""
        ids = self.encode(text)
        pieces = len(ids) - 2
        check_count(pieces, max_length, SHORTEN_OR_RAISE)
        check_positions(self.config, len(ids), f"{what} of {pieces} pieces")
        check_room(self.config, len(ids), f"{what} of {pieces} pieces")
        return ids

    def encode(self, text: str) -> list[int]:
        """Return the pieces of a text with its ends."""
        return [BOS, *self.reads.encode(text), EOS]

    def question(self, record: Record) -> str:
        """Return the text of an example."""
        return record["text"]
