"""Convert a translator or a language model for CTranslate2, a fast engine.

    python -m transformer_jax.convert.ctranslate2 --workdir RUN --output FOLDER

The folder holds the model, its vocabularies and the tokenizers. CTranslate2 reads and
writes pieces; a text to be continued begins with the start token:

    translator = ctranslate2.Translator(FOLDER)
    translator.translate_batch([tokenizer.encode(line, out_type=str)])
    generator = ctranslate2.Generator(FOLDER)
    generator.generate_batch([["<s>", *tokenizer.encode(line, out_type=str)]])

Its scores use another length penalty, and its beam search another stopping rule. With
length_penalty=0 it searches for the same answer as this package with alpha=0.
"""

import json
import pathlib
import shutil
from typing import Any

import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from transformer_jax import cli, convert
from transformer_jax.base import files
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.base.ids import BOS, PAD
from transformer_jax.data.text.foreign import Foreign
from transformer_jax.models.positions import sinusoid
from transformer_jax.runs.run import Run
from transformer_jax.sharding import Params

POSITIONS = 2048  # the length of a sinusoid, which CTranslate2 needs as a table
ACTIVATIONS = {  # their names in CTranslate2
    "relu": "RELU",
    "gelu_tanh": "GELUTanh",
    "gelu_erf": "GELU",
    "silu": "SWISH",
}
GATES = {  # gated units: the activation of the gate
    "glu": "Sigmoid",
    "reglu": "RELU",
    "geglu": "GELUTanh",
    "swiglu": "SWISH",
}
FEED_FORWARD = ("inner", "outer", "gate")
QUANTIZATIONS = (
    *("int8", "int8_float32", "int8_float16", "int8_bfloat16"),
    *("int16", "float16", "bfloat16", "float32"),
)
NEVER = -6e4  # the bias of pieces that must not be chosen; float16 ends at 65504
EXPORTED = {  # the model variants that CTranslate2 also has, by task
    "translation": {
        "positions": ("sinusoid", "sinusoid_concat", "learned"),
        "activation": tuple(ACTIVATIONS),
        "norm_kind": ("layer",),
        "bias": ("all",),
        "embedding_scale": (True,),
        "kv_heads": (0,),
    },
    "language": {
        "positions": ("sinusoid", "sinusoid_concat", "learned", "rotary"),
        "activation": (*ACTIVATIONS, *GATES),
        "norm_kind": ("layer", "rms"),
        "rotary_scaling": ("none", "linear"),
    },
}
ALWAYS = {
    "norm": ("post", "pre"),
    "parallel_sublayers": (False,),
    "shared_layers": ("none",),
    "qk_norm": (False,),
    "embedding_norm": (False,),
    "attention_window": (0,),
}


def export(run: Run, folder: pathlib.Path, quantization: str = "") -> None:
    """Write a run, loaded by `transformer_jax.load`, for CTranslate2.

    `quantization` is the type of its matrices, one of QUANTIZATIONS.
    """
    specs = library().specs
    check_exportable(run)
    config, params = run.config.model, _numpy(run.params)
    data: Any = run.task.data
    if run.config.task == "language":
        spec = _describe_decoder(specs, config)
        sides = {"decoder": data.tokenizer}
        spec.register_vocabulary(data.tokenizer.tokens())
    else:
        spec = specs.TransformerSpec.from_config(
            (config.encoder_layers, config.decoder_layers),
            config.num_heads,
            pre_norm=config.norm == "pre",
            activation=getattr(specs.Activation, ACTIVATIONS[config.activation]),
        )
        spec.config.add_source_eos = True
        sides = {"encoder": data.source_tokenizer, "decoder": data.target_tokenizer}
        spec.register_source_vocabulary(data.source_tokenizer.tokens())
        spec.register_target_vocabulary(data.target_tokenizer.tokens())
    spec.config.layer_norm_epsilon = config.norm_epsilon
    for name, tokenizer in sides.items():
        stack = getattr(spec, name)
        rows = _embedding(params, name)[: tokenizer.vocab_size]
        embeddings = stack.embeddings
        (embeddings[0] if isinstance(embeddings, list) else embeddings).weight = rows
        stack.scale_embeddings = config.embedding_scale
        if config.positions != "rotary":
            stack.position_encodings.encodings = _positions(config, params, name)
        for layer, given in zip(stack.layer, _layers(params[name]), strict=True):
            _set_layer(layer, given)
        if config.norm == "pre":
            _set_norm(stack.layer_norm, params[name]["norm"])
    size = sides["decoder"].vocab_size
    spec.decoder.projection.weight = _output(params, size)
    bias = np.zeros(size, np.float32)
    if config.output_bias:
        bias += params["output_bias"]["bias"][:size]
    bias[[PAD, BOS, *sides["decoder"].absent]] = NEVER
    spec.decoder.projection.bias = bias
    spec.validate()
    spec.optimize(quantization=quantization or None)
    folder.mkdir(parents=True)
    spec.save(str(folder))
    _write_tokenizers(run, folder, sides["decoder"])


def _describe_decoder(specs: Any, config: ConfigDict) -> Any:
    """Describe a language model's variant in CTranslate2's terms."""
    gated, options = config.activation in GATES, {}
    if config.positions == "rotary":
        options = {
            "rotary_dim": 0,  # all of a head's
            "rotary_interleave": False,
            "rotary_base": config.rotary_base,
        }
        if config.rotary_scaling == "linear":
            kind = specs.attention_spec.RotaryScalingType.Linear
            options["rotary_scaling_type"] = kind
            options["rotary_scaling_factor"] = config.rotary_factor
    if config.kv_heads not in (0, config.num_heads):
        options["num_heads_kv"] = config.kv_heads
    if config.d_k and config.d_k * config.num_heads != config.d_model:
        options["head_dim"] = config.d_k
    return specs.TransformerDecoderModelSpec.from_config(
        config.decoder_layers,
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=getattr(specs.Activation, (ACTIVATIONS | GATES)[config.activation]),
        ffn_glu=gated,
        rms_norm=config.norm_kind == "rms",
        **options,
    )


def check_exportable(run: Run) -> None:
    """Refuse a run that CTranslate2 would answer for in another way."""
    config, task = run.config.model, run.config.task
    if task not in EXPORTED or config.name != "transformer":
        raise UserError(
            f"only Transformer translators and language models, not a {config.name} "
            f"{task} run"
        )
    head = config.d_model // config.num_heads
    sizes = {config[key] or head for key in ("d_k", "d_v")}
    if len(sizes) > 1 or (task == "translation" and sizes != {head}):
        raise UserError(
            f"model.d_k {config.d_k}, model.d_v {config.d_v}: CTranslate2 needs equal "
            f"ones, and in a translator heads of d_model / num_heads = {head}"
        )
    given = {**config, "kv_heads": config.kv_heads % config.num_heads}
    for key, can in (ALWAYS | EXPORTED[task]).items():
        if given[key] not in can:
            raise UserError(
                f"model.{key} = {config[key]!r} is not exported to CTranslate2, only "
                f"{' or '.join(map(repr, can))}"
            )


def _write_tokenizers(run: Run, folder: pathlib.Path, tokenizer: Any) -> None:
    """Write the tokenizers: SentencePiece models, or a tokenizer.json."""
    if isinstance(tokenizer, Foreign) and (content := tokenizer.content):
        text = json.dumps(content, ensure_ascii=False)
        files.write(folder / "tokenizer.json", text)
        return
    for path in run.folder.tokenizer.glob("*.model"):
        shutil.copy(path, folder)


def library() -> Any:
    """Import CTranslate2, which is optional."""
    try:
        import ctranslate2
    except ImportError:
        raise UserError("CTranslate2 is missing: pip install ctranslate2") from None
    return ctranslate2


def _numpy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _numpy(value) for name, value in tree.items()}
    return np.array(tree, np.float32)  # a copy, which is quantized in its place


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
        return (params.get("positions") or params[f"{side}_positions"])["table"]
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
    inner, outer, gate = (given["feed_forward"].get(n) for n in FEED_FORWARD)
    _set_linear(spec.ffn.linear_0, gate or inner)
    if gate:
        _set_linear(spec.ffn.linear_0_noact, inner)
    _set_linear(spec.ffn.linear_1, outer)
    _set_norm(spec.ffn.layer_norm, given["feed_forward_norm"])


def _set_attention(spec: Any, given: dict, joined: int) -> None:
    """Join queries, keys and values into one product, or only keys and values."""
    names = ["query", "key", "value"]
    parts = [names] if joined == 3 else [names[:1], names[1:]]
    for linear, members in zip(spec.linear, parts, strict=False):
        both = {
            name: np.concatenate([given[m][name] for m in members], axis=-1)
            for name in given[members[0]]
        }
        _set_linear(linear, both)
    _set_linear(spec.linear[-1], given["out"])


def _set_linear(spec: Any, given: dict) -> None:
    spec.weight = np.ascontiguousarray(given["kernel"].T)
    if "bias" in given:
        spec.bias = given["bias"]


def _set_norm(spec: Any, given: dict) -> None:
    spec.gamma = given["scale"]
    if "bias" in given:  # not of RMSNorm
        spec.beta = given["bias"]


def define_flags() -> None:
    """Define the flags of this command."""
    convert.define_flags()
    choices = " | ".join(QUANTIZATIONS)
    flags.DEFINE_string("quantization", "", f"The type of the matrices: {choices}.")


def main(overrides: dict[str, str]) -> None:
    """Export a run and print the folder."""
    kind = flags.FLAGS.quantization
    if kind and kind not in QUANTIZATIONS:
        choices = " | ".join(QUANTIZATIONS)
        hint = nearest(kind, QUANTIZATIONS)
        raise UserError(f"--quantization={kind}: choose {choices}.{hint}")
    run, folder = convert.open_run(overrides)
    export(run, folder, kind)
    print(f"exported   {run.weights} parameters of step {run.step} to {folder}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
