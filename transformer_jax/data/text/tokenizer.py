"""Tokenizers: SentencePiece models, trained or given, and plain bytes.

The first ids are pad 0, unk 1, start 2 and end 3; given models are renumbered. By
default SentencePiece normalises Unicode and squeezes spaces. Models trained here do
not: decoding returns the encoded text, with unseen characters as bytes. The exceptions
are `word`, which decodes unknown words as <unk>, and `lowercase`, a rule that is stored
in the model.
"""

import dataclasses
import functools
import hashlib
import pathlib
import random
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS, PAD, UNK
from transformer_jax.base.schema import option
from transformer_jax.data.text.model_proto import parse_model
from transformer_jax.data.text.segmentation import BPE, UNIGRAM, Segmenter
from transformer_jax.data.text.vocabulary import NAMES

KINDS = ("unigram", "bpe", "word", "char", "byte", "file")
# SentencePiece writes spaces as this character, so a literal one becomes bytes.
SPACE = "\u2581"
BYTES = b"transformer_jax bytes 1\n"  # the saved form of a byte-level tokenizer
SPECIAL = 4  # special ids, before the pieces
# Marks that may belong to the character before them: accents, kana's, Hangul's parts.
_MARKS = re.compile("[\u0300-\u036f\u3099\u309a\u1100-\u11ff]")
WORD = 3  # SentencePiece's type of a model of words


@dataclasses.dataclass(frozen=True)
class TokenizerOptions:
    """Learn or name the vocabularies: the options of `config.tokenizer`."""

    kind: str = option(
        "unigram", "What to learn; file means a given model.", choices=KINDS
    )
    vocab_size: int = option(8000, "Most pieces of a vocabulary.", least=1)
    shared: bool = option(True, "One vocabulary for source and target.", of="pairs")
    file: str = option("", "A SentencePiece model; if not shared, two: a,b.")
    replace: bool = option(
        False,
        "Use this tokenizer instead of that of train.initial, the rows of whose tables "
        "are taken by piece.",
    )
    lowercase: bool = option(False, "Lower-case all text that is read.")
    lines: int = option(
        300_000, "Random examples to learn from; 0 means all.", least=0, most=10**9
    )
    byte_fallback: bool = option(True, "Encode unknown characters as bytes, not <unk>.")
    user_symbols: tuple = option((), "Strings that are always one piece.")
    sampling: float = option(
        0.0,
        "Sample segmentations: BPE-dropout, or unigram's α.",
        least=0,
        below=1,
        of="sampling",
    )
    row_multiple: int = option(
        64, "Embedding rows are padded to a multiple of this.", least=1
    )


class Tokenizer:
    """A SentencePiece model; `decode` is the inverse of `encode`."""

    absent: tuple[int, ...] = ()  # ids that it never gives and that are not predicted
    end: tuple[int, ...] = (EOS,)  # ids that follow the pieces of a text
    opening: tuple[int, ...] = ()  # ids with which every answer begins
    # Ids that a search never writes, and those with which it does not begin.
    suppressed: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __init__(self, model: bytes):
        self.model = model
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._processor = processor
        special = {
            PAD: processor.pad_id(),
            UNK: processor.unk_id(),
            BOS: processor.bos_id(),
            EOS: processor.eos_id(),
        }
        size, given = processor.get_piece_size(), set(special.values())
        self._theirs = [special[i] for i in range(SPECIAL)]
        self._theirs += [i for i in range(size) if i not in given]
        self._ours = {theirs: ours for ours, theirs in enumerate(self._theirs)}
        self._renumbered = self._theirs != list(range(size))
        self._space_bytes = [
            self._ours[processor.piece_to_id(f"<0x{byte:02X}>")]
            for byte in SPACE.encode()
        ]

    def of_target(self) -> "Tokenizer":
        """Return the tokenizer of the targets, if source and target share it."""
        return self

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return len(self._theirs)

    @property
    def fingerprint(self) -> str:
        """The hash of the model."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def lowercase(self) -> bool:
        """Return whether the model lower-cases text, so that it decodes no capitals."""
        return self._processor.normalize("A").endswith("a")

    def as_read(self, text: str) -> str:
        """Return the text that decoding should give back, lower-cased if necessary."""
        return "".join(map(str.lower, text)) if self.lowercase else text

    def compose(self, text: str) -> str:
        """Return a text in the form in which the pieces were learned, if it is known.

        "ã" is one character in most files and two in some, such as macOS's names (NFD).
        If no piece has the marks of the latter, the text is composed (NFC).
        """
        if text.isascii() or self._knows_marks or not _MARKS.search(text):
            return text
        return unicodedata.normalize("NFC", text)

    def find_unknown(self, text: str) -> tuple[str, ...]:
        """List the characters, or the words of a word model, that no piece has.

        They are read as <unk>, or as bytes of which hardly anything was learned.
        """
        text = self._processor.normalize(text).replace(SPACE, " ")
        parts = text.split() if self._has_words else "".join(text.split())
        return tuple(part for part in dict.fromkeys(parts) if part not in self._known)

    @functools.cached_property
    def _knows_marks(self) -> bool:
        return any(map(_MARKS.search, self.pieces(range(self.vocab_size))))

    @functools.cached_property
    def _has_words(self) -> bool:
        return parse_model(self.model).trainer_spec.model_type == WORD

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        """The characters, or words, of all pieces but bytes."""
        ids = range(SPECIAL, self.vocab_size)
        numbers = [i for i in ids if not self._processor.is_byte(self._theirs[i])]
        pieces = [piece.removeprefix(SPACE) for piece in self.pieces(numbers)]
        return frozenset(pieces if self._has_words else "".join(pieces))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without start and end."""
        return self._encode(self._processor, text)

    def encode_inside(self, text: str) -> list[int]:
        """Encode text within a sentence, without the space that the model puts first.

        A word model keeps it, because all its pieces begin with one.
        """
        if text[:1] == " " and text[1:2] not in ("", SPACE) and self._puts_space:
            return self.encode(text[1:])  # a given model may drop a space at the start
        return self._encode(self._inside, text)

    def _encode(self, processor: Any, text: str) -> list[int]:
        if SPACE not in text or UNK in self._space_bytes:
            return self._renumber(processor.encode(text))
        # The dummy space goes before the text only, not before each part of it.
        first, *rest = text.split(SPACE)
        ids = self._encode(processor, first)
        for part in rest:
            ids += self._space_bytes + self.encode_inside(part)
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts on all cores."""
        encoded = self._processor.encode(list(texts), num_threads=-1)
        return [
            self.encode(text) if SPACE in text else self._renumber(ids)
            for text, ids in zip(texts, encoded, strict=True)
        ]

    @property
    def has_segmentations(self) -> bool:
        """Return whether a text can be segmented in several ways, to draw one."""
        return self._segmenter.kind in (UNIGRAM, BPE)

    def sample(self, text: str, strength: float, seed: int) -> list[int]:
        """Encode with a random segmentation, drawn with this seed.

        BPE skips each merge with probability `strength` (BPE-dropout). Unigram draws
        segmentations in proportion to the power `strength` of their probability.
        """
        if SPACE in text:
            return self.encode(text)
        drawn = self._segmenter.draw(text, strength, random.Random(seed))
        return self._renumber(drawn)

    @functools.cached_property
    def _segmenter(self) -> Segmenter:
        return Segmenter(self.model, self._processor)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, ignoring pad, start and end."""
        kept = (int(i) for i in ids if i not in (PAD, BOS, EOS))
        return self._processor.decode([self._theirs[i] for i in kept])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each id, for display."""
        name = self._processor.id_to_piece
        return [
            NAMES[i] if i < SPECIAL else name(self._theirs[i]) for i in map(int, ids)
        ]

    def tokens(self) -> list[str]:
        """Return the pieces of all ids in order, as exports for other engines need."""
        return self.pieces(range(self.vocab_size))

    def _renumber(self, ids: list[int]) -> list[int]:
        return [self._ours[i] for i in ids] if self._renumbered else ids

    @functools.cached_property
    def _puts_space(self) -> bool:
        """Return whether the model puts a space before a text."""
        return self._processor.normalize("a").startswith(SPACE)

    @property
    def model_inside(self) -> bytes:
        """The model that puts no space before a text; one of words keeps it."""
        proto = parse_model(self.model)
        proto.normalizer_spec.add_dummy_prefix &= self._has_words
        return proto.SerializeToString()

    @functools.cached_property
    def _inside(self) -> Any:
        """The processor of `encode_inside`."""
        return sentencepiece.SentencePieceProcessor(model_proto=self.model_inside)

    def save(self, path: pathlib.Path) -> None:
        """Write the model atomically."""
        files.write_bytes(path, self.model)

    @staticmethod
    def load(path: pathlib.Path) -> "Tokenizer":
        """Read a saved tokenizer, or a model that SentencePiece trained."""
        try:
            if not (model := path.read_bytes()):
                raise OSError("it is empty")
            return Bytes() if model == BYTES else Tokenizer(model)
        except Exception as error:  # a damaged model raises almost any error
            reason = str(error).split("\n")[0]
            raise UserError(f"the tokenizer {path} cannot be read: {reason}") from None


class PlainTokenizer(Tokenizer):
    """Base of tokenizers with one segmentation of a text, wherever it stands."""

    def encode_inside(self, text: str) -> list[int]:
        """Encode; no space is put before a text."""
        return self.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts."""
        return [self.encode(text) for text in texts]

    @property
    def has_segmentations(self) -> bool:
        """Return False: these tokenizers draw none."""
        return False

    def sample(self, text: str, strength: float, seed: int) -> list[int]:
        """Encode; there is only one segmentation."""
        return self.encode(text)


class Bytes(PlainTokenizer):
    """A tokenizer of UTF-8 bytes: nothing to learn, nothing unknown."""

    def __init__(self):
        self.model = BYTES

    @property
    def lowercase(self) -> bool:
        """Return False: bytes keep capitals."""
        return False

    def compose(self, text: str) -> str:
        """Return the text: which form was learned cannot be told from bytes."""
        return text

    def find_unknown(self, text: str) -> tuple[str, ...]:
        """Return nothing: all bytes are known."""
        return ()

    @property
    def vocab_size(self) -> int:
        """The number of ids: the special ones and the bytes."""
        return SPECIAL + 256

    def encode(self, text: str) -> list[int]:
        """Return one id per byte."""
        return [SPECIAL + byte for byte in text.encode("utf-8", "surrogatepass")]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the bytes; a broken character becomes U+FFFD."""
        kept = bytes(int(i) - SPECIAL for i in ids if i >= SPECIAL)
        return kept.decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Name each byte, such as "<0x41>"."""
        names = [*NAMES, *(f"<0x{byte:02X}>" for byte in range(256))]
        return [names[int(i)] for i in ids]


def number_words(tokenizer: Tokenizer, ids: Sequence[int]) -> np.ndarray:
    """Return the index of the space-separated word that each piece belongs to."""
    counts = [len(tokenizer.decode(ids[: i + 1]).split()) for i in range(len(ids))]
    return np.maximum(np.asarray(counts, int) - 1, 0)
