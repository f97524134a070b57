"""Cache text indexes, tokenizers and stores on the host's disk, building each once.

An entry is built under a temporary name, sealed (its sizes and checksums are recorded),
flushed to the disk and renamed, so no process sees it incomplete. An entry that does
not match its seal is rebuilt. A lock makes other processes on the host wait instead of
repeating the work; it is released when its process ends. The cache may be deleted at
any time.
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
READ = 1 << 18  # bytes read at a time
CHECKED = 64  # blocks verified when an entry is opened: 1 GB

_sound: dict[str, str] = {}  # entry → content, of the entries verified so far


def folder() -> pathlib.Path:
    """Return $TRANSFORMER_JAX_CACHE, or a folder in the user's home directory."""
    given = os.environ.get("TRANSFORMER_JAX_CACHE")
    return pathlib.Path(given or pathlib.Path.home() / ".cache" / "transformer_jax")


def build_once(
    entry: pathlib.Path, make: Callable[[pathlib.Path], None], content: str = ""
) -> pathlib.Path:
    """Return the folder `entry`, calling `make` to fill it unless it already exists.

    `content` identifies what the entry is made from, in addition to its name: an entry
    with other content is rebuilt, like a damaged one.
    """
    if entry.is_dir() and not find_damage(entry, content):
        return entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with _locked(entry.with_name(f".{entry.name}.lock")):
        if entry.is_dir():  # damaged, or made by another process in the meantime
            if not (problem := find_damage(entry, content)):
                return entry
            logger.warning("note       %s is rebuilt: %s", entry, problem)
            shutil.rmtree(entry)
        _clear_debris(entry)
        temporary = pathlib.Path(
            tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent)
        )
        try:
            make(temporary)
            seal(temporary, content)
            os.rename(temporary, entry)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _sound[str(entry)] = content
    return entry


def digest(paths: Sequence[pathlib.Path]) -> str:
    """Return a digest of the names and bytes of files.

    It is cached: the files are read again only if one of them has changed.
    """
    key = hashlib.sha256()
    for file in paths:
        key.update(f"{files.identify(file)}\n".encode())

    def write_digest(entry: pathlib.Path) -> None:
        total = hashlib.sha256()
        for file in paths:
            total.update(f"\n{file.parent.name}/{file.name} ".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
        (entry / "digest").write_text(total.hexdigest(), encoding="utf-8")

    entry = build_once(folder() / "images" / key.hexdigest()[:24], write_digest)
    return (entry / "digest").read_text(encoding="utf-8")


def seal(entry: pathlib.Path, content: str = "") -> None:
    """Record the sizes and checksums of an entry's files, and flush all to the disk."""
    recorded = {}
    for path in sorted(entry.iterdir()):
        files.flush(path)
        size = path.stat().st_size
        checksums = [_checksum(path, i) for i in range(-(-size // BLOCK))]
        recorded[path.name] = {"size": size, "crc32": checksums}
    files.write(entry / SEAL, json.dumps({"content": content, "files": recorded}))


def find_damage(entry: pathlib.Path, content: str = "") -> str:
    """Describe how an entry differs from its seal; return "" if it is sound.

    An entry is verified once per process. All sizes are compared, and the checksums of
    all blocks or, in larger entries, of `CHECKED` blocks drawn at random.
    """
    if _sound.get(str(entry)) == content:
        return ""
    try:
        sealed = json.loads((entry / SEAL).read_text(encoding="utf-8"))
        if sealed["content"] != content:
            return "its generator has changed"
        blocks = []
        for name, about in sealed["files"].items():
            size = (entry / name).stat().st_size
            if size != about["size"]:
                return f"{name} has {size:,} bytes, not {about['size']:,}"
            blocks += [(name, i, crc) for i, crc in enumerate(about["crc32"])]
        for name, i, crc in random.Random().sample(blocks, min(CHECKED, len(blocks))):
            if _checksum(entry / name, i) != crc:
                return f"{name} does not hold the bytes that were written"
    except FileNotFoundError as error:
        name = pathlib.Path(str(error.filename)).name
        return "an earlier version made it" if name == SEAL else f"{name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read ({error})"
    _sound[str(entry)] = content
    return ""


def _checksum(path: pathlib.Path, block: int) -> int:
    checksum = 0
    with path.open("rb") as file:
        file.seek(block * BLOCK)
        for _ in range(0, BLOCK, READ):
            checksum = zlib.crc32(file.read(min(READ, BLOCK)), checksum)
    return checksum


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with path.open("ab") as file:
        try:
            files.lock(file)
        except BlockingIOError:
            logger.info("waiting    another process is building the same data")
            files.lock(file, wait=True)
        yield


def _clear_debris(entry: pathlib.Path) -> None:
    """Remove what a killed process left of an entry; the caller holds its lock.

    The lock file stays: if it were removed, two processes could lock different files.
    """
    for old in entry.parent.glob(f".{entry.name}.*"):
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
