"""Write a report as text for people and as CSV for programs."""

import csv
import io
import statistics
from collections.abc import Sequence

from transformer_jax import cli
from transformer_jax.report.collect import Report
from transformer_jax.report.significance import digits_for, holm

COLUMNS = 8  # steps of a curve in the text


def write_text(report: Report) -> str:
    """Return the report as text: scores of groups, differences, losses by step."""
    count = sum(len(group.outcomes) for group in report.groups)
    groups = len(report.groups)
    parts = [
        f"report     {count} run{'s' * (count != 1)} in {groups} "
        f"group{'s' * (groups != 1)}, scores of {report.split}: mean ± standard "
        "deviation over seeds",
        align(score_rows(report)),
    ]
    if differences := difference_rows(report):
        tests = len(differences) - 1
        parts.append(
            f"against {report.groups[0].name}, with the 95 % interval over seeds; "
            f"p corrected for {tests} test{'s' * (tests != 1)} (Holm)"
        )
        parts.append(align(differences))
    curve = curve_rows(report)
    if len(curve[0]) > 1:
        parts += ["validation loss by step, mean over seeds", align(curve)]
    parts += [f"left out   {place}: {why}" for place, why in report.left_out.items()]
    return "\n\n".join(parts) + "\n"


def score_rows(report: Report) -> list[list[str]]:
    """Return each group's seeds, scores and time, with a heading."""
    rows = [["group", "seeds", *report.metrics, "trained in"]]
    for group in report.groups:
        seconds = statistics.fmean(outcome.seconds for outcome in group.outcomes)
        spread = [show_spread(group.values(metric)) for metric in report.metrics]
        rows.append(
            [group.name, str(len(group.outcomes)), *spread, cli.duration(seconds)]
        )
    return rows


def show_spread(values: Sequence[float]) -> str:
    """Show mean ± standard deviation, or the value of a single seed."""
    digits = digits_for(values)
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values):.{digits}f}"


def difference_rows(report: Report) -> list[list[str]]:
    """Compare each group with the first, with a heading; empty if nothing can be."""
    found = report.differences()
    if not found:
        return []
    corrected = holm([difference.p for _, difference in found])
    rows = [
        ["group", "metric", "difference", "95 % interval", "p", "corrected", "test"]
    ]
    for (group, difference), p in zip(found, corrected, strict=True):
        digits = digits_for(difference.means)
        interval = "no seed varies"
        if difference.interval is not None:
            ends = (difference.measured + k * difference.interval for k in (-1, 1))
            interval = " to ".join(f"{end:+.{digits}f}" for end in ends)
        rows.append(
            [
                group.name,
                difference.metric,
                f"{difference.measured:+.{digits}f}",
                interval,
                f"{difference.p:.2g}",
                f"{p:.2g}",
                "paired t" if difference.paired else "Welch's t",
            ]
        )
    return rows


def curve_rows(report: Report) -> list[list[str]]:
    """Return the mean validation losses at a few steps that a group has reached."""
    curves = [group.curve("loss") for group in report.groups]
    steps = sorted(set().union(*curves))
    if len(steps) > COLUMNS:
        last = len(steps) - 1
        steps = [steps[round(i * last / (COLUMNS - 1))] for i in range(COLUMNS)]
    rows = [["group", *map(str, steps)]]
    for group, curve in zip(report.groups, curves, strict=True):
        means = [
            f"{statistics.fmean(curve[s]):.4f}" if s in curve else "" for s in steps
        ]
        rows.append([group.name, *means])
    return rows


def align(rows: Sequence[Sequence[str]]) -> str:
    """Set rows in columns: the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [
            text.rjust(width) for text, width in zip(others, widths[1:], strict=True)
        ]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def write_csv(report: Report) -> str:
    """Write a row for each run: its group, the options that differ, and its scores."""
    sink = io.StringIO()
    options = list(report.groups[0].options)
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(
        ["group", *options, "run", "seed", "split", "step", "weights", "seconds"]
        + report.metrics
    )
    for group in report.groups:
        for outcome in group.outcomes:
            writer.writerow(
                [group.name, *group.options.values(), outcome.member.place]
                + [outcome.seed, report.split, outcome.entry["step"]]
                + [outcome.entry["weights"], outcome.seconds]
                + [*outcome.measures.values()]
            )
    return sink.getvalue()
