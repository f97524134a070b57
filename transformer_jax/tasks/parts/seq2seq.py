"""Compose a task of an encoder-decoder model that reads and writes text."""

from collections.abc import Callable
from typing import Any

from transformer_jax.decoding import Constraint
from transformer_jax.models.recurrent import Recurrent
from transformer_jax.models.transformer import Seq2Seq
from transformer_jax.tasks.parts.pairs import PairData, Seq2SeqObjective
from transformer_jax.tasks.parts.reading import PairInspector
from transformer_jax.tasks.parts.text import sizes
from transformer_jax.tasks.parts.writing import Seq2SeqInference, Writer
from transformer_jax.tasks.protocols import Scoring, Task


def compose(
    data: PairData,
    inference: Callable[[PairData, Writer], Seq2SeqInference],
    scoring: Scoring,
    constraint: Constraint | None = None,
) -> Task:
    """Put the parts together around one model."""
    config = data.config
    source, target = data.source_tokenizer, data.target_tokenizer
    module = build(config, source.vocab_size, target.vocab_size)
    writing = inference(data, Writer(config, module, target, constraint))
    return Task(
        config,
        data,
        Seq2SeqObjective(config, module, target.vocab_size),
        writing,
        scoring,
        PairInspector(data, module, writing.too_long),
    )


def build(config: Any, source_vocab: int, target_vocab: int) -> Seq2Seq | Recurrent:
    """Build the config's model for vocabularies of these sizes."""
    kind = {"transformer": Seq2Seq, "recurrent": Recurrent}[config.model.name]
    return kind(sizes(config, target_vocab, source_vocab))
