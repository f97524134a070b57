"""Read a model of Hugging Face as a bundle, or write a run as one.

    python -m transformer_jax.convert.huggingface --input FOLDER --output BUNDLE
    python -m transformer_jax.convert.huggingface --workdir RUN --output FOLDER

A folder is what `save_pretrained` writes: config.json, safetensors and the tokenizer.
The bundle answers like a run, and training goes on from it with train.initial.
"""

import pathlib

from absl import flags

from transformer_jax import cli
from transformer_jax import convert as converters
from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface.exporting import export
from transformer_jax.convert.huggingface.importing import convert
from transformer_jax.convert.huggingface.vocabulary import Languages


def main(overrides: dict[str, str]) -> None:
    """Convert in the direction that the flags say, and print what was made."""
    args = flags.FLAGS
    if not args.input:
        run, folder = converters.open_run(overrides)
        print(f"exported   {export(run, folder)} to {folder} ({_megabytes(folder)})")
        return
    cli.refuse_overrides(overrides)
    if args.workdir:
        raise UserError("--input and --workdir are two directions: name one of them")
    cli.require("output", args.output, "the bundle to make")
    source, folder = pathlib.Path(args.input), pathlib.Path(args.output)
    if folder.exists():
        raise UserError(f"--output={folder} exists: name a new folder")
    languages = Languages(args.source_language, args.target_language)
    kind = convert(source, folder, languages)
    print(f"imported   {kind} to {folder} ({_megabytes(folder)})")


def _megabytes(folder: pathlib.Path) -> str:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size / 1e6:.1f} MB"


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string("input", "", "A folder of Hugging Face to read.")
    for side in Languages._fields:
        about = f"The {side} language of an mBART (ro_RO) or Whisper (en)."
        flags.DEFINE_string(f"{side}_language", "", about)
    converters.define_flags()


if __name__ == "__main__":
    define_flags()
    cli.run(main)
