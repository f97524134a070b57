"""Cache text indexes, tokenizers and stores on the host's disk, building each once.

An entry is built under a temporary name, sealed (its sizes and checksums are recorded),
flushed to the disk and renamed, so no process sees it incomplete. An entry that does
not match its seal is rebuilt. A lock makes other processes on the host wait instead of
repeating the work; it is released when its process ends. The cache may be deleted at
any time.

The seals find damage, not malice, and compiled programs are executed. So the folders of
the cache belong to this user alone: one that others own or can write is refused.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import pathlib
import pwd
import random
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence

from transformer_jax.base import files
from transformer_jax.base.errors import UserError

logger = logging.getLogger(__name__)

SEAL = "sealed.json"
BLOCK = 1 << 24  # bytes of a file that share a checksum
READ = 1 << 18  # bytes read at a time
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
WAY_OUT = "set TRANSFORMER_JAX_CACHE to a folder of your own"
CHECKED = 64  # blocks verified when an entry is opened: 1 GB

_sound: dict[str, str] = {}  # entry → content, of the entries verified so far


def folder() -> pathlib.Path:
    """Return $TRANSFORMER_JAX_CACHE, or a folder in the user's home directory."""
    given = os.environ.get("TRANSFORMER_JAX_CACHE") or "~/.cache/transformer_jax"
    if given.startswith("~/"):
        return _home() / given[2:]
    return pathlib.Path(os.path.expanduser(given))


def place(kind: str, name: str) -> pathlib.Path:
    """Return where the entry of this name lies among those of its kind."""
    return folder() / kind / hashlib.sha256(name.encode()).hexdigest()[:24]


def _home() -> pathlib.Path:
    """Return the user's home directory; a container may give its user none."""
    with contextlib.suppress(KeyError):  # the user has no entry
        home = os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir
        if os.path.isabs(home):
            return pathlib.Path(home)
    raise UserError(f"this user has no home directory for the cache: {WAY_OUT}")


def make_private(place: pathlib.Path) -> pathlib.Path:
    """Make a folder of the cache; refuse it if other users own it or can write to it.

    Otherwise they could choose what this user trains on, and which programs run.
    """
    root = folder()
    levels = [p for p in place.parents if p == root or root in p.parents]
    for level in [*reversed(levels), place]:
        try:
            level.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = level.stat()
        except OSError as error:
            taken = isinstance(error, FileExistsError)
            why = "it is a file" if taken else error.strerror
            raise UserError(f"{level} cannot be the cache: {why}: {WAY_OUT}") from None
        if about.st_uid != os.geteuid():
            raise UserError(f"the cache {level} belongs to another user: {WAY_OUT}")
        if about.st_mode & 0o022:
            raise UserError(
                f"other users can write to the cache {level}, and so change what this "
                f"one reads: remove it; or, if nobody did, chmod -R go-w {root}"
            )
    return place


def build_once(
    entry: pathlib.Path, make: Callable[[pathlib.Path], None], content: str = ""
) -> pathlib.Path:
    """Return the folder `entry`, calling `make` to fill it unless it already exists.

    `content` identifies what the entry is made from, in addition to its name: an entry
    with other content is rebuilt, like a damaged one.
    """
    make_private(entry.parent)
    if os.path.lexists(entry) and not find_damage(entry, content):
        return entry
    with _explain_full_disk(entry), _locked(entry.with_name(f".{entry.name}.lock")):
        if os.path.lexists(entry):  # damaged, or made by another process meanwhile
            if not (problem := find_damage(entry, content)):
                return entry
            logger.warning("note       %s is rebuilt: %s", entry, problem)
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink()
            else:
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


def remove_oldest(folder: pathlib.Path, kept: int) -> None:
    """Make room for one more entry of a folder, of which `kept` are to remain.

    The age of an entry is that of its folder, which its user may touch.
    """
    made = [path for path in folder.iterdir() if path.name[0] != "." and path.is_dir()]
    made.sort(key=lambda path: path.stat().st_mtime)
    for path in made[: max(len(made) + 1 - kept, 0)]:
        shutil.rmtree(path, ignore_errors=True)


def digest(paths: Sequence[pathlib.Path]) -> str:
    """Return a digest of the names and bytes of files.

    It is cached: the files are read again only if one of them has changed.
    """

    def write_digest(entry: pathlib.Path) -> None:
        total = hashlib.sha256()
        for file in paths:
            total.update(f"\n{file.parent.name}/{file.name} ".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
        (entry / "digest").write_text(total.hexdigest(), encoding="utf-8")

    name = "".join(f"{files.identify(file)}\n" for file in paths)
    entry = build_once(place("images", name), write_digest)
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
        about = entry.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return "it is a link, a file or another user's"
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
def _explain_full_disk(entry: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"{entry} cannot be written: {error.strerror}: make room, or {WAY_OUT}"
        ) from None


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
