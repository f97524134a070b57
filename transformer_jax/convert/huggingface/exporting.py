"""Write a run as a Hugging Face folder.

A model that came from one goes back with its own config.json and tokenizer. Any other
run is written as the architecture whose options are exactly those of its config.
"""

import base64
import json
import logging
import pathlib
import re
from typing import Any

import jax
import numpy as np

from transformer_jax import config as configs
from transformer_jax import sharding
from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS, PAD, UNK
from transformer_jax.convert.huggingface import tensors, vocabulary
from transformer_jax.convert.huggingface.architecture import (
    APART,
    GENERATION,
    PROCESSOR,
    Given,
)
from transformer_jax.convert.huggingface.architectures import (
    ARCHITECTURES,
    CLASSES,
)
from transformer_jax.convert.huggingface.importing import NO_ROWS, rows_of
from transformer_jax.convert.huggingface.links import Link
from transformer_jax.data.text.foreign import Foreign
from transformer_jax.data.text.model_proto import parse_model
from transformer_jax.runs.run import Run
from transformer_jax.sharding import Params
from transformer_jax.tasks import classification, images
from transformer_jax.tasks.parts import learnt

logger = logging.getLogger(__name__)
FREE = ("model.dropout", "model.attention", "model.dtype", "model.gradient_dtype",
        "model.remat", "model.scan_layers", "model.name", "model.word_vectors",
        "model.train_")  # fmt: skip
ONLY_TRAINED = "ctc_projection"  # answers do not use it
OWN = {  # the architectures of runs that were trained here, the likeliest first
    "translation": ("MarianMTModel", "BartForConditionalGeneration")
    + ("T5ForConditionalGeneration",),
    "language": ("GPT2LMHeadModel", "LlamaForCausalLM"),
    "masked": ("BertForMaskedLM", "RobertaForMaskedLM"),
    "classification": ("BertForSequenceClassification",)
    + ("RobertaForSequenceClassification",),
    "similarity": ("bert-sentences", "roberta-sentences"),
    "images": ("ViTForImageClassification",),
    "speech": ("WhisperForConditionalGeneration",),
}
BESIDE = (PROCESSOR, GENERATION)
UNIGRAM = 1  # SentencePiece's type of a model of likely pieces


def export(run: Run, folder: pathlib.Path) -> str:
    """Write a run into a new folder; return the kind of architecture it has there."""
    pictures = run.config.task == "images"
    tokenizer = None if pictures else _tokenizer(run)
    origin = tokenizer.origin if isinstance(tokenizer, Foreign) else None
    ours = dict(configs.items(run.config))
    if pictures:
        ours |= _image_options(run)
    if ours.get("data.answers") == "numbers":
        raise UserError("a regression has no counterpart: its scale would be lost")
    params = _by_path(run.params)
    params = {n: p for n, p in params.items() if not n.startswith(ONLY_TRAINED)}
    if ours.get("model.positions") == "sinusoid":
        ours["model.positions"] = "sinusoid_concat"
        params = {name: _sines_first(name, p) for name, p in params.items()}
    absolute = ours.get("model.positions") in ("sinusoid_concat", "learned")
    lacks = absolute and not ours.get("model.output_bias")
    if origin is None and run.config.task == "translation" and lacks:
        ours["model.output_bias"] = True  # of zeros
        rows = params.get("embedding/embedding", np.zeros((0, 0))).shape[0]
        params["output_bias/bias"] = np.zeros(rows, np.float32)
    if origin and ARCHITECTURES[origin["kind"]].task == run.config.task:
        kind, given = origin["kind"], origin["config"]
        given = {**ARCHITECTURES[kind].describe(ours), **given}
        if problem := _find_difference(kind, given, ours):
            raise UserError(f"{problem}, but it came from {kind} and goes back as it")
    elif origin:
        kept = {"vocab_size", *(k for k in origin["config"] if k.endswith("_token_id"))}
        fixed = {k: v for k, v in origin["config"].items() if k in kept}
        kind, given = _choose(run, ours, fixed, origin["config"]["model_type"])
    elif tokenizer:
        fixed = {**_ids(), "vocab_size": tokenizer.vocab_size}
        kind, given = _choose(run, ours, fixed)
    else:
        kind, given = _choose(run, ours, {"id2label": _labels(run)})
    rows = NO_ROWS
    if tokenizer:
        own = list(range(tokenizer.vocab_size))
        ids = tokenizer.theirs if isinstance(tokenizer, Foreign) else own
        rows = rows_of(run.config, ids, given)
    if run.config.task in ("classification", "images"):
        given["id2label"] = _labels(run)
        given["label2id"] = {name: i for i, name in given["id2label"].items()}
    folder.mkdir(parents=True)
    beside = {name: given[name] for name in BESIDE if name in given}
    theirs = {k: v for k, v in given.items() if k not in (APART, *BESIDE)}
    for name, content in {"config.json": theirs, **beside}.items():
        files.write(folder / name, json.dumps(content, indent=1) + "\n")
    if tokenizer:
        _write_tokenizer(run, folder, origin)
    if kind.endswith("-sentences"):
        _write_sentences(folder, given["hidden_size"])
    links = ARCHITECTURES[kind].link(given, rows)
    _write_weights(folder / tensors.SINGLE, params, links)
    theirs = ARCHITECTURES[kind].options(given)["model.norm_epsilon"]
    if theirs != ours["model.norm_epsilon"]:
        logger.warning(
            "warning    model.norm_epsilon %g becomes %g, which %s has always: logits "
            "differ slightly",
            ours["model.norm_epsilon"],
            theirs,
            kind,
        )
    return kind


def _labels(run: Run) -> dict[int, str]:
    if run.config.task == "images":
        labels = images.read_about(run.folder.tokenizer).labels
    else:
        path = run.folder.tokenizer / classification.LABELS_FILE
        labels = learnt.read(path, labels=list)["labels"]
    return dict(enumerate(labels))


def _image_options(run: Run) -> dict[str, Any]:
    """Return the size of the images of a run as options of its data."""
    about = images.read_about(run.folder.tokenizer)
    if about.height != about.width or about.channels not in (1, 3):
        raise UserError(
            f"the run reads images of {about.height} x {about.width} with "
            f"{about.channels} channels: only squares with 1 or 3 have a counterpart"
        )
    return {"data.image_size": about.height, "data.grey": about.channels == 1}


def _by_path(params: Params) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {sharding.path_name(keys): leaf for keys, leaf in leaves}


def _sines_first(name: str, x: Any) -> Any:
    """Reorder the residual stream so that a position's sines come before its cosines.

    Norms and sums do not depend on the order, so the model stays the same.
    """
    x = np.asarray(x)
    if re.search(r"(query|key|value|inner|gate|projection)/kernel$", name):
        axis = 0
    elif re.search(r"(embedding|out/\w+|outer/\w+|norm/\w+)$", name):
        axis = x.ndim - 1
    else:
        return x
    order = np.concatenate(
        [np.arange(0, x.shape[axis], 2), np.arange(1, x.shape[axis], 2)]
    )
    return np.take(x, order, axis)


def _ids() -> dict[str, int]:
    """Return the fields of special tokens, for a vocabulary that was learned here."""
    return {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
    }


def _choose(
    run: Run, ours: Given, fixed: dict[str, Any], of: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return the architecture that has exactly these options, and its config.json.

    `of` is the type of model that it must be, if its encoder came from one.
    """
    problems = []
    for kind in OWN.get(run.config.task, ()):
        try:
            given = {**fixed, **ARCHITECTURES[kind].describe(ours)}
            given["architectures"] = [CLASSES.get(given["model_type"], kind)]
            if of and given["model_type"] != of:
                continue
            problem = _find_difference(kind, given, ours)
        except (UserError, KeyError) as error:
            problem = str(error)
        if not problem:
            return CLASSES.get(str(given["model_type"])) or kind, given
        problems.append(f"not as {kind}: {problem}")
    if not problems:
        raise UserError(
            f"a {run.config.task} run has no counterpart: {', '.join(OWN)} have"
        )
    raise UserError("no architecture of Hugging Face has these options", *problems)


def _find_difference(kind: str, given: Given, ours: Given) -> str:
    """Describe the first option that the architecture would have otherwise."""
    theirs = ARCHITECTURES[kind].options(given)
    task = ARCHITECTURES[kind].task
    model = ARCHITECTURES[kind].model
    base = dict(configs.items(configs.base(task=task, model=model)))
    heads = ours["model.num_heads"]
    implied = {
        "model.d_k": ours["model.d_model"] // heads,
        "model.d_v": ours["model.d_model"] // heads,
        "model.kv_heads": heads,
    }
    for name, value in ours.items():
        if not name.startswith("model.") or name.startswith(FREE):
            continue
        small = isinstance(value, float) and max(value, theirs.get(name, 0.0)) <= 1e-5
        if name == "model.norm_epsilon" and small:
            continue
        if name == "model.max_positions" and ours["model.positions"] != "learned":
            continue
        wanted = theirs.get(name, base.get(name))
        values = [x or implied.get(name) for x in (value, wanted)]
        if values[0] != values[1]:
            return f"{name} = {value!r}, which would be {wanted!r} there"
    return ""


def _tokenizer(run: Run) -> Any:
    found = {t.fingerprint: t for t in run.task.data.vocabularies.values()}
    if len(found) > 1:
        raise UserError("source and target have two vocabularies: only one is written")
    return next(iter(found.values()))


def _write_tokenizer(run: Run, folder: pathlib.Path, origin: Any) -> None:
    """Write the tokenizer in the form that the architecture's own has."""
    tokenizer = _tokenizer(run)
    about: dict[str, Any] = dict(origin["settings"]) if origin else {}
    if isinstance(tokenizer, Foreign):
        content = json.loads(tokenizer.model)
        if "tokenizer" in content:
            text = json.dumps(content["tokenizer"], ensure_ascii=False)
            files.write(folder / vocabulary.FAST, text)
        else:
            models = content["sentencepiece"]
            splits, joins = map(base64.b64decode, (models["splits"], models["joins"]))
            _write_marian(folder, splits, joins, content["pieces"])
    elif run.config.task == "translation":
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        _write_marian(folder, tokenizer.model, tokenizer.model, pieces)
        about = {"tokenizer_class": "MarianTokenizer", **_names()}
    else:
        encodes = run.config.task != "language"
        text = json.dumps(_unigram(tokenizer, encodes), ensure_ascii=False)
        files.write(folder / vocabulary.FAST, text)
        about = {"tokenizer_class": "PreTrainedTokenizerFast", **_names()}
    files.write(folder / "tokenizer_config.json", json.dumps(about, indent=1) + "\n")


def _names() -> dict[str, str]:
    names = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
    names |= {"cls": "<s>", "sep": "</s>"}
    return {f"{name}_token": piece for name, piece in names.items()}


def _write_marian(folder, splits: bytes, joins: bytes, pieces: list[str]) -> None:
    source, target, numbers = vocabulary.MARIAN
    files.write_bytes(folder / source, splits)
    files.write_bytes(folder / target, joins)
    listed = {piece: i for i, piece in enumerate(pieces)}
    files.write(folder / numbers, json.dumps(listed, ensure_ascii=False) + "\n")


def _ends(pieces: list[str]) -> dict[str, Any]:
    """Put start and end around a text, as for the encoders of this package."""
    start, text, end = (
        {"SpecialToken": {"id": pieces[BOS], "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": pieces[EOS], "type_id": 0}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [start, text, end],
        "pair": [start, text, end, {"Sequence": {"id": "B", "type_id": 1}}, end],
        "special_tokens": {
            pieces[i]: {"id": pieces[i], "ids": [i], "tokens": [pieces[i]]}
            for i in (BOS, EOS)
        },
    }


def _unigram(tokenizer: Any, encodes: bool) -> dict[str, Any]:
    """Make the tokenizer.json of a SentencePiece model of likely pieces."""
    proto = parse_model(tokenizer.model)
    if proto.trainer_spec.model_type != UNIGRAM:
        raise UserError(
            "only tokenizers of the kind unigram are written as tokenizer.json: this "
            "run's is another"
        )
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    scores = {piece.piece: piece.score for piece in proto.pieces}
    special = [
        {
            "id": i, "content": pieces[i], "special": True, "normalized": False,
            "lstrip": False, "rstrip": False, "single_word": False,
        }
        for i in (PAD, UNK, BOS, EOS)
    ]  # fmt: skip
    space = {"type": "Metaspace", "replacement": "▁", "split": False}
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "Lowercase"} if tokenizer.lowercase else None,
        "pre_tokenizer": {**space, "prepend_scheme": "first"},
        "post_processor": _ends(pieces) if encodes else None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {**space, "prepend_scheme": "first"},
            ],
        },
        "model": {
            "type": "Unigram",
            "unk_id": UNK,
            "vocab": [[piece, scores.get(piece, 0.0)] for piece in pieces],
            "byte_fallback": proto.trainer_spec.byte_fallback,
        },
    }


def _write_sentences(folder: pathlib.Path, width: int) -> None:
    """Write the files of sentence-transformers: mean pooling, then length 1."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path,
         "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(kinds.items())
    ]  # fmt: skip
    files.write(folder / "modules.json", json.dumps(modules, indent=1) + "\n")
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    path = folder / "1_Pooling" / "config.json"
    files.write(path, json.dumps(pooling, indent=1) + "\n")


def _write_weights(
    path: pathlib.Path, params: dict[str, Any], links: list[Link]
) -> None:
    linked = {name for link in links for name in link.ours}
    assert linked == params.keys(), linked ^ params.keys()
    float32, forms = np.dtype(np.float32), {}
    for link in links:  # the shapes, from arrays that take no memory
        empty = [np.broadcast_to(np.float32(0), params[n].shape) for n in link.ours]
        for name, array in zip(link.theirs, link.write(*empty), strict=True):
            forms[name] = array.shape, float32

    def arrays():
        for link in links:
            mine = [np.asarray(params[name], np.float32) for name in link.ours]
            yield from zip(link.theirs, link.write(*mine), strict=True)

    tensors.write(path, forms, arrays())
