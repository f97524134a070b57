"""Open the tokenizers that runs have saved."""

import pathlib

from transformer_jax.base.errors import UserError
from transformer_jax.data.text.tokenizer import Tokenizer


def open_saved(path: pathlib.Path) -> Tokenizer:
    """Open the tokenizer that a run has saved: its own, or one of another package."""
    try:
        with path.open("rb") as file:
            if file.read(1) != b"{":
                return Tokenizer.load(path)
        from transformer_jax.data.text.foreign import Foreign

        return Foreign(path.read_bytes())
    except UserError:
        raise
    except BaseException as error:  # a damaged file raises almost any error
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        reason = str(error).split("\n")[0]
        raise UserError(f"the tokenizer {path} cannot be read: {reason}") from None
