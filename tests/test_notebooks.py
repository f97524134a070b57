"""The notebooks are their sources, and run from top to bottom."""

import ast
import base64
import importlib.metadata
import importlib.util
import io
import json
import pathlib
import re
import subprocess
import sys

import nbclient
import nbformat
import numpy as np
import pytest
from PIL import Image

FOLDER = pathlib.Path(__file__).parent.parent / "notebooks"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()
SOURCES = generate.find_sources()
FIRST_CELL = generate.write_first_cell()
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
def test_the_stored_outputs_are_of_a_whole_run_without_errors(source):
    path = source.with_suffix(".ipynb")
    stored = nbformat.read(path, as_version=4)
    row = next(line for line in README.splitlines() if f"[{source.stem}](" in line)
    outputs = [one for cell in generate.code_of(stored) for one in cell.outputs]
    run = stored.metadata.get("run", {})
    assert row.endswith(f"| {generate.time_in_words(run)} |")
    if not run:
        assert not outputs
        return
    assert "dirty" not in run["commit"]
    assert outputs and path.stat().st_size < 800_000
    assert not [one for one in outputs if one.output_type == "error"]
    for one in outputs:
        one.get("data", {}).pop("image/png", None)
    assert not re.search(r"/(home|root|tmp|work)/", json.dumps(outputs))
    assert all(cell.execution_count is None for cell in generate.code_of(stored))


def notebook_of(*code):
    cells = [nbformat.v4.new_code_cell(text) for text in code]
    return nbformat.v4.new_notebook(cells=cells)


def test_outputs_stay_as_long_as_the_code_does():
    stored = notebook_of("a", "b")
    stored.cells[1].outputs = [nbformat.v4.new_output("stream", text="1")]
    stored.metadata["run"] = {"cpu_seconds": 3, "commit": "1234567"}
    for code, kept in (("ab", True), ("ax", False), ("a", False), ("abc", False)):
        notebook = notebook_of(*code)
        generate.keep_outputs(notebook, stored)
        assert ("run" in notebook.metadata) == kept
        assert bool(notebook.cells[-1].outputs) == kept


def test_a_run_stores_what_is_printed_and_drawn_but_nothing_of_this_machine(
    monkeypatch,
):
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = notebook_of(
        "import pathlib, sys, time\n"
        "while time.process_time() < 2: pass\n"
        "print('\\x1b[31mred\\x1b[0m', pathlib.Path('a').resolve())",
        "print('one', flush=True)\nprint('noise', file=sys.stderr)\nprint('two')",
        "import base64, io\nimport numpy as np\nfrom PIL import Image\n"
        "image = Image.fromarray(np.uint8(np.indices((99, 99)).sum(0) // 30 * 40))\n"
        "image.convert('RGB')",
    )
    generate.run(notebook)
    first, second, third = (cell.outputs for cell in notebook.cells)
    assert [one.text for one in first] == ["red a\n"]
    assert [one.text for one in second] == ["one\ntwo\n"]
    picture = base64.b64decode(third[0].data["image/png"])
    found = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    drawn = np.indices((99, 99)).sum(0) // 30 * 40
    np.testing.assert_array_equal(found, np.stack([drawn] * 3, axis=-1))
    assert all(cell.execution_count is None for cell in notebook.cells)
    assert notebook.metadata["run"]["cpu_seconds"] >= 2


def test_the_time_of_a_run_stands_in_the_list(tmp_path, monkeypatch):
    listed = tmp_path / "README.md"
    listed.write_text("| [a](a.ipynb) | x | |\n| [b](b.ipynb) | y | 2 minutes |\n")
    monkeypatch.setattr(generate, "README", listed)
    spent = {"a": {"cpu_seconds": 61}, "c": {"cpu_seconds": 9}, "d": {}}
    times = {name: generate.time_in_words(run) for name, run in spent.items()}
    assert times == {"a": "1 minute", "c": "seconds", "d": "not yet measured"}
    generate.write_times(times)
    assert listed.read_text() == (
        "| [a](a.ipynb) | x | 1 minute |\n| [b](b.ipynb) | y | 2 minutes |\n"
    )


@names
def test_the_first_code_of_a_notebook_installs_the_package(source):
    notebook = generate.convert(source)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code[0] == FIRST_CELL
    assert code.count(FIRST_CELL) == 1


@names
def test_the_list_of_notebooks_names_it_and_it_ends_with_what_to_change(source):
    assert f"| [{source.stem}]({source.stem}.ipynb) |" in README
    last = generate.convert(source).cells[-1]
    assert last.cell_type == "markdown" and "## What to change next" in last.source


def test_the_address_of_the_package_is_kept_in_one_place():
    cell = generate.write_first_cell("git+https://example.org/package")
    assert 'REPOSITORY = "git+https://example.org/package"' in cell
    assert f'REPOSITORY = "{generate.REPOSITORY}"' in FIRST_CELL


@pytest.fixture
def first_cell(monkeypatch, tmp_path):
    """Run the cell in an empty folder, and return what it has pip install."""

    def run(missing=(), repository=""):
        found, installed = importlib.util.find_spec, []

        def find_spec(name):
            return None if name in missing else found(name)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)

        def install(command, check):
            *_, constraints, package = command
            installed.append((pathlib.Path(constraints).read_text().split(), package))

        monkeypatch.setattr(subprocess, "run", install)
        monkeypatch.chdir(tmp_path)
        exec(generate.write_first_cell(repository), {})
        return installed

    return run


def test_where_the_package_is_the_first_cell_does_nothing(first_cell, tmp_path):
    (tmp_path / "transformer_jax-0.1.0-py3-none-any.whl").touch()
    assert first_cell() == []


def test_the_first_cell_installs_a_wheel_and_lets_jax_be(first_cell, tmp_path):
    wheel = tmp_path / "transformer_jax-0.1.0-py3-none-any.whl"
    wheel.touch()
    [(kept, package)] = first_cell({"transformer_jax"})
    assert package == f"{wheel}[plots]"
    own = {f"{p}=={importlib.metadata.version(p)}" for p in ("jax", "jaxlib", "numpy")}
    assert set(kept) == own


def test_a_runtime_without_jax_gets_one(first_cell, tmp_path):
    (tmp_path / "transformer_jax-0.1.0-py3-none-any.whl").touch()
    [(kept, _)] = first_cell({"transformer_jax", "jax", "jaxlib"})
    assert kept == [f"numpy=={importlib.metadata.version('numpy')}"]


def test_the_first_cell_installs_the_checkout_around_it(first_cell, tmp_path):
    (tmp_path / "transformer_jax").mkdir()
    (tmp_path / "transformer_jax" / "__init__.py").touch()
    assert first_cell({"transformer_jax"})[0][1] == f"{tmp_path}[plots]"


def test_the_first_cell_installs_from_the_repository(first_cell):
    [(_, package)] = first_cell({"transformer_jax"}, "git+https://example.org/package")
    assert package == "transformer_jax[plots] @ git+https://example.org/package"


def test_opened_alone_the_first_cell_says_what_to_do(first_cell):
    with pytest.raises(RuntimeError, match="put its wheel .* beside this notebook"):
        first_cell({"transformer_jax"})


def test_the_first_cell_adds_matplotlib_alone(first_cell):
    assert [p for _, p in first_cell({"matplotlib"})] == ["matplotlib>=3.8"]


@pytest.mark.parametrize(
    ("plugin", "wanted"),
    [
        ("", "jax>="),
        ("jax-cuda12-plugin", r"jax\[cuda12\]>="),
        ("libtpu", r"jax\[tpu\]>="),
    ],
)
def test_an_old_jax_is_left_alone_and_the_message_names_its_plugin(
    first_cell, monkeypatch, plugin, wanted
):
    def version(package):
        if package not in ("jax", plugin):
            raise importlib.metadata.PackageNotFoundError(package)
        return "0.9.2"

    monkeypatch.setattr(importlib.metadata, "version", version)
    message = f"JAX 0.9.2 is too old: run !pip install -U '{wanted}0.10', restart"
    with pytest.raises(RuntimeError, match=message):
        first_cell({"transformer_jax"})


@pytest.fixture
def small(monkeypatch):
    """A few steps on one device."""
    monkeypatch.setenv("TRANSFORMER_JAX_NOTEBOOK_SMALL", "1")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
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


QUICK = "attention", "from_scratch", "paper"  # the others train for a minute or two


@pytest.mark.system
@pytest.mark.parametrize(
    "source",
    [
        path if path.stem in QUICK else pytest.param(path, marks=pytest.mark.slow)
        for path in SOURCES
        if path.stem != "quickstart"
    ],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_shows_its_pictures(source, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook, names, shown = generate.convert(source), {"__name__": "__main__"}, []
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        result = run_cell(cell, names)
        if hasattr(result, "savefig"):
            result.savefig(io.BytesIO())
            shown.append(cell)
    # A picture that is not a cell's last expression would be drawn for nothing.
    draws = re.compile(r"figures\.|Figure\(|^draw_\w+\(", re.MULTILINE)
    assert shown == [cell for cell in code if draws.search(cell)]


def run_cell(text, names):
    """Run a cell's statements; return the value of its last, if it is an expression."""
    tree = ast.parse(text.replace("%matplotlib inline", ""))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
