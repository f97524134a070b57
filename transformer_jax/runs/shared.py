"""Check at the start that all processes share the run directory.

On hosts with separate disks, training would run for hours without a checkpoint, because
a checkpoint is complete only with the parts of all processes.
"""

import secrets
import time
from typing import Any

import jax

from transformer_jax import hosts
from transformer_jax.base.errors import UserError

PATIENCE = 30.0  # seconds that a file system may take to show a new file to others


def prove(folder: Any) -> None:
    """Refuse a run directory in which some process does not see process 0's files."""
    if jax.process_count() == 1:
        return
    # A new name, because file systems cache the absence of a file.
    proof = folder / f".shared-{hosts.decide_in_first(lambda: _write(folder))}"
    answers = hosts.gather("" if _appears(proof) else hosts.name_of())
    if jax.process_index() == 0:
        proof.unlink(missing_ok=True)
    if blind := [name for name in answers if name]:
        shown = ", ".join(blind[:8]) + ", …" * (len(blind) > 8)
        raise UserError(
            f"{folder} is not one folder for all processes: what {hosts.name_of(0)} "
            f"wrote there does not appear on {shown}. Give --workdir a folder that all "
            "hosts share, such as one on NFS, Lustre or a mounted bucket"
        )


def _write(folder: Any) -> str:
    nonce = secrets.token_hex(8)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f".shared-{nonce}").touch()
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    return nonce


def _appears(path: Any) -> bool:
    """Wait up to `PATIENCE` seconds for a file; return whether it exists."""
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True
