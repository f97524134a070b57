"""Read and write the files of a folder that is local, on a shared disk or in a bucket.

A file is written whole or not at all: locally under a temporary name that is renamed,
in an object store by one upload.
"""

import errno
import os
import pathlib
import re
import secrets
import shutil
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from transformer_jax.base import files
from transformer_jax.base.errors import UserError

COPIED = 1 << 20  # bytes copied at a time


class Storage:
    """A folder, named by a path or by an address such as gs://bucket/corpus."""

    def __init__(self, address: str | os.PathLike[str]):
        """Find the file system of a path or address, without touching the folder."""
        self.address = re.sub(r"(?<![:/])/+$", "", os.fspath(address)) or "/"
        self.system: Any = LocalFileSystem()
        self.root = os.path.abspath(self.address)
        try:
            if "://" in self.address:
                self.system, self.root = fsspec.core.url_to_fs(self.address)
        except (ImportError, ValueError) as error:
            raise UserError(
                f"{address} cannot be opened: {error}: use a folder, or install what "
                "its address needs"
            ) from None
        self.is_local = isinstance(self.system, LocalFileSystem)

    def path(self, name: str) -> str:
        """Return where a file of the folder lies in its file system."""
        return f"{self.root.rstrip('/')}/{name}"

    def names(self, folder: str = "", deep: bool = False) -> list[str]:
        """List the visible files below a folder of this one, sorted."""
        place = self.path(folder).rstrip("/")
        self.system.invalidate_cache()
        try:
            depth = None if deep else 1
            found = self.system.find(place, maxdepth=depth)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = [path[len(self.root.rstrip("/")) + 1 :] for path in found]
        return sorted(n for n in names if not _is_hidden(n))

    def about(self, name: str) -> dict[str, Any]:
        """Return the size of a file, and whatever tells its versions apart."""
        if self.is_local:
            status = os.stat(self.path(name))
            return {"size": status.st_size, "version": str(status.st_mtime_ns)}
        self.system.invalidate_cache()
        info = self.system.info(self.path(name))
        version = self.system.ukey(self.path(name))
        return {"size": int(info["size"]), "version": str(version)}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        try:
            return self.about(name)["size"]
        except FileNotFoundError:
            return None

    def open(self, name: str) -> IO[bytes]:
        """Open a file to be read."""
        return self.system.open(self.path(name), "rb")

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None if it does not exist."""
        try:
            with self.open(name) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        if not self.is_local:
            self.system.pipe_file(self.path(name), content)
            return
        path = pathlib.Path(self.path(name))
        try:
            files.write_bytes(path, content)
        except FileNotFoundError:  # another process has cleared its temporary file
            files.write_bytes(path, content)

    def adopt(self, file: pathlib.Path, name: str) -> None:
        """Move a finished file of this machine into the folder."""
        if not self.is_local:
            self.system.put_file(str(file), self.path(name))
            file.unlink()
            return
        place = pathlib.Path(self.path(name))
        place.parent.mkdir(parents=True, exist_ok=True)
        files.open_mode(file)
        files.flush(file)
        try:
            file.replace(place)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move(file, place)
        files.flush(place.parent)

    def fetch(self, name: str, file: pathlib.Path) -> None:
        """Copy a file of the folder to this machine."""
        with self.open(name) as source, file.open("xb") as target:
            shutil.copyfileobj(source, target, COPIED)


def _move(file: pathlib.Path, place: pathlib.Path) -> None:
    """Move a file to another disk, where it appears whole or not at all."""
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
    try:
        shutil.copyfile(file, beside)
        files.flush(beside)
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)
    file.unlink()


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
