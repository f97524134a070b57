"""Score a run on any test set.

    python -m transformer_jax.evaluate --workdir RUN --split test
    python -m transformer_jax.evaluate --workdir RUN --source F --reference G
    python -m transformer_jax.evaluate --workdir RUN --split test --compare OTHER_RUN
    python -m transformer_jax.evaluate --workdir A_1,A_2 --split test --compare B_1,B_2
    python -m transformer_jax.evaluate --workdir RUN --split test --analyse=FILE.html

--config.data.folder=PATH says where the data of a split are, if they are not where the
run was trained; a bundle does not know. Other options of a config are refused.

The options of the search are those of `predict`. Scores that were found with other
options than the run's have an entry of their own in scores.json.

With --analyse, translations and replies are also scored by groups of sentences, and
searched for faults, each shown by examples.

Two single runs are compared over the examples, which says nothing about other seeds.
Two groups, each of several seeds of one config, are compared by their means over the
seeds.

Processes on several hosts, started as for training, share the work. Teacher-forced
accuracy (how often the next token is right given all tokens before it) is printed next
to the free-running scores: the first flatters, the second is what a user gets.
"""

import functools
import itertools
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
from absl import flags
from ml_collections import ConfigDict

from transformer_jax import cli, hosts, tasks
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import sources, streams
from transformer_jax.data.reading.records import Records
from transformer_jax.decoding import Options
from transformer_jax.runs import bundle, environment
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder, find_runs
from transformer_jax.scores import Comparison, Score, verdict
from transformer_jax.tasks.protocols import Comparable, Record, Task
from transformer_jax.training import log, report
from transformer_jax.training.evaluator import (
    Evaluation,
    Evaluator,
    answer_all,
    changed_options,
)
from transformer_jax.training.prepare import open_split

if TYPE_CHECKING:
    from transformer_jax.report.groups import Member

logger = logging.getLogger("transformer_jax.evaluate")  # __name__ may be __main__

GROUPS = ("workdir", "compare")  # the flags that may name several runs


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_multi_string(
        "workdir",
        [],
        "The run directory. Several seeds of one config give the mean and deviation: "
        "A,B,C, a quoted pattern ('runs/a_*'), their folder, or the flag repeated.",
    )
    flags.DEFINE_string("split", "", "A split of the run's own data, such as test.")
    flags.DEFINE_string("source", "", "A file to answer, one example per line.")
    flags.DEFINE_string("reference", "", "The right answers, line by line.")
    cli.define_weights()
    cli.define_ensemble()
    flags.DEFINE_string("encoding", streams.UTF8, "Of both files, such as latin-1.")
    flags.DEFINE_string("answers", "", "A file to write the answers to.")
    flags.DEFINE_string(
        "analyse", "", "Where and how it fails, printed; with a name, also as HTML."
    )
    flags.DEFINE_multi_string(
        "compare",
        [],
        "Another run: is this one significantly better? With several seeds: do the two "
        "configs differ by more than their seeds do?",
    )
    tasks.define_flags(flags, "evaluation", "search")


def main(overrides: dict[str, str]) -> None:
    """Score a run as the flags say."""
    args = flags.FLAGS
    folder = overrides.pop("data.folder", "")
    cli.refuse_overrides(overrides)
    workdirs, others = (find_runs(name, args[name].value or []) for name in GROUPS)
    cli.require("workdir", " ".join(workdirs), "the run directory to evaluate")
    if bool(args.source) != bool(args.reference):
        cli.fail("--source and --reference go together: one line of each per example")
    if folder and args.source and not args.analyse:
        cli.fail(
            "--config.data.folder is for --split or --analyse: --source names a file"
        )
    if bool(args.source) == bool(args.split):
        cli.fail("say what to score: --split=test, or --source=F --reference=F")
    cli.check_weights(args.weights)
    single = len(workdirs) == 1 and len(others) < 2
    if args.ensemble and not single:
        cli.fail(
            "--ensemble writes with one run: a group or a comparison of groups has "
            "several: name one --workdir"
        )
    if args.answers and not single:
        cli.fail("--answers is for one run: of a group only the scores are shown")
    if args.analyse and not single:
        cli.fail("--analyse is for one run, or one and another to --compare it with")
    with hosts.end_together():
        hosts.connect(say=logger.info)
        environment.use_compile_cache()
        if single:
            _score(args, workdirs[0], "".join(others), folder)
        else:
            _compare_groups(args, workdirs, others, folder)


def _score(args: Any, workdir: str, compare: str, folder: str) -> None:
    """Score a run; only the first process prints."""
    first = jax.process_index() == 0
    partners = find_runs("ensemble", args.ensemble)
    run = runs.load(workdir, args.weights, ensemble=partners)
    other = runs.load(compare) if compare else None
    if other is not None:
        _refuse_incomparable(run, other)
    _refuse_source(args, run.config)
    if args.analyse:
        from transformer_jax.report.analysis import analyser

        analyser.refuse_unfit(run)
    changed = tasks.given_flags(args, "evaluation")
    change_evaluation(run.config, changed)
    find_data(run.config, folder)
    name, records = _open_records(args, run)
    changes = tasks.given_flags(args, "search")
    options = runs.decode_options(run.config, **changes)
    entry = name_entry(name, changed, run.config, options)
    page = "" if args.analyse == "-" else args.analyse
    for flag, path in (("answers", args.answers), ("analyse", page)):
        if path and first:
            folders = [one.folder.files() for one in (run, other) if one is not None]
            read = itertools.chain([args.source, args.reference], *folders)
            cli.refuse_overwriting(flag, path, read)
            cli.check_writable(path)
    bar = cli.Bar(cli.is_terminal() and first)
    evaluation = _evaluate(run, name, records, options, bar)
    lines = evaluation.answers
    if first:
        if args.answers:
            with cli.open_file(args.answers, "w", encoding="utf-8") as sink:
                sink.writelines(line + "\n" for line in lines)
        scores = evaluation.entry(run.step, run.weights, options)
        print_scores(run.task, scores)
        print_readings(evaluation.readings)
        if partners:
            print(
                f"\nanswers by an ensemble of {len(partners) + 1} runs; the loss is "
                f"that of {workdir} alone; no run keeps these scores"
            )
        else:
            keep_scores(run.folder, entry, scores)
    theirs = _answer(other, records, changes, bar) if other is not None else []
    if other is not None and first:
        systems = {compare: theirs, workdir: lines}
        scoring, references = run.task.scoring, evaluation.references
        assert isinstance(scoring, Comparable)  # see _refuse_incomparable
        print_comparison(scoring.compare(other.task.scoring, systems, references))
        print(
            "\nThis compares the two trained models, not the two methods: to compare "
            "methods, name several seeds of each"
        )
    if args.analyse:
        analysed = {workdir: (run, lines)}
        if other is not None:
            analysed[compare] = other, theirs
        _analyse(analysed, evaluation.records, page, bar)


def _analyse(
    systems: dict[str, tuple[runs.Run, list[str]]],
    records: Sequence[Record],
    page: str,
    bar: cli.Bar,
) -> None:
    """Analyse the answers of one or two runs; only the first process writes."""
    from transformer_jax.report.analysis import analyser

    found = analyser.analyse(systems, records, bar.show)
    bar.clear()
    if jax.process_index():
        return
    print(f"\n{found.text()}", end="")
    if page:
        with cli.open_file(page, "w", encoding="utf-8") as sink:
            sink.write(found.page())
        print(f"\nwritten    {page}")


def _compare_groups(
    args: Any, workdirs: Sequence[str], others: Sequence[str], folder: str
) -> None:
    """Describe a group of runs, or compare two, scoring those without valid scores."""
    from transformer_jax.report import groups, significance

    group, baseline = groups.open_groups(workdirs, others)
    members = [*baseline, *group]
    changed = tasks.given_flags(args, "evaluation")
    for member in members:
        _refuse_source(args, member.config)
        change_evaluation(member.config, changed)
        find_data(member.config, folder)
    if args.split:
        groups.refuse_other_data(members, args.split)
    scored = [
        (member, _find_or_score(args, member, changed, folder)) for member in members
    ]
    groups.refuse_other_signatures(scored)
    found = [groups.measure(*pair) for pair in scored]
    if jax.process_index():
        return
    sides = found[: len(baseline)], found[len(baseline) :]
    names = significance.name_groups(
        [m.place for m in baseline], [m.place for m in group]
    )
    p_values = {}
    for metric in found[0]:
        theirs, ours = (tuple(one[metric] for one in side) for side in sides)
        if not baseline:
            print(f"\n{metric}: {significance.describe_spread(ours)}")
            continue
        difference = significance.Difference(metric, *names, theirs, ours)
        print(f"\n{significance.describe(difference)}")
        if metric != groups.PERPLEXITY:
            p_values[metric] = difference.p
    if corrected := significance.describe_corrected(p_values):
        print(f"\n{corrected}")


def _find_or_score(
    args: Any, member: "Member", changed: dict[str, Any], folder: str
) -> dict[str, Any]:
    """Return a run's valid scores from scores.json, or score it and store them."""
    from transformer_jax.report import groups

    first = jax.process_index() == 0
    changes = tasks.given_flags(args, "search")
    options = runs.decode_options(member.config, **changes)
    examples, how = args.source or args.split, "scores.json"
    name = name_entry(examples, changed, member.config, options)
    find = functools.partial(
        groups.find_scores, member, name, args.split, args.weights, options
    )
    entry = hosts.decide_in_first(find) if args.split else None
    if entry is None:
        how, run = "scored now", runs.load(member.place, args.weights)
        change_evaluation(run.config, changed)
        find_data(run.config, folder)
        bar = cli.Bar(cli.is_terminal() and first)
        evaluation = _evaluate(run, *_open_records(args, run), options, bar)
        entry = evaluation.entry(run.step, run.weights, options)
        if first:
            keep_scores(member.folder, name, entry)
    if first:
        print(
            f"{member.place}  seed {member.config.seed}, {entry['weights']} parameters "
            f"of step {entry['step']}, {how}: {entry['summary']}"
        )
    return entry


def _refuse_source(args: Any, config: ConfigDict) -> None:
    """Refuse --source and --reference for a task whose examples are not text pairs."""
    if args.source and not tasks.find(config.task).pairs:
        cli.fail(
            f"--source and --reference are two texts, line by line, but the task "
            f"{config.task} has other examples: use --split"
        )


def _open_records(args: Any, run: runs.Run) -> tuple[str, Records]:
    """Return the name of the examples to score, and open them."""
    if args.source:
        encoding = streams.check_encoding(args.encoding)
        tags = sources.needed_tags(run.config.data)
        pair = sources.parallel_text(args.source, args.reference, encoding, tags)
        return args.source, pair
    try:
        return args.split, run.records(args.split)
    except UserError as error:
        if not bundle.is_bundle(run.folder.path) or run.config.data.get("folder"):
            raise
        where = "a bundle does not know where its data are: --config.data.folder=PATH"
        raise UserError(*error.problems, where) from None


def _evaluate(
    run: runs.Run, name: str, records: Records, options: Options, bar: cli.Bar
) -> Evaluation:
    split = open_split(run.task, name, records, logger.info, bar.show)
    evaluator = Evaluator(run.task, split, run.mesh)
    evaluation = evaluator.evaluate(run.params, options, progress=bar.show)
    bar.clear()
    return evaluation


def name_entry(
    name: str, changed: dict[str, Any], config: ConfigDict, options: Options
) -> str:
    """Name an entry of scores.json by its examples and what differs from the run's."""
    found = {key: value for key, value in changed.items() if value}
    found |= changed_options(config, options)
    return "".join([name, *(f" ({key} {value})" for key, value in found.items())])


def keep_scores(folder: Folder, name: str, scores: dict[str, Any]) -> None:
    """Write scores into the run, unless it is read-only or a bundle."""
    if bundle.is_bundle(folder.path):
        return  # a bundle holds only the files named in its manifest
    try:
        folder.add_scores(name, scores)
    except OSError as error:
        why = error.strerror or error
        logger.warning("the scores are not kept: %s: %s", folder.place, why)


def find_data(config: ConfigDict, folder: str) -> None:
    """Let a run read its data from another folder, unless it is empty."""
    if folder and "folder" not in config.data:
        cli.fail(f"--config.data.folder: the task {config.task!r} reads no files")
    if folder:
        config.data.folder = folder


def change_evaluation(config: ConfigDict, changed: dict[str, Any]) -> None:
    """Change options of `config.eval`, as far as the run's task allows it."""
    for name, value in changed.items():
        if name not in config.eval:
            have = tasks.tasks_with("evaluation", name)
            raise UserError(
                f"--{name} is for runs of the task {' or '.join(have)}, and this "
                f"run's task is {config.task}"
            )
        config.eval[name] = value
    if not changed:
        return
    task = tasks.find(config.task)
    problems = schema.find_problems("eval", changed, task.evaluation)
    if problems := problems or task.check(config):
        raise UserError(*(problem.replace("eval.", "--", 1) for problem in problems))


def _refuse_incomparable(run: runs.Run, other: runs.Run) -> None:
    """Refuse a run that cannot be compared with this one."""
    ours, theirs = run.folder.place, other.folder.place
    if ours == theirs or os.path.samefile(run.folder.path, other.folder.path):
        raise UserError(f"--compare={theirs} is the run itself: name another one")
    if other.config.task != run.config.task:
        raise UserError(
            f"--compare: {theirs} was trained for the task {other.config.task}, {ours} "
            f"for {run.config.task}"
        )
    if not isinstance(run.task.scoring, Comparable):
        judges = ", ".join(tasks.find(run.config.task).metrics) or "its loss"
        raise UserError(
            f"--compare is for tasks whose scores can be resampled, and the task "
            f"{run.config.task} is judged by {judges}: train each with several seeds, "
            "and compare these: --workdir=A,B --compare=C,D"
        )


def _answer(
    run: runs.Run, records: Sequence[dict], changes: dict[str, Any], bar: cli.Bar
) -> list[str]:
    """Answer with another run, by its own options with the same changes."""
    options = runs.decode_options(run.config, **changes)
    replies = answer_all(run.task, run.params, run.mesh, records, options, bar.show)
    bar.clear()
    return [reply.text for reply in replies]


def print_readings(readings: Sequence[Score]) -> None:
    """Print every reading of the same answers, with the figures to compare it with."""
    for score in readings:
        print(f"\n{score.value:6.2f}  {score.name}\n        {score.signature}")
        print(f"        compare with {score.comparable}")


def print_comparison(comparisons: Sequence[Comparison]) -> None:
    """Print by each metric whether the difference between two runs is significant."""
    from transformer_jax.report.significance import describe_corrected

    for comparison in comparisons:
        print(
            f"\n{comparison.metric}  {comparison.baseline_score:.2f} "
            f"± {comparison.baseline_interval:.2f}  {comparison.baseline}\n"
            f"{' ' * len(comparison.metric)}  {comparison.score:.2f} "
            f"± {comparison.interval:.2f}  {comparison.system}\n"
            f"{verdict(comparison)}\n{comparison.signature}"
        )
    if corrected := describe_corrected({c.metric: c.p for c in comparisons}):
        print(f"\n{corrected}")


def print_scores(task: Task, scores: dict[str, Any]) -> None:
    """Print the task's scores, how they were computed, and the loss."""
    summary = scores["summary"]
    print(summary)
    search = ""
    if "decode" in task.config:
        others = scores.get("search", {})
        search = f"beam {scores['beams']}, alpha {scores['alpha']}, "
        search += "".join(f"{name} {value}, " for name, value in others.items())
    print(
        f"{scores['examples']} examples, {scores['weights']} parameters of step "
        f"{scores['step']}, {search}"
        f"{scores['answered'] / max(scores['answering_seconds'], 0.1):.1f} answers/s"
    )
    given = "given the truth so far: " * ("decode" in task.config)
    print(f"{given}{log.in_words(scores, summary)}")
    for line in report.group_lines(scores):
        print(line)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
