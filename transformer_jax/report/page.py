"""Write a report as one HTML file: its tables, and the curves of validations as SVG."""

import html
import math
import statistics
from collections.abc import Sequence

from transformer_jax.report import groups, tables
from transformer_jax.report.collect import Report

# Okabe and Ito's colours, which people with any colour vision tell apart; dashes tell
# the groups apart beyond eight.
COLOURS = "#0072b2 #d55e00 #009e73 #cc79a7 #e69f00 #56b4e9 #7f7f7f #a6761d".split()
DASHES = ("", "6 3", "2 3", "8 3 2 3")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 300, 64, 36, 12, 12

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
.wide { overflow-x: auto; }
th, td { padding: .25rem .75rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: currentColor; } svg .grid { stroke: currentColor; opacity: .15; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; list-style: none;
  padding: 0; } .key svg { vertical-align: middle; margin-right: .5rem; }
"""


def write_page(report: Report) -> str:
    """Write the page; it needs no network and no other file."""
    count = sum(len(group.outcomes) for group in report.groups)
    task = report.groups[0].outcomes[0].member.config.task
    title = f"{count} runs of {task} in {len(report.groups)} groups"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>Scores of {html.escape(report.split)}: mean ± standard deviation over "
        "seeds.</p>",
        table(tables.score_rows(report)),
    ]
    if differences := tables.difference_rows(report):
        body += [
            f"<h2>Against {html.escape(report.groups[0].name)}</h2>",
            "<p>Differences of the means with their 95 % interval over seeds. "
            f"The corrected p counts all {len(differences) - 1} tests of this table "
            "(Holm).</p>",
            table(differences),
        ]
    body += ["<h2>Validations</h2>", _key(report)]
    for metric in _drawn(report):
        body += [f"<h3>{html.escape(metric)}</h3>", _chart(report, metric)]
    body += ["<h2>Runs</h2>", table(_runs(report))]
    if report.left_out:
        lines = (
            f"<li>{html.escape(f'{k}: {v}')}</li>" for k, v in report.left_out.items()
        )
        body.append(f"<h2>Left out</h2><ul>{''.join(lines)}</ul>")
    return document(title, body)


def document(title: str, body: Sequence[str], style: str = "") -> str:
    """Write a page around its parts; `style` adds rules to those of all pages."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        "<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _runs(report: Report) -> list[list[str]]:
    rows = [["run", "group", "seed", "step", *report.metrics]]
    for group in report.groups:
        for one in group.outcomes:
            shown = [
                f"{value:.{tables.digits_for([value])}f}"
                for value in one.measures.values()
            ]
            place, step = one.member.place, str(one.entry["step"])
            rows.append([place, group.name, str(one.seed), step, *shown])
    return rows


def table(rows: Sequence[Sequence[str]]) -> str:
    """Write a table whose first row is its heading."""
    heading, *others = (
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th"] + ["td"] * (len(rows) - 1), rows, strict=True)
    )
    body = "".join(f"<tr>{row}</tr>\n" for row in others)
    return (
        f'<div class="wide"><table><thead><tr>{heading}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _drawn(report: Report) -> list[str]:
    """List the metrics with at least two validations in some group."""
    return [
        metric
        for metric in ["loss", *(m for m in report.metrics if m != "loss")]
        if metric != groups.PERPLEXITY
        and any(len(group.curve(metric)) > 1 for group in report.groups)
    ]


def _stroke(number: int) -> str:
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    return f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" fill="none"'


def _key(report: Report) -> str:
    """Draw the line of each group beside its name."""
    items = (
        f'<li><svg width="28" height="8" aria-hidden="true">'
        f'<path d="M0 4H28" {_stroke(i)}/></svg>{html.escape(group.name)}</li>'
        for i, group in enumerate(report.groups)
    )
    return (
        "<p>The line is the mean over seeds, its shadow reaches from the lowest to the "
        f'highest seed.</p><ul class="key">{"".join(items)}</ul>'
    )


def _chart(report: Report, metric: str) -> str:
    """Draw the mean of each group by step, with the range of its seeds."""
    curves = [group.curve(metric) for group in report.groups]
    values = [value for curve in curves for seeds in curve.values() for value in seeds]
    steps = [step for curve in curves for step in curve]
    xs, ys = ticks(min(steps), max(steps)), ticks(min(values), max(values))
    x_ends, y_ends = (min(*steps, xs[0]), max(*steps, xs[-1])), (ys[0], ys[-1])

    def across(step: float) -> float:
        share = (step - x_ends[0]) / (x_ends[1] - x_ends[0])
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def up(value: float) -> float:
        share = (value - y_ends[0]) / (y_ends[1] - y_ends[0])
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)

    parts = []
    for y in ys:
        parts.append(f'<path class="grid" d="M{LEFT} {up(y)}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{up(y) + 4}" text-anchor="end">{y:g}</text>'
        )
    for x in xs:
        parts.append(
            f'<text x="{across(x)}" y="{HEIGHT - BOTTOM + 18}" '
            f'text-anchor="middle">{x:,g}</text>'
        )
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">step</text>'
    )
    for i, (group, curve) in enumerate(zip(report.groups, curves, strict=True)):
        if not curve:
            continue
        ends = [[(across(s), up(f(v))) for s, v in curve.items()] for f in (min, max)]
        around = " ".join(f"{x},{y}" for x, y in [*ends[0], *reversed(ends[1])])
        line = " ".join(
            f"{across(step)},{up(statistics.fmean(seeds))}"
            for step, seeds in curve.items()
        )
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<polygon points="{around}" fill="{colour}" opacity=".15"/>')
        parts.append(
            f'<polyline points="{line}" {_stroke(i)}>'
            f"<title>{html.escape(group.name)}</title></polyline>"
        )
    label = html.escape(f"{metric} of the validation by step")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Return at most six round numbers whose ends contain both values."""
    if low == high:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    raw = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(raw))
    width = next(k * size for k in (1, 2, 2.5, 5, 10) if k * size >= raw * (1 - 1e-9))
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    return [round(i * width, 12) for i in range(first, last + 1)]
