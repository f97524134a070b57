"""Settings of the documentation.

The pages are MyST. Two kinds are made before a build: the API reference from
docstrings, and the course from the notebooks.

sphinx-build -W -n --keep-going docs docs/_build
"""

import os
import pathlib
import re
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # importing the package needs no more

DOCS = pathlib.Path(__file__).parent
sys.path.insert(0, str(DOCS))

import api_reference  # noqa: E402  (beside this file)
import notebook_pages  # noqa: E402

import transformer_jax  # noqa: E402  (after the platform is chosen)

project = "transformer_jax"
author = "The transformer_jax authors"
release = transformer_jax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_show_copyright = False
html_title = f"transformer_jax {release}"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

# Docstrings are plain text with `code` between single backticks.
default_role = "literal"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "special-members": "__call__",
    "exclude-members": "setup, parent, name, scope, replace, dtype",
}


# Of nitpicky mode only our own names count: other inventories would be downloaded. The
# generators of text are not in the reference, and type variables have no entry.
nitpick_ignore_regex = [
    ("py:.*", r"(?!transformer_jax\.).*"),
    ("py:.*", r"transformer_jax\.(corpora|family\.\w+\.(smalltalk|voice))\b.*"),
    ("py:class", r"transformer_jax\..*\.T"),
]

# What every Flax module has beside its own fields.
OF_FLAX = re.compile(r",? ?parent: .*, name: str \| None = None")


def setup(app):
    app.connect("builder-inited", lambda app: api_reference.write_pages(DOCS / "api"))
    app.connect(
        "builder-inited", lambda app: notebook_pages.write_pages(DOCS / "course")
    )
    app.connect("source-read", notebook_pages.lead_to_pages)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", convert_docstring)


def shorten_signature(app, what, name, obj, options, signature, returns):
    """Write arrays by their plain name, and leave out the fields of Flax."""
    shorter = [
        text and OF_FLAX.sub("", re.sub(r"(jax\.)?jaxlib\._jax\.Array", "Array", text))
        for text in (signature, returns)
    ]
    return tuple(shorter)


def convert_docstring(app, what, name, obj, options, lines):
    """Turn plain text into reStructuredText.

    An indented block (an equation, a command) is shown as it is, and outside backticks
    no character is markup.
    """
    marked, literal = [], False
    for before, line in zip(["", *lines], lines, strict=False):
        indented = line.startswith("    ")
        if indented and not before.strip() and not literal:
            marked += ["::", ""]
            literal = True
        elif line.strip() and not indented:
            if literal and before.strip():
                marked.append("")
            literal = False
        marked.append(line if literal else escape_markup(line))
    lines[:] = marked


def escape_markup(line):
    def escape(match):
        return match[0] if match[0].startswith("`") else f"\\{match[0]}"

    return re.sub(r"`[^`]*`|[*|_]", escape, line)
