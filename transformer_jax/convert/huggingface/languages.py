"""mBART's languages: tokens that follow a source, or begin a source and a target.

    mBART      source: pieces </s> en_XX      target: ro_RO pieces </s>
    mBART-50   source: en_XX pieces </s>      target: </s> ro_RO pieces </s>

A bundle has one source and one target language. mBART's target language is the start of
an answer; that of mBART-50 is a prefix with which each answer begins.
"""

import re
from typing import Any, NamedTuple

from transformer_jax.base.errors import UserError, nearest
from transformer_jax.convert.huggingface.vocabulary import Tokens

CODE = re.compile(r"[a-z]{2,3}_[A-Z]{2}")


class Languages(NamedTuple):
    """The codes of a source and a target language; empty: those that a folder names."""

    source: str = ""
    target: str = ""


NAMED = Languages()


def settle(
    given: dict[str, Any], tokens: Tokens, languages: Languages
) -> dict[str, list[int]]:
    """Put the languages into a config.json and its tokenizer's settings.

    Return how texts begin and end, which is empty for models without languages.
    """
    if given["model_type"] != "mbart":
        if any(languages):
            raise UserError(
                f"--source_language and --target_language are for mBART, but the model "
                f"is of the type {given['model_type']!r}: leave them out"
            )
        return {}
    kind = tokens.settings.get("tokenizer_class") or given.get("tokenizer_class") or ""
    prefixed = kind.startswith("MBart50")
    field = "forced_bos_token_id" if prefixed else "decoder_start_token_id"
    codes = {i: name for name, i in tokens.numbers.items() if CODE.fullmatch(name)}
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
