"""Write the pages of the API reference: every module of the package, by its room.

    python docs/api_reference.py --write    remake docs/api.md

`tests/test_architecture.py` checks that the page is in step with the package.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENT = pathlib.Path(__file__).parent / "api.md"

# Rooms in the order in which a reader needs them; None: files of the top floor.
ROOMS = {
    "runs": "Open a trained run and use it; what a run directory holds.",
    "models": "Flax modules: arrays in, arrays out. The [cookbook](cookbook.md) uses "
    "them one by one.",
    None: "Losses, optimizers, scores, the mesh, and the commands.",
    "decoding": "Requests in, replies out.",
    "tasks": "Uses of a model; [Extending](extending.md) adds one.",
    "keys": "What options are, and the modules that a config names.",
    "config": "Every key of a run, and the checks before a run.",
    "data": "From files to batches.",
    "training": "What the training loop in `train.py` is made of.",
    "planning": "What a training will need, before it begins.",
    "hosts": "Find, meet and lose the other processes of a run.",
    "convert": "Commands that write a run in other forms.",
    "visualize": "Figures.",
}
HEAD = """# API reference

All modules of the package, from their docstrings. Shapes are written in the axis
letters of `transformer_jax.models.attention`. `python docs/api_reference.py --write`
makes this page.
"""
LEFT_OUT = "data/generated/"  # grammars and word lists


def page() -> str:
    """Make the text of the page."""
    package = ROOT / "transformer_jax"
    paths = sorted(package.rglob("*.py"), key=lambda p: p.with_suffix("").parts)
    rooms: dict[str | None, list[str]] = {room: [] for room in ROOMS}
    for path in paths:
        inside = path.relative_to(package)
        if str(inside).startswith(LEFT_OUT):
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        room = inside.parts[0] if len(inside.parts) > 1 else None
        rooms[room].append(name.removesuffix(".__init__"))
    parts = [HEAD]
    for room, names in rooms.items():
        parts.append(f"## {room or 'The top floor'}\n\n{ROOMS[room]}\n")
        for name in names:
            no_members = "\n   :no-members:" if name == "transformer_jax.models" else ""
            block = f"```{{eval-rst}}\n.. automodule:: {name}{no_members}\n```\n"
            parts.append(f"### {name}\n\n{block}")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv:
        DOCUMENT.write_text(page(), encoding="utf-8")
    else:
        print(page())
