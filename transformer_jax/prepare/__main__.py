"""Encode the training examples of a config once, shard by shard, to be trained on.

    python -m transformer_jax.prepare --config mine.py --output STORE --shards=99
    python -m transformer_jax.train --config mine.py --config.data.store=STORE …

Any number of processes on any hosts may do the shards, be killed and go on (`shards/`).
Examples are filtered and encoded as by a training that reads the files. Tokenizers are
learned first, from at most 4 GB; --worker=plan does no more than that, so that many
processes need not all do it.
"""

import logging
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from transformer_jax import cli, shards, tasks
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.data import sharded
from transformer_jax.data.reading.filters import Filter
from transformer_jax.data.reading.records import Concatenation, Stretch
from transformer_jax.data.reading.sources import Piece, Source, Splits
from transformer_jax.shards import cut, workers
from transformer_jax.shards.cut import Part
from transformer_jax.shards.storage import Storage
from transformer_jax.shards.work import Marker, Work
from transformer_jax.tasks.protocols import Task

logger = logging.getLogger("transformer_jax.prepare")  # __name__ may be __main__

LEARNED = 4 << 30  # bytes of text, of each side, from which tokenizers are learned


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("config", "", "A config file: path.py[:variant], or a name.")
    flags.DEFINE_string("output", "", "The folder of the store.")
    shards.define_flags(flags)


def main(overrides: dict[str, str]) -> int:
    """Encode the shards that the flags ask for; return the exit code."""
    args = flags.FLAGS
    cli.require("config", args.config, "a config file, such as configs/multi30k.py")
    if not args.shards:
        raise UserError("--shards is missing: the number of files to write, such as 64")
    shards.check_flags(args)
    cli.require("output", args.output, "the folder of the store")
    config = configs.load(args.config, overrides)
    source = tasks.find(config.task).source(config)
    if not isinstance(source, Source):
        raise UserError(
            f"the task {config.task!r} reads no text files that could be cut into "
            "shards: train on its data as they are"
        )
    pieces = {piece.name: piece for piece in source.pieces("train")}

    def begin() -> Work:
        sizes = [(piece.name, piece.size) for piece in pieces.values()]
        work = Work.begin(
            args.output,
            f"prepare {config.task}",
            cut.divide(sizes, args.shards),
            sharded.options_of(config),
            {"files": [(p.name, p.version, p.tag) for p in pieces.values()]},
            ".safetensors",
        )
        learn(config, source, work.folder)
        return work

    def open_maker(work: Work) -> workers.Maker:
        task = open_task(config, work.folder)

        def make(parts: list[Part], file: pathlib.Path) -> dict[str, Any]:
            found = [_open(source, pieces[part.file], part) for part in parts]
            return sharded.write_shard(
                file, found, _columns(task, found), task.data.encode, _filter(task)
            )

        return workers.Maker(work, {"encoding": task.data.fingerprint}, make)

    def complete(work: Work, markers: list[Marker]) -> None:
        task = open_task(config, work.folder)
        some = _open(source, pieces[work.shards[0][0].file], work.shards[0][0])
        sharded.settle(
            work,
            markers,
            _columns(task, [some]),
            list(_filter(task).make_keys),
            {piece.name: piece.corpus for piece in pieces.values()},
            {"task": config.task, "encoding": task.data.fingerprint},
        )

    return workers.run(args, begin, open_maker, complete)


def learn(config: ConfigDict, source: Source, folder: Storage) -> None:
    """Learn the tokenizers of a store unless it has them."""
    with tempfile.TemporaryDirectory() as place:
        own = pathlib.Path(place)
        if sharded.copy_tokenizers(folder, own):
            return
        tasks.find(config.task).create(config, _Sample(source), own, logger.info)
        for file in sorted(path for path in own.rglob("*") if path.is_file()):
            name = f"{sharded.TOKENIZER}/{file.relative_to(own)}"
            folder.write(name, file.read_bytes())
        folder.write(f"{sharded.TOKENIZER}/{sharded.LEARNT}", b"")


def open_task(config: ConfigDict, folder: Storage) -> Task:
    """Open the task with the tokenizers of a store."""
    with tempfile.TemporaryDirectory() as place:
        copy = pathlib.Path(place)
        sharded.copy_tokenizers(folder, copy)
        return tasks.find(config.task).open(config, copy)


class _Sample(Splits):
    """The part of a source from which tokenizers are learned."""

    def __init__(self, source: Source):
        super().__init__(source.data)
        self.source = source

    def read(self, split: str) -> Any:
        """Read all pieces of a split, or some, evenly spaced, of a larger one."""
        pieces = self.source.pieces(split)
        total = sum(piece.size for piece in pieces)
        if total <= LEARNED:
            return self.source.read(split)
        step = -(-total // LEARNED)
        chosen = pieces[::step] or pieces[:1]
        logger.info(f"learning   from {len(chosen)} of {len(pieces)} files")
        return _join([(self.source.examples(p.read()), p.tag) for p in chosen])


def _open(source: Source, piece: Piece, part: Part) -> Concatenation:
    """Open the examples of a part: its share of the records of its files."""
    records = piece.read()
    edges = [len(records) * place // piece.size for place in part[1:]]
    return _join([(source.examples(Stretch(records, *edges)), piece.tag)])


def _join(found: Sequence[tuple[Any, str]]) -> Concatenation:
    return Concatenation([r for r, _ in found], tags=[tag for _, tag in found])


def _columns(task: Task, parts: Sequence[Any]) -> dict[str, Any]:
    return dict(task.data.columns_for(parts[0]))


def _filter(task: Task) -> Filter:
    made = task.data.make_filter()
    return made if isinstance(made, Filter) else Filter(made)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
