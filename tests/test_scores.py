"""Scores against sacreBLEU's own calls, hand-worked tokens and a BLEU written here."""

import collections
import logging
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys

import comparing
import pytest
import sacrebleu
import sacremoses
from sacrebleu.significance import PairedTest

from transformer_jax import config, scores
from transformer_jax.base.errors import UserError
from transformer_jax.data.text.tokenizer import Bytes
from transformer_jax.tasks import language, masked
from transformer_jax.tasks.parts import scoring as shared
from transformer_jax.tasks.protocols import Scoring

# Answers and references with their Moses tokens and, where it has any, the compounds
# split, all worked by hand from the rules of tokenizer.perl and the authors' script.
ANSWERS = {
    'Der "gut-gemeinte" Rat kostete 1.000,5 Taler & mehr.': (
        'Der " gut-gemeinte " Rat kostete 1.000,5 Taler & mehr .',
        'Der " gut ##AT##-##AT## gemeinte " Rat kostete 1.000,5 Taler & mehr .',
    ),
    "Im See-Adler-Nest lag z.B. am 3. Mai ein Ei.": (
        "Im See-Adler-Nest lag z.B. am 3. Mai ein Ei .",
        "Im See ##AT##-##AT## Adler ##AT##-##AT## Nest lag z.B. am 3. Mai ein Ei .",
    ),
    "Das ist Olgas A-B-C Buch, bzw. Heft!": (
        "Das ist Olgas A-B-C Buch , bzw. Heft !",
        "Das ist Olgas A ##AT##-##AT## B-C Buch , bzw. Heft !",
    ),
    "Wir segeln (wie immer) nach Norden...": (
        "Wir segeln ( wie immer ) nach Norden ...",
    ),
    "Die Eule sagt's dem Igel": ("Die Eule sagt ' s dem Igel",),
}
REFERENCES = {
    'Der "gut-gemeinte" Rat hat 1.000,5 Taler & mehr gekostet.': (
        'Der " gut-gemeinte " Rat hat 1.000,5 Taler & mehr gekostet .',
        'Der " gut ##AT##-##AT## gemeinte " Rat hat 1.000,5 Taler & mehr gekostet .',
    ),
    "Im See-Adler-Horst lag z.B. am 3. Mai das Ei.": (
        "Im See-Adler-Horst lag z.B. am 3. Mai das Ei .",
        "Im See ##AT##-##AT## Adler ##AT##-##AT## Horst lag z.B. am 3. Mai das Ei .",
    ),
    "Das ist Olgas a-b-c Buch, bzw. ihr Heft!": (
        "Das ist Olgas a-b-c Buch , bzw. ihr Heft !",
        "Das ist Olgas a ##AT##-##AT## b-c Buch , bzw. ihr Heft !",
    ),
    "wir segeln (wie immer) gen Norden...": (
        "wir segeln ( wie immer ) gen Norden ...",
    ),
    "Die Eule sagt's dem kleinen Igel": ("Die Eule sagt ' s dem kleinen Igel",),
}
WORDS = "Eule Igel Nest See Ufer segelt ruft klein gut-gemeint alt der die".split()


def multi_bleu(answers, references):
    """BLEU of tokens as multi-bleu.perl defines it; one reference, no smoothing."""
    right, total = [0] * 4, [0] * 4
    for answer, reference in zip(answers, references, strict=True):
        for n in range(4):
            ours, theirs = (
                collections.Counter(zip(*(t[i:] for i in range(n + 1)), strict=False))
                for t in (answer, reference)
            )
            right[n] += sum((ours & theirs).values())
            total[n] += sum(ours.values())
    c, r = (sum(map(len, side)) for side in (answers, references))
    product = math.prod(a / b for a, b in zip(right, total, strict=True))
    return 100 * min(1, math.exp(1 - r / c)) * product**0.25


def noisy(references, share, seed):
    """The references with a share of their words put wrong."""
    rng = random.Random(seed)
    return [
        " ".join("falsch" if rng.random() < share else word for word in line.split())
        for line in references
    ]


@pytest.fixture(scope="module")
def references():
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.choice((7, 11)))) for _ in range(97)]


def by_key(answers, references, language="de"):
    return {s.key: s for s in scores.panel(answers, references, language)}


def test_the_headline_is_plain_sacrebleu(references):
    answers = noisy(references, 0.2, seed=1)
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    assert scores.headline(answers, references) == {
        "bleu": bleu.corpus_score(answers, [references]).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(answers, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
    }


def test_rows_without_moses_are_direct_calls_of_sacrebleu():
    answers, references = list(ANSWERS), [list(REFERENCES)]
    rows = by_key(answers, references[0])
    values = {
        "bleu": sacrebleu.corpus_bleu(answers, references).score,
        "bleu_lc": sacrebleu.corpus_bleu(answers, references, lowercase=True).score,
        "bleu_intl": sacrebleu.corpus_bleu(answers, references, tokenize="intl").score,
        "chrf": sacrebleu.corpus_chrf(answers, references).score,
        "ter": sacrebleu.corpus_ter(answers, references).score,
    }
    assert len(set(values.values())) == len(values)
    assert {key: rows[key].value for key in values} == values


def test_compounds_are_split_as_in_the_paper_before_bleu():
    sides = [
        [tokens[-1].split() for tokens in side.values()]
        for side in (ANSWERS, REFERENCES)
    ]
    row = by_key(list(ANSWERS), list(REFERENCES))["bleu_compound"]
    assert row.value == pytest.approx(multi_bleu(*sides), abs=1e-9)


def test_tokenised_lower_cased_bleu_leaves_compounds_whole():
    sides = [
        [tokens[0].lower().split() for tokens in side.values()]
        for side in (ANSWERS, REFERENCES)
    ]
    row = by_key(list(ANSWERS), list(REFERENCES))["bleu_tok_lc"]
    assert row.value == pytest.approx(multi_bleu(*sides), abs=1e-9)


@pytest.mark.parametrize(
    "line, split",
    [
        ("ein a-b c", "ein a ##AT##-##AT## b c"),
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # b is used up as the first hyphen's right
        ("a-b-c-d", "a ##AT##-##AT## b-c ##AT##-##AT## d"),
        ("a-ü-c", "a ##AT##-##AT## ü ##AT##-##AT## c"),  # but ü is two bytes
        ("a--b", "a ##AT##-##AT## -b"),
        ("- a - b -c d-", "- a - b -c d-"),
        ("", ""),
    ],
)
def test_hyphens_are_split_as_perl_would(line, split):
    assert scores.split_compounds(line) == split
    if shutil.which("perl"):
        program = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
        ran = subprocess.run(
            ["perl", "-ple", program], input=line + "\n", capture_output=True, text=True
        )
        assert ran.stdout == split + "\n"


def test_half_a_character_is_no_reason_to_fail():
    half = "das Ei-\ud800 im Nest"  # JSON may hold one
    assert scores.split_compounds(half) == "das Ei ##AT##-##AT## \ud800 im Nest"


def test_a_half_right_compound_counts_for_its_right_half():
    answers = ["Die Eule legt das gut-gemeinte Ei"] * 3
    references = ["Die Eule legt das gut-gekochte Ei"] * 3
    rows = by_key(answers, references)
    # Right n-grams of all n-grams, n from 1 to 4: one token of 8 is wrong, or of 6.
    split = (7 * 5 * 4 * 3) / (8 * 7 * 6 * 5)
    whole = (5 * 3 * 2 * 1) / (6 * 5 * 4 * 3)
    assert rows["bleu_compound"].value == pytest.approx(100 * split**0.25)
    assert rows["bleu_tok_lc"].value == pytest.approx(100 * whole**0.25)


def test_escaping_as_the_paper_did_changes_nothing():
    def tokens(line):
        escaped = sacremoses.MosesTokenizer("de").tokenize(line, return_str=True)
        return scores.split_compounds(escaped)

    sides = [[tokens(line) for line in side] for side in (ANSWERS, REFERENCES)]
    assert "&quot;" in sides[0][0] and "&apos;" in sides[0][-1]
    escaped = sacrebleu.corpus_bleu(sides[0], sides[1:], tokenize="none", force=True)
    row = by_key(list(ANSWERS), list(REFERENCES))["bleu_compound"]
    assert row.value == pytest.approx(escaped.score, abs=1e-9)


def test_case_counts_in_the_cased_rows_alone(references):
    rows = by_key([line.lower() for line in references], references)
    for key in ("bleu", "bleu_intl", "bleu_compound", "chrf"):
        assert rows[key].value < 90
    for key in ("bleu_lc", "bleu_tok_lc"):
        assert rows[key].value == pytest.approx(100)


def test_identical_texts_score_100_in_every_row_and_need_no_edit():
    rows = by_key(list(REFERENCES), list(REFERENCES))
    assert rows.pop("ter").value == 0
    assert [*rows] == [
        *("bleu", "bleu_lc", "bleu_intl", "bleu_compound", "bleu_tok_lc", "chrf")
    ]
    assert [row.value for row in rows.values()] == pytest.approx([100] * 6)


def test_edits_per_word_count_a_moved_phrase_once():
    answer, reference = "reads a book the girl today", "the girl reads a book today"
    assert by_key([answer], [reference])["ter"].value == pytest.approx(100 / 6)


def test_every_row_says_how_it_was_made_and_what_it_compares_with(references):
    rows = by_key(references, references)
    moses = f"tok:none (Moses by sacremoses {sacremoses.__version__}, rules of de, "
    says = {
        "bleu": ["case:mixed", "tok:13a"],
        "bleu_lc": ["case:lc", "tok:13a"],
        "bleu_intl": ["case:mixed", "tok:intl"],
        "bleu_compound": ["case:mixed", moses + "compounds split)"],
        "bleu_tok_lc": ["case:lc", moses + "lower-cased after)"],
        "chrf": ["case:mixed", "nc:6"],
        "ter": ["case:lc", "tok:tercom"],
    }
    for key, parts in says.items():
        for part in [*parts, "nrefs:1", f"version:{sacrebleu.__version__}"]:
            assert f"|{part}|" in f"|{rows[key].signature}|"
    for key, figure in {
        "bleu": "28.6",
        "bleu_lc": "33.73",
        "bleu_intl": "28.33",
        "bleu_compound": "27.3 (base) and 28.4 (big)",
        "bleu_tok_lc": "41.02",
    }.items():
        assert figure in rows[key].comparable
    assert len({row.name for row in rows.values()}) == len(rows)


@pytest.mark.parametrize(
    "language, answer, reference, says",
    [
        ("en", "it 's", "it 's old bzw .", "rules of en"),
        ("english", "it 's", "it 's old bzw .", "rules of en"),
        ("", "it 's", "it 's old bzw .", "English rules because no language was given"),
        ("de", "it ' s", "it ' s old bzw.", "rules of de"),
        ("DE", "it ' s", "it ' s old bzw.", "rules of de"),
        ("fr", "it' s", "it' s old bzw .", "rules of fr"),
        (
            "xx",
            "it ' s",
            "it ' s old bzw .",
            "English abbreviations because 'xx' has no",
        ),
    ],
)
def test_moses_tokens_follow_the_language(language, answer, reference, says):
    end = " Day and night we sail on ."
    sides = [
        [(answer + end).lower().split()] * 3,
        [(reference + end).lower().split()] * 3,
    ]
    answers = ["it's Day and night we sail on."] * 3
    references = ["it's old bzw. Day and night we sail on."] * 3
    row = by_key(answers, references, language)["bleu_tok_lc"]
    assert row.value == pytest.approx(multi_bleu(*sides), abs=1e-9)
    assert says in row.signature


def test_systems_without_capitals_are_scored_in_lower_case(references):
    lowered = [line.lower() for line in references]
    assert scores.headline(lowered, references)["bleu"] < 99
    found = scores.headline(lowered, references, lowercase=True)
    assert found["bleu"] == pytest.approx(100) and found["chrf"] == pytest.approx(100)
    assert "case:lc" in found["bleu_signature"] and "case:lc" in found["chrf_signature"]
    rows = scores.panel(lowered, references, "de", lowercase=True)
    assert [row.key for row in rows] == ["bleu_lc", "bleu_tok_lc", "chrf", "ter"]
    assert all("case:lc" in row.signature for row in rows)
    assert all(row.value == pytest.approx(100) for row in rows[:-1])
    several = ["q"] * len(lowered), lowered[:1] * len(lowered), references
    assert scores.of_several(*several, lowercase=True)[0].value == pytest.approx(100)
    assert scores.of_several(*several)[0].value < 99


def test_sources_with_several_references_are_scored_once_against_all():
    questions = ["Er rennt.", "Er rennt.", "Wer ist da?", "Er rennt."]
    references = ["He runs .", "He is running now .", "Who is there ?", "He runs ."]
    answers = ["He is running now .", "He is running now .", "Who is that ?"]
    answers.append(answers[0])
    [found] = scores.of_several(questions, answers, references)
    expected = sacrebleu.BLEU().corpus_score(
        ["He is running now .", "Who is that ?"],
        [["He runs .", "Who is there ?"], ["He is running now .", None]],
    )
    assert found.value == pytest.approx(expected.score)
    assert found.value > scores.headline(answers, references)["bleu"]
    assert "2 with 3, 2 at most" in found.name and "nrefs:var" in found.signature
    assert scores.of_several(questions[1:3], answers[1:3], references[1:3]) == []


def test_only_the_headline_warns_of_text_that_looks_tokenised(caplog):
    tokenised = ["der Igel ruft die alte Eule ."] * 101
    with caplog.at_level(logging.WARNING, logger="sacrebleu"):
        scores.panel(tokenised, tokenised, "de")
        scores.compare({"a": tokenised, "b": tokenised}, tokenised, samples=2)
        assert not caplog.records
        scores.headline(tokenised, tokenised)
        assert "tokenized period" in caplog.text


@pytest.mark.parametrize("name", ["headline", "panel", "compare"])
def test_unequal_and_empty_files_are_refused_with_their_numbers(name):
    def score(answers, references):
        if name == "compare":
            return scores.compare({"a": references, "b": answers}, references)
        language = ["de"] if name == "panel" else []
        return getattr(scores, name)(answers, references, *language)

    with pytest.raises(UserError, match="7 answers.* but 11 references"):
        score(["Ei"] * 7, ["Ei"] * 11)
    with pytest.raises(UserError, match="0 answers.* but 5 references"):
        score([], ["Ei"] * 5)
    with pytest.raises(UserError, match="0 answers.* and 0 references"):
        score([], [])


def test_empty_lines_are_answers_too():
    rows = by_key(
        ["", "  ", "Die Eule ruft laut im Nest"],
        ["", "Ei", "Die Eule ruft laut im Nest"],
    )
    assert 0 < rows["bleu_compound"].value < 100
    assert by_key([""] * 3, ["Ei"] * 3)["bleu_compound"].value == 0


def test_a_clearly_better_system_is_told(references):
    systems = {"a": noisy(references, 0.3, 1), "b": noisy(references, 0.1, 2)}
    bleu, chrf = scores.compare(systems, references, samples=199)
    assert (bleu.metric, bleu.baseline, bleu.system) == ("BLEU", "a", "b")
    assert (chrf.metric, chrf.baseline, chrf.system) == ("chrF", "a", "b")
    assert bleu.p < 0.01 and chrf.p < 0.01
    gain = bleu.score - bleu.baseline_score
    assert scores.verdict(bleu) == f"b is better by {gain:.2f} BLEU (p = 0.005)"
    swapped = dict(reversed(systems.items()))
    bleu, chrf = scores.compare(swapped, references, samples=199)
    assert scores.verdict(bleu) == f"a is worse by {gain:.2f} BLEU (p = 0.005)"
    assert scores.verdict(chrf).endswith("chrF (p = 0.005)")


@pytest.mark.parametrize(
    ("scoring", "truth", "wrong", "metrics"),
    [
        (shared.LabelScoring(), ["a", "b"] * 50, "b", {"accuracy (%)", "f1 (%)"}),
        (shared.NumberScoring(), ["1", "2.5", "9", "4"] * 25, "3", {"r (%)"}),
    ],
)
def test_a_task_is_compared_by_its_own_metrics(scoring, truth, wrong, metrics):
    comparing.check(scoring, truth, wrong, metrics)


TEXTS = config.base("language")


class LossAlone(Scoring):
    """The scoring of a task without scores of its own."""

    def reference(self, record):
        return ""

    def score(self, replies, references):
        return {}

    def summary(self, scores):
        return ""


@pytest.mark.parametrize(
    ("scoring", "scores", "wanted"),
    [
        (LossAlone(), {"loss": 2.5, "x": 1}, {"loss": 2.5}),
        (masked.FillingScoring(Bytes()), {"filled": 48.5}, {"filled (%)": 48.5}),
        (
            language.TextScoring(TEXTS, language.Prompts(TEXTS, Bytes())),
            {"bits_per_character": 1.2, "loss": 3.0},
            {"bits per character": 1.2},
        ),
    ],
)
def test_seeds_are_compared_by_what_the_task_is_judged_by(scoring, scores, wanted):
    assert scoring.measures(scores) == wanted


def test_systems_without_capitals_are_compared_without_them(references):
    lower = [reference.lower() for reference in references]
    systems = {"a": lower, "b": noisy(lower, 0.3, 1)}
    bleu, chrf = scores.compare(systems, references, samples=20, lowercase=True)
    assert bleu.baseline_score == pytest.approx(100) and "case:lc" in bleu.signature
    assert chrf.baseline_score == pytest.approx(100) and "case:lc" in chrf.signature


def test_equal_and_nearly_equal_systems_cannot_be_told_apart(references):
    answers = noisy(references, 0.2, 1)
    systems = {"a": answers, "same": [*answers], "like": noisy(references, 0.2, 3)}
    same, like, same_chrf, like_chrf = scores.compare(systems, references, samples=199)
    assert [same.system, like.system] == [same_chrf.system, like_chrf.system]
    assert same.p == same_chrf.p == 1
    assert scores.verdict(same) == "no difference can be told (p = 1)"
    assert like.score != like.baseline_score and like.p >= 0.05
    assert scores.verdict(like) == f"no difference can be told (p = {like.p:.2g})"


def test_comparisons_are_those_of_sacrebleu_with_the_seed_given(
    references, monkeypatch
):
    systems = {
        name: noisy(references, share, seed)
        for name, share, seed in (("a", 0.2, 1), ("b", 0.15, 2), ("c", 0.1, 3))
    }
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    test = PairedTest(
        list(systems.items()),
        {"BLEU": sacrebleu.BLEU(), "chrF": sacrebleu.CHRF()},
        [references],
        test_type="bs",
        n_samples=101,
    )
    signatures, results = test()
    monkeypatch.setenv("SACREBLEU_SEED", "none")  # not what the caller asked for
    ours = scores.compare(systems, references, samples=101, seed=7)
    assert os.environ["SACREBLEU_SEED"] == "none"
    theirs = [
        (k, s, r.score, r.mean, r.ci, r.p_value)
        for k in ("BLEU", "chrF2")
        for s, r in zip(systems, results[k], strict=True)
        if s != "a"
    ]
    assert [
        ({"chrF": "chrF2"}.get(c.metric, c.metric), c.system)
        + (c.score, c.mean, c.interval, c.p)
        for c in ours
    ] == theirs
    for c in ours:
        key = {"chrF": "chrF2"}.get(c.metric, c.metric)
        base = results[key][0]
        assert (c.baseline_score, c.baseline_interval) == (base.score, base.ci)
        assert c.signature == str(signatures[key]) and "|bs:101|seed:7|" in c.signature
        assert {type(v) for v in vars(c).values()} == {str, float}


def test_same_seed_same_numbers_in_this_process(references, monkeypatch):
    def refuse(*_):
        raise AssertionError("a process was forked")

    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    monkeypatch.setattr(multiprocessing, "get_context", refuse)
    systems = {"a": noisy(references, 0.2, 1), "b": noisy(references, 0.18, 2)}
    first, again, other = (
        scores.compare(systems, references, samples=101, seed=s) for s in (5, 5, 11)
    )
    assert "SACREBLEU_SEED" not in os.environ
    assert first == again
    for a, b in zip(first, other, strict=True):
        assert (a.score, a.baseline_score) == (b.score, b.baseline_score)
        assert a.mean != b.mean and a.baseline_interval != b.baseline_interval


def test_comparisons_that_mean_nothing_are_refused():
    answers = ["die Eule ruft"] * 3
    with pytest.raises(UserError, match="two systems or more, not 1"):
        scores.compare({"a": answers}, answers)
    systems = {"a": answers, "b": answers}
    # sacreBLEU would draw a seed of its own for 0, and a thousand samples for 0.
    with pytest.raises(UserError, match="seed=0"):
        scores.compare(systems, answers, seed=0)
    with pytest.raises(UserError, match="samples=0"):
        scores.compare(systems, answers, samples=0)


@pytest.mark.system
def test_importing_it_is_cheap():
    program = (
        "import sys, transformer_jax.scores\n"
        "print({'jax', 'sacrebleu', 'sacremoses', 'numpy'} & {*sys.modules})"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert ran.stdout == "set()\n", ran.stderr
