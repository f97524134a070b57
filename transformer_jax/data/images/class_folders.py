"""Folders with one subfolder per class: list their files, hold some out."""

import pathlib
from collections.abc import Sequence
from zlib import crc32

from transformer_jax.base.errors import UserError


def list_files(
    folder: pathlib.Path, suffixes: Sequence[str], what: str
) -> tuple[list[pathlib.Path], list[str]]:
    """List the files of a split by class, and notes about other files.

    Each subfolder is a class, and must contain a file; `what` is the word for a file.
    """
    files, others = [], 0
    for subfolder in sorted(folder.iterdir()):
        if not subfolder.is_dir():
            others += 1
            continue
        contents = sorted(subfolder.iterdir())
        chosen = [
            f
            for f in contents
            if f.suffix.lower() in suffixes and f.is_file()  # opening a FIFO would hang
        ]
        if not chosen:
            raise UserError(
                f"{subfolder} holds no {what} ({', '.join(suffixes)}): put {what}s of "
                "its class there, or remove the folder"
            )
        files += chosen
        others += len(contents) - len(chosen)
    if not files:
        raise UserError(
            f"{folder} holds no folder of {what}s: make one for each class, such as "
            f"{folder / 'cat'}"
        )
    notes = [f"{folder}: {others:,} files that are not {what}s are left out"]
    return files, notes if others else []


def draw_held_out(
    files: Sequence[pathlib.Path], validation: int, what: str
) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Split files into training and validation, by a hash of their names."""
    if not 0 < validation < len(files):
        raise UserError(
            f"{validation} of {len(files)} {what}s cannot be held out for validation: "
            f"set data.validation_size to 1 to {len(files) - 1}, or make a folder "
            "validation next to train"
        )
    names = [f"{file.parent.name}/{file.name}" for file in files]
    order = sorted(
        range(len(files)), key=lambda i: (crc32(names[i].encode()), names[i])
    )
    chosen = set(order[:validation])
    return (
        [file for i, file in enumerate(files) if i not in chosen],
        [files[i] for i in sorted(chosen)],
    )
