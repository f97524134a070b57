"""Every key a run has: its default, unit and meaning; and the checks before a run.

A config file returns `base(task=…, model=…)` with a few differences; it is locked, so
a key that does not exist fails where it is written. `load` adds the command line's
`--config.section.key=value`; all that cannot work is reported together (`checks.py`),
before any device is touched.
"""

import ast
import importlib.util
import pathlib
import traceback
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import UserError, nearest

# What may differ when a run is continued: none of it changes what is learned from
# which example. Everything else is compared with the run directory's config.json.
MAY_CHANGE_ON_RESUME = (
    "train.steps",  # unless the schedule ends there: see `differences`
    "train.patience",
    "data.folder",  # the data are compared by what they hold, not by where they are
    "mesh",
    "log",
    "eval",
    "checkpoint",
)


def base(task: str = "translation", model: str = "transformer") -> ConfigDict:
    """The complete config of a task and a model, locked."""
    from transformer_jax import tasks  # which need jax

    kind = tasks.find(task)
    if model not in kind.MODELS:
        hint = nearest(model, kind.MODELS)
        raise UserError(
            f"unknown model {model!r} of the task {task!r}.{hint} "
            f"It has: {', '.join(kind.MODELS)}"
        )
    config = ConfigDict()
    config.task = task  # what the model is used for: a file of tasks/
    config.seed = 0  # of the initial weights, dropout and the order of examples

    config.data = data = ConfigDict()
    data.batch_tokens = 4096  # tokens a batch, padding included, of its longer side
    data.max_length = 128  # pieces; longer training examples are dropped, and counted
    data.batching = "buckets"  # buckets (examples of like length) | packed (rows)
    data.shapes = 8  # buckets: padded batch shapes at most; each is compiled once
    data.pack_length = 256  # packed: tokens a row, of the longer side
    data.row_multiple = 8  # a batch's rows divide by this, on whatever hardware
    data.length_multiple = 1  # a batch's lengths divide by this; 128 suits a TPU

    config.filter = filters = ConfigDict()  # of training pairs; each drop is counted
    filters.empty = True  # drop pairs with an empty side
    filters.max_ratio = 0.0  # pieces of one side for each of the other; 0: off
    filters.identical = False  # drop pairs whose target is their source
    filters.duplicates = False  # drop pairs that came before
    filters.source_script = ""  # drop other scripts: latin | cyrillic | …; empty: off
    filters.target_script = ""  # the same for targets

    config.tokenizer = tokenizer = ConfigDict()
    tokenizer.kind = "unigram"  # unigram | bpe | word | char | byte | file (given)
    tokenizer.vocab_size = 8000  # pieces of a vocabulary, at most
    tokenizer.shared = True  # one vocabulary for source and target
    tokenizer.file = ""  # file: a SentencePiece model; not shared: two, with a comma
    tokenizer.lowercase = False  # read, and so write, lower case only
    tokenizer.lines = 300_000  # examples to learn from, drawn at random; 0: all
    tokenizer.byte_fallback = True  # unknown characters as bytes; False: as <unk>
    tokenizer.user_symbols = ()  # strings that are one piece wherever they stand
    tokenizer.sampling = 0.0  # train on other segmentations: BPE-dropout, or unigram's
    tokenizer.row_multiple = 64  # embedding rows are padded to a multiple of this

    config.model = ConfigDict()
    MODELS[model](config.model)
    config.model.word_vectors = ""  # a text file: its words' vectors to begin with
    config.model.train_word_vectors = True  # False: the embeddings stay as they begin

    config.train = train = ConfigDict()
    train.steps = 100_000  # updates
    train.accumulation = 1  # micro-batches a batch is split into, to save memory
    train.label_smoothing = 0.1  # probability taken from the truth (5.4)
    train.initial = ""  # a run whose parameters this one begins with; empty: random
    train.patience = 0  # evaluations without a better one before stopping; 0: never

    config.optim = optim = ConfigDict()
    optim.name = "adam"  # adam | adamw | adafactor | lion | muon
    optim.schedule = "noam"  # noam (5.3) | constant | rsqrt | linear | cosine | wsd
    optim.constant = 1.0  # noam: a factor; of others: the highest learning rate
    optim.warmup_steps = 4000  # updates
    optim.decay_steps = 0  # linear, cosine: updates until the end; 0: train.steps
    optim.decay_share = 0.1  # wsd: share of all updates in which it falls at last
    optim.beta1 = 0.9  # decay of the mean gradient
    optim.beta2 = 0.98  # decay of the mean squared gradient
    optim.epsilon = 1e-9  # added to its root
    optim.weight_decay = 0.0  # of matrices, times the learning rate; not adam
    optim.clip_norm = 0.0  # largest gradient norm, others are scaled down; 0: off
    optim.ema = 0.0  # decay of a running mean of the parameters; 0: none

    config.eval = evaluation = ConfigDict()
    evaluation.every = 5000  # updates between evaluations of the validation split
    evaluation.max_length = 1024  # pieces; a longer example is refused, not left out
    evaluation.answers = 0  # validation examples answered, evenly spaced; 0: all
    evaluation.samples = 3  # answers shown in the log, evenly spaced, too
    evaluation.splits = ("test",)  # scored when training is done
    evaluation.weights = "average"  # used for answers: average | best | last | ema
    evaluation.batch_rows = 128  # sentences decoded together

    config.decode = decode = ConfigDict()
    decode.beams = 4  # 1 is greedy search
    decode.alpha = 0.6  # length penalty; 0: none (6.1)
    decode.coverage = 0.0  # penalty for source words that are hardly attended to
    decode.extra_length = 50  # an answer has at most this many pieces more (6.1)
    decode.max_length = 0  # pieces of an answer at most; 0: extra_length says it
    decode.min_length = 0  # pieces of an answer at least
    decode.n_best = 1  # answers a line, at most as many as beams (or drawn)
    decode.no_repeat = 0  # no run of so many pieces comes twice; 0: off
    decode.sample = False  # draw answers by chance, instead of searching the best
    decode.temperature = 1.0  # sample: below 1 the likely gets likelier
    decode.top_k = 0  # sample: from the k likeliest pieces; 0: from all
    decode.top_p = 1.0  # sample: from the fewest that hold this probability
    decode.min_p = 0.0  # sample: from those at least so likely as this × the best
    decode.seed = 0  # sample: of the draws; a line's also depend on its number

    config.checkpoint = checkpoint = ConfigDict()
    checkpoint.every = 1000  # updates
    checkpoint.keep_last = 5  # the newest ones kept
    checkpoint.keep_best = 1  # and those with the best validation score
    checkpoint.best = "loss"  # what is best: loss | accuracy | a score of the task
    checkpoint.average = 5  # how many of the last are averaged at the end (6.1)

    config.mesh = mesh = ConfigDict()
    mesh.platform = "any"  # cpu | gpu | tpu: stop unless jax finds it; any: take all
    mesh.data = -1  # devices a batch's rows are split over; -1: all that are left
    mesh.fsdp = 1  # rows too, and parameters with their optimizer state
    mesh.tensor = 1  # heads and feed-forward columns
    mesh.sequence = 1  # positions of the residual stream

    config.log = log = ConfigDict()
    log.every = 50  # updates a log line
    log.tensorboard = True  # also write TensorBoard events, if it is installed
    kind.configure(config)
    return config.lock()


def add_text(data: ConfigDict, embedded: str, fields: tuple[str, ...]) -> None:
    """The keys of text whose records have these fields; see `data/sources.py`."""
    data.source = embedded  # generated by that name | text | tsv | jsonl | tfds
    data.folder = ""  # relative paths begin here; tfds: its data directory
    data.train_size = 20_000  # generated: examples
    data.validation_size = 500  # generated: examples
    data.test_size = 500  # generated: examples, of each test split
    for split in ("train", "validation", "test"):
        # Several corpora go in one key, separated by commas; * and ? stand for more.
        for field in fields:  # text: a path, an example a line, .gz too; line by line
            data[f"{split}_{field}"] = ""
        data[f"{split}_files"] = ""  # tsv, jsonl: a path, an example a line, .gz too
        data[f"{split}_split"] = split  # tfds: such as train[:90%]; empty: none
        data[f"{split}_tags"] = ""  # put before each source, one for each corpus
    data.train_weights = ()  # how often each corpus comes, by proportion; (): once
    for field in fields:  # tsv: a number, from 1; jsonl: a key (a.b); tfds: a feature
        data[f"{field}_column"] = ""
    data.tfds_name = ""  # tfds: such as wmt14_translate/de-en, or a prepared folder


def add_windows(config: ConfigDict, embedded: str) -> None:
    """The keys of running text that is read in windows; see `data/windows.py`."""
    data = config.data
    add_text(data, embedded, ("text",))
    data.window = 256  # characters that are read together
    data.stride = 0  # characters between training windows; 0: a window
    tags = [key for key in data if key.endswith("_tags")]
    for key in (*tags, "train_weights", "max_length"):
        del data[key]
    del config.tokenizer.sampling, config.tokenizer.shared, config.filter


def _transformer(model: ConfigDict) -> None:
    """The paper's base model (Table 3); see configs/ for big."""
    model.name = "transformer"  # transformer
    model.encoder_layers = 6  # N
    model.decoder_layers = 6  # N
    model.d_model = 512  # width of the residual stream
    model.d_ff = 2048  # width inside a feed-forward layer
    model.num_heads = 8  # attentions side by side in a layer
    model.d_k = 0  # size of a head's queries and keys; 0: d_model / num_heads
    model.d_v = 0  # size of a head's values; 0: d_model / num_heads
    model.kv_heads = 0  # heads of keys and values, shared by queries; 0: num_heads
    model.qk_norm = False  # norm queries and keys before their product
    model.norm = "post"  # post (the paper) | pre
    model.norm_kind = "layer"  # layer | rms (no mean taken out, no bias)
    model.norm_epsilon = 1e-6  # added to the variance
    model.activation = "relu"  # relu | gelu | silu | relu2 | glu | re-, ge- or swiglu
    model.positions = "sinusoid"  # learned | rotary | relative | alibi | none | …
    model.max_positions = 512  # rows of a learned table
    model.rotary_base = 10_000.0  # the slowest wave has 2π times so many positions
    model.rotary_scaling = "none"  # to read longer texts: none | linear | ntk
    model.rotary_factor = 1.0  # how many times as long as trained
    model.relative_buckets = 32  # of distances, each with a number for each head
    model.relative_distance = 128  # from here on distances share a bucket
    model.tie = "all"  # source, target and output share a table: all | decoder | none
    model.dropout_words = 0.0  # share of the tokens read, the target's too, as unknown
    model.dropout_embedding = 0.1  # on embedding + position (5.4)
    model.dropout_residual = 0.1  # on each sublayer's output (5.4)
    model.dropout_attention = 0.0  # on the attention weights
    model.dropout_feed_forward = 0.0  # on the inner activation
    model.dtype = "float32"  # of the computation: float32 | bfloat16; weights: float32
    model.remat = False  # recompute each layer in the backward pass, to save memory


def _recurrent(model: ConfigDict) -> None:
    """What the Transformer took the place of; see models/recurrent.py."""
    model.name = "recurrent"  # recurrent
    model.cell = "lstm"  # rnn (tanh) | lstm | gru
    model.layers = 2  # of the encoder, and as many of the decoder
    model.d_model = 512  # width of the embeddings and of a layer's output
    model.bidirectional = True  # the encoder reads both ways, with half the width each
    model.attention = "additive"  # none | additive (Bahdanau) | dot (Luong, / √d_model)
    model.tie = "all"  # source, target and output share a table: all | decoder | none
    model.dropout_words = 0.0  # share of the tokens read, the target's too, as unknown
    model.dropout_embedding = 0.1  # on the embeddings
    model.dropout_residual = 0.1  # on each layer's output, on its way to the next
    model.dtype = "float32"  # of the computation: float32 | bfloat16; weights: float32


MODELS = {"transformer": _transformer, "recurrent": _recurrent}


def load(spec: str, overrides: dict[str, str] | None = None) -> ConfigDict:
    """The config of `path.py[:variant]` with overrides applied, checked and locked.

    `quickstart` alone names configs/quickstart.py of this package.
    """
    config = _run_file(spec)
    problems = []
    for key, text in (overrides or {}).items():
        problem = _override(config, key, text)
        if problem:
            problems.append(problem)
    from transformer_jax import checks  # which reads `base` from here

    problems += checks.find_problems(config)
    if problems:
        raise UserError(*problems)
    return config


def shipped() -> dict[str, pathlib.Path]:
    """The config files that travel with the package, by name."""
    return {p.stem: p for p in sorted(shipped_folder().glob("*.py"))}


def shipped_folder() -> pathlib.Path:
    here = pathlib.Path(__file__).parent
    inside = here / "configs"  # in a wheel; a checkout has them at the top level
    return inside if inside.is_dir() else here.parent / "configs"


def items(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All (dotted key, value) pairs."""
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            yield from items(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lines about the keys that differ and may not, when a run is continued."""
    from transformer_jax import optim  # which needs jax

    lines = []
    may_change = set(MAY_CHANGE_ON_RESUME)
    if new["optim.schedule"] in optim.ENDING and not new["optim.decay_steps"]:
        may_change.remove("train.steps")
    # A key that is younger than the run: it had what is the default.
    old = dict(items(base(new["task"], new["model.name"]))) | old
    for key in sorted({*old, *new}):
        free = any(key == k or key.startswith(k + ".") for k in may_change)
        if not free and old.get(key) != new.get(key):
            lines.append(f"{key}: {old.get(key)!r} in the run, now {new.get(key)!r}")
    return lines


def _run_file(spec: str) -> ConfigDict:
    path, _, variant = spec.partition(":")
    file = pathlib.Path(path)
    if not file.is_file():
        known = shipped()
        if file.stem not in known or (file.suffix and len(file.parts) > 2):
            hint = nearest(file.stem, known)
            names = ", ".join(known)
            raise UserError(f"there is no config file {path}.{hint} Shipped: {names}")
        file = known[file.stem]
    module_spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        config = module.get_config(variant) if variant else module.get_config()
    except UserError:
        raise
    except Exception as error:  # whatever a user's file raises: shown with its line
        frames = traceback.extract_tb(error.__traceback__)
        own = [f.lineno for f in frames if f.filename == str(file)]
        line = own[-1] if own else getattr(error, "lineno", 1)
        text = str(error).strip("\"'").split("\n")[0]
        raise UserError(
            f"{file}, line {line}: {type(error).__name__}: {text}"
        ) from None
    return config.lock()


def _override(config: ConfigDict, key: str, text: str) -> str | None:
    """Sets one key from its text on the command line; returns what is wrong with it."""
    known = dict(items(config))
    if key not in known:
        section, _, last = key.rpartition(".")
        siblings = [k for k in known if k.rpartition(".")[0] == section]
        elsewhere = [k for k in known if k.rpartition(".")[2] == last]
        hint = nearest(key, elsewhere) or nearest(key, siblings) or nearest(key, known)
        if not hint:
            hint = f" Known: {', '.join(siblings or known)}"
        return f"--config.{key}: there is no such key.{hint}"
    old = known[key]
    kind = type(old).__name__
    try:
        value = _parse(text, old)
    except (ValueError, SyntaxError):
        return f"--config.{key}: {text!r} is not of type {kind} (default: {old!r})"
    with config.unlocked():
        config.update_from_flattened_dict({key: value})
    return None


def _parse(text: str, like: Any) -> Any:
    if isinstance(like, str):
        return text
    if isinstance(like, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if isinstance(like, tuple):
        if not text.startswith(("(", "[")):
            return tuple(part.strip() for part in text.split(",") if part.strip())
        value = ast.literal_eval(text)
        return tuple(value) if isinstance(value, tuple | list) else (value,)
    return type(like)(text)
