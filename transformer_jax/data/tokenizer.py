"""Tokenizers: SentencePiece models, trained or given, and plain bytes.

Ids: pad 0, unk 1, start 2, end 3; a given model is renumbered so. SentencePiece
rewrites text by default (it normalises Unicode and squeezes spaces); models trained
here do not: decoding returns the text that was encoded, unseen characters as bytes. The
exceptions are `word`, which decodes unknown words as <unk>, and `lowercase`, a rule
that is stored in the model.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import pathlib
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece

from transformer_jax import files
from transformer_jax.data import cache
from transformer_jax.data.segmentation import Segmenter, parse_model
from transformer_jax.errors import UserError
from transformer_jax.ids import BOS, EOS, PAD, UNK
from transformer_jax.keys import key

KINDS = ("unigram", "bpe", "word", "char", "byte", "file")
# SentencePiece writes spaces as this character, so a literal one must go as bytes.
SPACE = "\u2581"
# The trainer sums in parallel: a fixed number of threads makes it repeatable.
TRAINER_THREADS = 8
LONGEST = 20_000  # characters of a line that is learned from
BYTES = b"transformer_jax bytes 1\n"  # the saved form of a byte-level tokenizer
SPECIAL = 4  # ids of our own, before the pieces
WORD = 3  # SentencePiece's number of models whose pieces are words


@dataclasses.dataclass(frozen=True)
class TokenizerKeys:
    """Learn or name the vocabularies: the keys of `config.tokenizer`."""

    kind: str = key(
        "unigram", "What is learned; file: a model is given.", choices=KINDS
    )
    vocab_size: int = key(8000, "Pieces of a vocabulary, at most.", least=1)
    shared: bool = key(True, "One vocabulary for source and target.")
    file: str = key("", "A SentencePiece model; not shared: two, with a comma.")
    lowercase: bool = key(False, "Read, and so write, lower case only.")
    lines: int = key(
        300_000, "Examples to learn from, drawn at random; 0: all.", least=0, most=10**9
    )
    byte_fallback: bool = key(True, "Unknown characters as bytes; False: as <unk>.")
    user_symbols: tuple = key((), "Strings that are one piece wherever they stand.")
    sampling: float = key(
        0.0, "Train on other segmentations: BPE-dropout, unigram's.", least=0, below=1
    )
    row_multiple: int = key(
        64, "Embedding rows are padded to a multiple of this.", least=1
    )


class Tokenizer:
    """A SentencePiece model; `decode` is the inverse of `encode`."""

    def __init__(self, model: bytes):
        self.model = model
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._processor = processor
        special = {
            PAD: processor.pad_id(), UNK: processor.unk_id(),
            BOS: processor.bos_id(), EOS: processor.eos_id(),
        }  # fmt: skip
        size, given = processor.get_piece_size(), set(special.values())
        self._theirs = [special[i] for i in range(SPECIAL)]
        self._theirs += [i for i in range(size) if i not in given]
        self._ours = {theirs: ours for ours, theirs in enumerate(self._theirs)}
        self._renumbered = self._theirs != list(range(size))
        self._space_bytes = [
            self._ours[processor.piece_to_id(f"<0x{byte:02X}>")]
            for byte in SPACE.encode()
        ]

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
        """Return whether the model lower-cases text, and decodes no capitals."""
        return self._processor.normalize("A").endswith("a")

    def as_read(self, text: str) -> str:
        """Return the text that decoding should give back: lower-cased if need be."""
        return "".join(map(str.lower, text)) if self.lowercase else text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without start and end."""
        return self._encode(self._processor, text)

    def encode_inside(self, text: str) -> list[int]:
        """Encode text within a sentence: without the space that the model puts first.

        A vocabulary of words keeps it, as all its pieces begin with one.
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
        found = self._processor.encode(list(texts), num_threads=-1)
        return [
            self.encode(text) if SPACE in text else self._renumber(ids)
            for text, ids in zip(texts, found, strict=True)
        ]

    def sample(self, text: str, strength: float, seed: int) -> list[int]:
        """Encode with a segmentation that is drawn with this seed.

        BPE: each merge is left out with probability `strength` (BPE-dropout).
        Unigram: segmentations are drawn by their probability to this power.
        """
        if SPACE in text:
            return self.encode(text)
        drawn = self._segmenter.draw(text, strength, random.Random(seed))
        return self._renumber(drawn)

    @functools.cached_property
    def _segmenter(self) -> Segmenter:
        return Segmenter(self.model, self._processor)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; pad, start and end have none."""
        kept = (int(i) for i in ids if i not in (PAD, BOS, EOS))
        return self._processor.decode([self._theirs[i] for i in kept])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each id, to be shown."""
        names = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
        return [
            names.get(i) or self._processor.id_to_piece(self._theirs[i])
            for i in map(int, ids)
        ]

    def _renumber(self, ids: list[int]) -> list[int]:
        return [self._ours[i] for i in ids] if self._renumbered else ids

    @functools.cached_property
    def _puts_space(self) -> bool:
        """Return whether the model puts a space before a text."""
        return self._processor.normalize("a").startswith(SPACE)

    @functools.cached_property
    def _inside(self) -> Any:
        """The processor without that space; a model of words keeps it."""
        proto = parse_model(self.model)
        if proto.trainer_spec.model_type == WORD:
            return self._processor
        proto.normalizer_spec.add_dummy_prefix = False
        return sentencepiece.SentencePieceProcessor(
            model_proto=proto.SerializeToString()
        )

    def save(self, path: pathlib.Path) -> None:
        """Write the model, whole or not at all."""
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(self.model)
        files.flush(temporary)
        temporary.replace(path)

    @staticmethod
    def load(path: pathlib.Path) -> "Tokenizer":
        """Read a saved tokenizer, or a model that SentencePiece trained."""
        try:
            if not (model := path.read_bytes()):
                raise OSError("it is empty")
            return Bytes() if model == BYTES else Tokenizer(model)
        except Exception as error:  # a damaged model raises almost any kind
            reason = str(error).split("\n")[0]
            raise UserError(f"the tokenizer {path} cannot be read: {reason}") from None


class Bytes(Tokenizer):
    """A tokenizer of UTF-8 bytes: nothing to learn, nothing unknown."""

    def __init__(self):
        self.model = BYTES

    @property
    def lowercase(self) -> bool:
        """Return whether capitals are lost: bytes keep them."""
        return False

    @property
    def vocab_size(self) -> int:
        """The number of ids: the special ones and the bytes."""
        return SPECIAL + 256

    def encode(self, text: str) -> list[int]:
        """Return an id for each byte."""
        return [SPECIAL + byte for byte in text.encode("utf-8", "surrogatepass")]

    def encode_inside(self, text: str) -> list[int]:
        """Encode: no space is put before a text."""
        return self.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts."""
        return [self.encode(text) for text in texts]

    def sample(self, text: str, strength: float, seed: int) -> list[int]:
        """Encode: bytes have one segmentation."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the bytes; a broken character becomes U+FFFD."""
        kept = bytes(int(i) - SPECIAL for i in ids if i >= SPECIAL)
        return kept.decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Name each byte, as "<0x41>"."""
        names = ["<pad>", "<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
        return [names[int(i)] for i in ids]


def make(
    settings: Any,
    records: Any,
    fields: Sequence[str],
    given: str,
    symbols: list[str],
    say: Callable[[str], None] = lambda line: None,
) -> Tokenizer:
    """Make the tokenizer of these fields that a config's `tokenizer` section asks for.

    A trained one is kept in the cache for other runs on the same text. `given` is the
    model file of kind "file"; `symbols` become pieces even if they are not in the text.
    """
    if settings.kind == "byte":
        return Bytes()
    if settings.kind == "file":
        return Tokenizer.load(pathlib.Path(given))
    about = [
        sentencepiece.__version__, records.fingerprint, fields,
        [*settings.user_symbols, *symbols], settings.kind, settings.vocab_size,
        settings.lines, settings.byte_fallback, settings.lowercase,
    ]  # fmt: skip
    key = hashlib.sha256(repr(about).encode()).hexdigest()[:24]
    learn = functools.partial(_learn, settings, records, fields, symbols, say)
    place = cache.folder() / "tokenizers" / key
    return Tokenizer.load(cache.build_once(place, learn, records.content) / "model")


def _learn(settings, records, fields, symbols, say, place: pathlib.Path) -> None:
    count, numbers = len(records), None
    if settings.lines and settings.lines < count:
        generator = np.random.Generator(np.random.Philox(key=[0, count]))
        numbers = np.sort(generator.choice(count, settings.lines, replace=False))
    say(
        f"learning   {settings.vocab_size:,} {settings.kind} pieces of "
        f"{' and '.join(fields)} from {min(settings.lines or count, count):,} examples"
    )
    chosen = records if numbers is None else (records[int(i)] for i in numbers)
    texts = (record[field] for record in chosen for field in fields)
    trained = train(
        texts,
        settings.kind,
        settings.vocab_size,
        settings.byte_fallback,
        [*settings.user_symbols, *symbols],
        settings.lowercase,
    )
    trained.save(place / "model")


def train(
    texts: Iterable[str],
    kind: str,
    vocab_size: int,
    byte_fallback: bool = True,
    symbols: Sequence[str] = (),
    lowercase: bool = False,
) -> Tokenizer:
    """Learn at most `vocab_size` pieces; fewer if the texts have no more."""
    model = io.BytesIO()
    options: dict[str, Any] = {
        # Words that are unknown are to be <unk>, not a string of bytes.
        "byte_fallback": byte_fallback and kind != "word",
        "character_coverage": 0.9999 if kind == "unigram" and byte_fallback else 1.0,
        "remove_extra_whitespaces": False,
        "hard_vocab_limit": False,
        "max_sentence_length": 8 * LONGEST,
        "num_threads": TRAINER_THREADS,
        "minloglevel": 2,
    }
    ids: dict[str, Any] = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}
    failures: list[BaseException] = []
    try:
        with _rules(lowercase) as rules:
            sentencepiece.SentencePieceTrainer.train(
                # The trainer would drop longer lines, with a note on stderr only.
                sentence_iterator=_shortened(texts, failures),
                model_writer=model,
                model_type=kind,
                vocab_size=vocab_size,
                user_defined_symbols=list(symbols),
                **rules,
                **options,
                **ids,
            )
    except (RuntimeError, OSError) as error:
        if failures:
            raise failures[0] from None
        reason = str(error).strip().split("\n")[-1]
        raise UserError(
            f"no tokenizer of tokenizer.vocab_size {vocab_size} pieces can be learned "
            f"from this text: {reason}"
        ) from None
    return Tokenizer(model.getvalue())


def _shortened(texts: Iterable[str], failures: list[BaseException]) -> Iterator[str]:
    """Yield texts of bearable length; keep what ends them, which the trainer hides."""
    try:
        for text in texts:
            yield text[:LONGEST]
    except (Exception, KeyboardInterrupt) as error:
        failures.append(error)
        raise


@contextlib.contextmanager
def _rules(lowercase: bool) -> Iterator[dict[str, str]]:
    """Yield the trainer's normalisation options: none, or lower case and no more."""
    if not lowercase:
        yield {"normalization_rule_name": "identity"}
        return
    pairs = ((chr(i), chr(i).lower()) for i in range(sys.maxunicode + 1))
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        for sides in (pair for pair in pairs if pair[0] != pair[1]):
            numbers = (" ".join(f"{ord(c):X}" for c in side) for side in sides)
            print(*numbers, sep="\t", file=file)
        file.flush()
        yield {"normalization_rule_tsv": file.name}


def for_sides(
    settings: Any,
    records: Any,
    fields: Sequence[str],
    symbols: Mapping[str, Sequence[str]],
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Tokenizer]:
    """Make one tokenizer for all fields, named "shared", or one for each field.

    `symbols` become pieces of a field even if they are not in its text: tags.
    """
    files = [part.strip() for part in settings.file.split(",") if part.strip()]
    sides: dict[str, Sequence[str]] = {f: (f,) for f in fields}
    if settings.shared:
        sides = {"shared": tuple(fields)}
    if settings.kind == "file" and len(files) != len(sides):
        raise UserError(
            f"tokenizer.file names {len(files)} files for {len(sides)} vocabularies "
            f"(tokenizer.shared = {settings.shared}): name one for each of "
            f"{', '.join(sides)}"
        )
    made = {}
    for i, (side, members) in enumerate(sides.items()):
        given = files[i] if files else ""
        own = [symbol for field in members for symbol in symbols.get(field, ())]
        made[side] = make(settings, records, members, given, own, say)
    return made


def number_words(tokenizer: Tokenizer, ids: Sequence[int]) -> np.ndarray:
    """Return, for each piece, the number of the word (between spaces) it belongs to."""
    read = [len(tokenizer.decode(ids[: i + 1]).split()) for i in range(len(ids))]
    return np.maximum(np.asarray(read, int) - 1, 0)
