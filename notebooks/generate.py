"""Makes each notebook from its source in percent format: python notebooks/generate.py

The .ipynb has no outputs and numbers its cells, so that the same source gives the same
file, and a difference between two versions is a difference in their text.
"""

import pathlib

import jupytext
import nbformat

# What pip can install where a notebook was opened on its own: "git+https://…", or the
# address of a wheel. It is written into each notebook's first cell.
REPOSITORY = ""

HERE = pathlib.Path(__file__).parent
FIRST_CELL = HERE / "first_cell.py"


def find_sources() -> list[pathlib.Path]:
    return sorted(set(HERE.glob("*.py")) - {pathlib.Path(__file__), FIRST_CELL})


def convert(source: pathlib.Path) -> nbformat.NotebookNode:
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        if "install" in cell.metadata.get("tags", ()):
            cell["source"] = write_first_cell()
    # The version of the tool that made it is no part of the notebook.
    kept = ("kernelspec", "language_info")
    notebook.metadata = {k: v for k, v in notebook.metadata.items() if k in kept}
    return notebook


def write_first_cell(repository: str = REPOSITORY) -> str:
    text = FIRST_CELL.read_text(encoding="utf-8").strip()
    empty = 'REPOSITORY = ""'
    assert text.count(empty) == 1
    return text.replace(empty, f'REPOSITORY = "{repository}"')


if __name__ == "__main__":
    for path in find_sources():
        nbformat.write(convert(path), path.with_suffix(".ipynb"))
        print(path.with_suffix(".ipynb"))
