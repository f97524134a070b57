"""The floor plan: rooms import downwards only, and in no circle."""

import ast
import collections
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import api_reference  # noqa: E402  (scripts beside the documents)
import floor_plan  # noqa: E402

# A heavy package is imported where it is used, so that the others need not have it.
HEAVY = {
    "matplotlib", "PIL", "sklearn", "tensorboardX", "tensorflow_datasets", "h5py",
    "sacrebleu", "sacremoses", "safetensors", "ctranslate2",
    "tokenizers", "pyarrow", "orbax",
}  # fmt: skip
# So are the modules of the core that few runs need, which the others then do not load.
OPTIONAL = {
    f"transformer_jax.{name}"
    for name in (
        "data.packing data.sampling data.sharded data.tfds data.reading.given "
        "data.reading.tables data.text.foreign data.text.retrieval decoding.consensus "
        "decoding.ensemble decoding.live decoding.neural_cache "
        "decoding.searches.contrast decoding.searches.groups "
        "decoding.searches.inclusion decoding.sliding hosts.peers "
        "report.analysis.analyser report.groups report.significance runs.session "
        "shards.cut shards.work shards.workers tasks.parts.inside training.teacher "
        "training.warm_start"
    ).split()
}


def test_rooms_import_downwards_only():
    floors = {
        room: i for i, floor in enumerate(floor_plan.FLOORS) for room in floor.split()
    }
    plan = floor_plan.read_imports()
    assert set(plan) == set(floors), "a room without a floor, or a floor without a room"
    upwards = [
        f"{room} imports {other}"
        for room, others in plan.items()
        for other in others
        if floors[other] <= floors[room]
    ]
    assert not upwards


CORE = set(
    "base cli config data decoding evaluate hardware hosts "
    "losses models optim predict report runs scores sharding tasks train "
    "training".split()
)
REST = {"family", "corpora", "visualize", "planning", "convert", "engines"}


def test_the_core_imports_nothing_of_the_rest():
    plan = floor_plan.read_imports()
    assert set(plan) >= CORE
    assert not {room: plan[room] & REST for room in CORE if plan[room] & REST}


def test_a_member_of_the_family_imports_the_core_and_no_other_member():
    for module, others in floor_plan.read_module_imports().items():
        if not module.startswith("family."):
            continue
        member = ".".join(module.split(".")[:2])
        allowed = CORE | ({"visualize"} if module == f"{member}.figure" else set())
        for other in others - {member}:
            own = other.startswith(f"{member}.")
            assert own or other.partition(".")[0] in allowed, f"{module}: {other}"


def test_corpora_import_only_the_data():
    assert floor_plan.read_imports()["corpora"] <= {"data", "base"}


def test_no_folder_has_more_than_14_files():
    counts = collections.Counter(path.parent for path in floor_plan.modules())
    counts[floor_plan.PACKAGE] += 1  # __init__.py
    assert not {str(folder): n for folder, n in counts.items() if n > 14}


def test_files_of_tests_have_names_of_their_own():
    # Files of tests are imported by their names alone: pytest collects but one of two.
    names = collections.Counter(
        path.name for path in (ROOT / "tests").rglob("test_*.py")
    )
    assert not {name for name, number in names.items() if number > 1}


def test_no_module_imports_itself_in_a_circle():
    graph = floor_plan.read_module_imports()
    done, path = set(), []

    def visit(module):
        assert module not in path, " → ".join([*path, module])
        if module in done:
            return
        path.append(module)
        for other in sorted(graph[module]):
            visit(other)
        path.pop()
        done.add(module)

    for module in sorted(graph):
        visit(module)


def test_imports_inside_functions_are_of_what_few_runs_need():
    known = {f"transformer_jax.{name}" for name in floor_plan.read_module_imports()}
    assert known >= OPTIONAL
    found = []
    for path in floor_plan.modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for inner in ast.walk(node):
                names = []
                if isinstance(inner, ast.Import):
                    names = [alias.name for alias in inner.names]
                elif isinstance(inner, ast.ImportFrom):
                    full = [f"{inner.module}.{alias.name}" for alias in inner.names]
                    names = [n if n in known else inner.module or "" for n in full]
                found += [
                    f"{path.relative_to(ROOT)}:{inner.lineno}: {name}"
                    for name in names
                    if name.partition(".")[0] not in HEAVY and name not in OPTIONAL
                ]
    assert sorted(set(found)) == []


def test_the_drawing_in_the_documents_is_that_of_the_imports():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert floor_plan.draw() in text, "run python docs/floor_plan.py --write"


def test_the_api_reference_has_every_room_and_module():
    listed = [name for names in api_reference.modules().values() for name in names]
    every = {f"transformer_jax.{name}" for name in floor_plan.read_module_imports()}
    left_out = tuple(
        f"transformer_jax.{p.replace('/', '.')}" for p in api_reference.LEFT_OUT
    )
    assert {n for n in every if not n.startswith(left_out)} <= set(listed)
