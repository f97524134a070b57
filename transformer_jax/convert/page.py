"""Write a translator as one HTML file, which translates in any browser without network.

    python -m transformer_jax.convert.page --workdir RUN --output translate.html

The file holds the parameters, the vocabularies and a search in JavaScript. It can be
opened from a disk and sent by mail. As int8 each matrix has a factor for each output,
like an int8 bundle; float16 is twice and float32 four times as large.
"""

import base64
import html
import importlib.resources
import os
import pathlib
import re
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np
from absl import flags

from transformer_jax import cli
from transformer_jax.base import files, pages
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data.reading import sources
from transformer_jax.data.text.model_proto import parse_model
from transformer_jax.data.text.tokenizer import SPECIAL, Bytes, Tokenizer
from transformer_jax.models.layers import DeepNorm, deepnorm_for
from transformer_jax.models.layers.rounded import quantize
from transformer_jax.models.positions import PositionBias, alibi_slopes
from transformer_jax.runs import environment
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder
from transformer_jax.runs.run import Run

FORMS = ("int8", "float16", "float32")
SCRIPTS = ("page",)
WORKER = ("kernel", "tokenizer", "model", "search", "translator", "worker")
ALIGNED = 4  # bytes on which the numbers of a tensor begin
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # SentencePiece's model types
UNKNOWN, CONTROL, UNUSED = 2, 3, 5  # and its types of pieces that are no text
# Options of the model that a page can have any value of, or one of these.
WRITTEN = {
    "norm": ("post", "pre", "sandwich", "deepnorm"),
    "norm_kind": ("layer", "rms"),
    "activation": (
        *("relu", "relu2", "silu", "gelu_tanh", "gelu_erf"),
        *("glu", "reglu", "geglu", "swiglu"),
    ),
    "positions": (
        *("sinusoid", "sinusoid_concat", "sinusoid_t2t", "learned", "none"),
        *("rotary", "sinusoid+rotary", "relative", "alibi"),
    ),
    "rotary_scaling": ("none", "linear"),
    "shared_layers": ("none", "all"),
    "parallel_sublayers": (False,),
}
COPIED = (
    *("encoder_layers", "decoder_layers", "d_model", "d_ff", "d_k", "d_v", "norm"),
    *("norm_kind", "norm_epsilon", "activation", "positions", "max_positions"),
    *("embedding_scale", "attention_window", "rotary_base", "relative_distance"),
)
SEARCHED = (
    *("beams", "alpha", "coverage", "extra_length", "max_length", "min_length"),
    *("n_best", "no_repeat"),
)


def write(run: Run, path: str | pathlib.Path, name: str, form: str = "int8") -> int:
    """Write a run, loaded by `transformer_jax.load`, as a page; return its size.

    `form` is that of the matrices, one of FORMS.
    """
    content = render(run, name, form).encode("utf-8")
    files.write_bytes(pathlib.Path(path), content)
    return len(content)


def render(run: Run, name: str, form: str = "int8") -> str:
    """Return the page of a run."""
    _check_writable(run)
    tensors, same = _tensors(run)
    listed, numbers = _pack(tensors, form)
    document = {
        "model": _describe_model(run),
        "tokenizers": _describe_tokenizers(run),
        "tensors": listed,
        "same": same,
        "options": {key: run.config.decode[key] for key in SEARCHED}
        | {"max_input": run.config.data.max_length, "on_long": "split"},
        "tags": [tag for tag in sources.read_tags(run.config.data, "train") if tag],
        "needed": sources.needed_tags(run.config.data),
        "language": run.config.data.target_language,
        **_describe_run(run, tensors, form),
    }
    script, worker = _join(SCRIPTS), _join(WORKER)
    style = _read("page.css")
    code, look = map(pages.hash_source, (script, style))
    parts = {
        "title": html.escape(f"Translator: {name}"),
        "policy": f"default-src 'none'; script-src '{code}' "
        f"'wasm-unsafe-eval'; worker-src blob:; style-src '{look}'; "
        "img-src data:",
        "style": style,
        "data": pages.escape(document),
        "weights": base64.b64encode(numbers).decode("ascii"),
        "worker": worker,
        "script": script,
    }
    return pages.fill(_read("page.html"), parts)


def _check_writable(run: Run) -> None:
    config = run.config
    data: Any = run.task.data
    if config.task != "translation" or config.model.name != "transformer":
        raise UserError(
            f"only Transformer translators are written as a page, not a "
            f"{config.model.name} {config.task} run"
        )
    for key, can in WRITTEN.items():
        if (value := config.model[key]) not in can:
            raise UserError(
                f"model.{key} = {value!r} is not written to a page, only "
                f"{' or '.join(map(repr, can))}"
            )
    if config.decode.sample:
        raise UserError(
            "decode.sample = True: a page searches and does not draw answers at "
            "random. Load a run whose config has decode.sample = False"
        )
    if config.decode.mbr:
        raise UserError(
            f"decode.mbr = {config.decode.mbr}: a page answers by the likeliest "
            "hypothesis. Load a run whose config has decode.mbr = 0"
        )
    for name, plain in (("groups", 1), ("contrast", 0.0)):
        if (value := config.decode[name]) != plain:
            raise UserError(
                f"decode.{name} = {value}: a page has a beam without it. Load a run "
                f"whose config has decode.{name} = {plain}"
            )
    for tokenizer in (data.source_tokenizer, data.target_tokenizer):
        _check_tokenizer(tokenizer)


def _check_tokenizer(tokenizer: Tokenizer) -> None:
    """Refuse tokenizers that the page's script does not imitate."""
    if type(tokenizer) not in (Tokenizer, Bytes):
        raise UserError(
            "only runs with SentencePiece models of their own or bytes are written as "
            f"a page, not those with a {type(tokenizer).__name__} tokenizer"
        )
    if isinstance(tokenizer, Bytes):
        return
    proto = parse_model(tokenizer.model)
    unusual = {
        "writes spaces after words": proto.trainer_spec.treat_whitespace_as_suffix,
        "keeps spaces as they are": not proto.normalizer_spec.escape_whitespaces,
        "changes decoded text": bool(proto.denormalizer_spec.precompiled_charsmap),
        "has unused pieces": any(piece.type == UNUSED for piece in proto.pieces),
    }
    for what, there in unusual.items():
        if there:
            raise UserError(
                f"the SentencePiece model {what}, which a page cannot do: train "
                "with a tokenizer of another kind (tokenizer.kind)"
            )


def _describe_model(run: Run) -> dict[str, Any]:
    """Return the sizes and variants of a model in the terms of model.js."""
    c: Any = run.task.objective.module.config
    alphas = {"encoder": DeepNorm(), "decoder": DeepNorm()}
    if c.norm == "deepnorm":
        alphas["encoder"] = deepnorm_for(c.encoder_layers, False, c.decoder_layers)
        alphas["decoder"] = deepnorm_for(c.decoder_layers, True, 0)
    return {
        **{name: getattr(c, name) for name in COPIED},
        "heads": c.num_heads,
        "kv_heads": c.kv_heads or c.num_heads,
        "vocabulary": c.vocab_size,
        "absent": c.absent,
        "shared": c.shared_layers == "all",
        "alpha": {stack: constants.alpha for stack, constants in alphas.items()},
        "rotary_factor": c.rotary_factor if c.rotary_scaling == "linear" else 1,
        "slopes": alibi_slopes(c.num_heads).tolist(),
    }


def _describe_run(
    run: Run, tensors: dict[str, np.ndarray], form: str
) -> dict[str, str]:
    """Return the page's words about the run: its card, and a line of facts."""
    card = run.folder.path / "card.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    count = sum(tensor.size for tensor in tensors.values())
    facts = [
        f"{count:,} parameters ({run.weights}, step {run.step:,}), matrices as {form}."
    ]
    _, _, scores = text.partition("\n## Scores\n")
    scored = re.findall(r"^- (.+)$", scores, re.MULTILINE)
    facts += [f"Its training scored {line}." for line in scored]
    return {"facts": " ".join(facts), "card": text}


def _describe_tokenizers(run: Run) -> list[dict[str, Any]]:
    """Return one tokenizer if source and target share it, else both."""
    data: Any = run.task.data
    both = [data.source_tokenizer, data.target_tokenizer]
    if both[0].fingerprint == both[1].fingerprint:
        both = both[:1]
    return [_describe_tokenizer(tokenizer) for tokenizer in both]


def _describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer's pieces, scores and rules, in the order of its ids."""
    if isinstance(tokenizer, Bytes):
        return {"kind": "byte"}
    proto = parse_model(tokenizer.model)
    known = {piece.piece: piece for piece in proto.pieces}
    names = tokenizer.tokens()
    found = [known[name] for name in names[SPECIAL:]]
    rules = proto.normalizer_spec
    return {
        "kind": KINDS[proto.trainer_spec.model_type],
        "pieces": names,
        "types": [CONTROL, UNKNOWN, CONTROL, CONTROL] + [piece.type for piece in found],
        "scores": [0.0] * SPECIAL + [piece.score for piece in found],
        "unknown": proto.trainer_spec.unk_surface,
        "charsmap": base64.b64encode(rules.precompiled_charsmap).decode("ascii"),
        "dummy_prefix": rules.add_dummy_prefix,
        "squeeze": rules.remove_extra_whitespaces,
    }


def _tensors(run: Run) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the parameters by path, and the paths that stand for the same ones.

    The rows of a matrix are its outputs, and those of a table its tokens.
    """
    c: Any = run.task.objective.module.config
    flat = flax.traverse_util.flatten_dict(dict(run.params), sep="/")
    found = {name: np.asarray(x, np.float32) for name, x in flat.items()}
    tables = {
        side: "embedding" if "embedding/embedding" in found else f"{side}_embedding"
        for side in ("source", "target")
    }
    tied = [side for side, name in tables.items() if name == "embedding"]
    same = {f"{side}_embedding": "embedding" for side in tied}
    sizes = {tables["source"]: c.source_vocab_size, tables["target"]: c.vocab_size}
    for name, size in sizes.items():
        found[name] = found.pop(f"{name}/embedding")[:size]
    if "projection/kernel" in found:
        found["output/kernel"] = found.pop("projection/kernel")[:, : c.vocab_size]
    else:
        same["output/kernel"] = tables["target"]
    if "output_bias/bias" in found:
        found["output_bias/bias"] = found["output_bias/bias"][: c.vocab_size]
    for stack, causal in (("encoder", False), ("decoder", True)):
        table = found.pop(f"{stack}/position_bias/table", None)
        if table is not None:
            found[f"{stack}/distances"] = _spread(c, table, causal)
    kernels = {name for name in found if name.endswith("kernel")}
    return {n: x.T if n in kernels else x for n, x in found.items()}, same


def _spread(c: Any, table: np.ndarray, causal: bool) -> np.ndarray:
    """Return the bias of each distance from -furthest to furthest, by head."""
    furthest = c.relative_distance
    bias = PositionBias("relative", c.num_heads, causal, c.relative_buckets, furthest)
    keys = jnp.arange(2 * furthest + 1)[None]
    params = {"params": {"table": jnp.asarray(table)}}
    return np.asarray(bias.apply(params, jnp.array([[furthest]]), keys))[0, :, 0].T


def _pack(tensors: dict[str, np.ndarray], form: str) -> tuple[list[dict], bytes]:
    """Return the places and forms of all tensors, and their bytes.

    Vectors, such as biases and norms, stay float32.
    """
    listed, packed = [], bytearray()

    def put(numbers: np.ndarray) -> int:
        packed.extend(bytes(-len(packed) % ALIGNED))
        at = len(packed)
        packed.extend(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes())
        return at

    for name, tensor in tensors.items():
        rows, columns = np.atleast_2d(tensor).shape
        about = {"name": name, "outs": rows, "size": columns, "form": "float32"}
        if tensor.ndim < 2 or form == "float32":
            about["at"] = put(tensor)
        elif form == "float16":
            about |= {"form": form, "at": put(tensor.astype(np.float16))}
        else:
            steps, scale = quantize(tensor, 1)
            about |= {"form": form, "at": put(steps), "scale": put(scale)}
        listed.append(about)
    return listed, bytes(packed)


def _join(names: tuple[str, ...]) -> str:
    return "\n".join(_read(f"{name}.js") for name in names)


def _read(name: str) -> str:
    folder = importlib.resources.files("transformer_jax.convert") / "translator"
    return folder.joinpath(name).read_text(encoding="utf-8")


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_string("workdir", "", "The run directory.")
    flags.DEFINE_string("output", "translate.html", "The file to write.")
    forms = " | ".join(FORMS)
    flags.DEFINE_string("quantization", "int8", f"The type of the matrices: {forms}.")
    cli.define_weights()


def main(overrides: dict[str, str]) -> None:
    """Write the page and print its size."""
    args = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.require("workdir", args.workdir, "the run directory to write as a page")
    cli.check_weights(args.weights)
    form = args.quantization
    if form not in FORMS:
        hint = nearest(form, FORMS)
        raise UserError(f"--quantization={form}: choose {' | '.join(FORMS)}.{hint}")
    cli.refuse_overwriting("output", args.output, Folder(args.workdir).files())
    environment.use_compile_cache()
    run = runs.load(args.workdir, args.weights)
    name = os.path.basename(os.path.normpath(args.workdir))
    size = write(run, args.output, name, form)
    print(
        f"written    {run.weights} parameters of step {run.step} as {form} to "
        f"{args.output} ({size / 1e6:.1f} MB)"
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
