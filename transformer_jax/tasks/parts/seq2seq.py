"""Compose a task with an encoder-decoder model that reads and writes text."""

from collections.abc import Callable

from ml_collections import ConfigDict

from transformer_jax.decoding import Options
from transformer_jax.decoding.searches.constraints import Constraint
from transformer_jax.models import registry
from transformer_jax.tasks.parts.pairs import PairData, Seq2SeqObjective
from transformer_jax.tasks.parts.reading import PairInspector
from transformer_jax.tasks.parts.scoring import BleuScoring
from transformer_jax.tasks.parts.text import EmptyTokenizer
from transformer_jax.tasks.parts.writing import Seq2SeqInference, Writer
from transformer_jax.tasks.protocols import Scoring, Task


def compose(
    data: PairData,
    inference: Callable[[PairData, Writer], Seq2SeqInference],
    scoring: Scoring,
    constraint: Constraint | None = None,
) -> Task:
    """Compose a task from its parts and one encoder-decoder model."""
    config = data.config
    source, target = data.source_tokenizer, data.target_tokenizer
    module = registry.build(
        config,
        "seq2seq",
        vocab_size=target.vocab_size,
        source_vocab_size=source.vocab_size,
        absent=target.absent,
    )
    writing = inference(data, Writer(config, module, target, constraint))
    return Task(
        config=config,
        data=data,
        objective=Seq2SeqObjective(config, module, target.vocab_size),
        inference=writing,
        scoring=scoring,
        inspector=PairInspector(data, module, writing.advice),
    )


def open_empty(
    config: ConfigDict, vocabulary: int, options: type[Options] = Options
) -> Task:
    """Open a task of pairs with vocabularies of this size."""
    tokenizer = EmptyTokenizer(config, vocabulary)
    data = PairData(config, tokenizer, tokenizer, options)
    return compose(data, Seq2SeqInference, BleuScoring(False))
