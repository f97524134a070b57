"""A run as one folder that holds all it takes to answer, and nothing else.

Written by `python -m transformer_jax.convert.bundle`:

    weights.safetensors   the parameters that the run answers with, by their paths
    config.json versions.json tokenizer/
    bundle.json           what it was made of, and the SHA-256 of every file

`transformer_jax.load(FOLDER)` and `predict --workdir FOLDER` take it like a run. What
has been changed, is missing or does not belong is refused by name.
"""

import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

import jax
import numpy as np

from transformer_jax import sharding
from transformer_jax.errors import UserError
from transformer_jax.sharding import Params

FORMAT = 1
MANIFEST, WEIGHTS = "bundle.json", "weights.safetensors"


def export(run: Any, folder: pathlib.Path) -> None:
    """Write a run (as `transformer_jax.load` gives it); whole or not at all."""
    from safetensors.numpy import save_file

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=".bundle.", dir=folder.parent))
    try:
        paths = jax.tree_util.tree_leaves_with_path(run.params)
        named = {sharding.path_name(p): np.asarray(leaf) for p, leaf in paths}
        save_file(named, temporary / WEIGHTS)
        for name in ("config.json", "versions.json"):
            shutil.copy(run.folder.path / name, temporary)
        shutil.copytree(run.folder.tokenizer, temporary / "tokenizer")
        files = sorted(p for p in temporary.rglob("*") if p.is_file())
        about = {
            "format": FORMAT,
            "step": run.step,
            "weights": run.weights,
            "files": {str(p.relative_to(temporary)): _hash(p) for p in files},
        }
        (temporary / MANIFEST).write_text(json.dumps(about, indent=1) + "\n")
        temporary.chmod(0o755)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_bundle(folder: pathlib.Path) -> bool:
    """Return whether a folder is a bundle, and not a run directory."""
    return (folder / MANIFEST).exists()


def check(folder: pathlib.Path) -> dict[str, Any]:
    """Return the manifest, after each file was found to be as it was written."""
    try:
        about = json.loads((folder / MANIFEST).read_text())
        files, version = about["files"], about["format"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder / MANIFEST} cannot be read: {error!r}") from None
    if version != FORMAT:
        raise UserError(
            f"{folder} is a bundle of format {version}, and this version reads format "
            f"{FORMAT}: export the run again"
        )
    problems = []
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{path} is missing from the bundle: copy it whole")
        elif _hash(path) != digest:
            what = "another tokenizer" if name.startswith("tokenizer/") else "damaged"
            problems.append(
                f"{path} is not what was exported ({what}: its SHA-256 differs): copy "
                "the bundle again"
            )
    if problems:
        raise UserError(*problems)
    return about


def read_params(folder: pathlib.Path, like: Any) -> Params:
    """Read the parameters of a checked bundle, and place them as `like` is."""
    from safetensors.numpy import load_file

    found = load_file(folder / WEIGHTS)

    def place(path, leaf):
        name = sharding.path_name(path)
        if name not in found or found[name].shape != leaf.shape:
            shape = found[name].shape if name in found else "nothing"
            raise UserError(
                f"{folder / WEIGHTS} has {shape} for {name}, but its config.json makes "
                f"it {leaf.shape}"
            )
        return jax.device_put(found[name].astype(leaf.dtype), leaf.sharding)

    return jax.tree_util.tree_map_with_path(place, like)


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
