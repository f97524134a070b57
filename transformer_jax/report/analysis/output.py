"""Write an analysis as text, or as one HTML file that needs no network."""

import dataclasses
import html
import textwrap
from collections.abc import Sequence

from transformer_jax.report import page, tables
from transformer_jax.report.analysis.sections import Example, Section
from transformer_jax.report.analysis.words import Span

FEW, WIDTH = 3, 88  # examples of each part in the text; its columns
LEGEND = (
    Span("Words are marked as "),
    Span("in the reference", "right"),
    Span(" or "),
    Span("not in the reference", "wrong"),
    Span("."),
)
MARKS = {"right": "+", "wrong": "-", "": ""}
STYLE = """
.example { margin: 1rem 0; padding-left: 1rem;
  border-left: 3px solid color-mix(in srgb, currentColor 20%, transparent); }
.example p { margin: 0 0 .25rem; opacity: .75; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem;
  margin: 0; overflow-wrap: anywhere; }
dt { opacity: .75; } dd { margin: 0; }
mark { color: inherit; border-radius: 3px; padding: 0 .15em; text-decoration: none; }
mark.wrong { background: #d55e0040; } mark.right { background: #009e7340; }
mark.wrong { border-bottom: 2px dotted #d55e00; }
mark.right { border-bottom: 2px solid #009e73; }
"""


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A finished analysis: what was analysed, its parts, and what was left out."""

    title: str
    systems: Sequence[str]
    sections: Sequence[Section]
    left_out: Sequence[str] = ()

    def text(self) -> str:
        """Write it for a terminal, with a few examples of each part."""
        legend = "".join(map(_marked, LEGEND))
        parts = ["\n".join([self.title, *self._names(), *self.left_out, legend])]
        for section in self.sections:
            head = f"{section.title}\n" + textwrap.fill(
                section.rule, WIDTH, initial_indent="  ", subsequent_indent="  "
            )
            parts.append(head + _table(section.table))
            parts += map(_example, section.examples[:FEW])
        return "\n\n".join(parts) + "\n"

    def page(self) -> str:
        """Write it as HTML; all but the first examples of each part are folded."""
        body = [f"<h1>{html.escape(self.title)}</h1>"]
        body += map(_paragraph, (*self._names(), *self.left_out))
        body.append(f"<p>{''.join(map(_marked_page, LEGEND))}</p>")
        for section in self.sections:
            body.append(f"<h2>{html.escape(section.title)}</h2>")
            body.append(_paragraph(section.rule))
            if section.table:
                body.append(page.table(section.table))
            shown = [*map(_example_page, section.examples)]
            body += shown[:FEW]
            if more := shown[FEW:]:
                summary = f"<summary>{len(more)} more</summary>"
                body.append(f"<details>{summary}{''.join(more)}</details>")
        return page.document(self.title, body, STYLE)

    def _names(self) -> list[str]:
        if len(self.systems) < 2:
            return []
        return [f"{x} = {name}" for x, name in zip("AB", self.systems, strict=True)]


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n" + textwrap.indent(tables.align(rows), "  ") if rows else ""


def _example(example: Example) -> str:
    width = max(len(label) for label, _ in example.lines)
    lines = [f"  {example.heading}"]
    for label, spans in example.lines:
        lines.append(f"    {label:<{width}}  {''.join(map(_marked, spans))}")
    return "\n".join(lines)


def _marked(span: Span) -> str:
    return f"[{MARKS[span.mark]}{span.text}]" if span.mark else span.text


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _example_page(example: Example) -> str:
    rows = "".join(
        f'<dt>{html.escape(label)}</dt><dd dir="auto">'
        f"{''.join(map(_marked_page, spans))}</dd>"
        for label, spans in example.lines
    )
    return f'<div class="example">{_paragraph(example.heading)}<dl>{rows}</dl></div>'


def _marked_page(span: Span) -> str:
    text = html.escape(span.text)
    return f'<mark class="{span.mark}">{text}</mark>' if span.mark else text
