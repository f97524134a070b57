"""Make a bundle of a Hugging Face folder."""

import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax import sharding, tasks
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface import architectures, tensors
from transformer_jax.convert.huggingface.architecture import (
    APART,
    PROCESSOR,
    Architecture,
    Given,
)
from transformer_jax.convert.huggingface.architectures import bert, vit
from transformer_jax.convert.huggingface.links import Link, Vocabulary
from transformer_jax.convert.huggingface.vocabulary import (
    NAMED,
    Languages,
    Tokens,
    order,
    settle,
)
from transformer_jax.runs import bundle
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks import classification, images
from transformer_jax.tasks.parts import learnt

MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers


NO_ROWS = Vocabulary((), 0, 0)  # of a model without tables of tokens
# Ends of names of tensors that are no parameters.
BUFFERS = ("position_ids", "attn.bias", "attn.masked_bias", "rotary_emb.inv_freq")


def convert(
    source: pathlib.Path, output: pathlib.Path, languages: Languages = NAMED
) -> str:
    """Write the model of a folder as a bundle; return a description of one line."""
    try:
        return _convert(source, output, languages)
    except UserError:  # says what is missing
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{source} cannot be read ({type(error).__name__}: {error}): a file is "
            "damaged, or lacks what models of its kind have"
        ) from error


def _convert(source: pathlib.Path, output: pathlib.Path, languages: Languages) -> str:
    given = read_config(source)
    sentences = (source / "modules.json").is_file()
    kind = architectures.name_of(given, sentences)
    architecture = architectures.ARCHITECTURES[kind]
    tokens = Tokens(source) if architecture.special else None
    stored = tensors.Tensors(source, architecture.base)
    for name in architecture.beside:
        if (source / name).is_file():
            given[name] = files.read_object(source / name)
    rows, ids, ends = NO_ROWS, [], {}
    if tokens:
        ends = settle(given, tokens, languages)
        ids, prefix = order(architecture, given, tokens)
        ends = {"prefix": prefix, **ends}
    else:
        given[PROCESSOR] = vit.read_pixels(source)
    given[APART] = "lm_head.weight" in stored.names()
    config = make_config(architecture, given)
    if sentences:
        _read_modules(source, config)
    with bundle.assemble(output, 0, "imported") as place:
        folder = Folder(place)
        folder.note_start(config)
        folder.tokenizer.mkdir()
        if tokens:
            side = "shared" if architecture.task == "translation" else "text"
            origin = {"kind": kind, "config": given, "settings": tokens.settings}
            packed = tokens.pack(ids, origin=origin, **ends)
            files.write_bytes(folder.tokenizer / f"{side}.model", packed)
            rows = rows_of(config, ids, given)
        else:
            learnt.write(folder.tokenizer / images.ABOUT_FILE, vit.about(given))
        if architecture.task == "classification":
            scale = classification.Scale(bert.labels_of(given))
            learnt.write(folder.tokenizer / classification.LABELS_FILE, scale)
        links = architecture.link(given, rows)
        task = tasks.find(config.task).open(config, folder.tokenizer)
        wanted = shapes_of(task.objective.init)
        _refuse_others(stored, links, architecture.ignored)
        forms = {
            name: (wanted[name], stored.dtype(link.theirs[0]))
            for link in links
            for name in link.ours
        }
        assert forms.keys() == wanted.keys(), forms.keys() ^ wanted.keys()
        arrays = _read(stored, links, wanted)
        tensors.write(place / bundle.WEIGHTS, forms, arrays)
    count = sum(int(np.prod(shape)) for shape in wanted.values())
    return f"{kind}, {count:,} parameters, the task {config.task}"


def _read_modules(source: pathlib.Path, config: ConfigDict) -> None:
    """Refuse a folder of sentence-transformers that does more than take the mean."""
    text = (source / "modules.json").read_text(encoding="utf-8")
    for module in files.parse_json(text):
        name = module["type"].rpartition(".")[2]
        if name not in MODULES:
            raise UserError(f"the module {name} is not read: {', '.join(MODULES)} are")
        if name == "Pooling":
            pooling = files.read_object(source / module["path"] / "config.json")
            modes = [k for k, v in pooling.items() if k.startswith("pooling_") and v]
            if modes != ["pooling_mode_mean_tokens"]:
                raise UserError(
                    f"the vectors of {source} are {', '.join(modes)}: only the mean of "
                    "all tokens, pooling_mode_mean_tokens, is read"
                )
    for path in source.glob("sentence_*_config.json"):
        if most := files.read_object(path).get("max_seq_length"):
            config.data.max_length = min(config.data.max_length, most - 2)


def reads(folder: pathlib.Path) -> bool:
    """Return whether a folder is one of Hugging Face, not a run."""
    try:
        given = files.read_object(folder / "config.json")
    except (OSError, ValueError):
        return False
    return "model_type" in given and "task" not in given


def read_config(source: pathlib.Path) -> dict[str, Any]:
    """Read the config.json of a folder."""
    path = source / "config.json"
    try:
        return files.read_object(path)
    except FileNotFoundError:
        raise UserError(f"{files.describe_missing(path)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def make_config(architecture: Architecture, given: Given) -> ConfigDict:
    """Make the config of a run that continues the model."""
    config = configs.base(task=architecture.task, model=architecture.model)
    try:
        options = architecture.options(given)
    except KeyError as error:
        raise UserError(f"config.json lacks {error}, which its model needs") from None
    known = dict(configs.items(config))
    config.update_from_flattened_dict({k: v for k, v in options.items() if k in known})
    return config


def rows_of(config: ConfigDict, ids: list[int], given: Given) -> Vocabulary:
    """Return how the rows of tables correspond."""
    multiple = config.tokenizer.row_multiple
    return Vocabulary(ids, -(-len(ids) // multiple) * multiple, given["vocab_size"])


def shapes_of(init: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters, by path."""
    abstract = jax.eval_shape(init, jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(abstract)
    return {sharding.path_name(path): leaf.shape for path, leaf in leaves}


def _refuse_others(
    stored: tensors.Tensors, links: list[Link], ignored: tuple[str, ...]
) -> None:
    """Refuse tensors without a parameter, because the model would differ."""
    linked = {name for link in links for name in link.theirs}
    left = [
        name
        for name in sorted(stored.names() - linked)
        if not name.startswith(ignored) and not name.endswith(BUFFERS)
    ]
    if left:
        raise UserError(
            f"the folder has {len(left)} tensors without a counterpart here, such as "
            f"{left[0]}: its model is not what config.json says"
        )


def _read(
    stored: tensors.Tensors, links: list[Link], wanted: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each parameter; only the tensors of one link are in memory."""
    for link in links:
        arrays = link.read(*map(stored.read, link.theirs))
        for name, array in zip(link.ours, arrays, strict=True):
            if array.shape != wanted[name]:
                raise UserError(
                    f"{' and '.join(link.theirs)} would become {name} of "
                    f"{array.shape}, but config.json makes it {wanted[name]}"
                )
            yield name, array


READER = bundle.Reader(reads, convert, version=4)
