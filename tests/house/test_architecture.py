"""The floor plan: rooms import downwards only, in no circle, at the top of a file."""

import ast
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
}  # fmt: skip


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


def test_the_house_has_at_most_26_rooms():
    rooms = floor_plan.read_imports().keys() - {"__main__"}  # a door: it lists commands
    assert len(rooms) <= 26


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


def test_imports_inside_functions_are_of_heavy_packages_only():
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
                    names = [inner.module or ""]
                found += [
                    f"{path.relative_to(ROOT)}:{inner.lineno}: {name}"
                    for name in names
                    if name.partition(".")[0] not in HEAVY
                ]
    assert sorted(set(found)) == []


def test_the_drawing_in_the_documents_is_that_of_the_imports():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert floor_plan.draw() in text, "run python docs/floor_plan.py --write"


def test_the_api_reference_has_every_module():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert api_reference.page() == text, "run python docs/api_reference.py --write"
