"""Draw the floor plan of the package from its imports, so that it cannot go stale.

    python docs/floor_plan.py            print the drawing (Mermaid)
    python docs/floor_plan.py --write    put it into docs/architecture.md

A room is a file or a folder directly inside `transformer_jax/`. A room may import those
of lower floors only; `tests/house/test_architecture.py` checks this.
"""

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "transformer_jax"
DOCUMENT = pathlib.Path(__file__).parent / "architecture.md"
BEGIN, END = "<!-- floor plan: begin -->", "<!-- floor plan: end -->"

# From the top floor to the ground. Rooms of one floor do not know of each other.
FLOORS = (
    "__main__",
    "family serve",
    "plan evaluate visualize inspect_data engines",
    "train predict prepare audit convert report planning",
    "training",
    "runs",
    "config",
    "tasks",
    "decoding corpora",
    "optim",
    "models data losses",
    "shards",
    "sharding cli hosts hardware scores",
    "base",
)


def modules() -> list[pathlib.Path]:
    """List the files of the package, without its `__init__`, which only loads runs."""
    return sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def name_of(path: pathlib.Path) -> str:
    """Return the dotted name of a file, without that of the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_module_imports() -> dict[str, set[str]]:
    """Return, for each module, the modules of the package that it imports."""
    known = {name_of(path) for path in modules()}
    graph: dict[str, set[str]] = {}
    for path in modules():
        own = name_of(path)
        found = graph.setdefault(own, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            package, _, module = node.module.partition(".")
            if package != "transformer_jax":
                continue
            for alias in node.names:
                full = f"{module}.{alias.name}".lstrip(".")
                other = full if full in known else module
                if other and other != own:
                    found.add(other)
    return graph


def read_imports() -> dict[str, set[str]]:
    """Return, for each room, the rooms that it imports."""
    rooms: dict[str, set[str]] = {}
    for module, others in read_module_imports().items():
        room = module.partition(".")[0]
        found = rooms.setdefault(room, set())
        found |= {other.partition(".")[0] for other in others} - {room}
    return rooms


def draw() -> str:
    """Draw rooms and imports as a Mermaid flow chart, without what follows from others.

    An import that is also reached through another room is left out: the drawing shows
    who stands on whom.
    """
    plan = read_imports()

    def reached(room: str) -> set[str]:
        found: set[str] = set()
        for other in plan[room]:
            found |= {other} | reached(other)
        return found

    lines = ["```mermaid", "flowchart TD"]
    for number, floor in enumerate(FLOORS):
        lines.append(f'  subgraph floor{number}[" "]')
        lines += [f"    {room}" for room in floor.split()]
        lines.append("  end")
    for room in sorted(plan):
        through = set().union(*(reached(other) for other in plan[room]))
        lines += [f"  {room} --> {other}" for other in sorted(plan[room] - through)]
    return "\n".join([*lines, "```"])


def main() -> None:
    """Print the drawing, or write it into the document."""
    if "--write" not in sys.argv[1:]:
        print(draw())
        return
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{draw()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
