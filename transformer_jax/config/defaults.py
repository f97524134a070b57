"""Every key a run has: its default, unit and meaning; and the checks before a run.

A config file returns `base(task=…, model=…)` with a few differences; it is locked, so
a key that does not exist fails where it is written. `load` adds the command line's
`--config.section.key=value`; all that cannot work is reported together (`checks.py`),
before any device is touched.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import keys, tasks
from transformer_jax.errors import UserError, nearest
from transformer_jax.models import registry


def base(task: str = "translation", model: str = "transformer") -> ConfigDict:
    """The complete config of a task and a model, locked."""
    kind = tasks.find(task)
    models = registry.names_for(kind.role)
    if model not in models:
        raise UserError(
            f"unknown model {model!r} of the task {task!r}.{nearest(model, models)} "
            f"It has: {', '.join(models)}"
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

    config.model = ConfigDict(registry.section(model))  # of a file of models/
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

    config.decode = ConfigDict(keys.defaults(kind.options))

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

    config.timeout = timeout = ConfigDict()  # seconds; a process that hangs exits
    timeout.start = 300  # until all processes of a run must have come
    timeout.compile = 3600  # to compile a step, or to try it out; 0: any time
    timeout.step = 600  # a step; more if steps are slow (20 × the slowest); 0: any
    timeout.evaluate = 3600  # to score a split, and then between two answers; 0: any
    timeout.save = 1800  # to restore or save a checkpoint; 0: any time
    timeout.preemption = 120  # from SIGTERM until the state is saved; 0: any time

    config.log = log = ConfigDict()
    log.every = 50  # updates a log line
    log.tensorboard = True  # also write TensorBoard events, if it is installed
    kind.configure(config)
    return config.lock()


def items(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All (dotted key, value) pairs."""
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            yield from items(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
