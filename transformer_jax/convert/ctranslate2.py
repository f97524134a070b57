"""Convert a translation run for CTranslate2, an inference engine for CPUs and GPUs.

    python -m transformer_jax.convert.ctranslate2 --workdir RUN --output FOLDER

The folder holds the model, its vocabularies and the tokenizers. CTranslate2 reads and
writes pieces:

    translator = ctranslate2.Translator(FOLDER)
    translator.translate_batch([tokenizer.encode(line, out_type=str)])

Its scores use another length penalty, and its beam search another stopping rule. With
length_penalty=0 it searches for the same answer as this package with alpha=0.
"""

import pathlib
import shutil
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.convert import define_flags, open_run
from transformer_jax.models.positions import sinusoid
from transformer_jax.runs.run import Run
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.pairs import PairData

POSITIONS = 2048  # the length of a sinusoid, which CTranslate2 needs as a table
ACTIVATIONS = {  # their names in CTranslate2
    "relu": "RELU",
    "gelu_tanh": "GELUTanh",
    "gelu_erf": "GELU",
    "silu": "SWISH",
}
NEG_INF = -1e9  # the bias of pieces that must not be chosen
EXPORTED = {  # the model variants that CTranslate2 also has
    "positions": ("sinusoid", "sinusoid_concat", "learned"),
    "activation": tuple(ACTIVATIONS),
    "norm": ("post", "pre"),
    "norm_kind": ("layer",),
    "parallel_sublayers": (False,),
    "shared_layers": ("none",),
    "qk_norm": (False,),
    "bias": ("all",),
    "embedding_scale": (True,),
    "embedding_norm": (False,),
    "output_bias": (False,),
}


def export(run: Run, folder: pathlib.Path) -> None:
    """Write a run, loaded by `transformer_jax.load`, for CTranslate2."""
    specs = _specs()
    config, params = run.config.model, _numpy(run.params)
    _check_exportable(run)
    spec = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=getattr(specs.Activation, ACTIVATIONS[config.activation]),
    )
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.add_source_eos = True
    data = run.task.data
    assert isinstance(data, PairData)  # see _check_exportable
    sides = {
        "encoder": data.source_tokenizer,
        "decoder": data.target_tokenizer,
    }
    for name, tokenizer in sides.items():
        stack = getattr(spec, name)
        rows = _embedding(params, name)[: tokenizer.vocab_size]
        embeddings = stack.embeddings
        (embeddings[0] if isinstance(embeddings, list) else embeddings).weight = rows
        stack.scale_embeddings = True
        stack.position_encodings.encodings = _positions(run.config.model, params, name)
        for layer, given in zip(stack.layer, _layers(params[name]), strict=True):
            _set_layer(layer, given)
        if config.norm == "pre":
            _set_norm(stack.layer_norm, params[name]["norm"])
    size = data.target_tokenizer.vocab_size
    spec.decoder.projection.weight = _output(params, size)
    bias = np.zeros(size, np.float32)
    bias[[PAD, BOS]] = NEG_INF
    spec.decoder.projection.bias = bias
    spec.register_source_vocabulary(_names(data.source_tokenizer))
    spec.register_target_vocabulary(_names(data.target_tokenizer))
    spec.validate()
    spec.optimize(quantization=None)
    folder.mkdir(parents=True)
    spec.save(str(folder))
    for path in run.folder.tokenizer.glob("*.model"):
        shutil.copy(path, folder)


def _check_exportable(run: Run) -> None:
    config = run.config.model
    if run.config.task != "translation" or config.name != "transformer":
        raise UserError(
            f"only Transformer translators, not a {config.name} {run.config.task} run"
        )
    head = config.d_model // config.num_heads
    for key in ("d_k", "d_v"):
        if config[key] not in (0, head):
            raise UserError(
                f"model.{key} {config[key]}: CTranslate2 needs heads of "
                f"d_model / num_heads = {head}"
            )
    for key, can in EXPORTED.items():
        if config[key] not in can:
            raise UserError(
                f"model.{key} = {config[key]!r} is not exported to CTranslate2, only "
                f"{' or '.join(map(repr, can))}"
            )
    if config.kv_heads not in (0, config.num_heads):
        raise UserError(
            f"model.kv_heads = {config.kv_heads}: shared keys are not exported"
        )


def _specs() -> Any:
    try:
        # If it is not installed, pyright mistakes this file for it.
        from ctranslate2 import specs  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        raise UserError("CTranslate2 is missing: pip install ctranslate2") from None
    return specs


def _numpy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _numpy(value) for name, value in tree.items()}
    return np.ascontiguousarray(tree, np.float32)


def _embedding(params: Params, stack: str) -> np.ndarray:
    side = "source" if stack == "encoder" else "target"
    table = params.get("embedding") or params[f"{side}_embedding"]
    return table["embedding"]


def _output(params: Params, size: int) -> np.ndarray:
    if "projection" in params:
        return np.ascontiguousarray(params["projection"]["kernel"].T[:size])
    return _embedding(params, "decoder")[:size]


def _positions(config: Any, params: Params, stack: str) -> np.ndarray:
    if config.positions == "learned":
        side = "source" if stack == "encoder" else "target"
        return params[f"{side}_positions"]["table"]
    places = jnp.arange(POSITIONS)[None]
    interleave = config.positions == "sinusoid"
    return np.asarray(sinusoid(places, config.d_model, interleave)[0], np.float32)


def _layers(stack: dict) -> list[dict]:
    count = sum(name.startswith("layer_") for name in stack)
    return [stack[f"layer_{i}"] for i in range(count)]


def _set_layer(spec: Any, given: dict) -> None:
    _set_attention(spec.self_attention, given["self_attention"], joined=3)
    _set_norm(spec.self_attention.layer_norm, given["self_attention_norm"])
    if "cross_attention" in given:
        _set_attention(spec.attention, given["cross_attention"], joined=2)
        _set_norm(spec.attention.layer_norm, given["cross_attention_norm"])
    _set_linear(spec.ffn.linear_0, given["feed_forward"]["inner"])
    _set_linear(spec.ffn.linear_1, given["feed_forward"]["outer"])
    _set_norm(spec.ffn.layer_norm, given["feed_forward_norm"])


def _set_attention(spec: Any, given: dict, joined: int) -> None:
    """Join queries, keys and values into one product, or only keys and values."""
    names = ["query", "key", "value"]
    parts = [names] if joined == 3 else [names[:1], names[1:]]
    for linear, members in zip(spec.linear, parts, strict=False):
        both = {
            "kernel": np.concatenate([given[m]["kernel"] for m in members], axis=1),
            "bias": np.concatenate([given[m]["bias"] for m in members]),
        }
        _set_linear(linear, both)
    _set_linear(spec.linear[-1], given["out"])


def _set_linear(spec: Any, given: dict) -> None:
    spec.weight = np.ascontiguousarray(given["kernel"].T)
    spec.bias = given["bias"]


def _set_norm(spec: Any, given: dict) -> None:
    spec.gamma, spec.beta = given["scale"], given["bias"]


def _names(tokenizer: Any) -> list[str]:
    return tokenizer.pieces(range(tokenizer.vocab_size))


def main(overrides: dict[str, str]) -> None:
    """Export a run and print the folder."""
    run, folder = open_run(overrides)
    export(run, folder)
    print(f"exported   {run.weights} parameters of step {run.step} to {folder}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
