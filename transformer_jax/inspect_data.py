"""Inspect a corpus before training on it.

    python -m transformer_jax.inspect_data --config mine.py --config.data.folder=PATH

Reads all splits, reports oddities in the text (`data/reading/findings.py`), then shows
what the model will see: pieces, lengths, batches, decoded examples. The tokenizer and
the encoded text stay in the cache for training. Exit code 1 means a finding is serious.
"""

import pathlib
import tempfile
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from transformer_jax import cli, tasks
from transformer_jax import config as configs
from transformer_jax.base import entry_points
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import UNK
from transformer_jax.data import store as stores
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.reading import findings
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.prepare import Prepared, Split, make_plan, prepare

PROBED = 2000  # examples per split that are encoded and decoded
UNKNOWN = 0.01  # a larger share of unknown pieces is serious
LEFT_OUT = 0.1  # a larger share of training pairs left out is serious


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("config", "", "A config file: path.py[:variant], or a name.")
    flags.DEFINE_integer("examples", 3, "Examples shown as the model sees them.")
    flags.DEFINE_string("picture", "", "A file for a histogram of lengths (.png).")


def main(overrides: dict[str, str]) -> int:
    """Inspect the splits of a config and return the exit code."""
    args = flags.FLAGS
    cli.require("config", args.config, "a config file, such as configs/multi30k.py")
    if args.picture and pathlib.Path(args.picture).suffix not in (".png", ".svg"):
        raise UserError(f"--picture={args.picture}: name a .png or .svg file")
    config = configs.load(args.config, overrides)
    refuse_other_tasks(config)
    if args.picture:
        read = [configs.find_file(args.config), *configs.named_files(config)]
        cli.refuse_overwriting("picture", args.picture, read)
    bar = cli.Bar(cli.is_terminal())

    def say(line: str) -> None:
        bar.clear()
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(config, Folder(folder), say, bar.show)
    bar.clear()
    found = _inspect_text(prepared)
    for name, list_of in found.items():
        _print_findings(name, list_of)
    serious = sum(f.serious for list_of in found.values() for f in list_of)
    serious += _describe(config, prepared)
    for i in np.linspace(0, len(prepared.train.store) - 1, args.examples).astype(int):
        _show_example(prepared, int(i))
    if args.picture:
        _draw(prepared, args.picture)
        print(f"picture    {args.picture}")
    if serious:
        count = "1 finding is" if serious == 1 else f"{serious} findings are"
        print(f"result     {count} serious (marked !!)")
    else:
        print("result     nothing serious was found")
    return 1 if serious else 0


def refuse_other_tasks(config: ConfigDict) -> None:
    """Refuse a task whose examples are not pairs of texts."""
    if not tasks.find(config.task).pairs:
        raise UserError(
            f"inspect_data reads pairs of texts, and {config.task} has none: training "
            "itself reports problems with its examples"
        )


def _inspect_text(prepared: Prepared) -> dict[str, list[findings.Finding]]:
    pairs = tasks.find(prepared.task.config.task).pairs
    apart = pairs is not None and pairs.words_apart
    splits = [
        findings.Split(s.name, s.records.untagged, s.records.where_field, apart)
        for s in (prepared.train, *prepared.held_out.values())
    ]
    for split in splits:
        print(f"read       {split.name}: {len(split.records):,} pairs", flush=True)
    return findings.inspect_corpus(splits[0], splits[1:])


def _print_findings(name: str, found: list[findings.Finding]) -> None:
    print(f"\n{name}: {'nothing odd' if not found else ''}".rstrip(": ").rstrip())
    for finding in found:
        print(f"  {'!!' if finding.serious else ' -'} {finding.text}")
        for example in finding.examples:
            print(f"       {example}")


def _describe(config: ConfigDict, prepared: Prepared) -> int:
    """Print what training will see of the text; return the number of serious facts."""
    task, store = prepared.task, prepared.train.store
    serious = 0
    print()
    for side, tokenizer in _texts(task).tokenizers.items():
        values = store.column(side)
        unknown = float((values == UNK).mean())
        used = len(np.unique(values))
        lengths = store.lengths(side)
        middle, most, all_but = np.percentile(lengths, [50, 90, 99]).astype(int)
        mark = "  !!" if unknown > UNKNOWN else ""
        serious += unknown > UNKNOWN
        print(
            f"{side:<10} {tokenizer.vocab_size:,} pieces ({config.tokenizer.kind}), "
            f"{used:,} used, {unknown:.2%} unknown{mark}\n"
            f"           lengths, ends counted: half ≤ {middle}, 90 % ≤ {most}, "
            f"99 % ≤ {all_but}, longest {lengths.max()}"
        )
    for split in (prepared.train, *prepared.held_out.values()):
        serious += _check_round_trip(config, task, split)
    records = len(prepared.train.records)
    share = 1 - len(store) / records
    mark = "  !!" if share > LEFT_OUT else ""
    serious += share > LEFT_OUT
    words = stores.summary(store.ledger) or "none"
    print(f"left out   of {records:,} training pairs ({share:.2%}): {words}{mark}")
    _print_examples_left_out(store.ledger)
    for batching in ("buckets", "packed"):
        _describe_plan(config, prepared, batching)
    return serious


def _check_round_trip(config: ConfigDict, task: Task, split: Split) -> bool:
    """Report texts changed by encoding and decoding; return whether it is serious."""
    chosen = np.linspace(0, len(split.store) - 1, min(PROBED, len(split.store)))
    changed = []
    for i in np.unique(chosen.astype(int)):
        place = int(split.store.column(stores.RECORD)[i])
        record = _texts(task).prepare(split.records[place])
        for side, tokenizer in _texts(task).tokenizers.items():
            read = tokenizer.decode(split.store.row(side, i).tolist())
            given = tokenizer.as_read(record[side])
            if read != given:
                changed.append((given, read))
    if not changed:
        return False
    inexact = config.tokenizer.kind in ("word", "file")
    serious = config.tokenizer.byte_fallback and not inexact
    before, after = changed[0]
    print(
        f"pieces     {len(changed)} texts of {split.name} are changed by encoding and "
        f"decoding{'  !!' if serious else ''}: {before[:60]!r} becomes {after[:60]!r}"
    )
    return serious


def _print_examples_left_out(ledger: dict[str, Any]) -> None:
    for reason, entry in ledger.items():
        for example in entry["examples"][:1]:
            text = " | ".join(str(example[k])[:60] for k in example if k != "where")
            print(f"             {reason}: {example['where']}: {text}")


def _describe_plan(config: ConfigDict, prepared: Prepared, batching: str) -> None:
    data = config.data
    chosen = batching == data.batching
    if batching == "packed" and data.get("pack_length", 0) <= data.max_length:
        return  # the task does not pack, or examples may not fit into the rows
    other = config.copy_and_resolve_references()
    with other.unlocked():
        other.data.batching = batching
    planned = make_plan(other, prepared.task, prepared.train)
    plan, steps = planned.plan, planned.plan.steps_per_epoch
    print(
        f"{batching:<10} {steps:,} steps per epoch, {config.train.steps / steps:.1f} "
        f"epochs in train.steps {config.train.steps:,}, padding "
        f"{planned.padding:.1%}, {len(plan.shapes)} shapes"
        f"{' (this config)' if chosen else ''}"
    )


def _show_example(prepared: Prepared, index: int) -> None:
    task, store = prepared.task, prepared.train.store
    record = int(store.column(stores.RECORD)[index])
    print(f"example    {prepared.train.records.where(record)}")
    for side, tokenizer in _texts(task).tokenizers.items():
        row = store.row(side, index).tolist()
        print(f"  {side:<8} {tokenizer.decode(row)}")
        print(f"           {' '.join(tokenizer.pieces(row))}")


def _draw(prepared: Prepared, path: str) -> None:
    sides = {
        s: prepared.train.store.lengths(s) for s in _texts(prepared.task).tokenizers
    }
    try:
        entry_points.require("plots", "lengths")(sides).savefig(path)
    except OSError as error:
        raise UserError(f"--picture={path}: {error.strerror}") from None


def _texts(task: Task) -> TextColumns:
    """Return the text columns, which every task of text pairs has."""
    assert task.data.texts is not None  # see refuse_other_tasks
    return task.data.texts


if __name__ == "__main__":
    define_flags()
    cli.run(main)
