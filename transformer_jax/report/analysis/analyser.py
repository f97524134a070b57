"""Analyse the answers of one run, or of two, to a scored split.

The model reads its answers and the references again, so that cross-attention shows
which source words each of them needs. Attention is no alignment: what it says is a
hint, and models without it are analysed by their words alone.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax import tasks
from transformer_jax.base.errors import UserError
from transformer_jax.report.analysis import faults
from transformer_jax.report.analysis.output import Analysis
from transformer_jax.report.analysis.sections import Sections, System
from transformer_jax.report.analysis.training_text import TrainingText, plain
from transformer_jax.report.analysis.words import Names
from transformer_jax.runs.run import Run
from transformer_jax.tasks.parts.scoring import BleuScoring
from transformer_jax.tasks.protocols import Aligns, Record

COMMON = 0.01  # share of the sources that have a common word
Progress = Callable[[int, int], None]


def refuse_unfit(run: Run) -> None:
    """Refuse a run of a task whose answers are no text that BLEU scores."""
    if isinstance(run.task.scoring, BleuScoring):
        return
    found = {name: tasks.find(name) for name in tasks.names()}
    fit = [name for name, task in found.items() if "bleu" in task.metrics]
    judges = ", ".join(found[run.config.task].metrics) or "its loss"
    raise UserError(
        f"--analyse is for runs of the task {' or '.join(fit)}, and the task "
        f"{run.config.task} is judged by {judges}: use --answers=FILE to read what it "
        "answers"
    )


def analyse(
    systems: Mapping[str, tuple[Run, Sequence[str]]],
    records: Sequence[Record],
    progress: Progress = lambda done, total: None,
) -> Analysis:
    """Analyse the answers of one run, or of two, to the same records.

    `systems` has the runs and their answers by name; the training text is that of the
    first.
    """
    runs, left_out = [run for run, _ in systems.values()], []
    first = runs[0]
    scorings: list[Any] = [run.task.scoring for run in runs]
    lowercase = all(scoring.lowercase for scoring in scorings)
    references = [scorings[0].reference(record) for record in records]
    sources = [plain(record["source"]) for record in records]
    names = Names()
    for pair in zip(sources, references, strict=True):
        names.add(*pair)
    try:
        training = TrainingText(first.records("train"), names, lowercase, progress)
    except UserError as error:
        training = None
        left_out.append(
            f"Left out: what compares with the training text ({error}). "
            "--config.data.folder=PATH says where its files are."
        )
    definition = tasks.find(first.config.task)
    translates = definition.pairs is not None and definition.pairs.parallel
    has = {"pairs": translates, "training": training is not None}
    has["attention"] = translates
    found = []
    for name, (run, own) in systems.items():
        chrf = _sentence_chrf(own, references, lowercase)
        looks = [(1.0, ())] * len(own)
        if translates:
            try:
                looks = _look(run, records, own, references)
            except UserError as error:
                has["attention"] = False
                left_out.append(f"Left out for {name}: where it looks ({error}).")
        known = names.known(), names.vocabulary() if training else None
        rows = zip(sources, references, own, chrf, looks, strict=True)
        sentences = [
            faults.Sentence(source, reference, answer, score, *known, *look)
            for source, reference, answer, score, look in rows
        ]
        found.append(System(name, sentences))
    if not translates:
        left_out.append(
            "Left out: names, lengths and attention, because a target of the task "
            f"{first.config.task} does not say what its source says."
        )
    tags = scorings[0].groups(records)
    usable = {name for name, given in has.items() if given}
    rules = [rule for rule in faults.RULES if rule.needs <= usable]
    parts = Sections(found, rules, training, lowercase).make(tags)
    title = f"Analysis of {len(records):,} answers of {' and '.join(systems)}"
    return Analysis(title, [*systems], parts, left_out)


def _sentence_chrf(
    answers: Sequence[str], references: Sequence[str], lowercase: bool
) -> list[float]:
    """Compute chrF of each answer."""
    from sacrebleu import CHRF

    metric = CHRF(lowercase=lowercase)
    return [
        metric.sentence_score(answer, [reference]).score
        for answer, reference in zip(answers, references, strict=True)
    ]


def _look(
    run: Run,
    records: Sequence[Record],
    answers: Sequence[str],
    references: Sequence[str],
) -> list[tuple[float, tuple[str, ...]]]:
    """Return the share of source words that answers look at, and the unread words."""
    if not isinstance(run.task.inspector, Aligns):
        raise UserError("the model has no cross-attention: the rules use words alone")
    sources = [record["source"] for record in records]
    count = collections.Counter(
        word for source in sources for word in {*source.split()}
    )
    common = {w for w, n in count.items() if n > max(2, COMMON * len(sources))}
    # Both sides at once, because each shape of a batch is compiled.
    pairs = list(zip(2 * sources, [*answers, *references], strict=True))
    readings = run.task.inspector.read(run.params, pairs, run.mesh)
    looks = [run.task.inspector.attend_words(one) for one in readings]
    found = []
    for (written, read, attended), (_, _, needed) in zip(
        looks[: len(answers)], looks[len(answers) :], strict=True
    ):
        for_answer, for_reference = (w.sum(axis=0).tolist() for w in (attended, needed))
        seen = 1.0
        if len(written) and len(read):
            seen = len({*attended.argmax(axis=1)}) / len(read)
        unread = faults.unread_words(read, for_answer, for_reference, common)
        found.append((seen, unread))
    return found
