"""Say how far the work in a folder of shards is, check its files, and join them.

    python -m transformer_jax.shards --work OUT
    python -m transformer_jax.shards --work OUT --check
    python -m transformer_jax.shards --work OUT --join ANSWERS

The work of a folder of files is joined into a folder of files with the same names, and
that of a file into a file, in the order of the input.
"""

import collections
import itertools
import json
import logging
import pathlib
import tempfile
from collections.abc import Collection, Iterator, Sequence

from absl import flags

from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.shards.work import Marker, Work

logger = logging.getLogger("transformer_jax.shards")  # __name__ may be __main__


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("work", "", "The --output of a command with --shards.")
    flags.DEFINE_bool("check", False, "Read all files, and compare their checksums.")
    flags.DEFINE_string("join", "", "A new file, or folder, for the joined answers.")


def main(overrides: dict[str, str]) -> int:
    """Say what is done, check or join it; return the exit code."""
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("work", args.work, "the --output of a command with --shards")
    work = Work.open(args.work)
    if "://" in args.join:
        raise UserError(f"--join={args.join}: name a file or folder of this machine")
    if args.join:
        join(work, pathlib.Path(args.join))
        return 0
    found = {"shards": len(work), "missing": work.missing()}
    if args.check:
        found["damaged"] = damaged(work, found["missing"])
    print(json.dumps(found))
    return 1 if found["missing"] or found.get("damaged") else 0


def damaged(work: Work, missing: Collection[int]) -> list[int]:
    """List the shards whose files do not hold the bytes that were written."""
    found = []
    for shard in range(len(work)):
        if shard not in missing and (marker := work.marker(shard)):
            try:
                collections.deque(work.contents(shard, marker), maxlen=0)
            except UserError as error:
                logger.warning(f"warning    {error}")
                found.append(shard)
    return found


def join(work: Work, target: pathlib.Path) -> None:
    """Join the lines of all shards, file by file of the input."""
    if target.exists():
        raise UserError(f"--join={target}: it is there already: name a new one")
    inputs = work.plan["inputs"]
    if "single" not in inputs:
        raise UserError(f"{work.folder.address}: its shards are not lines to be joined")
    markers = work.markers()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(".tmp", ".", target.parent) as folder:
        whole = pathlib.Path(folder) / target.name
        total = _write(work, markers, whole)
        whole.rename(target)
    files = len(inputs["files"])
    logger.info(f"joined     {total:,} lines of {files:,} files in {target}")


def _write(work: Work, markers: Sequence[Marker], whole: pathlib.Path) -> int:
    """Write the answers to a file, or to a folder's files; return their number."""
    lines = itertools.chain.from_iterable(
        _lines(work.contents(shard, marker)) for shard, marker in enumerate(markers)
    )
    inputs = work.plan["inputs"]
    names = [name for name, _ in inputs["files"]]
    taken = {str(p) for n in names for p in (n, *pathlib.PurePosixPath(n).parents)}
    places = {
        name: whole if inputs["single"] else whole / _plain(name, taken)
        for name in names
    }
    for place in places.values():  # also for files without a line
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    total = 0
    for parts, marker in zip(work.shards, markers, strict=True):
        for part, count in zip(parts, marker.counts["by_part"], strict=True):
            with places[part.file].open("ab") as file:
                file.writelines(itertools.islice(lines, count))
            total += count
    for _ in lines:  # reads the rest, and so checks the last checksum
        raise UserError(f"{work.folder.address}: a shard has more lines than counted")
    return total


def _plain(name: str, taken: Collection[str]) -> str:
    """Return the name of the answers to a file: they are not packed."""
    plain = name.removesuffix(".gz")
    return name if plain in taken else plain


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


if __name__ == "__main__":
    define_flags()
    cli.run(main)
