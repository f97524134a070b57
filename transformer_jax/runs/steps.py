"""Find the complete checkpoints in a folder, and move anything else aside.

Orbax takes an empty folder `12`, or one named `007`, for a checkpoint. It then refuses
to save another one there, and deletes older ones in its favour.
"""

import json
import logging
import math
import os
import pathlib
import shutil
import time
from typing import Any

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.runs.remote import is_remote, move_aside

logger = logging.getLogger(__name__)

COMPLETE = "_CHECKPOINT_METADATA"  # the last file written into a checkpoint
COMMITTED = "commit_success.txt"  # the same in an object store, which cannot rename
PARTIAL = ".orbax-checkpoint-tmp"
SCORE = "metrics"  # in a checkpoint, both a folder and the file in it
DAMAGED = "damaged"  # a folder of the run


def list_complete(folder: Any) -> list[int]:
    """List the steps of the complete checkpoints, oldest first."""
    if is_remote(folder):
        found = list(folder.iterdir()) if folder.is_dir() else []
        numbered = [path for path in found if _is_step(path.name)]
        return sorted(int(p.name) for p in numbered if (p / COMMITTED).exists())
    found = [f.parent.name for f in folder.glob(f"[0-9]*/{COMPLETE}") if f.is_file()]
    return sorted(int(name) for name in found if _is_step(name))


def list_foreign(folder: Any) -> list[pathlib.Path]:
    """List everything that is not a checkpoint, complete or being saved.

    Hidden files, such as a file system's own, do no harm. An object store has no empty
    folders, and Orbax recognises its unfinished checkpoints there.
    """
    if is_remote(folder) or not folder.is_dir():
        return []
    complete = {str(step) for step in list_complete(folder)}
    return sorted(
        path
        for path in folder.iterdir()
        if not path.name.startswith(".")
        and PARTIAL not in path.name
        and path.name not in complete
    )


def set_foreign_aside(folder: Any) -> None:
    """Move anything but checkpoints to the run's damaged folder, with a warning.

    Orbax would take it for a checkpoint.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(
            f"{folder} is a file or a dangling link: mount its disk, or "
            "move it away to start without these checkpoints"
        )
    for path in list_foreign(folder):
        name = f"{folder.name}-{path.name}"
        try:
            place = move_aside(path, folder.parent / DAMAGED, name)
        except OSError as error:
            logger.warning(
                "warning    %s is not a complete checkpoint: %s", path, error
            )
        else:
            logger.warning(
                "warning    %s is not a complete checkpoint: kept as %s", path, place
            )


def read_score(checkpoint: Any) -> dict[str, float] | None:
    """Read the score of a checkpoint: {} if there is none, None if it is damaged."""
    try:
        found = files.read_object(checkpoint / SCORE / SCORE)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    score = found.get("score")
    return found if isinstance(score, int | float) and math.isfinite(score) else None


def write_score(checkpoint: Any, score: float) -> None:
    """Write the score of a checkpoint into its folder."""
    text = json.dumps({"score": score})
    if is_remote(checkpoint):
        (checkpoint / SCORE / SCORE).write_bytes(text.encode())  # atomic there
    elif checkpoint.is_dir():
        files.write(checkpoint / SCORE / SCORE, text)
    else:
        raise UserError(
            f"{checkpoint} was moved or removed during its training, which stops: "
            "start the same command again with --workdir naming its new place"
        )


def clear_scores(folder: Any) -> None:
    """Move unreadable scores aside, so that their checkpoints count as not scored."""
    for step in list_complete(folder):
        checkpoint = folder / str(step)
        if read_score(checkpoint) is None:
            name = f"{folder.name}-{step}-{SCORE}"
            move_aside(checkpoint / SCORE, folder.parent / DAMAGED, name)
            logger.warning("warning    the score of %s cannot be read", checkpoint)


def remove_partial(folder: Any, step: int) -> None:
    """Remove the remains of a failed save, to which threads may still be writing."""
    if is_remote(folder):
        return  # Orbax removes them when the run is continued
    for _ in range(40):
        if not (found := list(folder.glob(f"{step}{PARTIAL}*"))):
            return
        for remains in found:
            shutil.rmtree(remains, ignore_errors=True)
        time.sleep(0.05)


def _is_step(name: str) -> bool:
    """Return whether a folder is named exactly like the checkpoint of a step."""
    return name.isascii() and name.isdigit() and name == str(int(name))
