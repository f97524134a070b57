"""Inference of tasks whose answers are not written piece by piece.

`WholeAnswers` answers requests by one forward pass over all of them; `TextAnswers` is
its form for models that read one text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
