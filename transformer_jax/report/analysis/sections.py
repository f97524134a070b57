"""The parts of an analysis: scores of groups, counts of faults, and examples."""

import bisect
import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from transformer_jax.report.analysis import faults
from transformer_jax.report.analysis.training_text import TrainingText
from transformer_jax.report.analysis.words import Span, mark, tokens, words

LENGTHS = (1, 6, 11, 16, 21, 31, 51)  # the least number of words of each group
COUNTS = (0, 1, 2, 5, 10, 100, 1000)  # the same of occurrences in training
MOST = 20  # examples of a part on the page
FEW_BLEU = "BLEU of a few sentences says little; chrF says more."


@dataclasses.dataclass(frozen=True)
class Example:
    """A sentence to show: a heading, then labelled lines."""

    heading: str
    lines: list[tuple[str, list[Span]]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of an analysis: its rule in words, a table with its heading, examples."""

    title: str
    rule: str
    table: Sequence[Sequence[str]] = ()
    examples: Sequence[Example] = ()


@dataclasses.dataclass(frozen=True)
class System:
    """A system's name and answers, each with its chrF and what is wrong with it."""

    name: str
    sentences: Sequence[faults.Sentence]

    @property
    def answers(self) -> list[str]:
        """Return the answers alone."""
        return [one.answer for one in self.sentences]


class Sections:
    """Make the parts of an analysis of one system, or of two."""

    def __init__(
        self,
        systems: Sequence[System],
        rules: Sequence[faults.Rule],
        training: TrainingText | None,
        lowercase: bool = False,
    ):
        """`lowercase` ignores case, for systems that write no capitals."""
        self.systems, self.training, self.lowercase = systems, training, lowercase
        self.rules = rules
        self.sentences = systems[0].sentences
        self.references = [one.reference for one in self.sentences]

    def make(self, tags: Mapping[str, Sequence[int]]) -> list[Section]:
        """Return all parts; `tags` has the numbers of each tag's sentences."""
        parts = [
            *self.by_group(tags),
            *self.by_word(),
            *self.of_faults(),
            self.worst(),
            *self.apart(),
        ]
        return [part for part in parts if part.table or part.examples]

    def _heading(self, *columns: str) -> list[str]:
        """Head columns, each once for each system; of two, with A or B."""
        letters = "AB" if len(self.systems) > 1 else [""]
        return [f"{c} {letter}".rstrip() for letter in letters for c in columns]

    def by_group(self, tags: Mapping[str, Sequence[int]]) -> list[Section]:
        """Score groups of sentences: by tag, by length, by the rarest word."""
        sources = [words(one.source) for one in self.sentences]
        by_length = _groups([len(source) for source in sources], LENGTHS)
        parts = [
            ("by tag", "The direction tag of the source. ", "tag", tags),
            ("by length", "Words of the source. ", "words", by_length),
        ]
        if self.training:
            count = self.training.counts[0]
            fold = str.lower if self.lowercase else str
            rarest = [
                min((count[token] for token in tokens(fold(one.source))), default=0)
                for one in self.sentences
            ]
            rule = "How often training sources have the source's rarest word. "
            parts.append(("by rarest word", rule, "times", _groups(rarest, COUNTS)))
        return [
            Section(f"scores {title}", rule + FEW_BLEU, self._scores(label, groups))
            for title, rule, label, groups in parts
        ]

    def _scores(self, label: str, groups: Mapping[str, Sequence[int]]) -> list:
        from sacrebleu import BLEU, CHRF

        # With force, because the scores above already warn of tokenised answers.
        how = self.lowercase
        metrics = BLEU(lowercase=how, force=True), CHRF(lowercase=how)
        rows = [[label, "sentences", *self._heading("BLEU", "chrF")]]
        for name, members in groups.items():
            references = [[self.references[i] for i in members]]
            found = [
                metric.corpus_score([system.answers[i] for i in members], references)
                for system in self.systems
                for metric in metrics
            ]
            rows.append([name, f"{len(members):,}", *(f"{f.score:.2f}" for f in found)])
        return rows if len(groups) > 1 else []

    def by_word(self) -> list[Section]:
        """Compute the F1 of the words of answers, by their frequency in training."""
        if not self.training:
            return []
        fold, known = (str.lower if self.lowercase else str), self.training.counts[1]
        names = _names(COUNTS)
        counts = [  # by system, then of the references: words of each group
            collections.Counter() for _ in range(2 * len(self.systems) + 1)
        ]
        for i, reference in enumerate(self.references):
            right = collections.Counter(tokens(fold(reference)))
            sides = [
                collections.Counter(tokens(fold(system.sentences[i].answer)))
                for system in self.systems
            ]
            for count, side in zip(
                counts, [*sides, *(s & right for s in sides), right], strict=True
            ):
                for word, number in side.items():
                    count[names[bisect.bisect(COUNTS, known[word]) - 1]] += number
        *answered, expected = counts
        rows = [["times", "words", *self._heading("precision", "recall", "F1")]]
        for name in names:
            row = [name, f"{expected[name]:,}"]
            for k in range(len(self.systems)):
                written, right = (answered[j][name] for j in (k, k + len(self.systems)))
                shares = (
                    right / max(written, 1),
                    right / max(expected[name], 1),
                    2 * right / max(written + expected[name], 1),
                )
                row += [f"{share:.1%}" for share in shares]
            rows += [row] * bool(expected[name])
        rule = (
            "The words of the references by how often training targets have them. A "
            "word of an answer is right if the reference has it, as often."
        )
        return [Section("words by frequency", rule, rows)]

    def of_faults(self) -> list[Section]:
        """Count the sentences with each fault, and show those of the first system."""
        rows = [["fault", *self._heading("sentences", "share")]]
        shown = []
        for rule in self.rules:
            found = [[*map(rule.find, system.sentences)] for system in self.systems]
            row = [rule.name]
            for each in found:
                count = sum(map(bool, each))
                row += [f"{count:,}", f"{count / len(each):.1%}"]
            rows.append(row)
            members = [i for i, what in enumerate(found[0]) if what]
            members.sort(key=lambda i: self.sentences[i].chrf)
            examples = [self._example(i, found[0][i]) for i in members[:MOST]]
            shown.append(Section(rule.name, rule.words, (), examples))
        rule = "A sentence may have several. The rules are stated above the examples."
        return [Section("faults", rule, rows), *shown]

    def worst(self) -> Section:
        """Show the answers with the lowest chrF, each with a pair of the training."""
        order = sorted(range(len(self.sentences)), key=lambda i: self.sentences[i].chrf)
        order = order[:MOST]
        examples = [self._example(i) for i in order]
        rule = "The answers with the lowest chrF"
        if self.training:
            near = self.training.nearest([self.sentences[i].source for i in order])
            for example, (overlap, pair) in zip(examples, near, strict=True):
                labels = f"training, overlap {overlap:.0%}", "its target"
                for label, text in zip(labels, pair, strict=True):
                    example.lines.append((label, [Span(text)]))
            rule += ", and the training pair whose source shares most character 4-grams"
        return Section("worst sentences", f"{rule}.", (), examples)

    def apart(self) -> list[Section]:
        """Show the sentences in which two systems differ most, for each the better."""
        if len(self.systems) < 2:
            return []
        a, b = (system.sentences for system in self.systems)
        gains = [y.chrf - x.chrf for x, y in zip(a, b, strict=True)]
        order = sorted(range(len(gains)), key=gains.__getitem__)
        parts = []
        for letter, numbers, sign in (("A", order, -1), ("B", order[::-1], 1)):
            chosen = [i for i in numbers[:MOST] if sign * gains[i] > 0]
            examples = []
            for i in chosen:
                texts = a[i].answer, b[i].answer
                marked = [
                    mark(own, self.references[i], other)
                    for own, other in (texts, texts[::-1])
                ]
                heading = f"chrF A {a[i].chrf:.1f}, B {b[i].chrf:.1f}"
                lines = [*self._lines(i), ("A", marked[0]), ("B", marked[1])]
                examples.append(Example(f"sentence {i + 1}: {heading}", lines))
            rule = (
                f"Sentences by how much higher the chrF of {letter} is. Only words in "
                "which the answers differ are marked."
            )
            parts.append(Section(f"{letter} is better", rule, (), examples))
        return parts

    def _example(self, i: int, what: str = "") -> Example:
        one = self.sentences[i]
        heading = f"sentence {i + 1}: chrF {one.chrf:.1f}" + f", {what}" * bool(what)
        marked = mark(one.answer, one.reference)
        return Example(heading, [*self._lines(i), ("answer", marked)])

    def _lines(self, i: int) -> list[tuple[str, list[Span]]]:
        one = self.sentences[i]
        return [("source", [Span(one.source)]), ("reference", [Span(one.reference)])]


def _names(begins: Sequence[int]) -> list[str]:
    """Name groups of numbers by their bounds, as in "1", "2–4" and "1,000 or more"."""
    ends = [
        f"{a}" if b == a + 1 else f"{a}–{b - 1}" for a, b in itertools.pairwise(begins)
    ]
    return [*ends, f"{begins[-1]:,} or more"]


def _groups(values: Sequence[int], begins: Sequence[int]) -> dict[str, list[int]]:
    """Group the numbers of values by where they lie; leave out empty groups."""
    names = _names(begins)
    found: dict[str, list[int]] = {name: [] for name in names}
    for i, value in enumerate(values):
        found[names[max(bisect.bisect(begins, value) - 1, 0)]].append(i)
    return {name: members for name, members in found.items() if members}
