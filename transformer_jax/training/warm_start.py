"""Initialise the parameters of a new run from another run, or from word vectors.

`train.initial` names a run, whose tokenizers are used and whose parameters are taken
where path and shape agree. `model.word_vectors` names a file with vectors, which become
the rows of the embedding tables for the words of a vocabulary. A run that continues
takes parameters from neither again.
"""

import collections
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax import tasks
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data.text import vectors
from transformer_jax.data.text.tokenizer import SPACE, SPECIAL, Tokenizer
from transformer_jax.runs import bundle
from transformer_jax.runs import folder as folders
from transformer_jax.runs import run as runs
from transformer_jax.sharding import Params, path_name
from transformer_jax.tasks.protocols import Task

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
    table of positions are left out, and images are scaled to the size of the run's.
    """
    begun = (folders.Folder(workdir).stored_config() if workdir else None) or {}
    has_begun = begun.get("train", {}).get("initial") == path
    config.train.initial = workdir if has_begun else path
    known, origin = configs.declared(config.task, config.model.name), Origin(config)
    config.train.initial = path
    for name, value in configs.items(origin.config):
        model = name.startswith("model.") or name == "tokenizer.row_multiple"
        if name not in known or not model or name.startswith(OF_TRAINING):
            continue
        if not schema.find_problem(name, value, known[name]):
            config.update_from_flattened_dict({name: value})
    theirs = origin.config.get("data", {})
    if "image_size" in config.data and theirs.get("source") == "folder":
        config.data.image_size, config.data.grey = theirs.image_size, theirs.grey
    if "model.max_positions" in known and config.model.positions == "learned":
        room = config.model.max_positions - tasks.find(config.task).ends
        if "max_length" in config.data:
            config.data.max_length = min(config.data.max_length, room)


def fill(task: Task, params: Params, mesh: Mesh, say: Say) -> Params:
    """Replace some of the random parameters according to the task's config."""
    if task.config.train.initial:
        return Origin(task.config).fill(task, params, mesh, say)
    if path := task.config.model.get("word_vectors", ""):  # images have none
        return _place_vectors(path, task, params, say)
    return params


class Origin:
    """The run from which another one is initialised."""

    def __init__(self, config: ConfigDict):
        self.path = config.train.initial
        self.folder = folders.Folder(bundle.as_bundle(self.path))
        if not os.path.isdir(self.folder.path):
            around = [
                p.parent.name for p in self.folder.path.parent.glob("*/config.json")
            ]
            raise UserError(
                f"train.initial = {self.path!r} names no run directory, bundle or "
                f"folder of Hugging Face.{nearest(self.folder.path.name, around)}"
            )
        try:
            self.config = self.folder.config()
        except UserError as error:
            raise UserError(f"train.initial: {error}") from None

    def lend_tokenizers(self, config: ConfigDict, say: Say) -> ConfigDict:
        """Return the config with this run's tokenizers, unless it names its own."""
        files = sorted(map(str, self.folder.tokenizer.glob("*.model")))
        if not files or "tokenizer" not in config or config.tokenizer.kind == "file":
            return config
        mine, theirs = config.tokenizer, self.config.get("tokenizer", {})
        unused = [
            f"tokenizer.{name} = {mine[name]!r}"
            for name in ("kind", "vocab_size", "shared", "lowercase", "byte_fallback")
            if name in mine and theirs.get(name) != mine[name]
        ]
        say(
            f"tokenizer  that of {self.path}, learned from its text: to begin with its "
            "parameters, this text is encoded with its pieces"
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
            both = task.data.vocabularies[name], other.data.vocabularies[name]
            if both[0].fingerprint != both[1].fingerprint:
                raise UserError(
                    f"train.initial = {self.path!r} has another vocabulary for the "
                    f"table {name!r}: {both[1].vocab_size:,} pieces, not these "
                    f"{both[0].vocab_size:,}. Leave tokenizer.kind = 'file' out to use "
                    "those of that run"
                )
        own, theirs = (
            _by_path(jax.eval_shape(t.objective.init, jax.random.key(0)))
            for t in (task, other)
        )
        common = sorted(own.keys() & theirs.keys())
        unlike = [name for name in common if own[name].shape != theirs[name].shape]
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
        theirs = _by_path(run.params)
        taken: collections.Counter = collections.Counter()
        fresh: collections.Counter = collections.Counter()

        def choose(path, leaf):
            name = path_name(path)
            found = name in theirs and theirs[name].shape == leaf.shape
            (taken if found else fresh)[name.partition("/")[0]] += 1
            return theirs[name] if found else leaf

        params = jax.tree_util.tree_map_with_path(choose, params)
        say(
            f"initial    {taken.total()} arrays of {self.path} ({run.weights} "
            f"parameters of step {run.step}): {_in_words(taken)}"
        )
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


def _values(pairs: list[tuple[str, Any]]) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in pairs)


def _in_words(counts: collections.Counter) -> str:
    return ", ".join(f"{group} {count}" for group, count in sorted(counts.items()))


def _by_path(params: Params) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {path_name(path): leaf for path, leaf in leaves}


def _place_vectors(path: str, task: Task, params: Params, say: Say) -> Any:
    """Take rows of the embedding tables from a file; leave the others random.

    A table is multiplied by √D when it is read, and may also be the output layer. Both
    need the initialiser's σ = D^-½ (`models/embeddings.py`), whatever the scale of the
    vectors.
    """
    tables = {
        name: _words(tokenizer)
        for name, tokenizer in task.data.vocabularies.items()
        if name in params
    }
    every = {word for words in tables.values() for word in words.values()}
    found = vectors.read(path, every | {word.lower() for word in every})
    params, counts = dict(params), []
    for name, words in tables.items():
        known = {
            row: found[form]
            for row, word in words.items()
            if (form := word if word in found else word.lower()) in found
        }
        counts.append(f"{len(known):,} of the {len(words):,} words of {name}")
        if known:
            table = params[name]["embedding"]
            rows, values = np.array([*known]), np.stack([*known.values()])
            values *= table.shape[1] ** -0.5 / values.std()
            put = jax.jit(_set_rows, out_shardings=table.sharding)
            params[name] = {"embedding": put(table, rows, values)}
    if not found:
        raise UserError(
            f"model.word_vectors: none of {' and '.join(counts)} is in {path}, neither "
            "as written nor in lower case: take vectors of the text's language"
        )
    say(f"vectors    {' and '.join(counts)} begin as in {path}")
    return params


def _set_rows(table: Any, rows: Any, values: Any) -> Any:
    return table.at[rows].set(values)


def _words(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the pieces that are complete words or signs, by id."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    words = {}
    for i, piece in enumerate(pieces[SPECIAL:], SPECIAL):
        is_word = piece.startswith(SPACE) or not any(map(str.isalnum, piece))
        if is_word and (word := piece.removeprefix(SPACE)):
            words[i] = word
    return words
