"""The work on a corpus, shard by shard: a shard in, a finished file and its marker out.

    OUT/shards.json          the plan: the files, the cuts and the options
    OUT/00017.txt            what shard 17 gave, written whole or not at all
    OUT/done/00017.json      its marker: size, checksum, numbers of lines

A shard without a marker is not done. So any number of processes on any hosts may work
in the folder, be killed and be started again; what two of them do at the same time is
done twice and gives the same bytes. No engine is trusted to run a shard exactly once.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.base.errors import UserError
from transformer_jax.shards.cut import Part
from transformer_jax.shards.storage import Storage

FORMAT = 1
PLAN, DONE = "shards.json", "done"
COPIED = 1 << 20  # bytes


@dataclasses.dataclass(frozen=True)
class Marker:
    """The record of a shard that is done."""

    plan: str  # fingerprint
    by: dict[str, Any]  # what did it: a run and its step
    name: str  # of its file
    size: int
    sha256: str
    counts: dict[str, Any]  # lines in and out, …


class Work:
    """The shards of a plan in a folder, of which some are done."""

    def __init__(self, folder: Storage, plan: dict[str, Any]):
        self.folder, self.plan = folder, plan
        self.fingerprint = _fingerprint(plan)
        self.suffix: str = plan["suffix"]
        self._seen = folder.about(PLAN)  # changes when another plan is written
        self.shards = [[Part(*part) for part in parts] for parts in plan["shards"]]

    def __len__(self) -> int:
        return len(self.shards)

    @classmethod
    def begin(
        cls,
        address: str,
        what: str,
        shards: Sequence[Sequence[Any]],
        options: Mapping[str, Any],
        inputs: Mapping[str, Any],
        suffix: str,
    ) -> "Work":
        """Begin a work, or go on with it if the folder holds the same one."""
        plan = {
            "format": FORMAT,
            "what": what,
            "suffix": suffix,
            "inputs": inputs,
            "options": options,
            "shards": shards,
        }
        plan = json.loads(json.dumps(plan))
        folder = Storage(address)
        found = _read_plan(folder)
        if found is None and not folder.names():
            folder.write(PLAN, json.dumps(plan, indent=1).encode())
            found = plan
        elif found is None:
            found = _read_plan(folder)  # which another process has just written
        if found is None:
            raise UserError(
                f"{address} is not empty, and holds no {PLAN}: name a new folder with "
                "--output"
            )
        if found != plan:
            raise UserError(
                f"{address} holds other work ({_difference(found, plan)}): give the "
                "same input and options to go on with it, or another --output"
            )
        return cls(folder, plan)

    @classmethod
    def open(cls, address: str) -> "Work":
        """Open a work that was begun."""
        folder = Storage(address)
        plan = _read_plan(folder)
        if plan is None:
            raise UserError(
                f"{address} has no {PLAN}: name the --output of a command with --shards"
            )
        return cls(folder, plan)

    def name(self, shard: int) -> str:
        """Return the name of a shard's file."""
        return f"{shard:05}{self.suffix}"

    def _marker_name(self, shard: int) -> str:
        return f"{DONE}/{shard:05}.json"

    def marker(self, shard: int) -> Marker | None:
        """Return the marker of a shard; None if it is not done, or its file is not."""
        content = self.folder.read(self._marker_name(shard))
        if content is None:
            return None
        try:
            marker = Marker(**json.loads(content))
        except (ValueError, TypeError):
            return None  # damaged: the shard is done again
        if marker.plan != self.fingerprint:
            return None
        return marker if self.folder.size(marker.name) == marker.size else None

    def missing(self) -> list[int]:
        """List the shards that are not done."""
        marked = set(self.folder.names(DONE))
        return [
            i
            for i in range(len(self))
            if self._marker_name(i) not in marked or not self.marker(i)
        ]

    def do(
        self,
        shard: int,
        by: Mapping[str, Any],
        make: Callable[[list[Part], pathlib.Path], Mapping[str, Any]],
    ) -> Marker:
        """Do a shard unless it is done; return its marker.

        `make(parts, file)` writes the file and returns counts. `by` says what it is
        done with; a work that was begun with something else is refused.
        """
        found = self.marker(shard)
        if found:
            self._check_same(shard, found, by)
            return found
        try:
            with self._temporary() as place:
                file = place / self.name(shard)
                counts = make(self.shards[shard], file)
                size, digest = file.stat().st_size, _digest_of(file)
                marker = Marker(
                    self.fingerprint, dict(by), file.name, size, digest, dict(counts)
                )
                self._check_plan()
                self.folder.adopt(file, file.name)
        except FileNotFoundError:
            if found := self.marker(shard):  # another did it, and cleared the folder
                return found
            raise
        text = json.dumps(dataclasses.asdict(marker), indent=1)
        self.folder.write(self._marker_name(shard), text.encode())
        return marker

    def check_by(self, by: Mapping[str, Any]) -> None:
        """Refuse, before time is spent, to continue the shards of another run."""
        marked = set(self.folder.names(DONE))
        done = (i for i in range(len(self)) if self._marker_name(i) in marked)
        first = next(done, None)
        if first is not None and (marker := self.marker(first)):
            self._check_same(first, marker, by)

    def markers(self) -> list[Marker]:
        """Return all markers; refuse unless every shard is done by the same."""
        markers = [self.marker(i) for i in range(len(self))]
        found = [marker for marker in markers if marker]
        if len(found) < len(self):
            raise UserError(
                f"{self.folder.address}: {len(self) - len(found)} of {len(self)} "
                f"shards are not done, such as {markers.index(None)}: start the same "
                "command again"
            )
        for shard, marker in enumerate(found):
            self._check_same(shard, marker, found[0].by)
        return found

    def contents(self, shard: int, marker: Marker) -> Iterator[bytes]:
        """Yield the bytes of a shard's file; raise if they are not as written."""
        digest = hashlib.sha256()
        with self.folder.open(marker.name) as file:
            while block := file.read(COPIED):
                digest.update(block)
                yield block
        if digest.hexdigest() != marker.sha256:
            raise UserError(
                f"{self.folder.path(marker.name)} does not hold the bytes that were "
                f"written: remove it, and start the command again to do shard {shard}"
            )

    def clear(self) -> None:
        """Remove the unfinished files that killed processes left, once all is done."""
        if self.folder.is_local:
            for old in [*pathlib.Path(self.folder.root).rglob(".*.tmp")]:
                if old.is_dir():
                    shutil.rmtree(old, ignore_errors=True)  # may be being written
                else:
                    old.unlink(missing_ok=True)

    def _check_plan(self) -> None:
        """Refuse to add to a folder in which another work has been begun since."""
        try:
            seen = self.folder.about(PLAN)
        except FileNotFoundError:
            seen = {}
        if seen != self._seen and _read_plan(self.folder) != self.plan:
            raise UserError(
                f"{self.folder.path(PLAN)} was removed or replaced while this process "
                "worked: start the command again with another --output"
            )
        self._seen = seen

    def _check_same(self, shard: int, marker: Marker, by: Mapping[str, Any]) -> None:
        by = json.loads(json.dumps(by))
        if marker.by != by:
            raise UserError(
                f"{self.folder.address}: shard {shard} was done by another "
                f"({_difference(marker.by, by)}): give the same, or another --output"
            )

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[pathlib.Path]:
        """Make a folder for unfinished files, on the disk of the finished ones."""
        beside = None
        if self.folder.is_local:
            beside = pathlib.Path(self.folder.root)
            beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(".tmp", ".", beside, True) as place:
            yield pathlib.Path(place)


def _read_plan(folder: Storage) -> dict[str, Any] | None:
    content = folder.read(PLAN)
    if content is None:
        return None
    try:
        plan = json.loads(content)
        if plan["format"] == FORMAT:
            return plan
    except (ValueError, TypeError, KeyError):
        pass
    raise UserError(
        f"{folder.path(PLAN)} is no plan of this version: name another --output"
    )


def _fingerprint(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _difference(old: Any, new: Any, name: str = "") -> str:
    """Name the first thing that differs between two plain values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            if old.get(key) != new.get(key):
                inside = f"{name} {key}".strip()
                return _difference(old.get(key), new.get(key), inside)
    if isinstance(old, list) and isinstance(new, list):
        if len(old) == len(new):
            for a, b in zip(old, new, strict=True):
                if a != b:
                    if isinstance(a, list) and isinstance(b, list) and a[:1] == b[:1]:
                        name = f"{name} {a[0]}"
                    return _difference(a, b, name)
        return f"{name}: {len(old)} there, {len(new)} now"
    return f"{name}: {old!r} there, {new!r} now"


def _digest_of(file: pathlib.Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
