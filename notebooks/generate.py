"""Makes each notebook from its source in percent format: python notebooks/generate.py

The .ipynb has no outputs and numbers its cells, so that the same source gives the same
file, and a difference between two versions is a difference in their text.
"""

import pathlib

import jupytext
import nbformat

HERE = pathlib.Path(__file__).parent


def find_sources() -> list[pathlib.Path]:
    return sorted(p for p in HERE.glob("*.py") if p != pathlib.Path(__file__))


def convert(source: pathlib.Path) -> nbformat.NotebookNode:
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    # The version of the tool that made it is no part of the notebook.
    kept = ("kernelspec", "language_info")
    notebook.metadata = {k: v for k, v in notebook.metadata.items() if k in kept}
    return notebook


if __name__ == "__main__":
    for path in find_sources():
        nbformat.write(convert(path), path.with_suffix(".ipynb"))
        print(path.with_suffix(".ipynb"))
