"""Make a tokenizer of ours from the files of a Hugging Face folder.

mBART's languages are tokens around a text:

    mBART      source: pieces </s> en_XX      target: ro_RO pieces </s>
    mBART-50   source: en_XX pieces </s>      target: </s> ro_RO pieces </s>

A bundle has one source and one target language. mBART's target language is the start of
an answer; that of mBART-50 is a prefix with which each answer begins. So is Whisper's,
if it knows several, with what to do:

    Whisper    <|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|> pieces
"""

import base64
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.base import files
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.convert.huggingface.architecture import GENERATION, Architecture
from transformer_jax.data.text import foreign

FAST = "tokenizer.json"
MARIAN = ("source.spm", "target.spm", "vocab.json")
USUAL = {  # names of special tokens, for folders that do not say them
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z]{2}")  # its code
SPOKEN = re.compile(r"<\|([a-z]{2,3})\|>")  # Whisper's
UNSHOWN = re.compile(r"<\|.*\|>")  # Whisper's tokens that are no text
SEVERAL = 51865  # tokens that a Whisper of several languages has at least


class Languages(NamedTuple):
    """The codes of a source and a target language; empty: those that a folder names."""

    source: str = ""
    target: str = ""


NAMED = Languages()


class Tokens:
    """The numbers of a folder's tokens, and the settings of its tokenizer."""

    def __init__(self, folder: pathlib.Path):
        """Read the tokenizer's files; refuse a folder without any of a known format."""
        self.folder, self.settings = folder, {}
        for name in SETTINGS:
            if (folder / name).is_file():
                self.settings |= files.read_object(folder / name)
        self.numbers: dict[str, int] = {}
        self.content: dict[str, Any] = {}
        if (folder / FAST).is_file():
            self.content = files.read_object(folder / FAST)
            self.numbers = _numbers(self.content)
        elif all((folder / name).is_file() for name in MARIAN):
            self.numbers = files.read_object(folder / MARIAN[2])
        else:
            raise UserError(
                f"{folder} has neither {FAST} nor {', '.join(MARIAN)}: open the "
                "tokenizer with transformers.AutoTokenizer and save it, which writes "
                f"{FAST}"
            )

    def named(self, field: str) -> int | None:
        """Return the number of a special token, such as `cls_token`; None if none."""
        name = self.settings.get(field)
        if isinstance(name, Mapping):
            name = name.get("content")
        if isinstance(name, str) and name in self.numbers:
            return self.numbers[name]
        if field == "unk_token" and self.content:
            name = self.content.get("model", {}).get("unk_token")
            if isinstance(name, str) and name in self.numbers:
                return self.numbers[name]
        found = (self.numbers[n] for n in USUAL.get(field, ()) if n in self.numbers)
        return next(found, None)

    def pack(
        self, ids: list[int], prefix: list[int], origin: dict, **ends: list[int]
    ) -> bytes:
        """Return the saved form of a tokenizer with these ids.

        It keeps what is needed to write the model back, also of a run that goes on.
        """
        names = {}
        if (mask := self.named("mask_token")) is not None:
            names[mask] = "<mask>"
        if self.content:
            content = {"tokenizer": self.content, **ends}
            return foreign.pack(ids, names, prefix, origin=origin, **content)
        pieces = sorted(self.numbers, key=self.numbers.__getitem__)
        models = {
            name: base64.b64encode((self.folder / path).read_bytes()).decode()
            for name, path in zip(("splits", "joins"), MARIAN[:2], strict=True)
        }
        content = {"sentencepiece": models, "pieces": pieces}
        return foreign.pack(ids, names, prefix, origin=origin, **content)


def _numbers(content: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of the tokens of a tokenizer.json."""
    vocabulary = content.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # Unigram: pairs of a piece and its score
        vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    added = {t["content"]: t["id"] for t in content.get("added_tokens", ())}
    return {**vocabulary, **added}


def settle(
    given: dict[str, Any], tokens: Tokens, languages: Languages
) -> dict[str, Any]:
    """Put the languages into a config.json and its tokenizer's settings.

    Return how texts begin and end, which is empty for models without languages.
    """
    if given["model_type"] == "whisper":
        return _settle_speech(given, tokens, languages)
    if given["model_type"] != "mbart":
        if any(languages):
            raise UserError(
                f"--source_language and --target_language are for mBART, but the model "
                f"is of the type {given['model_type']!r}: leave them out"
            )
        return {}
    kind = tokens.settings.get("tokenizer_class") or given.get("tokenizer_class") or ""
    if not kind.startswith("MBart"):
        raise UserError(
            f"{tokens.folder}: tokenizer_class is {kind!r}, which does not say where "
            "the language of an mBART stands: set MBartTokenizer or MBart50Tokenizer "
            "in tokenizer_config.json"
        )
    prefixed = kind.startswith("MBart50")
    field = "forced_bos_token_id" if prefixed else "decoder_start_token_id"
    codes = {i: name for name, i in tokens.numbers.items() if LANGUAGE.fullmatch(name)}
    settings = tokens.settings
    source = _find("source", languages.source or settings.get("src_lang"), codes)
    usual = settings.get("tgt_lang") or codes.get(given.get(field) or -1)
    target = _find("target", languages.target or usual, codes)
    tokens.settings |= {"src_lang": codes[source], "tgt_lang": codes[target]}
    given[field] = target
    if prefixed:
        return {"prefix": [source], "target_prefix": [target]}
    end = tokens.named("eos_token")
    if end is None:
        raise UserError("the tokenizer names no eos_token, which ends mBART's texts")
    return {"end": [end, source]}


def _settle_speech(
    given: dict[str, Any], tokens: Tokens, languages: Languages
) -> dict[str, Any]:
    """Return the prefix of transcripts, and the hidden and suppressed tokens."""
    if languages.source:
        raise UserError(
            "--source_language is for mBART: name the language that a Whisper hears, "
            "and writes, by --target_language"
        )
    about = {**given, **given.get(GENERATION, {})}
    names, opening = ["<|notimestamps|>"], []
    if about.get("is_multilingual", given["vocab_size"] >= SEVERAL):
        found = {i: SPOKEN.fullmatch(name) for name, i in tokens.numbers.items()}
        codes = {i: match[1] for i, match in found.items() if match}
        forced = dict(about.get("forced_decoder_ids") or ()).get(1)
        usual = str(about.get("language") or codes.get(forced or -1) or "").strip("<|>")
        opening = [_find("target", languages.target or usual, codes)]
        names = ["<|transcribe|>", *names]
    elif languages.target:
        raise UserError(
            f"--target_language={languages.target}: this Whisper knows English alone, "
            "leave it out"
        )
    if lacking := [name for name in names if name not in tokens.numbers]:
        raise UserError(f"{tokens.folder}: the tokenizer has no {lacking[0]}")
    return {
        "target_prefix": [*opening, *(tokens.numbers[name] for name in names)],
        "hidden": sorted(i for n, i in tokens.numbers.items() if UNSHOWN.fullmatch(n)),
        "suppressed": [
            about.get(name) or ()
            for name in ("suppress_tokens", "begin_suppress_tokens")
        ],
    }


def _find(side: str, code: str | None, codes: dict[int, str]) -> int:
    """Return the number of a language."""
    numbers = {name: i for i, name in codes.items()}
    if code in numbers:
        return numbers[code]
    said = f"has no language {code!r}.{nearest(code, numbers)}" if code else ""
    raise UserError(
        f"the model {said or f'does not say its {side} language'}: convert it with "
        f"--{side}_language={' or '.join(sorted(numbers)) or 'CODE'}"
    )


def order(
    architecture: Architecture, given: Mapping[str, Any], tokens: Tokens
) -> tuple[list[int], list[int]]:
    """Return their number of each of our ids, and the numbers that begin every text."""
    special = [_special(field, given, tokens) for field in architecture.special]
    for field, number in zip(architecture.special[2:], special[2:], strict=True):
        if number == foreign.MISSING:
            raise UserError(
                f"{tokens.folder} does not say its {field}, with which texts start or "
                "end: add it to config.json or tokenizer_config.json"
            )
    size = given["vocab_size"]
    if max(tokens.numbers.values(), default=0) >= size:
        raise UserError(
            f"the tokenizer has {max(tokens.numbers.values()) + 1} tokens, but "
            f"config.json has vocab_size {size}: the folder's files do not fit"
        )
    rest = sorted(set(tokens.numbers.values()) - set(special))
    prefix = architecture.prefix and _special(architecture.prefix, given, tokens)
    begins = [int(prefix)] if prefix not in ("", foreign.MISSING) else []
    return [*special, *rest], begins


def _special(field: str, given: Mapping[str, Any], tokens: Tokens) -> int:
    found = given.get(field) if field.endswith("_id") else tokens.named(field)
    if isinstance(found, list):  # LLaMA 3 has several ends; its tokenizer names one
        named = tokens.named(field.removesuffix("_id"))
        found = named if named in found else next(iter(found), None)
    if found is None and not field.endswith("_id"):
        found = given.get(f"{field}_id")
    return foreign.MISSING if found is None else int(found)
