"""Text to pieces and back: SentencePiece, trained from the config on training text.

Ids: pad 0, unk 1, start 2, end 3. SentencePiece rewrites text by default (it
normalises Unicode and squeezes spaces); here it changes nothing: whatever is encoded
comes back, characters it has never seen as bytes.
"""

import hashlib
import io
import pathlib
from collections.abc import Iterable, Sequence

import sentencepiece

from transformer_jax.errors import UserError
from transformer_jax.ids import BOS, EOS, PAD, UNK

# SentencePiece writes spaces as this character, so a literal one must go as bytes.
SPACE = "\u2581"
# The trainer sums in parallel: a fixed number of threads makes it repeatable.
TRAINER_THREADS = 8


class Tokenizer:
    """A trained SentencePiece model: `encode` and `decode` are inverse."""

    def __init__(self, model: bytes):
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._space_bytes = [
            self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()
        ]

    @property
    def vocab_size(self) -> int:
        return self._processor.get_piece_size()

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, text: str) -> list[int]:
        if SPACE not in text:
            return self._processor.encode(text)
        # The dummy space goes before the text only, not before each part of it.
        parts = text.split(SPACE)
        ids = self._processor.encode(parts[0])
        for part in parts[1:]:
            ids += self._space_bytes + self._encode_inside(part)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        ids = [int(i) for i in ids if i not in (PAD, BOS, EOS)]
        return self._processor.decode(ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def _encode_inside(self, text: str) -> list[int]:
        """Pieces of a text that does not begin a sentence."""
        anchor = self._processor.encode("\n")
        return self._processor.encode("\n" + text)[len(anchor) :]

    def save(self, path: pathlib.Path) -> None:
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(self.model)
        temporary.replace(path)  # whole or not at all

    @classmethod
    def load(cls, path: pathlib.Path) -> "Tokenizer":
        try:
            return cls(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise UserError(f"the tokenizer {path} cannot be read: {error}") from None


def train(texts: Iterable[str], kind: str, vocab_size: int) -> Tokenizer:
    """Learns at most `vocab_size` pieces from the texts of a training split."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=1.0 if kind == "bpe" else 0.9999,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 20,
            num_threads=TRAINER_THREADS,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[-1]
        raise UserError(
            f"no tokenizer of tokenizer.vocab_size {vocab_size} pieces can be trained "
            f"on this text: {reason}"
        ) from None
    return Tokenizer(model.getvalue())
