"""Tell whole checkpoints in a folder from all else, and move that out of the way.

To Orbax an empty folder `12`, or one named `007`, is a checkpoint: it refuses to save
another one there, and deletes older ones for its sake.
"""

import json
import logging
import math
import os
import pathlib
import shutil
import time
from typing import Any

from transformer_jax import files
from transformer_jax.errors import UserError
from transformer_jax.runs.remote import is_remote, move_aside

logger = logging.getLogger(__name__)

WHOLE = "_CHECKPOINT_METADATA"  # is written last into a checkpoint
COMMITTED = "commit_success.txt"  # the same in an object store, which renames nothing
HALF_MADE = ".orbax-checkpoint-tmp"
SCORE = "metrics"  # of a checkpoint: a folder, and the file in it
DAMAGED = "damaged"  # a folder of the run


def list_whole(folder: Any) -> list[int]:
    """List the steps of the whole checkpoints, oldest first."""
    if is_remote(folder):
        found = list(folder.iterdir()) if folder.is_dir() else []
        numbered = [path for path in found if _is_step(path.name)]
        return sorted(int(p.name) for p in numbered if (p / COMMITTED).exists())
    found = [f.parent.name for f in folder.glob(f"[0-9]*/{WHOLE}") if f.is_file()]
    return sorted(int(name) for name in found if _is_step(name))


def list_strangers(folder: Any) -> list[pathlib.Path]:
    """List what is no checkpoint, whole or being saved.

    What is hidden, such as a file system's own files, is in nobody's way. An object
    store has no empty folders, and Orbax tells its unfinished checkpoints from others.
    """
    if is_remote(folder) or not folder.is_dir():
        return []
    whole = {str(step) for step in list_whole(folder)}
    return sorted(
        path
        for path in folder.iterdir()
        if not path.name.startswith(".")
        and HALF_MADE not in path.name
        and path.name not in whole
    )


def clear(folder: Any) -> None:
    """Move what is no checkpoint into the run's `damaged/`, with a warning."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(
            f"{folder} is a file, or a link to what is not there: mount its disk, or "
            "move it away to start without these checkpoints"
        )
    for path in list_strangers(folder):
        name = f"{folder.name}-{path.name}"
        try:
            place = move_aside(path, folder.parent / DAMAGED, name)
        except OSError as error:
            logger.warning("warning    %s is no whole checkpoint: %s", path, error)
        else:
            logger.warning(
                "warning    %s is no whole checkpoint: kept as %s", path, place
            )


def read_score(checkpoint: Any) -> dict[str, float] | None:
    """Read how a checkpoint was scored: {} if it was not, None if it is damaged."""
    try:
        found = files.read_object(checkpoint / SCORE / SCORE)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    score = found.get("score")
    return found if isinstance(score, int | float) and math.isfinite(score) else None


def write_score(checkpoint: Any, score: float) -> None:
    """Write how a checkpoint was scored, beside what was saved of it."""
    text = json.dumps({"score": score})
    if is_remote(checkpoint):
        (checkpoint / SCORE / SCORE).write_bytes(text.encode())  # whole or not
    else:
        files.write(checkpoint / SCORE / SCORE, text)


def clear_scores(folder: Any) -> None:
    """Move scores that nobody can read away from their checkpoints: they rank none."""
    for step in list_whole(folder):
        checkpoint = folder / str(step)
        if read_score(checkpoint) is None:
            name = f"{folder.name}-{step}-{SCORE}"
            move_aside(checkpoint / SCORE, folder.parent / DAMAGED, name)
            logger.warning("warning    the score of %s cannot be read", checkpoint)


def remove_half_made(folder: Any, step: int) -> None:
    """Remove what a save that failed has left, while others may still write there."""
    if is_remote(folder):
        return  # Orbax does, when the run is continued
    for _ in range(40):
        if not (found := list(folder.glob(f"{step}{HALF_MADE}*"))):
            return
        for half in found:
            shutil.rmtree(half, ignore_errors=True)
        time.sleep(0.05)


def _is_step(name: str) -> bool:
    """Return whether a folder has the very name that a step's checkpoint has."""
    return name.isascii() and name.isdigit() and name == str(int(name))
