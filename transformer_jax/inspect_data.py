"""Inspect a corpus before training on it.

    python -m transformer_jax.inspect_data --config mine.py --config.data.folder=PATH
    python -m transformer_jax.inspect_data FILES… --write mine.py --minutes 10

The second form guesses what files hold, and writes a config for them. The first reads
all splits, reports oddities in the text (`data/reading/findings.py`), then shows
what the model will see: pieces, lengths, batches, decoded examples. The tokenizer and
the encoded text stay in the cache for training. Exit code 1 means a finding is serious.
"""

import logging
import pathlib
import tempfile
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from transformer_jax import cli, tasks
from transformer_jax import config as configs
from transformer_jax import train as training
from transformer_jax.base import entry_points
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import UNK
from transformer_jax.data import store as stores
from transformer_jax.data.columns import TextColumns
from transformer_jax.data.reading import findings, guessing
from transformer_jax.planning import proposal as proposals
from transformer_jax.planning.proposal import propose as proposal_of
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.log import console, read_entries
from transformer_jax.training.prepare import Prepared, Split, make_plan, prepare

PROBED = 2000  # examples per split that are encoded and decoded
UNKNOWN = 0.01  # a larger share of unknown pieces is serious
TRIED = 20  # steps that are measured
LEFT_OUT = 0.1  # a larger share of training pairs left out is serious


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("config", "", "A config file: path.py[:variant], or a name.")
    flags.DEFINE_integer("examples", 3, "Examples shown as the model sees them.")
    flags.DEFINE_multi_string("files", [], "Files to guess a config for.")
    flags.DEFINE_string("write", "", "The config file to write for them, such as a.py.")
    flags.DEFINE_float("minutes", 10, "How long a training by it may take here.", 0.5)
    flags.DEFINE_string("picture", "", "A file for a histogram of lengths (.png).")


def main(overrides: dict[str, str]) -> int:
    """Inspect the splits of a config and return the exit code."""
    args = flags.FLAGS
    if args.files:
        cli.refuse_overrides(overrides)
        return propose_config(args.files, args.write, args.minutes)
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


def propose_config(paths: list[str], output: str, minutes: float) -> int:
    """Guess what files hold, and write a config that trains in this time."""
    cli.require("write", output, "the config file to write, such as mine.py")
    place = pathlib.Path(output)
    if place.exists() or place.suffix != ".py":
        raise UserError(f"--write={output}: name a new file that ends in .py")
    found = guessing.guess(paths)
    print(f"guess      {found.task}: {found.why}")
    for field, column in found.columns.items():
        print(f"           the {field} is column {column!r}")
    if found.labels:
        ordered = sorted(found.labels.items(), key=lambda pair: -pair[1])
        counts = ", ".join(f"{label!r} {count}" for label, count in ordered[:10])
        print(f"labels     {len(ordered)} in the first {len(found.sample):,}: {counts}")
    example = " | ".join(f"{value[:70]}" for value in found.sample[0].values())
    print(f"example    {example}", flush=True)
    proposal = proposal_of(found, place)
    source = tasks.find(found.task).source(proposal.config)
    for name in source.splits:
        print(f"read       {name}: {len(source.read(name)):,} examples", flush=True)
    print("measure    a few steps, to know how many fit", flush=True)
    seconds, steps_per_epoch = measure_step(proposal.with_steps(TRIED).config)
    most = proposals.EPOCHS[found.task] * steps_per_epoch
    fitting = int(minutes * 60 * proposals.SPARE / seconds)
    steps = max(min(fitting, most), 2 * TRIED)
    proposal = proposal.with_steps(steps)
    proposal.write(place, paths)
    print(
        f"steps      {steps:,} of {seconds:.2f} s each ({steps / steps_per_epoch:.1f} "
        f"epochs), about {cli.duration(steps * seconds / proposals.SPARE)} here"
    )
    print(f"wrote      {place}; correct it where the guess is wrong, then:")
    print(
        f"           python -m transformer_jax.train --config {place} --workdir "
        f"runs/{place.stem}"
    )
    return 0


def measure_step(config: ConfigDict) -> tuple[float, int]:
    """Train for a few steps; return the seconds of one, and the steps of an epoch."""
    with config.unlocked():
        config.eval.answers, config.eval.splits, config.eval.samples = 1, (), 0
        config.eval.weights, config.log.every = "last", TRIED // 2
        config.eval.every = config.checkpoint.every = TRIED
    before = console.level
    console.setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            training.train(config, pathlib.Path(folder) / "run")
            entries = read_entries(pathlib.Path(folder) / "run" / "metrics.jsonl")
            prepared = prepare(
                config, Folder(pathlib.Path(folder) / "run"), lambda line: None
            )
    finally:
        console.setLevel(before)
    last = [entry for entry in entries if entry["kind"] == "train"][-1]
    plan = make_plan(config, prepared.task, prepared.train).plan
    return last["seconds"] / (TRIED - TRIED // 2), plan.steps_per_epoch


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
