"""Scores of a run on any test set.

    python -m transformer_jax.evaluate --workdir RUN --split test
    python -m transformer_jax.evaluate --workdir RUN --source F --reference G
    python -m transformer_jax.evaluate --workdir RUN --split test --compare OTHER_RUN

Teacher-forced accuracy (how often the next token is right when all before it were
given) stands beside the free-running scores: the first flatters, the second is what a
user gets.
"""

import functools
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import flags

from transformer_jax import answering, cli, metrics, sharding
from transformer_jax.data.batches import Batch, Buckets, Shape, nothing
from transformer_jax.data.sources import parallel_text
from transformer_jax.errors import UserError
from transformer_jax.losses import Sums
from transformer_jax.prepare import Split, open_split
from transformer_jax.scores import Score, compare, verdict

# A teacher-forced pass is short and each shape is compiled: few and coarse ones, which
# several splits can share.
SHAPES, LENGTH_MULTIPLE = 2, 8


class Evaluator:
    """The scores of one split, again and again with other parameters."""

    def __init__(self, task: Any, split: Split, mesh: Any):
        self.task, self.mesh = task, mesh
        self.records, self.store = split.records, split.store
        data = task.config.data
        self.plan = Buckets(
            task.lengths(split.store),
            data.batch_tokens,
            SHAPES,
            data.row_multiple,
            math.lcm(data.length_multiple, LENGTH_MULTIPLE),
            seed=0,
        )
        self._loss = _compiled_loss(task, mesh)

    def teacher_forced(self, params: Any) -> dict[str, float]:
        """Loss, perplexity and accuracy; every example counts exactly once."""
        total = Sums(0.0, 0.0, 0.0, 0.0)
        for batch in self.plan.epoch(0):
            with jax.set_mesh(self.mesh):
                sums = self._loss(
                    params, assemble(self.task, self.store, batch, self.mesh)[0]
                )
            total = total + jax.tree.map(float, jax.device_get(sums))
        return self.task.means(total, self.records)

    def choose(self, limit: int) -> list[int]:
        """The numbers of the records that are answered; 0: all that judge the split."""
        return spread(limit or self.task.answered(self.records), len(self.records))

    def free_running(
        self,
        params: Any,
        options: Any,
        limit: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[dict[str, Any], list[str]]:
        """The task's scores of its own answers to `choose(limit)`, and the answers."""
        task = self.task
        records = [self.records[i] for i in self.choose(limit)]
        replies = answer_all(task, params, self.mesh, records, options, progress)
        scores = task.judge(replies, [task.reference(r) for r in records])
        if by_tag := self._by_tag(records, replies):
            scores["by_tag"] = by_tag
        return scores, [reply.text for reply in replies]

    def _by_tag(self, records: Sequence[dict], replies: Sequence[Any]) -> dict:
        """The scores of each tag's examples; none if all are of one."""
        groups: dict[str, list[int]] = {}
        for i, record in enumerate(records):
            groups.setdefault(getattr(record.get("source"), "tag", ""), []).append(i)
        found = {}
        for tag, members in sorted(groups.items()) if len(groups) > 1 else ():
            references = [self.task.reference(records[i]) for i in members]
            scores = self.task.judge([replies[i] for i in members], references)
            summary = self.task.summary(scores)
            found[tag] = {**scores, "examples": len(members), "summary": summary}
        return found


def spread(count: int, total: int) -> list[int]:
    """So many of the numbers below `total`, evenly spaced; all, if no more are."""
    count = min(count, total)
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


def answer_all(
    task: Any,
    params: Any,
    mesh: Any,
    records: Sequence[dict],
    options: Any,
    progress: Callable[[int, int], None],
) -> list[answering.Reply]:
    """An answer to each example: one that is refused ends the evaluation."""
    questions = [task.question(record) for record in records]
    replies = []
    for reply in answering.reply(
        task, params, mesh, questions, options, progress=progress
    ):
        if reply.error:
            shown = textwrap.shorten(questions[len(replies)], 60)
            raise UserError(f"{shown!r} cannot be answered: {reply.error}")
        replies.append(reply)
    return replies


@functools.cache
def _compiled_loss(task: Any, mesh: Any) -> Callable:
    return jax.jit(
        functools.partial(task.loss, key=None), out_shardings=sharding.replicated(mesh)
    )


def assemble(
    task: Any,
    store: Any,
    batch: Batch,
    mesh: Any,
    resample: Callable = lambda columns, batch: (columns, 0),
) -> tuple[dict[str, jax.Array], int]:
    """A planned batch as arrays on the mesh, and what `resample` has counted.

    Each process reads only the rows that its devices need.
    """
    own = sharding.own_rows(mesh, batch.shape.rows)
    part = Batch(batch.shape, batch.examples[own])
    columns, count = resample(store.take(part.real), part)
    arrays = task.collate(columns, part)
    return sharding.to_global(arrays, mesh, batch.shape.rows), count


def abstract(task: Any, store: Any, shape: Shape, mesh: Any) -> dict[str, Any]:
    """What a batch of this shape looks like, for compiling."""
    batch = nothing(shape)
    arrays = task.collate(store.take(batch.real), batch)
    return sharding.abstract_global(arrays, mesh, shape.rows)


def define_flags() -> None:
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_string("split", "", "A split of the run's own data, such as test.")
    flags.DEFINE_string("source", "", "A file to answer, one line an example.")
    flags.DEFINE_string("reference", "", "The right answers, line by line.")
    cli.define_weights()
    flags.DEFINE_integer("beams", 0, "Beam width; 1 is greedy (default: the run's).")
    flags.DEFINE_integer(
        "context", None, "Characters of a language model's window that it only reads."
    )
    flags.DEFINE_string("answers", "", "A file to write the answers to.")
    flags.DEFINE_string("compare", "", "Another run: is this one better, or by chance?")


def main(overrides: dict[str, str]) -> None:
    from transformer_jax import run as runs

    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to evaluate")
    if bool(args.source) != bool(args.reference):
        cli.fail("--source and --reference go together: one line of each an example")
    if bool(args.source) == bool(args.split):
        cli.fail("say what to score: --split=test, or --source=F --reference=F")
    cli.check_weights(args.weights)
    runs.use_compile_cache()
    run = runs.load(args.workdir, args.weights)
    other = runs.load(args.compare) if args.compare else None
    if other is not None:
        _refuse_incomparable(run, other)
    if args.source and not run.task.PAIRS:
        cli.fail(
            f"--source and --reference are two texts, line by line, but the task "
            f"{run.config.task} is of other examples: use --split"
        )
    if args.context is not None:
        set_context(run, args.context)
    if args.source:
        records, name = parallel_text(args.source, args.reference), args.source
    else:
        records, name = run.task.source(run.config).read(args.split), args.split
    changes = {"beams": args.beams} if args.beams else {}
    options = runs.decode_options(run.config, **changes)
    sink = cli.open_file(args.answers, "w", encoding="utf-8") if args.answers else None
    bar = metrics.Bar(cli.is_terminal())
    say = functools.partial(print, file=sys.stderr)
    split = open_split(run.task, name, records, say, bar.show)
    evaluator = Evaluator(run.task, split, run.mesh)

    began = time.monotonic()
    scores, lines = evaluator.free_running(run.params, options, progress=bar.show)
    seconds = time.monotonic() - began
    bar.clear()
    answered = [records[i] for i in evaluator.choose(0)]
    references = [run.task.reference(record) for record in answered]
    panel = run.task.panel(lines, answered)
    scores = {**scores, **evaluator.teacher_forced(run.params)}
    for score in panel:  # not over the headline, which may ignore case
        found = {score.key: score.value, f"{score.key}_signature": score.signature}
        scores = found | scores
    scores.update(
        examples=len(records),
        answered=len(lines),
        step=run.step,
        weights=run.weights,
        beams=options.beams,
        alpha=options.alpha,
        seconds=round(seconds, 1),
    )
    print_scores(run.task, scores)
    print_panel(panel)
    rule = f" (context {args.context})" if args.context else ""
    run.folder.add_scores(name + rule, scores)
    if sink is not None:
        with sink:
            sink.writelines(line + "\n" for line in lines)
    if other is not None:
        theirs = _answer(other, records, changes, bar)
        systems = {args.compare: theirs, args.workdir: lines}
        print_comparison(systems, references, _is_lower_case(run, other))


def set_context(run: Any, characters: int) -> None:
    if "context" not in run.config.eval:
        raise UserError(
            f"--context is for language models, and this run's task is "
            f"{run.config.task}: its examples have nothing before them"
        )
    window = run.config.data.window
    if not 0 <= characters < window:
        raise UserError(
            f"--context={characters}: of the {window} characters that this run's model "
            f"reads together, 0 to {window - 1} can be read only, not judged"
        )
    run.config.eval.context = characters


def _refuse_incomparable(run: Any, other: Any) -> None:
    """A comparison draws sentences by chance, and reads BLEU and chrF of them."""
    ours, theirs = run.folder.path, other.folder.path
    if os.path.samefile(theirs, ours):
        raise UserError(f"--compare={theirs} is the run itself: name another one")
    if other.config.task != run.config.task:
        raise UserError(
            f"--compare: {theirs} is of the task {other.config.task}, {ours} of "
            f"{run.config.task}"
        )
    if "bleu" not in run.task.METRICS:
        judges = ", ".join(run.task.METRICS) or "its loss"
        raise UserError(
            "--compare is for tasks that are judged by BLEU, and the task "
            f"{run.config.task} is judged by {judges}: train each with several seeds, "
            "and compare their scores"
        )


def _answer(
    run: Any, records: Sequence[dict], changes: dict[str, Any], bar: metrics.Bar
) -> list[str]:
    """What a run answers, with its own way to search, or changed as the other's."""
    from transformer_jax import run as runs

    options = runs.decode_options(run.config, **changes)
    replies = answer_all(run.task, run.params, run.mesh, records, options, bar.show)
    bar.clear()
    return [reply.text for reply in replies]


def print_panel(panel: Sequence[Score]) -> None:
    """Every way to read the same answers, and what each may be compared with."""
    for score in panel:
        print(f"\n{score.value:6.2f}  {score.name}\n        {score.signature}")
        print(f"        compare with {score.comparable}")


def _is_lower_case(*runs: Any) -> bool:
    """Whether none of these could write a capital."""
    return all(run.task.target_tokenizer.lowercase for run in runs)


def print_comparison(
    systems: dict[str, list[str]], references: list[str], lowercase: bool
) -> None:
    """Whether the difference of two runs is more than chance (paired bootstrap)."""
    for comparison in compare(systems, references, lowercase=lowercase):
        print(
            f"\n{comparison.metric}  {comparison.baseline_score:.2f} "
            f"± {comparison.baseline_interval:.2f}  {comparison.baseline}\n"
            f"{' ' * len(comparison.metric)}  {comparison.score:.2f} "
            f"± {comparison.interval:.2f}  {comparison.system}\n"
            f"{verdict(comparison)}\n{comparison.signature}"
        )


def print_scores(task: Any, scores: dict[str, Any]) -> None:
    """The scores of the field, how they were computed, then the rest in words."""
    summary = task.summary(scores)
    print(summary)
    search = ""
    if "decode" in task.config:
        search = f"beam {scores['beams']}, alpha {scores['alpha']}, "
    print(
        f"{scores['examples']} examples, {scores['weights']} parameters of step "
        f"{scores['step']}, {search}"
        f"{scores['answered'] / max(scores['seconds'], 0.1):.1f} answers/s"
    )
    given = "given the truth so far: " * ("decode" in task.config)
    print(f"{given}{metrics.in_words(scores, summary)}")
    for line in lines_by_tag(scores):
        print(line)


def lines_by_tag(scores: dict[str, Any]) -> list[str]:
    """What each tag's examples score, where there are several tags."""
    return [
        f"  {tag or 'no tag'}: {found['summary']}  ({found['examples']} examples)"
        for tag, found in scores.get("by_tag", {}).items()
    ]


def print_result(result: dict[str, Any], folder: Any, already: bool = False) -> None:
    """The last lines of a training run."""
    state = "was already done" if already else "done"
    early = ", stopped early" if result["stopped_early"] else ""
    # A result of an older version tells no time.
    took = f", trained {metrics.duration(result['seconds'])}" * ("seconds" in result)
    print(f"{state}: {folder.path}, step {result['step']}{early}{took}")
    for split, scores in result["scores"].items():
        summary = scores["summary"]
        print(
            f"{split}: {summary}  {metrics.in_words(scores, summary)}  "
            f"({scores['examples']} examples, {result['weights']} parameters)"
        )
        for line in lines_by_tag(scores):
            print(line)
    print(
        f'try it: echo "…" | python -m transformer_jax.predict --workdir {folder.path}',
        flush=True,
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
