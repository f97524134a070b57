"""Write a page of the site for each notebook, with the outputs that are stored in it.

Sphinx calls `write_pages` before it reads the documents (conf.py). Nothing is run, and
no page is kept in the repository. `lead_to_pages` turns links of other pages to a
notebook into links to its page.
"""

import base64
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
LINK = re.compile(r"\]\(\.\./notebooks/(\w+)\.ipynb\)")


def write_pages(folder: pathlib.Path) -> None:
    """Write a page and the pictures of each notebook into a folder."""
    folder.mkdir(exist_ok=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        parts = []
        for number, cell in enumerate(notebook["cells"]):
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                parts.append(text)
                if number == 0:
                    parts.append(_how_to_run(path.name, notebook["metadata"]["run"]))
            elif "install" not in cell["metadata"].get("tags", ()):
                parts += _code(text)
                parts += _outputs(cell, folder, f"{path.stem}_{number}")
        _keep(folder / f"{path.stem}.md", ("\n\n".join(parts) + "\n").encode())


def lead_to_pages(app, name: str, source: list[str]) -> None:
    """Let links to a notebook lead to its page."""
    source[0] = LINK.sub(r"](course/\1.md)", source[0])


def _how_to_run(name: str, run: dict) -> str:
    return (
        f"*This page shows `notebooks/{name}` as it was run at commit {run['commit']} "
        f"({run['cpu_seconds']} seconds of CPU time). Open the notebook to change it.*"
    )


def _code(text: str) -> list[str]:
    lines = [line for line in text.split("\n") if not line.startswith("%")]
    text = "\n".join(lines).strip("\n")
    return [f"```python\n{text}\n```"] if text else []


def _outputs(cell: dict, folder: pathlib.Path, name: str) -> list[str]:
    """Return what a cell printed and drew; pictures are written into the folder."""
    parts = []
    for number, output in enumerate(cell["outputs"]):
        data = output.get("data", {})
        if "image/png" in data:
            picture = folder / f"{name}_{number}.png"
            _keep(picture, base64.b64decode("".join(data["image/png"])))
            parts.append(f"![The figure that the cell draws]({picture.name})")
        elif text := "".join(output.get("text", data.get("text/plain", ""))):
            parts.append(f"```text\n{text.rstrip()}\n```")
    return parts


def _keep(path: pathlib.Path, content: bytes) -> None:
    """Write a file, unless it is the same already."""
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)
