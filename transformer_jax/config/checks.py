"""What cannot work in a config, found before any device is touched.

Each check returns sentences that carry both numbers and the way out; all of them are
shown together, so that a config is mended once.
"""

import pathlib

from ml_collections import ConfigDict

from transformer_jax import cli, decoding, keys, optim, tasks
from transformer_jax.config.defaults import base, items
from transformer_jax.data import tokenizer, vectors
from transformer_jax.decoding import DecodeRequest
from transformer_jax.decoding.engine import positions_needed
from transformer_jax.models import registry
from transformer_jax.models.registry import Longest
from transformer_jax.models.transformer_config import divisor_near

LONGEST = "data.max_length or data.window, and its ends"
CHOICES = {
    "data.batching": ("buckets", "packed"),
    "tokenizer.kind": tokenizer.KINDS,
    "optim.name": tuple(optim.OPTIMIZERS),
    "optim.schedule": tuple(optim.SCHEDULES),
    "eval.weights": cli.WEIGHTS,
    "mesh.platform": ("any", "cpu", "gpu", "tpu"),
}


def find_problems(config: ConfigDict) -> list[str]:
    """List all that cannot work, each with the way out, without touching a device."""
    problems = _wrong_types(config)
    if problems:
        return problems  # the checks below need numbers to be numbers
    task, model = tasks.find(config.task), registry.find(config.model.name)
    problems = _wrong_choices(config)
    impossible = keys.find_beyond_bounds("model", config.model, model.config)
    impossible += _impossible_sizes(config)
    if impossible:
        return problems + impossible  # the checks below divide by these sizes
    problems += model.find_problems(config, _longest(config))
    problems += _impossible_plans(config)
    if "tokenizer" in config:
        problems += _impossible_text(config)
    if "decode" in config:
        options = task.options(**config.decode)
        problems += find_search_problems(config, options)
    return problems + task.find_problems(config)


def find_search_problems(config: ConfigDict, options: decoding.Options) -> list[str]:
    """Also asked when one answer is to be searched in another way than the others."""
    problems = options.find_problems()
    if options.coverage and config.model.get("attention") == "none":
        problems.append(
            f"decode.coverage = {options.coverage}: a model without attention attends "
            "to no word of the source; use 0.0"
        )
    return problems


def _wrong_types(config: ConfigDict) -> list[str]:
    """A bool passes for an int, and an int for a float, unless somebody looks."""
    expected = dict(items(base(config.task, config.model.name)))
    values = dict(items(config))
    if others := sorted(expected.keys() ^ values.keys()):
        return [
            f"the task {config.task!r} with the model {config.model.name!r} has other "
            f"keys than this config (such as {others[0]}): begin a config file with "
            "base(task=…, model=…), or name another one"
        ]
    found = (keys.find_wrong_type(k, v, expected[k]) for k, v in values.items())
    return [problem for problem in found if problem]


def _wrong_choices(config: ConfigDict) -> list[str]:
    """Compare values with the choices of the model, of all configs and of the task."""
    task = tasks.find(config.task)
    of_model = keys.choices(registry.find(config.model.name).config)
    allowed = {f"model.{name}": choices for name, choices in of_model.items()}
    allowed |= CHOICES | {"checkpoint.best": ("loss", "accuracy", *task.metrics)}
    allowed |= task.choices
    values = dict(items(config))
    found = (
        keys.find_wrong_choice(key, values[key], choices)
        for key, choices in allowed.items()
        if key in values
    )
    return [problem for problem in found if problem]


def _longest(config: ConfigDict) -> Longest:
    """Measure the longest example, its ends counted; an image has no length."""
    data = config.data
    pieces = data.max_length if "max_length" in data else data.get("window", 0)
    pieces += tasks.find(config.task).ends
    positions = pieces
    if "decode" in config:
        asked = DecodeRequest(range(pieces))
        options = tasks.find(config.task).options(**config.decode)
        positions = positions_needed(asked, options)
    return Longest(pieces, positions, LONGEST)


def _impossible_sizes(config: ConfigDict) -> list[str]:
    problems = []
    positive = [
        "data.batch_tokens", "data.max_length", "data.shapes", "data.pack_length",
        "data.row_multiple", "data.length_multiple", "tokenizer.vocab_size",
        "tokenizer.row_multiple", "train.steps", "train.accumulation",
        "optim.warmup_steps", "eval.every", "eval.batch_rows", "eval.max_length",
        "checkpoint.every", "checkpoint.keep_last", "checkpoint.average", "log.every",
        "timeout.start",
    ]  # fmt: skip
    values = dict(items(config))
    problems += [f"{k} = {values[k]}: must be at least 1" for k in positive
                 if values.get(k, 1) < 1]  # fmt: skip
    for key in ("train.label_smoothing", "tokenizer.sampling", "optim.ema"):
        if not 0 <= (value := values.get(key, 0)) < 1:
            problems.append(f"{key} = {value}: a share, at least 0 and less than 1")
    not_negative = [k for k in values if k.startswith("timeout.")]
    for key in ("optim.decay_steps", "optim.clip_norm", *not_negative):
        if values[key] < 0:
            problems.append(f"{key} = {values[key]}: must be at least 0")
    if values.get("model.tie") == "all" and not values.get("tokenizer.shared", True):
        problems.append(
            "model.tie = 'all' needs one vocabulary, but tokenizer.shared is False: "
            "set model.tie = 'decoder' or tokenizer.shared = True"
        )
    return problems


def _impossible_text(config: ConfigDict) -> list[str]:
    data, settings, problems = config.data, config.tokenizer, []
    try:
        weights = [float(w) for w in data.get("train_weights", ())]
    except (TypeError, ValueError):
        weights = [0.0]
    if not all(w > 0 for w in weights):
        problems.append(
            f"data.train_weights = {data.train_weights!r}: positive numbers, one for "
            "each corpus"
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
            f"tokenizer.lowercase is learned with the pieces, and tokenizer.kind "
            f"{settings.kind!r} learns none: leave it False"
        )
    for path in filter(None, (p.strip() for p in settings.file.split(","))):
        if not pathlib.Path(path).is_file():
            problems.append(f"tokenizer.file: there is no file {path}")
    if data.get("train_tags") and config.model.get("dropout_words"):
        problems.append(
            f"model.dropout_words = {config.model.dropout_words} would hide the tag of "
            "as many sources, and data.train_tags is what tells the model what is "
            "wanted: leave it 0.0"
        )
    sampling = settings.get("sampling", 0.0)  # not every task has it
    if sampling and settings.kind not in ("unigram", "bpe", "file"):
        problems.append(
            f"tokenizer.sampling = {sampling}: tokenizer.kind "
            f"{settings.kind!r} has one segmentation only; use unigram or bpe, or 0.0"
        )
    return problems + _impossible_vectors(config)


def _impossible_vectors(config: ConfigDict) -> list[str]:
    model, path = config.model, config.model.word_vectors
    if not path:
        if model.train_word_vectors or config.train.initial:
            return []
        return [
            "model.train_word_vectors = False would keep a table of chance: name "
            "model.word_vectors, or a run to begin with (train.initial)"
        ]
    if config.train.initial:
        return [
            f"model.word_vectors = {path!r} and train.initial = "
            f"{config.train.initial!r}: a table cannot begin with both, empty one"
        ]
    if not pathlib.Path(path).is_file():
        return [f"model.word_vectors: there is no file {path}"]
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
    data, mesh, problems = config.data, config.mesh, []
    problems += _impossible_optimizers(config)
    if config.eval.every % config.checkpoint.every:
        problems.append(
            f"eval.every {config.eval.every} is no multiple of checkpoint.every "
            f"{config.checkpoint.every}: the best checkpoint could not be kept"
        )
    if config.checkpoint.average > config.checkpoint.keep_last:
        problems.append(
            f"checkpoint.average {config.checkpoint.average} needs as many kept: "
            f"raise checkpoint.keep_last {config.checkpoint.keep_last}"
        )
    longest = _longest(config).pieces
    packed = data.batching == "packed"
    if packed:
        if data.pack_length < longest:
            problems.append(
                f"data.pack_length {data.pack_length} holds no example of {longest} "
                f"pieces ({LONGEST}): raise it, or lower the other"
            )
        longest = max(data.pack_length, longest)
    if data.batch_tokens < longest * data.row_multiple:
        problems.append(
            f"data.batch_tokens {data.batch_tokens} cannot hold data.row_multiple "
            f"{data.row_multiple} rows of {longest} pieces "
            f"({'data.pack_length' if packed else LONGEST}): raise it to "
            f"{longest * data.row_multiple}, or lower the other"
        )
    sizes = [mesh[a] for a in ("data", "fsdp", "tensor", "sequence")]
    if any(s == 0 or s < -1 for s in sizes) or sizes.count(-1) > 1:
        problems.append(
            f"mesh {tuple(sizes)}: sizes are at least 1, and one at most is -1"
        )
    else:
        problems += find_row_problems(config, max(mesh.data, 1) * max(mesh.fsdp, 1))
    if data.length_multiple % max(mesh.sequence, 1):
        problems.append(
            f"data.length_multiple {data.length_multiple} does not divide over "
            f"mesh.sequence {mesh.sequence}: set it to {mesh.sequence}"
        )
    return problems


def _impossible_optimizers(config: ConfigDict) -> list[str]:
    settings, steps, problems = config.optim, config.train.steps, []
    if settings.schedule != "constant" and settings.warmup_steps > steps:
        problems.append(
            f"optim.warmup_steps {settings.warmup_steps} is beyond train.steps "
            f"{steps}: the learning rate would never reach its peak"
        )
    end = settings.decay_steps or steps
    if settings.schedule in ("linear", "cosine") and end <= settings.warmup_steps:
        key = "optim.decay_steps" if settings.decay_steps else "train.steps"
        problems.append(
            f"{key} {end} is not beyond optim.warmup_steps {settings.warmup_steps}: "
            f"{settings.schedule} would end before it has risen; raise {key}, or "
            "lower the warmup"
        )
    if not 0 < settings.decay_share <= 1:
        problems.append(
            f"optim.decay_share = {settings.decay_share}: a share of all updates, more "
            "than 0 and at most 1"
        )
    if settings.weight_decay and settings.name == "adam":
        problems.append(
            f"optim.weight_decay = {settings.weight_decay} is not part of adam: set "
            "optim.name = 'adamw', or the decay to 0.0"
        )
    if config.eval.weights == "ema" and not settings.ema:
        problems.append(
            "eval.weights = 'ema' needs a running mean: set optim.ema, such as 0.999"
        )
    return problems


def find_row_problems(config: ConfigDict, row_devices: int) -> list[str]:
    """Also asked when a mesh axis of -1 has found its size."""
    rows, micro, problems = config.data.row_multiple, config.train.accumulation, []
    need, answered = row_devices * micro, config.eval.batch_rows
    if rows % need:
        problems.append(
            f"a batch of data.row_multiple {rows} rows does not divide over "
            f"{row_devices} devices (mesh data × fsdp) × train.accumulation {micro}: "
            f"set data.row_multiple to {-(-rows // need) * need}"
        )
    if answered % row_devices:
        problems.append(
            f"eval.batch_rows {answered} does not divide over {row_devices} devices "
            f"(mesh data × fsdp): set it to {-(-answered // row_devices) * row_devices}"
        )
    return problems
