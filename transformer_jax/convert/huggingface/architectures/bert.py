"""BERT and RoBERTa: an encoder with norms after its sublayers."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np

from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface import links
from transformer_jax.convert.huggingface.architecture import (
    NEUTRAL,
    Given,
    Options,
    activation,
    refuse,
    their_activation,
)
from transformer_jax.convert.huggingface.links import Link, Vocabulary


def bert_options(given: Given) -> Options:
    """Return the options of a BERT or RoBERTa encoder."""
    refuse(given, position_embedding_type="absolute")
    return {
        **NEUTRAL,
        "model.encoder_layers": given["num_hidden_layers"],
        "model.d_model": given["hidden_size"],
        "model.d_ff": given["intermediate_size"],
        "model.num_heads": given["num_attention_heads"],
        "model.norm": "post",
        "model.norm_epsilon": given["layer_norm_eps"],
        "model.activation": activation(given["hidden_act"]),
        "model.positions": "learned",
        "model.max_positions": given["max_position_embeddings"] - _unused(given),
        "model.embedding_scale": False,
        "model.embedding_norm": True,
        "model.dropout_words": 0.0,
        "data.max_length": given["max_position_embeddings"] - _unused(given) - 2,
    }


def masked_bert_options(given: Given) -> Options:
    """Return the options of a masked language model."""
    refuse(given, tie_word_embeddings=True)
    options = bert_options(given)
    del options["data.max_length"], options["model.dropout_words"]
    return {
        **options,
        "data.window": options["model.max_positions"] - 2,
        "model.tie": "all",
        "model.head_transform": True,
        "model.output_bias": True,
        "tokenizer.user_symbols": ("<mask>",),
    }


def _unused(given: Given) -> int:
    """Count the rows of RoBERTa's table of positions before the first position."""
    return given["pad_token_id"] + 1 if given["model_type"] == "roberta" else 0


def describe_bert(ours: Given) -> dict[str, Any]:
    """Return BERT's config.json."""
    return {
        "model_type": "bert",
        "num_hidden_layers": ours["model.encoder_layers"],
        "hidden_size": ours["model.d_model"],
        "intermediate_size": ours["model.d_ff"],
        "num_attention_heads": ours["model.num_heads"],
        "layer_norm_eps": ours["model.norm_epsilon"],
        "hidden_act": their_activation(ours["model.activation"]),
        "max_position_embeddings": ours["model.max_positions"],
        "type_vocab_size": 2,
    }


def describe_roberta(ours: Given) -> dict[str, Any]:
    """Return RoBERTa's config.json, whose padding token is the second."""
    rows = ours["model.max_positions"] + 2
    changed = {"model_type": "roberta", "max_position_embeddings": rows}
    return {**describe_bert(ours), **changed, "type_vocab_size": 1, "pad_token_id": 1}


def bert_links(prefix: str) -> Callable[[Given, Vocabulary], list[Link]]:
    """Return the links of an encoder whose tensors' names begin with `prefix`."""

    def link(given: Given, rows: Vocabulary) -> list[Link]:
        at, unused = f"{prefix}embeddings.", _unused(given)
        types = given.get("type_vocab_size", 2)

        def read(positions, kinds):
            # Every token here is of the first type, so its vector joins the positions.
            return [positions[unused:] + kinds[:1]]

        def write(table):
            kinds = np.zeros((types, table.shape[1]), table.dtype)
            return [np.pad(table, ((unused, 0), (0, 0))), kinds]

        names = (f"{at}position_embeddings.weight", f"{at}token_type_embeddings.weight")
        made = [
            links.table("embedding/embedding", f"{at}word_embeddings.weight", rows),
            Link(("positions/table",), names, read, write),
            *links.norm("embedding_norm", f"{at}LayerNorm"),
        ]
        for i in range(given["num_hidden_layers"]):
            ours, theirs = f"encoder/layer_{i}", f"{prefix}encoder.layer.{i}"
            attention = f"{theirs}.attention"
            for name in ("query", "key", "value"):
                mine = f"{ours}/self_attention/{name}"
                made += links.dense(mine, f"{attention}.self.{name}")
            made += links.dense(
                f"{ours}/self_attention/out", f"{attention}.output.dense"
            )
            made += links.norm(
                f"{ours}/self_attention_norm", f"{attention}.output.LayerNorm"
            )
            made += links.dense(
                f"{ours}/feed_forward/inner", f"{theirs}.intermediate.dense"
            )
            made += links.dense(f"{ours}/feed_forward/outer", f"{theirs}.output.dense")
            made += links.norm(
                f"{ours}/feed_forward_norm", f"{theirs}.output.LayerNorm"
            )
        return made

    return link


def masked_links(prefix: str, head: str, norm: str, dense: str, bias: str) -> Any:
    """Return the links of a masked language model."""

    def link(given: Given, rows: Vocabulary) -> list[Link]:
        return [
            *bert_links(prefix)(given, rows),
            *links.dense("transform", f"{head}.{dense}"),
            *links.norm("transform_norm", f"{head}.{norm}"),
            links.output_bias(bias, rows),
        ]

    return link


def classifier_links(prefix: str, pooler: str, head: str) -> Any:
    """Return the links of a classifier of texts."""

    def link(given: Given, rows: Vocabulary) -> list[Link]:
        return [
            *bert_links(prefix)(given, rows),
            *links.dense("pooler", pooler),
            *links.dense("head", head),
        ]

    return link


def classifier_options(given: Given) -> Options:
    """Return the options of a classifier of texts, of which one label is right."""
    refuse(given, problem_type="single_label_classification")
    if len(labels_of(given)) < 2:
        raise UserError("the model has one output: a regression is not read")
    return {**bert_options(given), "model.pooling": "pooler"}


def labels_of(given: Given) -> tuple[str, ...]:
    """Return the labels of a classifier, in the order of its outputs.

    A name that several outputs have is followed by their numbers, as for the two
    cranes of ImageNet.
    """
    stored = given.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    names = [str(name) for _, name in sorted((int(i), n) for i, n in stored.items())]
    counts = collections.Counter(names)
    return tuple(n if counts[n] == 1 else f"{n} ({i})" for i, n in enumerate(names))
