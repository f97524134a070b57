"""Explain why a vocabulary cannot be learned.

SentencePiece's own errors name its source files and options that no config has.
"""

import re
from collections.abc import Sequence

from transformer_jax.base.errors import UserError

NAMES = ("<pad>", "<unk>", "<s>", "</s>")
BYTES = 256


def check_symbols(symbols: Sequence[str], byte_fallback: bool) -> list[str]:
    """Return the symbols without copies; refuse one that cannot be a piece."""
    own = list(dict.fromkeys(symbols))
    taken = {"", *NAMES}
    if byte_fallback:
        taken |= {f"<0x{byte:02X}>" for byte in range(BYTES)}
    for symbol in own:
        if symbol in taken:
            raise UserError(
                f"tokenizer.user_symbols: {symbol!r} is empty or a piece of every "
                "vocabulary: leave it out"
            )
    return own


def least_size(byte_fallback: bool, symbols: Sequence[str]) -> int:
    """Count the pieces of a vocabulary that do not depend on the text."""
    return len(NAMES) + len(symbols) + BYTES * byte_fallback


def check_size(
    kind: str, size: int, byte_fallback: bool, symbols: Sequence[str]
) -> int:
    """Return the least size for any text; refuse less if the trainer would not."""
    least = least_size(byte_fallback, symbols)
    if size < least and kind in ("word", "char"):
        raise UserError(explain_size(size, least, byte_fallback, symbols))
    return least


def explain(
    error: Exception, kind: str, size: int, byte_fallback: bool, symbols: Sequence[str]
) -> str:
    """Say in the words of a config why the trainer failed."""
    reason = str(error).strip().split("\n")[-1]
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", reason):
        return explain_size(size, int(found[1]), byte_fallback, symbols)
    if "sentences_.empty()" in reason:
        return (
            "there is no text to learn a tokenizer from: every line is empty. Check "
            "the files and columns that config.data names"
        )
    return (
        f"{size} {kind} pieces (tokenizer.vocab_size, tokenizer.kind) cannot be "
        f"learned from this text: {reason}"
    )


def explain_size(
    size: int, needed: int, byte_fallback: bool, symbols: Sequence[str]
) -> str:
    """Say that a vocabulary has no room for the pieces that it needs."""
    parts = [f"{len(NAMES)} special ones"]
    if symbols:
        parts.append(f"{len(symbols)} symbols (tokenizer.user_symbols, or tags)")
    if byte_fallback:
        parts.append(f"{BYTES} bytes (tokenizer.byte_fallback)")
    if others := needed - least_size(byte_fallback, symbols):
        parts.append(f"{others} different characters")
    return (
        f"tokenizer.vocab_size is {size}, but a vocabulary for this text has at least "
        f"{needed} pieces: {', '.join(parts)}. Set tokenizer.vocab_size to {needed} or "
        "more"
    )
