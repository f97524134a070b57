"""Write the pages of the API reference, one for each room of the package.

Sphinx calls `write_pages` before it reads the documents (conf.py), so no page of it is
kept in the repository.
"""

import pathlib

ROOT = pathlib.Path(__file__).parent.parent

# Rooms in the order in which a reader needs them; "": the files beside them.
ROOMS = {
    "runs": "Open a trained run and use it; what a run directory holds.",
    "models": "Flax modules: arrays in, arrays out; the [cookbook](../cookbook.md) has "
    "each alone.",
    "": "Losses, optimizers, scores, the mesh, and the commands.",
    "decoding": "Requests in, replies out.",
    "tasks": "Uses of a model; [Extending](../extending.md) adds one.",
    "base": "Errors, files, options, entry points: what all rooms stand on.",
    "config": "Every option of a run, and the checks before a run.",
    "data": "From files to batches.",
    "shards": "Work on a corpus, shard by shard, by any number of processes.",
    "training": "What the training loop in `train.py` is made of.",
    "serve": "A service over HTTP, and its page.",
    "prepare": "Encode a corpus shard by shard.",
    "report": "Groups of runs, and whether they differ.",
    "planning": "What a training will need, before it begins.",
    "hosts": "Find, meet and lose the other processes of a run.",
    "engines": "Other ways to search the answers of a run.",
    "convert": "Commands that write a run in other forms.",
    "visualize": "Figures.",
    "family": "The systems around the core.",
}
LEFT_OUT = ("corpora", "family/conversation/smalltalk", "family/speech/voice")


def modules() -> dict[str, list[str]]:
    """List the modules of each room; grammars and word lists are left out."""
    package = ROOT / "transformer_jax"
    rooms: dict[str, list[str]] = {room: [] for room in ROOMS}
    for path in sorted(package.rglob("*.py"), key=lambda p: p.with_suffix("").parts):
        inside = path.relative_to(package)
        if not inside.as_posix().startswith(LEFT_OUT):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            room = inside.parts[0] if len(inside.parts) > 1 else ""
            rooms[room].append(name.removesuffix(".__init__"))
    return rooms


def write_pages(folder: pathlib.Path) -> None:
    """Write a page for each room into a folder; a page that is the same is kept."""
    folder.mkdir(exist_ok=True)
    for number, (room, names) in enumerate(modules().items()):
        parts = [f"# {room or 'The top floor'}\n\n{ROOMS[room]}\n"]
        for name in names:
            no_members = "\n   :no-members:" if name in RE_EXPORTED else ""
            block = f"```{{eval-rst}}\n.. automodule:: {name}{no_members}\n```\n"
            parts.append(f"## {name}\n\n{block}")
        page = folder / f"{number:02d}_{room or 'top'}.md"
        text = "\n".join(parts)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


RE_EXPORTED = (
    "transformer_jax.models",
    "transformer_jax.models.layers",
    "transformer_jax.visualize.figures",
)
