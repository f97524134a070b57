"""Constituency parsing: a sentence in, its tree out (section 6.3).

The tree is written as a line of brackets and learned as a translation. Between the
brackets are the words (`data.leaves`), which the model must copy, or one symbol XX per
word, which it must count. The search can be constrained to trees over the sentence's
words (`decode.well_formed`). Without the constraint, answers are repaired so that every
sentence gets a tree over its own words; the scores include the share of answers that
needed no repair.
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
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.schema import option
from transformer_jax.data import substitution
from transformer_jax.data.reading import sources, trees
from transformer_jax.data.reading.records import Reading
from transformer_jax.data.reading.sources import FIELDS, Source, find_generated
from transformer_jax.data.text.tokenizer import SPACE, Tokenizer
from transformer_jax.decoding import DecodeRequest, Reply
from transformer_jax.decoding.engine import longest_answer
from transformer_jax.decoding.searches.constraints import ROOT, TreeConstraint
from transformer_jax.tasks.parts import seq2seq
from transformer_jax.tasks.parts.pairs import (
    PairData,
    learn_tokenizers,
    open_tokenizers,
)
from transformer_jax.tasks.parts.scoring import ResampledScoring, group_by_tag, texts_of
from transformer_jax.tasks.parts.writing import Seq2SeqInference
from transformer_jax.tasks.protocols import (
    Pairs,
    Record,
    Task,
    TaskDefinition,
)

COMPACT = ("unigram", "bpe")  # kinds of tokenizer that get brackets as pieces


@dataclasses.dataclass(frozen=True)
class Options(decoding.Options):
    """Set the search for a tree."""

    well_formed: bool = option(
        True, "Parsing: search only trees over the line's words."
    )

    def find_problems(self) -> list[str]:
        """List values that are out of bounds or contradict each other."""
        problems = super().find_problems()
        if self.well_formed and (self.no_repeat or self.min_length):
            problems.append(
                f"decode.well_formed: a tree over given words obeys neither no_repeat "
                f"{self.no_repeat} nor min_length {self.min_length}: set these to 0, "
                "or decode.well_formed to False"
            )
        return problems


@dataclasses.dataclass(frozen=True)
class TreeOptions:
    """Set the form of trees: options of `config.data`."""

    leaves: str = option(
        "XX",
        "Leaves of the trees that are learned: one symbol, or the words.",
        choices=(trees.WORD, "words"),
    )


def check(config: ConfigDict) -> list[str]:
    """List the problems in the options of treebanks."""
    problems = []
    settings, words = config.tokenizer, config.data.leaves != trees.WORD
    if config.decode.well_formed and settings.kind not in ("word", *COMPACT):
        problems.append(
            f"decode.well_formed needs brackets that are one piece each, and "
            f"tokenizer.kind {settings.kind!r} has none: use word, bpe or unigram, "
            "or decode.well_formed = False"
        )
    if words and not (settings.shared and settings.kind in COMPACT):
        problems.append(
            f"data.leaves = {config.data.leaves!r}: trees and sentences must share "
            "the pieces of words: set tokenizer.shared=True and tokenizer.kind "
            f"bpe or unigram, not {settings.kind}"
        )
    if words and config.data.train_tags:
        problems.append(
            "data.leaves = 'words' with data.train_tags: a tag is not a word of the "
            "tree, use XX"
        )
    problems += substitution.find_problems(config.data)
    if settings.lowercase:
        problems.append("tokenizer.lowercase: the labels of trees have capitals")
    return problems


def source(config: ConfigDict) -> Source:
    """Read the generated treebank, or files of trees."""
    generated = find_generated("parsing", config.data)
    more = substitution.adder(config.data, _as_record)
    readings = {"trees": Reading(_read_tree, more=more)}
    return Source(config.data, FIELDS, generated, readings)


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the tokenizers that a run has learned."""
    source, target = open_tokenizers(config, folder)
    form = TreeForm(config.data.leaves, target)
    data = PairData(
        config,
        source,
        target,
        Options,
        transform=form.write,
        transform_name=form.name,
    )
    inference = functools.partial(TreeInference, form=form)
    constraint = TreeConstraint(form.pairs) if form.pairs else None
    return seq2seq.compose(data, inference, TreeScoring(), constraint)


class TreeForm:
    """Convert trees to the form that a model learns, and back."""

    def __init__(self, leaves: str, tokenizer: Tokenizer):
        """Find the pieces of the vocabulary that are brackets.

        `leaves` is `config.data.leaves`: the words, or one symbol in their place.
        """
        self.leaves, self.tokenizer = leaves, tokenizer
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        # The pieces that are a complete bracket with its label.
        brackets = {
            piece: i
            for i, piece in enumerate(pieces)
            if re.fullmatch(f"{SPACE}?[()]\\w\\S*", piece)
        }
        # Whether brackets are separate pieces, without a space before them.
        self.compact = any(piece[0] in "()" for piece in brackets)
        closers = {p: p.replace("(", ")") for p in brackets if "(" in p}
        self.pairs = tuple(
            (brackets[a], brackets[b]) for a, b in closers.items() if b in brackets
        )
        words = (leaves != trees.WORD) * "-words"
        self.name = words + self.compact * "-compact"

    def write(self, record: Record) -> dict[str, Any]:
        """Return a record with its tree, linearised or bracketed, in learned form."""
        tree = record["target"]
        if re.search(r"\)(?=[\s)]|$)", tree):  # a closing bracket without a label
            tree = " ".join(map(trees.linearise, trees.read(tree)))
        if self.leaves != trees.WORD and trees.WORD in tree.split():
            tree = trees.with_words(tree, record["source"].split())
        return {**record, "target": trees.compact(tree) if self.compact else tree}

    def linearise(self, written: str) -> str:
        """Convert a tree in learned form to its linearised form, without words."""
        # An unknown piece is decoded with spaces around it, even inside a word.
        tree = trees.spaced(written.replace(" ⁇ ", "⁇")) if self.compact else written
        return tree if self.leaves == trees.WORD else trees.without_words(tree)

    def outline(self, words: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the arrays of a `TreeConstraint` over these words."""
        [bracket] = self.tokenizer.pieces(self.pairs[0][:1])
        # The tokenizer may insert a space before the first bracket of a tree.
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

    def nest(self, text: str) -> Any:
        """Return a tree as [label, children…], with words as strings."""

        def nest(node: Any) -> Any:
            if isinstance(node, str):
                return node
            return [node.label, *map(nest, node.children)]

        found = trees.read(text)
        return nest(found[0]) if found else None

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        draw_seed: int = 0,
        options: decoding.Options | None = None,
    ) -> DecodeRequest:
        """Encode a sentence, and with `well_formed` the outline of its trees."""
        form, options = self.form, options or self.data.options
        prefix = trees.compact(prefix) if form.compact else prefix
        request = super().parse(line, max_length, prefix, draw_seed, options)
        well_formed = getattr(options, "well_formed", False)
        if not (request.source and well_formed and form.pairs):
            return request
        if request.prefix:
            raise Refused("a tree takes no prefix with decode.well_formed")
        arrays = form.outline(line.split())
        if len(arrays["outline"]) + ROOT > longest_answer(request, options):
            return request  # no tree fits, so the answer is repaired and counted
        return dataclasses.replace(request, constraint=arrays)

    def answers(self, *arguments: Any) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its tree, repaired if necessary)."""
        for number, reply in super().answers(*arguments):
            yield number, restore(reply, self.form.linearise)


class TreeScoring(ResampledScoring):
    """Scores of labelled brackets by the rules of EVALB."""

    def reference(self, record: Record) -> str:
        """Return the bracketed tree of an example, including its words."""
        tree, repairs = _bracketed(record["target"], record["source"])
        if repairs:
            raise UserError(
                f"{record['target'][:80]!r} is not a tree of "
                f"{record['source'][:80]!r} ({'; '.join(repairs)}): write trees "
                "without their words, as '(S (NP XX )NP )S', or use data.source=trees "
                "for bracketed trees with words"
            )
        return tree

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score trees, in percent; `well_formed` is the share without repairs."""
        guesses = trees.read("\n".join(texts_of(replies)))
        found = trees.evaluate(trees.read("\n".join(references)), guesses)
        names = ("precision", "recall", "f1", "exact")
        intact = sum(not reply.details.get("repairs") for reply in replies)
        share = 100 * intact / max(len(replies), 1)
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
        """Format the scores."""
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
    """Repair the text of a reply to a tree over the words of its line."""
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
    """Return all brackets of the targets, if the tokenizer splits words."""
    if config.tokenizer.kind not in COMPACT:
        return []
    found = (t for record in records for t in record["target"].split())
    return sorted({token for token in found if token[0] in "()"})


def _read_tree(line: str) -> list[dict[str, str]]:
    """Read a line of bracketed trees in the format of the Penn Treebank.

    A tree that consists only of traces has no words and is left out.
    """
    found = [trees.clean(tree) for tree in trees.read(line)]
    return [_as_record(tree) for tree in found if tree is not None]


def _as_record(tree: trees.Tree) -> dict[str, str]:
    return {"source": " ".join(trees.words(tree)), "target": trees.linearise(tree)}


TASK = TaskDefinition(
    defaults={
        "tokenizer.shared": False,
        "model.tie": "decoder",
        "checkpoint.best": "f1",
    },
    source=source,
    check=check,
    # Each bracket is one piece, even if words are not.
    learn=functools.partial(learn_tokenizers, target_symbols=_brackets_of),
    open=open_run,
    open_empty=functools.partial(seq2seq.open_empty, options=Options),
    metrics=("f1", "exact", "well_formed"),
    options={
        "data": (
            sources.declare(FIELDS, "treebank", "trees", task="parsing"),
            TreeOptions,
            substitution.SubstitutionOptions,
        )
    },
    search=Options,
    pairs=Pairs(words_apart=True),
)
