"""Constituency parsing: a sentence in, its tree out (section 6.3).

The tree is written as a line of brackets, and learnt as a translation. Between them
stand the words (`data.leaves`), which must be copied, or the one symbol XX for each,
which must be counted. What is written may be no tree: it is repaired, so that every
sentence has one over its own words, and how often that was needed is told beside the
score.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import add_text
from transformer_jax.data import treebank, trees
from transformer_jax.data.records import Reading
from transformer_jax.data.sources import FIELDS, FORMS, Embedded, Source
from transformer_jax.decoding import Options
from transformer_jax.decoding.engine import Asked
from transformer_jax.errors import UserError
from transformer_jax.tasks import translation


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
        add_text(config.data, "treebank", FIELDS)
        config.data.leaves = "XX"  # what a word is in the trees that are learnt | words
        config.tokenizer.shared = False
        config.model.tie = "decoder"
        config.checkpoint.best = "f1"

    @classmethod
    def source(cls, config: ConfigDict) -> Source:
        about = ("treebank", treebank.VERSION, treebank.SPLITS, treebank.generate)
        readings = {"trees": Reading(_read_tree)}
        return Source(config.data, embedded=Embedded(*about), readings=readings)

    @functools.cached_property
    def fingerprint(self) -> str:
        return super().fingerprint + (self._leaves != trees.WORD) * "-words"

    @property
    def _leaves(self) -> str:
        return self.config.data.leaves

    def texts(self, record: dict[str, str]) -> dict[str, str]:
        """The record with the words in its tree, if they are to be there."""
        if self._leaves == trees.WORD:
            return record
        words = record["source"].split()
        return record | {"target": trees.with_words(record["target"], words)}

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

    def parse(self, line: str, *how: Any, **options: Any) -> Asked:
        return dataclasses.replace(super().parse(line, *how, **options), text=line)

    def answers(
        self, params: Any, items: Sequence[Asked], mesh: Any, options: Options
    ) -> Iterator[tuple[int, Answer]]:
        for number, answer in super().answers(params, items, mesh, options):
            yield number, _restore(answer, items[number].text, self._leaves)

    def details(self, answer: Answer) -> dict[str, Any]:
        return {**super().details(answer), "repairs": list(answer.repairs)}

    def judge(self, replies: Sequence[Any], references: Sequence[str]) -> dict:
        whole = sum(not reply.answer.repairs for reply in replies)
        scores = self.score([reply.text for reply in replies], references)
        return scores | {"well_formed": 100 * whole / max(len(replies), 1)}

    def score(self, answers: Sequence[str], references: Sequence[str]) -> dict:
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
    answer: translation.Answer, sentence: str, leaves: str = trees.WORD
) -> Answer:
    if not sentence.strip():
        return Answer("", 0.0)
    plain = leaves == trees.WORD
    linearised = answer.text if plain else trees.without_words(answer.text)
    text, repairs = _bracketed(linearised, sentence)
    others = tuple(_restore(other, sentence, leaves) for other in answer.others)
    return Answer(text, answer.score, others, repairs)


def _bracketed(linearised: str, sentence: str) -> tuple[str, tuple[str, ...]]:
    tree, problems = trees.restore(linearised.split(), sentence.split())
    return str(tree), tuple(f"{what}: {n}" for what, n in sorted(problems.items()))
