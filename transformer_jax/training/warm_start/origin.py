"""Begin with the parameters of another run, of a bundle or of a foreign model.

Parameters are taken where path and shape agree; what belongs to the stack of an encoder
alone becomes the source's side of a model with two stacks, and the reverse. The other
run lends its tokenizers, or (`tokenizer.replace`) the rows of its tables are taken by
piece.
"""

import collections
import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax import tasks
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.runs import bundle
from transformer_jax.runs import folder as folders
from transformer_jax.runs import run as runs
from transformer_jax.sharding import Params, by_path, path_name
from transformer_jax.tasks.protocols import Task
from transformer_jax.training.warm_start import tables

Say = Callable[[str], None]

# Options of a model that leave the function of its parameters as it is.
OF_TRAINING = (
    "model.dropout",
    "model.dtype",
    "model.gradient_dtype",
    "model.attention",
    "model.remat",
    "model.scan_layers",
    "model.word_vectors",
    "model.train_word_vectors",
    "model.name",
)


def adopt(config: ConfigDict, path: str, workdir: str = "") -> None:
    """Change a config so that its model is that of a run, and begins with it.

    A run in `workdir` that has begun so goes on with its own options, so that the other
    one may be gone.

    Every option of the model that both have becomes the run's, except those that only
    matter in training and values that this task refuses. Longer examples than the run's
    table of positions are left out, images are scaled to the size of the run's, and
    sounds become the run's spectrograms.
    """
    begun = (folders.Folder(workdir).stored_config() if workdir else None) or {}
    has_begun = begun.get("train", {}).get("initial") == path
    config.train.initial = workdir if has_begun else path
    known, origin = configs.declared(config.task, config.model.name), Origin(config)
    config.train.initial = path
    kind = tasks.find(config.task)
    for name, value in configs.items(origin.config):
        model = name.startswith("model.") or name == "tokenizer.row_multiple"
        model = model or name in kind.of_input
        if name not in known or not model or name.startswith(OF_TRAINING):
            continue
        if not schema.find_problem(name, value, known[name]):
            config.update_from_flattened_dict({name: value})
    theirs = origin.config.get("data", {})
    if "image_size" in config.data and theirs.get("source") == "folder":
        config.data.image_size, config.data.grey = theirs.image_size, theirs.grey
    if "model.max_positions" in known and config.model.positions == "learned":
        room, options = config.model.max_positions - kind.ends, configs.items(config)
        if most := dict(options).get(kind.limited):
            config.update_from_flattened_dict({kind.limited: min(most, room)})


class Origin:
    """The run from which another one is initialised, or that teaches it."""

    def __init__(self, config: ConfigDict, option: str = "initial"):
        """Open the run that `train.initial`, or another option of `train`, names."""
        self.path = config.train[option]
        self.folder = folders.Folder(bundle.as_bundle(self.path))
        if not os.path.isdir(self.folder.path):
            around = [
                p.parent.name for p in self.folder.path.parent.glob("*/config.json")
            ]
            raise UserError(
                f"train.{option} = {self.path!r} names no run directory, bundle or "
                f"folder of Hugging Face.{nearest(self.folder.path.name, around)}"
            )
        try:
            self.config = self.folder.config()
        except UserError as error:
            raise UserError(f"train.{option} cannot be opened: {error}") from None

    def lend_tokenizers(self, config: ConfigDict, say: Say) -> ConfigDict:
        """Return the config with this run's tokenizers, unless it names its own."""
        files = sorted(map(str, self.folder.tokenizer.glob("*.model")))
        if not files or "tokenizer" not in config or config.tokenizer.kind == "file":
            return config
        if _swaps_tokenizer(config):
            return config
        mine, theirs = config.tokenizer, self.config.get("tokenizer", {})
        unused = [
            f"tokenizer.{name} = {mine[name]!r}"
            for name in ("kind", "vocab_size", "shared", "lowercase", "byte_fallback")
            if name in mine and theirs.get(name) != mine[name]
        ]
        say(
            f"tokenizer  that of {self.path}, learned from its text: its parameters "
            "know only its pieces, so this text is encoded with them"
        )
        if unused:
            say(f"warning    not used, as the tokenizer exists: {', '.join(unused)}")
        lent = config.copy_and_resolve_references()
        with lent.unlocked():
            lent.tokenizer.kind, lent.tokenizer.file = "file", ",".join(files)
            lent.tokenizer.lowercase = False  # the files contain their own rule
        return lent

    def check(self, task: Task) -> None:
        """Refuse a run whose parameters do not fit, or belong to other vocabularies."""
        other = tasks.find(self.config.task).open(self.config, self.folder.tokenizer)
        for name in task.data.vocabularies.keys() & other.data.vocabularies.keys():
            if _swaps_tokenizer(task.config):
                break
            both = task.data.vocabularies[name], other.data.vocabularies[name]
            if both[0].fingerprint != both[1].fingerprint:
                raise UserError(
                    f"train.initial = {self.path!r} has another vocabulary for the "
                    f"table {name!r}: {both[1].vocab_size:,} pieces, not these "
                    f"{both[0].vocab_size:,}. Leave tokenizer.kind = 'file' out to use "
                    "those of that run, or set tokenizer.replace = True to take over "
                    "the rows of its tables by piece"
                )
        own, theirs = (
            by_path(jax.eval_shape(t.objective.init, jax.random.key(0)))
            for t in (task, other)
        )
        theirs = tables.by_own_names(own, theirs)
        common = sorted(own.keys() & theirs.keys())
        changes = self._find_changes(task, other, own, theirs)[0]
        unlike = [
            name
            for name in common
            if own[name].shape != theirs[name].shape and name not in changes
        ]
        if unlike and (keys := self._other_sizes(task.config)):
            name = unlike[0]
            raise UserError(
                f"{name} is {own[name].shape}, but {theirs[name].shape} in "
                f"train.initial = {self.path!r}: set {' and '.join(keys)}"
            )
        if common == unlike:
            raise UserError(
                f"train.initial = {self.path!r} ({self.config.task}, "
                f"{self.config.model.name}) has no parameter of a path and shape that "
                f"this run has ({task.config.task}, {task.config.model.name})"
            )

    def _find_changes(
        self, task: Task, other: Task, own: dict[str, Any], theirs: dict[str, Any]
    ) -> tuple[dict[str, tuple[str, tables.Change]], list[str]]:
        """Return the parameters to change, and lines that describe the changes."""
        vocabularies, said = {}, []
        if _swaps_tokenizer(task.config):
            others = other.data.vocabularies
            for name, tokenizer in task.data.vocabularies.items():
                if name not in {path.partition("/")[0] for path in own}:
                    continue
                before = others.get(name) or others.get("embedding")
                if before and before.fingerprint != tokenizer.fingerprint:
                    parts = tables.find_parts(before, tokenizer)
                    vocabularies[name] = parts
                    said.append(f"rows       {name}: {tables.describe_parts(parts)}")
        labels = _match_labels(task.data.labels, other.data.labels)
        if labels and any(path.startswith(f"{tables.HEAD}/") for path in theirs):
            same = sum(map(bool, labels))
            said.append(
                f"labels     {same} of {len(labels)} are also the other run's, whose "
                "outputs they take; the others are new"
            )
        changes = tables.find_changes(task.config, own, theirs, vocabularies, labels)
        said += [
            f"positions  {name}: {theirs[name].shape[0]:,} rows are "
            f"{_repeated(theirs[name], own[name])} {own[name].shape[0]:,}"
            for name, (_, change) in changes.items()
            if change is tables.repeat_positions
        ]
        return changes, said

    def _other_sizes(self, config: ConfigDict) -> list[str]:
        """List the differing options that determine shapes, with this run's values."""
        return [
            f"{key} = {value}"
            for key, value in self._differences(config)
            if type(value) is int and not key.endswith("_layers")
        ]

    def _differences(self, config: ConfigDict) -> list[tuple[str, Any]]:
        """List (name, this run's value) of the model's options that differ."""
        new = dict(configs.items(config))
        return [
            (key, value)
            for key, value in configs.items(self.config)
            if key.startswith("model.") or key == "tokenizer.row_multiple"
            if key in new and new[key] != value
        ]

    def fill(self, task: Task, params: Params, mesh: Mesh, say: Say) -> Params:
        """Replace the parameters that this run has; keep the others."""
        self.check(task)  # again, because it may have changed since the preparation
        run = runs.load(self.path, mesh=mesh)
        theirs = tables.by_own_names(by_path(params), by_path(run.params))
        changes, lines = self._find_changes(task, run.task, by_path(params), theirs)
        taken: collections.Counter = collections.Counter()
        fresh: collections.Counter = collections.Counter()

        def choose(path, leaf):
            name = path_name(path)
            found = name in theirs and theirs[name].shape == leaf.shape
            (taken if found or name in changes else fresh)[name.partition("/")[0]] += 1
            if name in changes:
                source, change = changes[name]
                return tables.apply(change, leaf, theirs[source])
            return theirs[name] if found else leaf

        params = jax.tree_util.tree_map_with_path(choose, params)
        say(
            f"initial    {taken.total()} arrays of {self.path} ({run.weights} "
            f"parameters of step {run.step}): {_in_words(taken)}"
        )
        for line in lines:
            say(line)
        if fresh:
            say(f"fresh      {fresh.total()} arrays: {_in_words(fresh)}")
        changed = self._differences(task.config)
        other = [pair for pair in changed if not pair[0].startswith(OF_TRAINING)]
        if other:
            say(
                "warning    the copied parameters belong to another function: "
                f"{self.path} has {_values(other)}"
            )
        if rest := [pair for pair in changed if pair not in other]:
            say(f"differs    {self.path} has {_values(rest)}")
        return params


def _repeated(theirs: Any, own: Any) -> str:
    return "cut to" if theirs.shape[0] > own.shape[0] else "repeated to fill"


def _match_labels(own: tuple[str, ...], theirs: tuple[str, ...]) -> list[list[int]]:
    """Return the place of each label among the other run's; [] if they are the same."""
    if own == theirs or not own or not theirs:
        return []
    return [[theirs.index(label)] if label in theirs else [] for label in own]


def _swaps_tokenizer(config: ConfigDict) -> bool:
    """Return whether the run has its own tokenizer and takes rows by piece."""
    return "tokenizer" in config and config.tokenizer.replace


def _values(pairs: list[tuple[str, Any]]) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in pairs)


def _in_words(counts: collections.Counter) -> str:
    return ", ".join(f"{group} {count}" for group, count in sorted(counts.items()))
