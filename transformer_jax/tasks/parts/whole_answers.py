"""Parts of inference where an answer is given whole, not piece by piece."""

from typing import Any

from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.errors import Refused


class WholeAnswers:
    """Inference of a task whose answers come whole, so that none has a prefix."""

    def parse(
        self,
        line: Any,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        """Read a line of input, and refuse a prefix."""
        if prefix:
            raise Refused("an answer of this task has no beginning to be given")
        return self.read_line(line, max_length)

    def read_line(self, line: Any, max_length: int) -> DecodeRequest:
        """Read a line of input of at most so many pieces (0: no limit)."""
        raise NotImplementedError
