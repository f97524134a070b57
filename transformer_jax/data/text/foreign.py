"""Tokenizers of other packages: a `tokenizer.json`, or SentencePiece with a vocabulary.

Their ids are renumbered, so that pad 0, unk 1, start 2 and end 3 come first. The saved
form is one JSON file: the tokenizer, and their id of each of ours (-1 if they have no
such token). Pieces are shown as everywhere in this package: "▁" begins a word.
"""

import base64
import copy
import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

import sentencepiece

from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS, PAD, UNK
from transformer_jax.data.text.tokenizer import (
    SPACE,
    SPECIAL,
    PlainTokenizer,
    Tokenizer,
)
from transformer_jax.data.text.vocabulary import NAMES

FORM = "transformer_jax foreign 1"
MISSING = -1  # their id of a token that they lack
# Byte-level BPE writes each byte as a letter: printable ones of Latin-1 as themselves,
# the others, in order, as those from U+0100 on.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = {chr(byte): byte for byte in PRINTABLE}
BYTES |= {
    chr(256 + i): byte for i, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))
}


class Engine(Protocol):
    """A tokenizer of another package, which splits and joins texts by its own ids."""

    def split(self, text: str) -> list[int]:
        """Return their ids of a text, without ends."""
        ...

    def join(self, ids: Sequence[int]) -> str:
        """Return the text of their ids."""
        ...

    def name(self, index: int) -> str:
        """Return the piece of an id as it is shown."""
        ...

    def token(self, index: int) -> str:
        """Return the piece of an id as it is written."""
        ...


class Json:
    """A `tokenizer.json`, run by the package `tokenizers`."""

    def __init__(self, content: dict[str, Any]):
        try:
            import tokenizers
        except ImportError:
            raise UserError(
                "this tokenizer needs the package `tokenizers`: install it with "
                "pip install 'transformer_jax[huggingface]'"
            ) from None
        self._inner = tokenizers.Tokenizer.from_str(json.dumps(content))
        self._inner.no_padding()
        self._inner.no_truncation()
        kinds = re.findall(r'"type": "(\w+)"', json.dumps(content.get("decoder")))
        self._bytewise = "ByteLevel" in kinds
        self._wordwise = "WordPiece" in kinds

    def split(self, text: str) -> list[int]:
        """Return their ids of a text, without ends."""
        return self._inner.encode(text, add_special_tokens=False).ids

    def join(self, ids: Sequence[int]) -> str:
        """Return the text of their ids."""
        return self._inner.decode(list(ids), skip_special_tokens=False)

    def token(self, index: int) -> str:
        """Return the piece of an id as it is written."""
        return self._inner.id_to_token(index) or f"<{index}>"

    def name(self, index: int) -> str:
        """Return the piece of an id, with ▁ where a word begins."""
        piece = self.token(index)
        if self._bytewise and set(piece) <= BYTES.keys():
            text = bytes(BYTES[letter] for letter in piece)
            return text.decode(errors="replace").replace(" ", SPACE)
        if self._wordwise and not piece.startswith("["):
            return piece[2:] if piece.startswith("##") else SPACE + piece
        return piece


class Pieces:
    """SentencePiece models whose pieces are numbered by another vocabulary.

    Marian has one for the source, which splits, and one for the target, which joins.
    """

    def __init__(
        self, splits: bytes, joins: bytes, pieces: Sequence[str], unknown: int
    ):
        """Load the serialised models; the id of a piece is its index in `pieces`.

        `unknown` is the id of a piece that is not among them.
        """
        self._splits = sentencepiece.SentencePieceProcessor(model_proto=splits)
        self._joins = sentencepiece.SentencePieceProcessor(model_proto=joins)
        self._pieces, self._unknown = pieces, unknown
        self._numbers = {piece: i for i, piece in enumerate(pieces)}

    def split(self, text: str) -> list[int]:
        """Return their ids of a text, without ends."""
        code = re.match(r">>[^<]+<<", text)  # of a language to translate into
        if code and code[0] in self._numbers:
            rest = self.split(text[code.end() :].lstrip())
            return [self._numbers[code[0]], *rest]
        found = self._splits.encode(text, out_type=str)
        return [self._numbers.get(piece, self._unknown) for piece in found]

    def join(self, ids: Sequence[int]) -> str:
        """Return the text of their ids."""
        return self._joins.decode([self._pieces[i] for i in ids])

    def of_target(self) -> "Pieces":
        """Return the same pieces, into which the target's model splits."""
        other = copy.copy(self)
        other._splits = self._joins
        return other

    def name(self, index: int) -> str:
        """Return the piece of an id."""
        return self._pieces[index]

    token = name


class Foreign(PlainTokenizer):
    """A tokenizer of another package, with the ids of this one."""

    def __init__(self, model: bytes):
        """Load the bytes that `pack` made; raise ValueError for any other form."""
        self.model, about = model, json.loads(model)
        if about.get("form") != FORM:
            raise ValueError(f"its form is {about.get('form')!r}, not {FORM!r}")
        self._theirs, self._given = about["ids"], about["names"]
        self._prefix, self.origin = about["prefix"], about.get("origin")
        self._target_prefix = about.get("target_prefix")
        self._hidden = {MISSING, *about.get("hidden", ())}
        known = [(them, us) for us, them in enumerate(self._theirs) if them != MISSING]
        # Where our start is one of their other tokens, that one stands for it.
        known.sort(key=lambda pair: pair[1] != BOS)
        self._ours = dict(known)
        if "end" in about:
            self.end = tuple(self._ours[i] for i in about["end"])
        self.absent = tuple(
            us for us, them in enumerate(self._theirs) if self._ours.get(them) != us
        )
        never, first = about.get("suppressed", ((), ()))
        self.suppressed = self._known(never), self._known(first)
        if "tokenizer" in about:
            self._engine: Engine = Json(about["tokenizer"])
        else:
            given = about["sentencepiece"]
            splits, joins = map(base64.b64decode, (given["splits"], given["joins"]))
            self._engine = Pieces(splits, joins, about["pieces"], self._theirs[UNK])

    def _known(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._ours[i] for i in ids if i in self._ours)

    @property
    def content(self) -> dict[str, Any] | None:
        """The content of the `tokenizer.json`, if it has one."""
        return json.loads(self.model).get("tokenizer")

    @property
    def theirs(self) -> list[int]:
        """Their id of each of ours; -1 if they have no such token."""
        return self._theirs

    def of_target(self) -> "Tokenizer":
        """Return the tokenizer of the targets, which may split otherwise."""
        other = copy.copy(self)
        if isinstance(self._engine, Pieces):
            other._engine = self._engine.of_target()
        if self._target_prefix is not None:
            other._prefix = self._target_prefix
            other.opening = tuple(self._ours[i] for i in self._target_prefix)
        other.end = (EOS,)
        return other

    @functools.cached_property
    def lowercase(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return whether text is lower-cased, so that no capitals are decoded."""
        return self._engine.join(self._engine.split("A")).strip() == "a"

    def compose(self, text: str) -> str:
        """Return the text: a given tokenizer normalises it as it was trained to."""
        return text

    def find_unknown(self, text: str) -> tuple[str, ...]:
        """List the words that are read as unknown."""
        words = dict.fromkeys(text.split())
        return tuple(word for word in words if UNK in self.encode(word))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without start and end, but with its prefix."""
        found = [*self._prefix, *self._engine.split(text)]
        return [self._ours.get(i, UNK) for i in found]

    def encode_inside(self, text: str) -> list[int]:
        """Encode text within a sentence."""
        return self.encode(text)[len(self._prefix) :]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, ignoring pad, start and end."""
        kept = [self._theirs[int(i)] for i in ids if i not in (PAD, BOS, EOS)]
        hidden = self._hidden.union(self._prefix)
        return self._engine.join([i for i in kept if i not in hidden])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each id, for display."""
        return [self._name(int(i)) for i in ids]

    def tokens(self) -> list[str]:
        """Return the pieces of all ids in order, as the other package spells them."""
        return [*NAMES, *map(self._engine.token, self._theirs[SPECIAL:])]

    def _name(self, index: int) -> str:
        if index < SPECIAL:
            return NAMES[index]
        theirs = self._theirs[index]
        return self._given.get(str(theirs)) or self._engine.name(theirs)


def pack(
    ids: Sequence[int], names: dict[int, str], prefix: Sequence[int], **engine: Any
) -> bytes:
    """Make the saved form of a tokenizer.

    `ids` are their ids by ours, `names` the shown pieces of some of theirs, `prefix`
    those of their ids that begin every text. With `target_prefix`, answers begin with
    those instead; with `end`, sources end with those; `hidden` are those that a text
    does not show; `suppressed` has those that a search never writes, and those with
    which it does not begin.
    """
    about = {"form": FORM, "ids": list(ids), "names": names, "prefix": list(prefix)}
    about |= engine
    return json.dumps(about, ensure_ascii=False).encode()
