"""Constituency parsing: a sentence in, its tree out (section 6.3).

The tree is written as a line of brackets, and learned as a translation. Between the
brackets stand the words (`data.leaves`), which must be copied, or one symbol XX for
each, which must be counted. The search can be constrained to trees over the sentence's
words (`decode.well_formed`). What is written without that is repaired, so that every
sentence has a tree over its own words; how often that was needed stands beside the
score.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import decoding
from transformer_jax.data import sources, trees
from transformer_jax.data.generated import treebank
from transformer_jax.data.records import Reading
from transformer_jax.data.sources import FIELDS, GeneratedSource, Source
from transformer_jax.data.tokenizer import SPACE, Tokenizer
from transformer_jax.decoding import DecodeRequest, Reply
from transformer_jax.decoding.constraints import ROOT, TreeConstraint
from transformer_jax.decoding.engine import longest_answer
from transformer_jax.errors import Refused, UserError
from transformer_jax.keys import key
from transformer_jax.tasks.parts import seq2seq
from transformer_jax.tasks.parts.pairs import (
    PairData,
    learn_tokenizers,
    open_tokenizers,
)
from transformer_jax.tasks.parts.scoring import ResampledScoring, group_by_tag, texts_of
from transformer_jax.tasks.parts.writing import Seq2SeqInference
from transformer_jax.tasks.protocols import (
    DataSource,
    Pairs,
    Record,
    Say,
    Task,
    TaskDefinition,
)

COMPACT = ("unigram", "bpe")  # kinds of tokenizer that are told the brackets


@dataclasses.dataclass(frozen=True)
class Options(decoding.Options):
    """Set how to search for a tree."""

    well_formed: bool = key(True, "Parsing: search among trees over the words alone.")

    def find_problems(self) -> list[str]:
        """List the values that are out of bounds or contradict each other."""
        problems = super().find_problems()
        if self.well_formed and (self.no_repeat or self.min_length):
            problems.append(
                f"decode.well_formed: a tree over given words obeys neither no_repeat "
                f"{self.no_repeat} nor min_length {self.min_length}: use 0, or False"
            )
        return problems


@dataclasses.dataclass(frozen=True)
class TreeKeys:
    """Write trees: keys of `config.data`."""

    leaves: str = key(
        "XX",
        "What a word is in the trees that are learned: a symbol, or itself.",
        choices=(trees.WORD, "words"),
    )


def configure(config: ConfigDict) -> None:
    """Give brackets a vocabulary of their own."""
    config.tokenizer.shared = False
    config.model.tie = "decoder"
    config.checkpoint.best = "f1"


def check(config: ConfigDict) -> list[str]:
    """List what cannot work in the keys of treebanks."""
    problems = []
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


def source(config: ConfigDict) -> Source:
    """Read the generated treebank, or files of trees."""
    about = ("treebank", treebank.VERSION, treebank.SPLITS, treebank.generate)
    readings = {"trees": Reading(_read_tree)}
    return Source(config.data, embedded=GeneratedSource(*about), readings=readings)


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Learn the tokenizers; all brackets are one piece each, where words are not."""
    learn_tokenizers(config, source, folder, say, _brackets_of)


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the tokenizers that a run has learned."""
    source, target = open_tokenizers(config, folder)
    form = TreeForm(config.data.leaves, target)
    data = PairData(config, source, target, Options, form.prepare, form.name)
    inference = functools.partial(TreeInference, form=form)
    constraint = TreeConstraint(form.pairs) if form.pairs else None
    return seq2seq.compose(data, inference, TreeScoring(), constraint)


class TreeForm:
    """Write trees as a vocabulary can learn them, and read them again."""

    def __init__(self, leaves: str, tokenizer: Tokenizer):
        self.leaves, self.tokenizer = leaves, tokenizer
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        # The pieces that are a whole bracket, each with its label.
        brackets = {
            piece: i
            for i, piece in enumerate(pieces)
            if re.fullmatch(f"{SPACE}?[()]\\w\\S*", piece)
        }
        # Whether brackets are pieces by themselves, not words with their space.
        self.compact = any(piece[0] in "()" for piece in brackets)
        closers = {p: p.replace("(", ")") for p in brackets if "(" in p}
        self.pairs = tuple(
            (brackets[a], brackets[b]) for a, b in closers.items() if b in brackets
        )
        words = (leaves != trees.WORD) * "-words"
        self.name = words + self.compact * "-compact"

    def prepare(self, record: Record) -> dict[str, Any]:
        """Return a record with its tree, linearised or bracketed, as it is learned."""
        tree = record["target"]
        if re.search(r"\)(?=[\s)]|$)", tree):  # a closing bracket without a label
            tree = " ".join(map(trees.linearise, trees.read(tree)))
        if self.leaves != trees.WORD and trees.WORD in tree.split():
            tree = trees.with_words(tree, record["source"].split())
        return {**record, "target": trees.compact(tree) if self.compact else tree}

    def linearise(self, written: str) -> str:
        """Return what was written as trees are linearised, without words."""
        # An unknown piece is written with spaces around it, inside of a word, too.
        tree = trees.spaced(written.replace(" ⁇ ", "⁇")) if self.compact else written
        return tree if self.leaves == trees.WORD else trees.without_words(tree)

    def outline(self, words: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the arrays of a `TreeConstraint` over these words."""
        [bracket] = self.tokenizer.pieces(self.pairs[0][:1])
        # A tree may be read as if a space stood before its first bracket.
        lead = self.tokenizer.encode(bracket.removeprefix(SPACE))[:-1]
        outline, begins = list(lead), [False] * len(lead)
        tree = " ".join([trees.WORD] * len(words))
        if self.leaves != trees.WORD:
            tree = trees.with_words(tree, words)
        for leaf in tree.split():
            ids = self.tokenizer.encode_inside(f" {leaf}")
            outline += ids
            begins += [True] + [False] * (len(ids) - 1)
        return {"outline": np.array(outline, np.int32), "begins": np.array(begins)}


class TreeInference(Seq2SeqInference):
    """A sentence in, its tree out."""

    def __init__(self, *parts: Any, form: TreeForm):
        super().__init__(*parts)
        self.form = form

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        number: int = 0,
        options: decoding.Options | None = None,
    ) -> DecodeRequest:
        """Encode a sentence, with the outline of its trees if only they are wanted."""
        form, options = self.form, options or self.data.options
        prefix = trees.compact(prefix) if form.compact else prefix
        request = super().parse(line, max_length, prefix, number, options)
        well_formed = getattr(options, "well_formed", False)
        if not (request.source and well_formed and form.pairs):
            return request
        if request.prefix:
            raise Refused("a tree begins with no prefix (decode.well_formed)")
        arrays = form.outline(line.split())
        if len(arrays["outline"]) + ROOT > longest_answer(request, options):
            return request  # no tree fits: what is written is repaired, and counted
        return dataclasses.replace(request, constraint=arrays)

    def answers(self, *arguments: Any) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, the tree written to it), repaired if need be."""
        for number, reply in super().answers(*arguments):
            yield number, restore(reply, self.form.linearise)


class TreeScoring(ResampledScoring):
    """Labelled brackets by EVALB's rules."""

    def reference(self, record: Record) -> str:
        """Return the bracketed tree of an example, its words included."""
        tree, repairs = _bracketed(record["target"], record["source"])
        if repairs:
            raise UserError(
                f"{record['target'][:80]!r} is no tree of {record['source'][:80]!r} "
                f"({'; '.join(repairs)}): trees are written without their words, as "
                "'(S (NP XX )NP )S'; bracketed ones with words are read by data.source="
                "trees"
            )
        return tree

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score trees, in percent; `well_formed` is the share without a repair."""
        guesses = trees.read("\n".join(texts_of(replies)))
        found = trees.evaluate(trees.read("\n".join(references)), guesses)
        names = ("precision", "recall", "f1", "exact")
        whole = sum(not reply.details.get("repairs") for reply in replies)
        share = 100 * whole / max(len(replies), 1)
        return {name: getattr(found, name) for name in names} | {"well_formed": share}

    def measure(
        self, answers: Sequence[str], references: Sequence[str]
    ) -> Sequence[Any]:
        """Count the brackets of each tree."""
        golds, guesses = (trees.read("\n".join(x)) for x in (references, answers))
        return trees.count(golds, guesses)

    def judge(self, measured: Sequence[Any]) -> dict[str, float]:
        """Return F1 and the share of exact trees, in percent."""
        found = trees.add_up(measured)
        return {"F1": found.f1, "exact (%)": found.exact}

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Put the scores into words."""
        return (
            f"F1 = {scores['f1']:.2f}  (precision {scores['precision']:.2f}, recall "
            f"{scores['recall']:.2f})  exact {scores['exact']:.1f}%  well-formed "
            f"{scores['well_formed']:.1f}%"
        )

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return F1 and the shares of exact and of well-formed trees, in percent."""
        return {
            "F1": scores["f1"],
            "exact (%)": scores["exact"],
            "well-formed (%)": scores["well_formed"],
        }

    def groups(self, records: Sequence[Record]) -> dict[str, list[int]]:
        """Group examples by their direction tag, if there are several."""
        return group_by_tag(records)


def restore(reply: Reply, linearise: Any = str) -> Reply:
    """Make a tree over the words of the line of what was written."""
    if not reply.line.strip():
        return dataclasses.replace(reply, details={**reply.details, "repairs": []})
    text, repairs = _bracketed(linearise(reply.text), reply.line)
    others = tuple(restore(other, linearise) for other in reply.others)
    details = dict(reply.details)
    if others:
        details["others"] = [{"output": o.text, "score": o.score} for o in others]
    details["repairs"] = list(repairs)
    return dataclasses.replace(reply, text=text, others=others, details=details)


def _bracketed(linearised: str, sentence: str) -> tuple[str, tuple[str, ...]]:
    tree, problems = trees.restore(linearised.split(), sentence.split())
    return str(tree), tuple(f"{what}: {n}" for what, n in sorted(problems.items()))


def _brackets_of(config: ConfigDict, records: Sequence[Record]) -> list[str]:
    """Return all brackets of the targets, where words may fall apart."""
    if config.tokenizer.kind not in COMPACT:
        return []
    found = (t for record in records for t in record["target"].split())
    return sorted({token for token in found if token[0] in "()"})


def _read_tree(line: str) -> list[dict[str, str]]:
    """Read a line of bracketed trees, as the Penn Treebank's.

    A tree of nothing but traces has no words, and is left out.
    """
    found = [trees.clean(tree) for tree in trees.read(line)]
    return [
        {"source": " ".join(trees.words(tree)), "target": trees.linearise(tree)}
        for tree in found
        if tree is not None
    ]


TASK = TaskDefinition(
    configure=configure,
    source=source,
    check=check,
    learn=learn,
    open=open_run,
    metrics=("f1", "exact", "well_formed"),
    keys={"data": (sources.declare(FIELDS, "treebank", "trees"), TreeKeys)},
    options=Options,
    pairs=Pairs(words_apart=True),
)
