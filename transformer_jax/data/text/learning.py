"""Learn tokenizers from text with SentencePiece, or open given ones."""

import contextlib
import functools
import io
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece

from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS, PAD, UNK
from transformer_jax.data import cache
from transformer_jax.data.text import vocabulary
from transformer_jax.data.text.saved import open_saved
from transformer_jax.data.text.tokenizer import Bytes, Tokenizer

# The trainer sums in parallel, repeatably with a fixed number of threads.
TRAINER_THREADS = 8
LONGEST = 20_000  # characters of a line used for learning


def make(
    settings: Any,
    records: Any,
    fields: Sequence[str],
    given: str,
    symbols: list[str],
    say: Callable[[str], None] = lambda line: None,
) -> Tokenizer:
    """Make the tokenizer of these fields according to a config's `tokenizer` section.

    A trained one is cached for other runs on the same text. `given` is the model file
    of kind "file"; `symbols` become pieces even if they are not in the text.
    """
    if settings.kind == "byte":
        return Bytes()
    if settings.kind == "file":
        return open_saved(pathlib.Path(given))
    about = [
        sentencepiece.__version__,
        records.fingerprint,
        fields,
        [*settings.user_symbols, *symbols],
        settings.kind,
        settings.vocab_size,
        settings.lines,
        settings.byte_fallback,
        settings.lowercase,
    ]
    learn = functools.partial(_learn, settings, records, fields, symbols, say)
    place = cache.place("tokenizers", repr(about))
    return Tokenizer.load(cache.build_once(place, learn, records.content) / "model")


def _learn(settings, records, fields, symbols, say, folder: pathlib.Path) -> None:
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
    trained.save(folder / "model")


def train(
    texts: Iterable[str],
    kind: str,
    vocab_size: int,
    byte_fallback: bool = True,
    symbols: Sequence[str] = (),
    lowercase: bool = False,
) -> Tokenizer:
    """Learn up to `vocab_size` pieces, or fewer if the texts have no more."""
    byte_fallback &= kind != "word"  # an unknown word is <unk>
    symbols = vocabulary.check_symbols(symbols, byte_fallback)
    least = vocabulary.check_size(kind, vocab_size, byte_fallback, symbols)
    model = io.BytesIO()
    options: dict[str, Any] = {
        "byte_fallback": byte_fallback,
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
                # With fewer, it would not count the characters of the text.
                vocab_size=max(vocab_size, least),
                user_defined_symbols=symbols,
                **rules,
                **options,
                **ids,
            )
    except (RuntimeError, OSError) as error:
        if failures:
            raise failures[0] from None
        why = vocabulary.explain(error, kind, vocab_size, byte_fallback, symbols)
        raise UserError(why) from None
    return Tokenizer(model.getvalue())


def _shortened(texts: Iterable[str], failures: list[BaseException]) -> Iterator[str]:
    """Yield shortened texts; keep the error that ends them, which the trainer hides."""
    try:
        for text in texts:
            yield text[:LONGEST]
    except (Exception, KeyboardInterrupt) as error:
        failures.append(error)
        raise


@contextlib.contextmanager
def _rules(lowercase: bool) -> Iterator[dict[str, str]]:
    """Yield the trainer's normalisation options: none, or only lower-casing."""
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
    """Make one tokenizer for all fields, named "shared", or one per field.

    `symbols`, such as tags, become pieces of a field even if its text has none.
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
