"""Prepare the data of a run: learn tokenizers, encode the splits, plan the batches.

Everything is computed once and kept in the cache. All splits are read before training
begins, so that a mistake in a test set is found at the start and not at the end.
"""

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import cli, hosts, tasks
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data import cache
from transformer_jax.data import store as stores
from transformer_jax.data.batches import Buckets, Plan, limits
from transformer_jax.data.reading.records import Records
from transformer_jax.data.reading.sources import mix, splits_of_generated
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks.protocols import DataSource, Task
from transformer_jax.training.log import RunLog

if TYPE_CHECKING:
    from transformer_jax.data.sampling import Sampler

logger = logging.getLogger(__name__)

QUIET = 30.0  # seconds between log lines about progress

Say = Callable[[str], None]
Show = Callable[[int, int, str], None]  # (done, total, text): draws a progress bar


@dataclasses.dataclass(frozen=True)
class Split:
    """A split of the data: its raw records, and the store of its encoded examples."""

    name: str
    records: Any
    store: stores.Store


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The task of a run, its splits, and the ledger of what they contain."""

    task: Task
    train: Split
    held_out: dict[str, Split]
    ledger: dict[str, Any]


def prepare_together(config: ConfigDict, folder: Folder, log: RunLog) -> Prepared:
    """Prepare in process 0; the others wait, then load its results from the cache."""
    if not log.active and not hosts.broadcast_from_first(False):
        raise UserError("process 0 could not prepare the data: its message says why")
    if not log.active:
        folder.pull()
    done = False
    try:
        prepared = prepare(config, folder, log.say, log.progress)
        folder.adopt_data(prepared.ledger, write=log.active)
        done = True
    finally:
        if log.active:
            hosts.broadcast_from_first(done)
    return prepared


def prepare(
    config: ConfigDict, folder: Folder, say: Say, show: Show | None = None
) -> Prepared:
    """Read and encode all splits of a config; `show` draws a progress bar."""
    source = tasks.find(config.task).source(config)
    wanted = ["train", "validation", *_scored_splits(config, source, say)]
    records: dict[str, Records] = {}
    if config.data.get("store", ""):
        records["train"] = open_stored(config, folder, say)
    for name in wanted:
        if name not in records:
            records[name] = source.read(name)
    for note in dict.fromkeys(n for r in records.values() for n in r.notes):
        say(f"note       {note}")
    task = _create_task(config, source, folder, say)
    tokenizers = task.data.texts.tokenizers.values() if task.data.texts else ()
    # A codebook has an option of its own.
    for size in {t.vocab_size for t in tokenizers if type(t) is Tokenizer}:
        asked = config.tokenizer.vocab_size
        learnt = config.tokenizer.kind not in ("byte", "file")
        lent = config.train.initial or config.train.teacher
        if learnt and not lent and size < asked:
            say(
                f"note       this text gives a vocabulary of {size:,} pieces, not the "
                f"{asked:,} of tokenizer.vocab_size"
            )
    splits = {
        name: open_split(task, name, found, say, show)
        for name, found in records.items()
    }
    train = splits.pop("train")
    if not len(train.store):
        raise UserError(
            f"no training example is left of {len(train.records)}: "
            f"{stores.summary(train.store.ledger)}"
        )
    ledger = {
        name: {
            "store": split.store.name,
            "fingerprint": split.records.source_fingerprint,
            "content": split.records.content,
            "records": len(split.records),
            "examples": len(split.store),
            "left_out": split.store.ledger,
            "notes": split.records.notes,
        }
        for name, split in {"train": train, **splits}.items()
    }
    return Prepared(task, train, splits, ledger)


def open_stored(config: ConfigDict, folder: Folder, say: Say) -> Records:
    """Open the records of the store that `data.store` names; adopt its tokenizers."""
    from transformer_jax.data import sharded

    store = sharded.ShardedStore(address := config.data.store)
    store.check(config)
    sharded.copy_tokenizers(store.folder, folder.tokenizer)
    sizes = store.records.sizes()
    weights = mix(config.data, sizes)
    store.records.weigh(weights)
    shards = len(store.about["shards"])
    say(f"store      {address}: {len(store):,} examples in {shards} shards")
    return store.records


def _scored_splits(config: ConfigDict, source: DataSource, say: Say) -> list[str]:
    """Return the splits in eval.splits that exist; refuse an unknown name."""
    asked = config.eval.splits
    for name in asked:
        if name in source.splits and name != "train":
            continue
        known = [*source.known_splits, *splits_of_generated(config.task, config.data)]
        known = [split for split in dict.fromkeys(known) if split != "train"]
        if name not in known:
            raise UserError(
                f"eval.splits has {name!r}, and no data of {config.task} have such a "
                f"split to score: choose from {', '.join(known)}.{nearest(name, known)}"
            )
        if asked != ("test",):  # the default
            say(f"note       these data have no {name!r} of eval.splits to score")
    return [name for name in asked if name in source.splits]


def _create_task(
    config: ConfigDict, source: DataSource, folder: Folder, say: Say
) -> Task:
    """Create the task; a new run takes the tokenizers of its origin or its teacher."""
    begun, lent = (folder.path / "ledger.json").exists(), config
    checks: list[Callable[[Task], None]] = []
    if config.train.teacher or config.train.consistency:
        from transformer_jax.training import teacher

        checks += teacher.open_checks(config)
    for name in ("initial", "teacher"):
        if config.train[name] and not begun:
            from transformer_jax.training.warm_start import Origin

            origin = Origin(config, name)
            lent = origin.lend_tokenizers(lent, say)
            if name == "initial":
                checks.append(origin.check)
    task = tasks.find(config.task).create(lent, source, folder.tokenizer, say)
    for check in checks:
        check(task)
    return task


def open_split(
    task: Task,
    name: str,
    records: Any,
    say: Say = logger.info,
    show: Show | None = None,
) -> Split:
    """Encode a split, or open its store; only training may leave examples out."""
    training = name == "train"
    if records.store is not None:
        records.store.check_encoding(task.data.fingerprint)
        return Split(name, records, records.store)
    fingerprint = f"{records.fingerprint}-{task.data.fingerprint}"
    progress = _Progress(name, say, show)
    store = stores.build(
        cache.folder() / "stores",
        records,
        task.data.columns_for(records),
        task.data.encode,
        fingerprint + (task.data.filter_fingerprint if training else ""),
        task.data.make_filter if training else None,
        progress,
    )
    how = "encoded" if progress.began else "found in the cache"
    logger.debug("%-10s %s: %s", name, how, store.folder)
    if not training:
        _refuse_endless(task, name, records, store)
    return Split(name, records, store)


@dataclasses.dataclass(frozen=True)
class Planned:
    """The plan of all batches, and the sampler of their segmentations (or None)."""

    plan: Plan
    sampler: "Sampler | None"
    padding: float  # the share of positions without a token
    corpora: tuple[tuple[int, int], ...]  # examples, and how often each is in an epoch


def make_plan(config: ConfigDict, task: Task, train: Split) -> Planned:
    """Plan the batches of a training run, from the lengths of its examples alone."""
    data, store, sampler = config.data, train.store, None
    lengths = expected = task.data.lengths(store)
    if task.data.texts and config.tokenizer.sampling:
        from transformer_jax.data.sampling import Sampler

        sampler = Sampler(
            task.data.texts,
            train.records,
            config.tokenizer.sampling,
            config.seed,
            data.max_length,
        )
        # Sampled segmentations are longer, so the plan leaves room for most of them.
        growth = sampler.growth(store)
        expected = lengths * growth
        lengths = sampler.room(lengths, growth)
    numbers, mixture = store.column(stores.RECORD), train.records.mixture
    repeats = mixture.repeats(numbers) if mixture else None
    shapes, length_multiple = limits(data)
    others: dict[str, Any] = {
        "row_multiple": data.row_multiple,
        "length_multiple": length_multiple,
        "seed": config.seed,
        "repeats": repeats,
    }
    if data.batching == "packed":
        from transformer_jax.data.packing import Packed

        plan = Packed(lengths, data.batch_tokens, data.pack_length, **others)
    else:
        plan = Buckets(lengths, data.batch_tokens, shapes, **others)
    corpora = _count(mixture.corpora_of(numbers), repeats) if mixture else ()
    return Planned(plan, sampler, plan.padding_share(expected), corpora)


def _count(corpora: np.ndarray, repeats: Any) -> tuple[tuple[int, int], ...]:
    """Return the examples of each corpus, and how often each of them is in an epoch."""
    _, first, counts = np.unique(corpora, return_index=True, return_counts=True)
    times = np.ones_like(first) if repeats is None else repeats[first]
    return tuple(zip(counts.tolist(), times.tolist(), strict=True))


def _refuse_endless(task: Task, name: str, records: Any, store: stores.Store) -> None:
    """Refuse a held-out example that is too long for the memory of an evaluation."""
    limit = task.config.eval.max_length
    longest = task.data.lengths(store).max(axis=1) if len(store) else np.zeros(0)
    if len(bad := np.flatnonzero(longest > limit + 1)):
        first = int(store.column(stores.RECORD)[bad[0]])
        raise UserError(
            f"{records.where(first)} ({name}) has {longest[bad[0]] - 1:,} pieces, more "
            f"than eval.max_length {limit} ({len(bad)} such examples): a held-out "
            "example is never left out; split it, or raise the limit"
        )


class _Progress:
    """Show the progress of encoding, as a bar and occasional log lines."""

    def __init__(self, name: str, say: Say, show: Show | None):
        self.name, self.say, self.show = name, say, show
        self.began = self._said = 0.0  # the time of the first call

    def __call__(self, done: int, total: int) -> None:
        """Show `done` of `total` examples; log a line every `QUIET` seconds."""
        now = time.monotonic()
        if not self.began:
            self.began = self._said = now
        if self.show:
            self.show(done, total, f"encoding {self.name}")
        if now - self._said >= QUIET:
            self._said = now
            rate = done / (now - self.began)
            left = cli.duration((total - done) / rate)
            self.say(
                f"encoding   {self.name}: {done:,} of {total:,} examples, {rate:,.0f} "
                f"per second, left {left}"
            )
