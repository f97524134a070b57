"""Inference of tasks whose answers are not written piece by piece."""

from typing import Any

from transformer_jax.base.errors import Refused
from transformer_jax.decoding import DecodeRequest, Options


class WholeAnswers:
    """Inference of a task that answers at once, so that no answer has a prefix."""

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
