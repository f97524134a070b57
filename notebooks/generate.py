"""Make each notebook from its source in percent format.

    python notebooks/generate.py                      all, from their sources
    python notebooks/generate.py --run decoding …     and runs these in full
    python notebooks/generate.py --run                and runs all in full

The output of a run is stored in the .ipynb, with its CPU time and commit, so that the
notebook can be read without running it. The output stays until the code of a cell
changes. Cells are numbered, and only the time of the entire run is stored, so the same
source always gives the same file except for its outputs.
"""

import argparse
import base64
import io
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

import jupytext
import nbclient
import nbformat
from PIL import Image

# What pip can install where a notebook was opened on its own: "git+https://…", or the
# address of a wheel. It is written into each notebook's first cell.
REPOSITORY = ""

HERE = pathlib.Path(__file__).parent
FIRST_CELL = HERE / "first_cell.py"
README = HERE / "README.md"
COLOURS = 64  # of a stored picture: a third of the bytes, with no visible difference
TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def find_sources() -> list[pathlib.Path]:
    return sorted(set(HERE.glob("*.py")) - {pathlib.Path(__file__), FIRST_CELL})


def convert(source: pathlib.Path) -> nbformat.NotebookNode:
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        if "install" in cell.metadata.get("tags", ()):
            cell["source"] = write_first_cell()
    # Leave out the version of the tool that made the notebook.
    kept = ("kernelspec", "language_info")
    notebook.metadata = {k: v for k, v in notebook.metadata.items() if k in kept}
    return notebook


def write_first_cell(repository: str = REPOSITORY) -> str:
    text = FIRST_CELL.read_text(encoding="utf-8").strip()
    empty = 'REPOSITORY = ""'
    assert text.count(empty) == 1
    return text.replace(empty, f'REPOSITORY = "{repository}"')


def keep_outputs(
    notebook: nbformat.NotebookNode, stored: nbformat.NotebookNode
) -> None:
    """Copy the outputs of a stored notebook, if it has the same code.

    The cell that installs the package prints nothing, and may differ.
    """
    new, old = code_of(notebook), code_of(stored)
    same = [c.source for c in new[1:]] == [c.source for c in old[1:]]
    if "run" in stored.metadata and same and len(new) == len(old):
        notebook.metadata["run"] = stored.metadata["run"]
        for cell, before in zip(new, old, strict=True):
            cell.outputs = before.outputs


def code_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run(notebook: nbformat.NotebookNode) -> None:
    """Run a notebook in an empty folder; an error of any cell ends it."""
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=1800,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        # The kernel of this very Python, whatever "python3" is registered to be.
        client.create_kernel_manager()
        client.km.kernel_spec.argv[0] = sys.executable
        client.execute()
        for cell in code_of(notebook):
            cell.execution_count = None
            cell.metadata.pop("execution", None)
            cell.outputs = [tidy(one, folder) for one in join_streams(cell.outputs)]
    changed = ask_git("status", "--porcelain", "--", ":/*.py")
    notebook.metadata["run"] = {
        "cpu_seconds": round(cpu_seconds() - before),
        "commit": ask_git("rev-parse", "--short=7", "HEAD") + "-dirty" * bool(changed),
    }


def ask_git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=HERE, text=True).strip()


def join_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join the parts of printed output, and leave out logged output."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type != "stream":
            joined.append(output)
        elif output.name == "stdout":
            if joined and joined[-1].output_type == "stream":
                joined[-1].text += output.text
            else:
                joined.append(output)
    return joined


def tidy(output: nbformat.NotebookNode, folder: str) -> nbformat.NotebookNode:
    """Remove machine-specific parts from an output, and shrink its pictures."""
    if output.output_type == "stream":
        output.text = TERMINAL.sub("", output.text).replace(f"{folder}/", "")
    if output.output_type == "execute_result":
        output.execution_count = None
    data = output.get("data", {})
    for kind in [kind for kind in data if kind.startswith("text/")]:
        data[kind] = data[kind].replace(f"{folder}/", "")
    if "image/png" in data:
        data["image/png"] = shrink(data["image/png"])
    return output


def shrink(picture: str) -> str:
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    small = io.BytesIO()
    # The default method merges rare colours, such as those of a thin line.
    few = image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE)
    few.save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def cpu_seconds() -> float:
    """Return the CPU time of all kernels so far, which other load hardly changes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def time_in_words(run: dict) -> str:
    """Return the cost of a run, as in the list of the README."""
    if not run:
        return "not yet measured"
    if run["cpu_seconds"] < 45:
        return "seconds"
    minutes = max(1, round(run["cpu_seconds"] / 60))
    return f"{minutes} minute" + "s" * (minutes > 1)


def write_times(times: dict[str, str]) -> None:
    """Write the time of each notebook into the list of the README."""
    lines = README.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        name = re.match(r"\| \[(\w+)\]", line)
        if name and name[1] in times:
            lines[number] = f"{line.rsplit('|', 2)[0]}| {times[name[1]]} |"
    README.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [source.stem for source in find_sources()]
    parser.add_argument("--run", nargs="*", metavar="NAME", choices=known)
    named, times = parser.parse_args().run, {}
    to_run = known if named == [] else named or []
    began = time.monotonic()
    for source in find_sources():
        notebook, path = convert(source), source.with_suffix(".ipynb")
        if path.exists():
            keep_outputs(notebook, nbformat.read(path, as_version=4))
        if source.stem in to_run:
            run(notebook)
        times[source.stem] = time_in_words(notebook.metadata.get("run", {}))
        nbformat.write(notebook, path)
        print(path, f"{time.monotonic() - began:.0f} s", flush=True)
    write_times(times)


if __name__ == "__main__":
    main()
