"""Constituency parsing: a sentence in, its tree out (section 6.3).

The tree is written as a line of brackets, and learnt as a translation. Between them
stand the words (`data.leaves`), which must be copied, or the one symbol XX for each,
which must be counted. What is written may be no tree: it is repaired, so that every
sentence has one over its own words, and how often that was needed is told beside the
score.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.data import trees
from transformer_jax.data.generated import treebank
from transformer_jax.data.records import Reading
from transformer_jax.data.sources import (
    FIELDS,
    FORMS,
    GeneratedSource,
    Source,
    add_keys,
)
from transformer_jax.data.tokenizer import SPACE
from transformer_jax.decoding import Options
from transformer_jax.decoding.constraints import ROOT, Pairs
from transformer_jax.decoding.engine import DecodeRequest, longest_answer
from transformer_jax.errors import Refused, UserError
from transformer_jax.tasks import translation

COMPACT = ("unigram", "bpe")  # vocabularies that are told what brackets there are


@dataclasses.dataclass(frozen=True)
class Answer(translation.Answer):
    """A bracketed tree, and what had to be repaired to make it one."""

    repairs: tuple[str, ...] = ()


class Task(translation.Task):
    """Sentences, words apart, and linearised trees; two vocabularies."""

    METRICS = ("f1", "exact", "well_formed")
    IN_PARTS = False
    WORDS_APART = True
    CHOICES = {
        "data.source": ("treebank", "trees", *FORMS),
        "data.leaves": ("XX", "words"),
    }

    @classmethod
    def configure(cls, config: ConfigDict) -> None:
        add_keys(config.data, "treebank", FIELDS)
        config.data.leaves = "XX"  # what a word is in the trees that are learnt | words
        config.tokenizer.shared = False
        config.model.tie = "decoder"
        config.checkpoint.best = "f1"
        config.decode.well_formed = True  # search among trees over the words alone

    @classmethod
    def find_problems(cls, config: ConfigDict) -> list[str]:
        problems = super().find_problems(config)
        settings, words = config.tokenizer, config.data.leaves != trees.WORD
        if config.decode.well_formed and settings.kind not in ("word", *COMPACT):
            problems.append(
                f"decode.well_formed needs brackets that are one piece each, and "
                f"tokenizer.kind {settings.kind!r} has none: use word, bpe or unigram, "
                "or False"
            )
        if words and not (settings.shared and settings.kind in COMPACT):
            problems.append(
                f"data.leaves = {config.data.leaves!r}: words of trees and those of "
                "sentences share pieces: set tokenizer.shared=True and tokenizer.kind "
                f"bpe or unigram, not {settings.kind}"
            )
        if words and config.data.train_tags:
            problems.append("data.leaves: a tag is no word of the tree: use XX")
        if settings.lowercase:
            problems.append("tokenizer.lowercase: the labels of trees have capitals")
        return problems

    @classmethod
    def source(cls, config: ConfigDict) -> Source:
        about = ("treebank", treebank.VERSION, treebank.SPLITS, treebank.generate)
        readings = {"trees": Reading(_read_tree)}
        return Source(config.data, embedded=GeneratedSource(*about), readings=readings)

    @functools.cached_property
    def fingerprint(self) -> str:
        form = (self._leaves != trees.WORD) * "-words" + self._compact * "-compact"
        return super().fingerprint + form

    @property
    def _leaves(self) -> str:
        return self.config.data.leaves

    @classmethod
    def symbols(cls, config: ConfigDict, records: Any) -> dict[str, list[str]]:
        """All brackets, where words may fall apart."""
        brackets: set[str] = set()
        if config.tokenizer.kind in COMPACT:
            for record in records:
                brackets |= {t for t in record["target"].split() if t[0] in "()"}
        return {**super().symbols(config, records), "target": sorted(brackets)}

    @functools.cached_property
    def _brackets(self) -> dict[str, int]:
        """The pieces that are a whole bracket, each with its label."""
        vocabulary = range(self.target_tokenizer.vocab_size)
        pieces = enumerate(self.target_tokenizer.pieces(vocabulary))
        return {p: i for i, p in pieces if re.fullmatch(f"{SPACE}?[()]\\w\\S*", p)}

    @functools.cached_property
    def pairs(self) -> Pairs:
        """The pieces that open and close a phrase of each label."""
        closers = {p: p.replace("(", ")") for p in self._brackets if "(" in p}
        return tuple(
            (self._brackets[a], self._brackets[b])
            for a, b in closers.items()
            if b in self._brackets
        )

    @functools.cached_property
    def _compact(self) -> bool:
        """Whether brackets are pieces by themselves, not words with their space."""
        return any(piece[0] in "()" for piece in self._brackets)

    def texts(self, record: dict[str, str]) -> dict[str, str]:
        """The record with its tree as it is to be written; a bracketed one, too."""
        tree = record["target"]
        if re.search(r"\)(?=[\s)]|$)", tree):  # a bracket that closes names no label
            tree = " ".join(map(trees.linearise, trees.read(tree)))
        if self._leaves != trees.WORD and trees.WORD in tree.split():
            tree = trees.with_words(tree, record["source"].split())
        return record | {"target": trees.compact(tree) if self._compact else tree}

    def _linearised(self, written: str) -> str:
        """What was written, as trees are linearised."""
        # What is unknown is written with spaces around it, inside of a word, too.
        tree = trees.spaced(written.replace(" ⁇ ", "⁇")) if self._compact else written
        return tree if self._leaves == trees.WORD else trees.without_words(tree)

    def reference(self, record: dict[str, str]) -> str:
        tree, repairs = _bracketed(record["target"], record["source"])
        if repairs:
            raise UserError(
                f"{record['target'][:80]!r} is no tree of {record['source'][:80]!r} "
                f"({'; '.join(repairs)}): trees are written without their words, as "
                "'(S (NP XX )NP )S'; bracketed ones with words are read by data.source="
                "trees"
            )
        return tree

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        prefix = trees.compact(prefix) if self._compact else prefix
        asked = super().parse(line, max_length, prefix, number, options)
        options = options or Options(**self.config.decode)
        asked = dataclasses.replace(asked, text=line)
        if not (asked.source and options.well_formed and self.pairs):
            return asked
        if asked.prefix:
            raise Refused("a tree begins with no prefix (decode.well_formed)")
        outline, begins = self._outline(line.split())
        if len(outline) + ROOT > longest_answer(asked, options):
            return asked  # no tree fits: what is written is repaired, and counted
        return dataclasses.replace(asked, outline=outline, begins=begins)

    def _outline(self, words: list[str]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """What stands between the brackets, and where a bracket may stand before it."""
        tokenizer = self.target_tokenizer
        [bracket] = tokenizer.pieces(self.pairs[0][:1])
        # A tree may be read as if a space stood before its first bracket.
        lead = tokenizer.encode(bracket.removeprefix(SPACE))[:-1]
        outline, begins = list(lead), [False] * len(lead)
        tree = " ".join([trees.WORD] * len(words))
        if self._leaves != trees.WORD:
            tree = trees.with_words(tree, words)
        for leaf in tree.split():
            ids = tokenizer.encode_inside(f" {leaf}")
            outline += ids
            begins += [True] + [False] * (len(ids) - 1)
        return tuple(outline), tuple(begins)

    def answers(
        self, params: Any, items: Sequence[DecodeRequest], mesh: Any, options: Options
    ) -> Iterator[tuple[int, Answer]]:
        for number, answer in super().answers(params, items, mesh, options):
            yield number, _restore(answer, items[number].text, self._linearised)

    def details(self, answer: Answer) -> dict[str, Any]:
        return {**super().details(answer), "repairs": list(answer.repairs)}

    def score(self, replies: Sequence[Any], references: Sequence[str]) -> dict:
        whole = sum(not reply.answer.repairs for reply in replies)
        scores = self.score_texts([reply.text for reply in replies], references)
        return scores | {"well_formed": 100 * whole / max(len(replies), 1)}

    def score_texts(self, answers: Sequence[str], references: Sequence[str]) -> dict:
        """Labelled brackets by EVALB's rules, in percent."""
        guesses, golds = (trees.read("\n".join(s)) for s in (answers, references))
        found = trees.evaluate(golds, guesses)
        names = ("precision", "recall", "f1", "exact")
        return {name: getattr(found, name) for name in names}

    def summary(self, scores: dict[str, Any]) -> str:
        return (
            f"F1 = {scores['f1']:.2f}  (precision {scores['precision']:.2f}, recall "
            f"{scores['recall']:.2f})  exact {scores['exact']:.1f}%  well-formed "
            f"{scores['well_formed']:.1f}%"
        )

    def panel(self, answers: Sequence[str], records: Any) -> list:
        return []  # there is one way to count brackets


def _read_tree(line: str) -> list[dict[str, str]]:
    """A bracketed tree a line, as the Penn Treebank's; one of traces has no words."""
    found = [trees.clean(tree) for tree in trees.read(line)]
    return [
        {"source": " ".join(trees.words(tree)), "target": trees.linearise(tree)}
        for tree in found
        if tree is not None
    ]


def _restore(
    answer: translation.Answer,
    sentence: str,
    linearised: Callable[[str], str] = str,
) -> Answer:
    if not sentence.strip():
        return Answer("", 0.0)
    text, repairs = _bracketed(linearised(answer.text), sentence)
    others = tuple(_restore(other, sentence, linearised) for other in answer.others)
    return Answer(text, answer.score, others, repairs)


def _bracketed(linearised: str, sentence: str) -> tuple[str, tuple[str, ...]]:
    tree, problems = trees.restore(linearised.split(), sentence.split())
    return str(tree), tuple(f"{what}: {n}" for what, n in sorted(problems.items()))
