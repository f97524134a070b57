"""Find the problems of a config before any device is used.

Each check returns sentences with both numbers and advice. They are all shown together,
so that a config needs to be fixed only once.
"""

import math
import os

from ml_collections import ConfigDict

from transformer_jax import decoding, hardware, optim, sharding, tasks
from transformer_jax.base import files, schema
from transformer_jax.config.defaults import declared, items
from transformer_jax.data.text import vectors
from transformer_jax.decoding import DecodeRequest
from transformer_jax.decoding.engine import positions_needed
from transformer_jax.models import registry
from transformer_jax.models.layers import adapters
from transformer_jax.models.registry import Longest
from transformer_jax.models.transformer_config import divisor_near

LONGEST = "data.max_length or data.window, and its ends"


def find_problems(config: ConfigDict, data: bool = True) -> list[str]:
    """List all problems of a config, each with advice, without using a device.

    Without `data`, the data files need not exist.
    """
    known, values = declared(config.task, config.model.name), dict(items(config))
    if others := sorted(known.keys() ^ values.keys()):
        return [
            f"the task {config.task!r} with the model {config.model.name!r} has other "
            f"options than this config (such as {others[0]}): begin a config file with "
            "base(task=…, model=…), or name another config"
        ]
    found = {
        name: schema.find_problem(name, values[name], known[name]) for name in known
    }
    found = {name: problem for name, problem in found.items() if problem}
    problems = list(found.values())
    # The checks below divide by sizes and count to them, but tolerate wrong names.
    if any(not type(known[n].default) is type(values[n]) is str for n in found):
        return problems
    task, model = tasks.find(config.task), registry.find(config.model.name)
    problems += model.find_problems(config, _longest(config))
    problems += optim.find_problems(config) + sharding.find_problems(config)
    problems += adapters.find_problems(config)
    problems += _unknown_targets(config) + _impossible_teacher(config)
    problems += _impossible_plans(config)
    if "tokenizer" in config:
        problems += _impossible_text(config)
    if "decode" in config:
        options = task.search(**config.decode)
        problems += find_search_problems(config, options)
    return problems + (task.find_problems(config) if data else task.check(config))


def _impossible_teacher(config: ConfigDict) -> list[str]:
    teacher, twin, problems = config.train.teacher, config.train.consistency, []
    if teacher and config.lora.rank:
        problems.append(
            f"lora.rank = {config.lora.rank} would add the adapters to the matrices of "
            f"train.teacher = {teacher!r}, too: clear one of them"
        )
    if teacher and twin:
        problems.append(
            f"train.consistency = {twin} compares two passes of this model, and "
            f"train.teacher = {teacher!r} one with another model: clear one of them"
        )
    rates = [x for name, x in items(config) if name.startswith("model.dropout")]
    if twin and not any(rates):
        problems.append(
            f"train.consistency = {twin} compares two passes that drop other units, "
            "but nothing is dropped: raise a rate, such as model.dropout_residual, or "
            "leave train.consistency out"
        )
    return problems


def _unknown_targets(config: ConfigDict) -> list[str]:
    found = filter(None, map(hardware.find_problem, config.targets))
    return [f"targets = {config.targets!r}: {problem}" for problem in found]


def find_search_problems(config: ConfigDict, options: decoding.Options) -> list[str]:
    """List the problems of search options, of a config or of a single search."""
    problems = options.find_problems()
    if options.coverage and config.model.get("attention") == "none":
        problems.append(
            f"decode.coverage = {options.coverage}: a model without attention attends "
            "to no source word; use 0.0"
        )
    return problems


def _longest(config: ConfigDict) -> Longest:
    """Measure the longest example, including its ends; an image has length 0."""
    data = config.data
    pieces = data.max_length if "max_length" in data else data.get("window", 0)
    pieces += tasks.find(config.task).ends
    positions = pieces
    if "decode" in config:
        asked = DecodeRequest(range(pieces))
        options = tasks.find(config.task).search(**config.decode)
        positions = positions_needed(asked, options)
    return Longest(pieces, positions, LONGEST)


def _impossible_text(config: ConfigDict) -> list[str]:
    data, settings, problems = config.data, config.tokenizer, []
    try:
        weights = [float(w) for w in data.get("train_weights", ())]
    except (TypeError, ValueError):
        weights = [0.0]
    if not all(0 < w < math.inf for w in weights):
        problems.append(
            f"data.train_weights = {data.train_weights!r}: must be positive numbers, "
            "one for each corpus"
        )
    if settings.kind == "file" and not settings.file:
        problems.append("tokenizer.file is empty: name a SentencePiece model")
    if settings.kind != "file" and settings.file:
        problems.append(
            f"tokenizer.file = {settings.file!r} needs tokenizer.kind = 'file', not "
            f"{settings.kind!r}"
        )
    if settings.lowercase and settings.kind in ("file", "byte"):
        problems.append(
            f"tokenizer.lowercase is learned with the pieces, but tokenizer.kind "
            f"{settings.kind!r} learns none: set tokenizer.lowercase to False"
        )
    for path in filter(None, (p.strip() for p in settings.file.split(","))):
        if not os.path.isfile(path):
            problems.append(f"tokenizer.file: {files.describe_missing(path)}")
    tie = config.model.get("tie")
    if tie in ("all", "inputs") and not settings.get("shared", True):
        problems.append(
            f"model.tie = {tie!r} needs one vocabulary, but tokenizer.shared is False: "
            "set model.tie = 'decoder' or tokenizer.shared = True"
        )
    if data.get("train_tags") and config.model.get("dropout_words"):
        problems.append(
            f"model.dropout_words = {config.model.dropout_words} would hide the tag of "
            "this share of the sources, but the model needs data.train_tags to know "
            "the direction: set model.dropout_words to 0.0"
        )
    sampling = settings.get("sampling", 0.0)  # not every task has it
    if sampling and settings.kind not in ("unigram", "bpe", "file"):
        problems.append(
            f"tokenizer.sampling = {sampling}: tokenizer.kind "
            f"{settings.kind!r} has one segmentation only; use unigram or bpe, or 0.0"
        )
    if settings.replace and not config.train.initial:
        problems.append(
            "tokenizer.replace = True replaces the tokenizer of train.initial, which "
            "names no run: use --start_from PLACE, or set tokenizer.replace = False"
        )
    return problems + _impossible_vectors(config)


def _impossible_vectors(config: ConfigDict) -> list[str]:
    model, path = config.model, config.model.word_vectors
    if not path:
        if model.train_word_vectors or config.train.initial:
            return []
        return [
            "model.train_word_vectors = False would freeze a random table: name "
            "model.word_vectors, or a run to begin with (train.initial)"
        ]
    if config.train.initial:
        return [
            f"model.word_vectors = {path!r} and train.initial = "
            f"{config.train.initial!r}: a table cannot begin with both, clear one"
        ]
    if not os.path.isfile(path):
        return [f"model.word_vectors: {files.describe_missing(path)}"]
    size = vectors.dimension(path)
    if size == model.d_model:
        return []
    heads = ""
    if "num_heads" in model:
        heads = f" and model.num_heads = {divisor_near(size, model.num_heads)}"
    return [
        f"{path} has vectors of {size} numbers, but model.d_model is {model.d_model}: "
        f"set model.d_model = {size}{heads}"
    ]


def _impossible_plans(config: ConfigDict) -> list[str]:
    data, problems = config.data, []
    if config.eval.every % config.checkpoint.every:
        problems.append(
            f"eval.every {config.eval.every} is not a multiple of checkpoint.every "
            f"{config.checkpoint.every}, so the best checkpoint could not be kept: set "
            f"{_matching_intervals(config.eval.every, config.checkpoint.every)}"
        )
    if config.checkpoint.average > config.checkpoint.keep_last:
        problems.append(
            f"checkpoint.average {config.checkpoint.average} needs as many "
            f"checkpoints: raise checkpoint.keep_last {config.checkpoint.keep_last}"
        )
    longest = _longest(config).pieces
    packed = data.batching == "packed"
    if packed:
        if data.pack_length < longest:
            problems.append(
                f"data.pack_length {data.pack_length} is too short for an example of "
                f"{longest} pieces ({LONGEST}): raise it, or lower the other"
            )
        longest = max(data.pack_length, longest)
    if data.batch_tokens < longest * data.row_multiple:
        problems.append(
            f"data.batch_tokens {data.batch_tokens} cannot hold data.row_multiple "
            f"{data.row_multiple} rows of {longest} pieces "
            f"({'data.pack_length' if packed else LONGEST}): raise it to "
            f"{longest * data.row_multiple}, or lower the other"
        )
    if data.row_multiple % config.train.accumulation:
        problems.append(
            f"a batch of data.row_multiple {data.row_multiple} rows does not divide "
            f"into train.accumulation {config.train.accumulation} parts: set "
            f"data.row_multiple to a multiple of {config.train.accumulation}"
        )
    return problems


def _matching_intervals(evaluations: int, checkpoints: int) -> str:
    """Propose a multiple near the one interval, or a divisor not far from the other."""
    multiple = max(round(evaluations / checkpoints), 1) * checkpoints
    divisor = math.gcd(evaluations, checkpoints)
    often = f" or checkpoint.every = {divisor}" * (4 * divisor >= checkpoints)
    return f"eval.every = {multiple}{often}"


def longest_row(config: ConfigDict) -> int:
    """Return the number of tokens of a batch's longest row."""
    longest = _longest(config).pieces
    packed = config.data.batching == "packed"
    return max(config.data.pack_length, longest) if packed else longest
