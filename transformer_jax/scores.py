"""BLEU by each protocol used in published figures, and significance tests.

    BLEU = min(1, exp(1 - r/c)) · (p1 · p2 · p3 · p4)^(1/4)

for c tokens in the answers and r in the references, where p_n is the n-gram precision.
Tokenisation can change BLEU by 1.5 points, so every value carries sacreBLEU's
signature. Pitfall: given files of unequal length, sacreBLEU silently truncates the
longer one; here this is an error.
"""

import os
import random
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformer_jax.base.errors import UserError

# The rows of the panel: their names, and published figures by the same protocol.
READINGS = {
    "bleu": (
        "BLEU",
        "cased sacreBLEU figures, such as 28.6 of fairseq's big model on newstest2014 "
        "EN-DE (29.29 with compounds split)",
    ),
    "bleu_lc": (
        "BLEU, lower-cased",
        "lower-cased sacreBLEU figures, such as Joey NMT's 33.73 on IWSLT14 DE-EN",
    ),
    "bleu_intl": (
        "BLEU, international tokens",
        "sacreBLEU -tok intl figures, such as 28.33 of a tensor2tensor base model on "
        "newstest2014 EN-DE (27.52 as plain sacreBLEU)",
    ),
    "bleu_compound": (
        "BLEU, Moses tokens, compounds split: the paper's",
        "the paper's 27.3 (base) and 28.4 (big) on newstest2014 EN-DE, 38.1 and 41.8 "
        "EN-FR; its authors also normalised the reference's quotation marks by hand",
    ),
    "bleu_tok_lc": (
        "BLEU, Moses tokens, lower-cased",
        "tokenised lower-cased figures, such as Revisit-MMT's 41.02 on Multi30k EN-DE "
        "test2016, 61.80 EN-FR (which also normalise punctuation)",
    ),
    "chrf": ("chrF", "sacreBLEU's chrF2 figures; the paper gives none"),
    "ter": (
        "TER, lower-cased: edits per 100 words, fewer are better",
        "TER figures of tercom or sacreBLEU; the paper gives none",
    ),
    "bleu_several": (
        "BLEU, each different source once, against all its references",
        "sacreBLEU figures with the same number of references",
    ),
}
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Score:
    """BLEU or chrF by one protocol, and the published figures to compare it with."""

    key: str
    name: str
    value: float
    signature: str
    comparable: str


@dataclass(frozen=True)
class Comparison:
    """A system against the baseline by one metric; intervals are 95 % half-widths."""

    metric: str
    baseline: str
    system: str
    baseline_score: float
    baseline_interval: float
    score: float
    mean: float
    interval: float
    p: float
    signature: str


def headline(
    answers: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> dict[str, Any]:
    """Compute corpus BLEU and chrF against raw references, one per sentence.

    `lowercase` is for systems that write no capitals; their signatures say case:lc.
    """
    import sacrebleu  # takes half a second, and only scoring needs it

    _check("answers", answers, references)
    scores = {}
    kinds = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF}
    for name, kind in kinds.items():
        metric = kind(lowercase=lowercase)
        value, signature = _corpus(metric, answers, references)
        scores |= {name: value, f"{name}_signature": signature}
    return scores


def panel(
    answers: Sequence[str],
    references: Sequence[str],
    language: str,
    lowercase: bool = False,
) -> list[Score]:
    """Score the same answers by all READINGS, with Moses rules for `language`.

    With `lowercase`, for a system that writes no capitals, cased readings are omitted.
    """
    from sacrebleu import BLEU, CHRF, TER

    _check("answers", answers, references)
    moses, rules = _moses(language)
    raw = answers, references
    # Escaping (&quot;) would only rename tokens, which does not change BLEU.
    tokens = [
        [moses.tokenize(line, escape=False, return_str=True) for line in side]
        for side in raw
    ]
    split = [[split_compounds(line) for line in side] for side in tokens]
    # With force, because `headline` already warns of answers that look tokenised.
    rows = {
        "bleu": (BLEU(force=True), raw, ""),
        "bleu_lc": (BLEU(lowercase=True, force=True), raw, ""),
        "bleu_intl": (BLEU(tokenize="intl", force=True), raw, ""),
        "bleu_compound": (
            BLEU(tokenize="none", force=True),
            split,
            f"{rules}, compounds split",
        ),
        "bleu_tok_lc": (
            BLEU(lowercase=True, tokenize="none", force=True),
            tokens,
            f"{rules}, lower-cased after",
        ),
        "chrf": (CHRF(lowercase=lowercase), raw, ""),
        "ter": (TER(), raw, ""),
    }
    scores = []
    for key, (metric, sides, tokeniser) in rows.items():
        if lowercase and key != "ter" and not metric.lowercase:
            continue
        value, signature = _corpus(metric, *sides)
        signature = signature.replace("tok:none", f"tok:none ({tokeniser})")
        name, comparable = READINGS[key]
        scores.append(Score(key, name, value, signature, comparable))
    return scores


def split_compounds(tokens: str) -> str:
    """Write `rich-text` as `rich ##AT##-##AT## text`, exactly as the authors' Perl did.

    A match consumes both neighbours of its hyphen, so only the first hyphen of `a-b-c`
    is split. But Perl matched bytes: `ü` has two, so both hyphens of `a-ü-c` are split.
    """
    text = tokens.encode("utf-8", "surrogatepass")
    text = re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", text)
    return text.decode("utf-8", "surrogatepass")


def distinct(texts: Sequence[str], size: int) -> float:
    """Return the share of distinct n-grams of `size` words: 1 if none is repeated."""
    runs = [
        tuple(words[i : i + size])
        for words in (text.split() for text in texts)
        for i in range(len(words) - size + 1)
    ]
    return len(set(runs)) / max(len(runs), 1)


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    samples: int = 1000,
    seed: int = 12345,
    lowercase: bool = False,
) -> list[Comparison]:
    """Compare each system with the first, by paired bootstrap over the sentences."""
    from sacrebleu import BLEU, CHRF
    from sacrebleu.significance import PairedTest

    if len(systems) < 2:
        raise UserError(f"a comparison needs two systems or more, not {len(systems)}")
    if samples < 1 or seed < 1:  # sacreBLEU takes 0 for "the default" and "any"
        raise UserError(f"{samples=} and {seed=} must both be 1 or more")
    for name, answers in systems.items():
        _check(f"answers of {name}", answers, references)
    named: list[tuple[str, Sequence[str]]] = [
        (name, list(answers)) for name, answers in systems.items()
    ]
    metrics = {
        "BLEU": BLEU(lowercase=lowercase, force=True),
        "chrF": CHRF(lowercase=lowercase),
    }
    with _sacrebleu_seed(seed):
        test = PairedTest(named, metrics, [list(references)], "bs", samples, n_jobs=1)
        signatures, found = test()
    results: dict[str, Any] = found  # its types omit fields that a bootstrap always has
    baseline, *others = systems
    comparisons = []
    # sacreBLEU renames the metrics (chrF2) but keeps their order.
    for metric, (key, signature) in zip(metrics, signatures.items(), strict=True):
        a = results[key][0]
        for system, b in zip(others, results[key][1:], strict=True):
            # sacreBLEU counts the samples with a larger difference. Equal systems have
            # none, which would give the smallest possible p.
            p = 1.0 if a.score == b.score else b.p_value
            comparisons.append(
                Comparison(
                    metric,
                    baseline,
                    system,
                    float(a.score),
                    float(a.ci),
                    float(b.score),
                    float(b.mean),
                    float(b.ci),
                    float(p),
                    str(signature),
                )
            )
    return comparisons


def resample(
    measure: Callable[[Sequence[str], Sequence[str]], Sequence[Any]],
    judge: Callable[[Sequence[Any]], Mapping[str, float]],
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    samples: int = 300,
    seed: int = 12345,
) -> list[Comparison]:
    """Compare two systems by every metric of `judge`, by paired bootstrap.

    Each answer is measured against its reference once, and `judge` computes the metrics
    of a sample from its measurements. p is how often the difference in a sample is as
    far from the mean difference as the measured one is from 0.
    """
    (baseline, first), (system, second) = systems.items()
    for name, answers in systems.items():
        _check(f"answers of {name}", answers, references)
    generator, every = random.Random(seed), range(len(references))
    rows = [generator.choices(every, k=len(every)) for _ in range(samples)]

    def judge_all(answers):
        each = measure(answers, references)
        found = [judge([each[i] for i in row]) for row in (every, *rows)]
        return {name: [one[name] for one in found] for name in found[0]}

    ours, theirs = judge_all(first), judge_all(second)
    signature = f"paired bootstrap of {samples} samples, seed {seed}"
    comparisons = []
    for metric, a in ours.items():
        b = theirs[metric]
        measured, *gaps = (y - x for x, y in zip(a, b, strict=True))
        middle = statistics.fmean(gaps)
        beyond = sum(abs(gap - middle) >= abs(measured) for gap in gaps)
        p = 1.0 if measured == 0 else (beyond + 1) / (samples + 1)
        spread, other = (1.96 * statistics.pstdev(x[1:]) for x in (a, b))
        found = (a[0], spread, b[0], statistics.fmean(b[1:]), other, p, signature)
        comparisons.append(Comparison(metric, baseline, system, *found))
    return comparisons


def verdict(comparison: Comparison) -> str:
    """State the better system, as in "runs/b is better by 0.84 BLEU (p = 0.012)"."""
    p = f"(p = {comparison.p:.2g})"
    if comparison.p >= SIGNIFICANT:
        return f"no difference can be told {p}"
    difference = comparison.score - comparison.baseline_score
    side = "better" if difference > 0 else "worse"
    return (
        f"{comparison.system} is {side} by {abs(difference):.2f} {comparison.metric} "
        f"{p}"
    )


def of_several(
    questions: Sequence[str],
    answers: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
) -> list[Score]:
    """Score sources that occur several times against all of their references."""
    from sacrebleu import BLEU

    by_question: dict[str, dict[str, None]] = {}
    for question, reference in zip(questions, references, strict=True):
        by_question.setdefault(question, {})[reference] = None
    most = max(map(len, by_question.values()))
    if most == 1:
        return []
    answered = dict(zip(questions, answers, strict=True))
    rows = [[*found, *[None] * (most - len(found))] for found in by_question.values()]
    metric = BLEU(lowercase=lowercase, force=True)
    streams = list(zip(*rows, strict=True))
    value = metric.corpus_score(list(answered.values()), streams).score
    count = sum(len(found) for found in by_question.values())
    name, comparable = READINGS["bleu_several"]
    name = f"{name} ({len(rows):,} with {count:,}, {most} at most)"
    return [Score("bleu_several", name, value, str(metric.get_signature()), comparable)]


def _moses(language: str) -> tuple[Any, str]:
    """Return the Moses tokeniser for a language and a description of its rules.

    For an unknown language, sacremoses silently uses the English abbreviations but
    separates every apostrophe, unlike the English rules.
    """
    import sacremoses
    from sacremoses.corpus import NonbreakingPrefixes

    code = NonbreakingPrefixes().available_langs.get((language or "en").lower())
    if not language:
        rules = "English rules because no language was given"
    elif code:
        rules = f"rules of {code}"
    else:
        rules = f"English abbreviations because {language!r} has no rules"
    tokeniser = sacremoses.MosesTokenizer(code or language)
    return tokeniser, f"Moses by sacremoses {sacremoses.__version__}, {rules}"


def _corpus(
    metric: Any, answers: Sequence[str], references: Sequence[str]
) -> tuple[float, str]:
    value = metric.corpus_score(list(answers), [list(references)]).score
    return value, str(metric.get_signature())


def _check(name: str, answers: Sequence[str], references: Sequence[str]) -> None:
    if len(answers) != len(references):
        raise UserError(
            f"{len(answers)} {name} but {len(references)} references: give one line "
            "of each for every example"
        )
    if len(answers) == 0:
        raise UserError(f"0 {name} and 0 references: there is nothing to score")


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Set the seed in the environment, the only place where sacreBLEU reads it."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        os.environ.pop("SACREBLEU_SEED")
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before
