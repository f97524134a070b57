"""Put the collected values and the viewer's code into one HTML file.

The file needs no network, and its content security policy forbids all access. Only the
script whose hash the policy names can run. Texts are data and never become markup.
"""

import html
import importlib.resources
import pathlib
from collections.abc import Sequence
from typing import Any

from transformer_jax.base import pages
from transformer_jax.base.errors import UserError
from transformer_jax.runs.run import Run
from transformer_jax.visualize.viewer.collect import collect, describe

SCRIPTS = ("data", "tokens", "matrix", "search", "pictures", "page")  # in this order


def write(
    path: str | pathlib.Path,
    runs: Sequence[tuple[str, Run]],
    lines: Sequence[Any],
    **changes: Any,
) -> int:
    """Write a page that shows one or two named runs on some lines; return its size.

    `changes` override the `decode` sections of the runs.
    """
    document = {
        "runs": [describe(run, name) for name, run in runs],
        "items": [[collect(run, line, **changes) for _, run in runs] for line in lines],
    }
    content = render(document).encode("utf-8")
    try:
        pathlib.Path(path).write_bytes(content)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    return len(content)


def render(document: dict[str, Any]) -> str:
    """Return the page for a document as `write` makes it."""
    script = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    style = _read("page.css")
    names = " and ".join(run["name"] for run in document["runs"])
    code, look = map(pages.hash_source, (script, style))
    parts = {
        "title": html.escape(f"Attention: {names}".encode("utf-8", "replace").decode()),
        "policy": f"default-src 'none'; script-src '{code}'; "
        f"style-src '{look}'; img-src data:",
        "style": style,
        "data": pages.escape(document),
        "script": script,
    }
    return pages.fill(_read("page.html"), parts)


def _read(name: str) -> str:
    files = importlib.resources.files("transformer_jax.visualize.viewer")
    return files.joinpath(name).read_text(encoding="utf-8")
