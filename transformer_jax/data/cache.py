"""A cache on the host's disk: text indexes, tokenizers and stores, each built once.

An entry is built under a temporary name, sealed (its sizes and checksums are written
down), flushed to the disk and renamed, so it is never seen incomplete. An entry that
does not agree with its seal is built again. A lock makes other processes of the host
wait instead of doing the same work; it ends with its process. The cache may be deleted
at any time.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import random
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence

from transformer_jax import files

logger = logging.getLogger(__name__)

SEAL = "sealed.json"
BLOCK = 1 << 24  # bytes of a file that share a checksum
READ = 1 << 18  # bytes in memory
CHECKED = 64  # blocks of an entry that are read when it is opened: 1 GB

_sound: dict[str, str] = {}  # entries that this process has checked: their content


def folder() -> pathlib.Path:
    """Return TRANSFORMER_JAX_CACHE, or a folder in the user's home."""
    given = os.environ.get("TRANSFORMER_JAX_CACHE")
    return pathlib.Path(given or pathlib.Path.home() / ".cache" / "transformer_jax")


def build_once(
    place: pathlib.Path, make: Callable[[pathlib.Path], None], content: str = ""
) -> pathlib.Path:
    """Return the folder `place`, after `make` has filled it unless it was there.

    `content` identifies what the entry is made from, beyond its name: an entry of
    other content is made again, as a damaged one is.
    """
    if place.is_dir() and not find_damage(place, content):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_name(f".{place.name}.lock")):
        if place.is_dir():  # damaged, or made by another process in the meantime
            if not (problem := find_damage(place, content)):
                return place
            logger.warning("note       %s is made again: %s", place, problem)
            shutil.rmtree(place)
        _clear_debris(place)
        temporary = pathlib.Path(
            tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent)
        )
        try:
            make(temporary)
            seal(temporary, content)
            os.rename(temporary, place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _sound[str(place)] = content
    return place


def digest(files: Sequence[pathlib.Path]) -> str:
    """Return a digest of the names and bytes of files.

    All are read only if a size or a time of change is not as it was: what came of a
    large folder is kept in the cache.
    """
    seen = hashlib.sha256()
    for file in files:
        found = file.stat()
        seen.update(f"{file.resolve()} {found.st_size} {found.st_mtime_ns}\n".encode())

    def read(place: pathlib.Path) -> None:
        total = hashlib.sha256()
        for file in files:
            total.update(f"\n{file.parent.name}/{file.name} ".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
        (place / "digest").write_text(total.hexdigest(), encoding="utf-8")

    place = build_once(folder() / "images" / seen.hexdigest()[:24], read)
    return (place / "digest").read_text(encoding="utf-8")


def seal(place: pathlib.Path, content: str = "") -> None:
    """Write down the sizes and checksums of an entry's files; flush all to the disk."""
    found = {}
    for path in sorted(place.iterdir()):
        files.flush(path)
        size = path.stat().st_size
        checksums = [_checksum(path, i) for i in range(-(-size // BLOCK))]
        found[path.name] = {"size": size, "crc32": checksums}
    files.write(place / SEAL, json.dumps({"content": content, "files": found}))


def find_damage(place: pathlib.Path, content: str = "") -> str:
    """Say how an entry differs from its seal; return "" if it is sound.

    Looks once per process. Sizes are always compared; the checksums of all blocks up to
    `CHECKED` of them, of larger entries those of as many that are drawn at random.
    """
    if _sound.get(str(place)) == content:
        return ""
    try:
        sealed = json.loads((place / SEAL).read_text(encoding="utf-8"))
        if sealed["content"] != content:
            return "what generates it has changed"
        blocks = []
        for name, about in sealed["files"].items():
            size = (place / name).stat().st_size
            if size != about["size"]:
                return f"{name} has {size:,} bytes, not {about['size']:,}"
            blocks += [(name, i, crc) for i, crc in enumerate(about["crc32"])]
        for name, i, crc in random.Random().sample(blocks, min(CHECKED, len(blocks))):
            if _checksum(place / name, i) != crc:
                return f"{name} has other bytes than were written"
    except FileNotFoundError as error:
        lost = pathlib.Path(str(error.filename)).name
        return "an earlier version made it" if lost == SEAL else f"{lost} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read ({error})"
    _sound[str(place)] = content
    return ""


def _checksum(path: pathlib.Path, block: int) -> int:
    found = 0
    with path.open("rb") as file:
        file.seek(block * BLOCK)
        for _ in range(0, BLOCK, READ):
            found = zlib.crc32(file.read(min(READ, BLOCK)), found)
    return found


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with path.open("ab") as file:
        try:
            files.lock(file)
        except BlockingIOError:
            logger.info("waiting    another process builds the same data")
            files.lock(file, wait=True)
        yield


def _clear_debris(place: pathlib.Path) -> None:
    """Remove what a killed process left of the same entry, while its lock is held.

    The lock file stays: if it were removed, two processes could lock two files.
    """
    for old in place.parent.glob(f".{place.name}.*"):
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
