"""Scores of a run on any test set.

    python -m transformer_jax.evaluate --workdir RUN --split test
    python -m transformer_jax.evaluate --workdir RUN --source F --reference G
    python -m transformer_jax.evaluate --workdir RUN --split test --compare OTHER_RUN

Teacher-forced accuracy (how often the next token is right when all before it were
given) stands beside the free-running scores: the first flatters, the second is what a
user gets.
"""

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from transformer_jax import cli
from transformer_jax.data.sources import parallel_text
from transformer_jax.errors import UserError
from transformer_jax.runs import environment
from transformer_jax.runs import run as runs
from transformer_jax.scores import Score, compare, verdict
from transformer_jax.training import log as metrics
from transformer_jax.training import report
from transformer_jax.training.evaluator import Evaluator, answer_all
from transformer_jax.training.prepare import open_split

# A teacher-forced pass is short and each shape is compiled: few and coarse ones, which
# several splits can share.


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
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to evaluate")
    if bool(args.source) != bool(args.reference):
        cli.fail("--source and --reference go together: one line of each an example")
    if bool(args.source) == bool(args.split):
        cli.fail("say what to score: --split=test, or --source=F --reference=F")
    cli.check_weights(args.weights)
    environment.use_compile_cache()
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
    bar = cli.Bar(cli.is_terminal())
    say = functools.partial(print, file=sys.stderr)
    split = open_split(run.task, name, records, say, bar.show)
    evaluator = Evaluator(run.task, split, run.mesh)

    evaluation = evaluator.evaluate(run.params, options, progress=bar.show)
    bar.clear()
    lines = evaluation.answers
    scores = evaluation.entry(run.step, run.weights, options)
    print_scores(run.task, scores)
    print_panel(evaluation.readings)
    rule = f" (context {args.context})" if args.context else ""
    run.folder.add_scores(name + rule, scores)
    if sink is not None:
        with sink:
            sink.writelines(line + "\n" for line in lines)
    if other is not None:
        theirs = _answer(other, records, changes, bar)
        systems = {args.compare: theirs, args.workdir: lines}
        print_comparison(systems, evaluation.references, _is_lower_case(run, other))


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
    if "bleu" not in run.task.scoring.METRICS:
        judges = ", ".join(run.task.scoring.METRICS) or "its loss"
        raise UserError(
            "--compare is for tasks that are judged by BLEU, and the task "
            f"{run.config.task} is judged by {judges}: train each with several seeds, "
            "and compare their scores"
        )


def _answer(
    run: Any, records: Sequence[dict], changes: dict[str, Any], bar: cli.Bar
) -> list[str]:
    """What a run answers, with its own way to search, or changed as the other's."""
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
    summary = scores["summary"]
    print(summary)
    search = ""
    if "decode" in task.config:
        search = f"beam {scores['beams']}, alpha {scores['alpha']}, "
    print(
        f"{scores['examples']} examples, {scores['weights']} parameters of step "
        f"{scores['step']}, {search}"
        f"{scores['answered'] / max(scores['answering_seconds'], 0.1):.1f} answers/s"
    )
    given = "given the truth so far: " * ("decode" in task.config)
    print(f"{given}{metrics.in_words(scores, summary)}")
    for line in report.lines_by_tag(scores):
        print(line)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
