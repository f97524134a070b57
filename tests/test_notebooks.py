"""The notebooks are their sources, and run from top to bottom."""

import importlib.util
import pathlib
import sys

import nbclient
import nbformat
import pytest

FOLDER = pathlib.Path(__file__).parent.parent / "notebooks"


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()
SOURCES = generate.find_sources()
names = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def cells_of(notebook):
    return [(cell.id, cell.cell_type, cell.source) for cell in notebook.cells]


def test_every_notebook_has_a_source():
    stored = {path.stem for path in FOLDER.glob("*.ipynb")}
    assert stored == {path.stem for path in SOURCES} >= {"quickstart"}


@names
def test_the_stored_notebook_is_what_its_source_gives(source):
    stored = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(stored)
    assert cells_of(stored) == cells_of(generate.convert(source)), (
        "run python notebooks/generate.py"
    )


@names
def test_the_stored_notebook_has_no_outputs(source):
    stored = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.fixture
def small(monkeypatch):
    """A few steps on one device, compiled for a short life."""
    monkeypatch.setenv("TRANSFORMER_JAX_NOTEBOOK_SMALL", "1")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    # Debuggers are not awaited: their check of frozen modules warns.
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")


@pytest.mark.system
@pytest.mark.filterwarnings("default")  # Jupyter's own
def test_the_quickstart_runs_and_shows_its_pictures(small, tmp_path):
    notebook = nbformat.read(FOLDER / "quickstart.ipynb", as_version=4)
    # The kernel of this very Python, whatever "python3" is registered to be.
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    client.execute()

    pictures = [
        cell.source
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    drawing = [cell.source for cell in notebook.cells if "figures." in cell.source]
    assert len(drawing) == 8
    assert pictures == drawing
    assert (tmp_path / "runs" / "notebook_small" / "result.json").is_file()
