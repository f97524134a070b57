"""Settings of the documentation: MyST pages, and an API reference from docstrings.

sphinx-build -W --keep-going -b html docs docs/_build
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # importing the package needs no more

import transformer_jax  # noqa: E402  (after the platform is chosen)

project = "transformer_jax"
author = "The transformer_jax authors"
release = transformer_jax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"transformer_jax {release}"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

# Docstrings are plain text with `code` between single backticks.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "special-members": "__call__",
    "exclude-members": "setup, parent, name, scope, replace",
}


def setup(app):
    app.connect("autodoc-process-docstring", mark_literal_blocks)


def mark_literal_blocks(app, what, name, obj, options, lines):
    """Show an indented block of a docstring as it is: equations, commands, tables."""
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
        marked.append(line)
    lines[:] = marked
