"""Compare the training speed of a config's translator with Joey NMT of the same sizes.

    python benchmarks/joeynmt_speed.py --joeynmt PYTHON \\
        --config configs/multi30k.py:de_en --config.data.folder=PATH --rounds 3

Both train as their users would: `python -m transformer_jax.train`, and
`python -m joeynmt train` on a config made from ours (layers, widths, tokens per batch;
its single dropout rate also acts inside attention and feed-forward), on the same text
and pieces. First the threads, large pages and MKL's instructions of Joey NMT are
searched with --search updates (0 keeps the defaults), as are the large pages of ours,
and printed. Then they take turns with the fastest, and are stopped after --updates; the
first --warmup updates are not timed. PYTHON is the interpreter of a separate
environment, with `pip install joeynmt==2.3.0 importlib_metadata`. Both train on the
CPU.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import record
import sentencepiece
import settings
from ml_collections import ConfigDict

from transformer_jax import cli
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import EOS
from transformer_jax.runs import folder as folders
from transformer_jax.training.prepare import prepare

SIDES = ("ours", "joeynmt")
EVERY = 20  # updates between two lines of a log
# What is tried for each side. The first of each is the default.
CHOICES = {
    "ours": settings.PAGES,
    "joeynmt": {
        "OMP_NUM_THREADS": tuple(settings.count_threads()),
        **settings.MKL,
        **settings.PAGES,
    },
}
# What a line of the log says: the update, and target tokens a second since the last.
LINES = {
    "ours": re.compile(r"step +([\d,]+) .* ([\d,]+) tokens/s"),
    "joeynmt": re.compile(r"Step: +(\d+), .*Tokens per Sec: +(\d+)"),
}
# It calls a method that SentencePiece no longer has (0.2.3), to limit the pieces to a
# vocabulary, which here is all of them.
JOEYNMT = """
import sentencepiece, sys
sentencepiece.SentencePieceProcessor.SetVocabulary = lambda self, pieces: True
from joeynmt.__main__ import main
sys.argv = ["joeynmt", "train", sys.argv[1], "--skip-test"]
main()
"""


def main() -> int:
    """Let both sides take turns, and print the time of each."""
    words, overrides = cli.split_overrides(sys.argv[1:])
    args = parse_arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: stopped"))
    try:
        config = load(args.config, overrides)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            os.environ["TRANSFORMER_JAX_CACHE"] = str(folder / "cache")
            commands = {
                "ours": [sys.executable, "-m", "transformer_jax.train"]
                + ["--config", args.config]
                + [f"--config.{key}={value}" for key, value in overrides.items()]
                + [f"--config.log.every={EVERY}"],
                "joeynmt": [args.joeynmt, "-c", JOEYNMT, write_peer(config, folder)],
            }
            compare(args, commands, folder, config.train.steps)
    except UserError as error:
        cli.fail(*error.problems)
    return 0


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line, without its overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="--config.x=y is passed on to the training.",
    )
    parser.add_argument("--joeynmt", required=True, help="a Python that has joeynmt")
    parser.add_argument("--config", required=True, help="of a translation")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides")
    parser.add_argument("--updates", type=int, default=100, help="of a turn")
    parser.add_argument("--warmup", type=int, default=20, help="of these, not timed")
    parser.add_argument("--search", type=int, default=40, help="updates; 0: no search")
    parser.add_argument("--output", default="", help="a JSON file (`record.py`)")
    args = parser.parse_args(words)
    if args.search % EVERY or 0 < args.search <= args.warmup:
        parser.error(f"--search is 0, or a multiple of {EVERY} above --warmup")
    if args.warmup % EVERY or args.updates % EVERY or args.warmup < EVERY:
        parser.error(
            f"--updates and --warmup are multiples of {EVERY}, the log's lines"
        )
    if args.updates <= args.warmup:
        parser.error(
            f"--updates {args.updates} is not more than --warmup {args.warmup}"
        )
    return args


def load(spec: str, overrides: dict[str, str]) -> ConfigDict:
    """Load a config, if Joey NMT supports its model."""
    config = configs.load(spec, overrides)
    if config.task != "translation":
        raise UserError(f"{config.task} is not translation: name a config of that")
    wanted = {
        "model.name": "transformer", "model.tie": "all", "model.positions": "sinusoid",
        "model.activation": "relu", "model.norm_kind": "layer", "model.kv_heads": 0,
        "model.d_k": 0, "model.d_v": 0, "model.qk_norm": False,
        "model.dtype": "float32", "model.dropout_words": 0.0,
        "tokenizer.sampling": 0.0, "data.batching": "buckets", "data.train_tags": "",
        "data.train_weights": (), "train.accumulation": 1,
    }  # fmt: skip
    kinds = ("unigram", "bpe")
    if config.tokenizer.kind not in kinds:
        raise UserError(
            f"tokenizer.kind = {config.tokenizer.kind!r}: {' or '.join(kinds)}"
        )
    for key, value in wanted.items():
        part, name = key.split(".")
        if (found := config[part][name]) != value:
            raise UserError(f"{key} = {found!r}: this compares runs with {value!r}")
    return config


def write_peer(config: ConfigDict, folder: pathlib.Path) -> str:
    """Write Joey NMT's config, text and vocabulary; return the path of the config."""
    prepared = prepare(config, folders.Folder(folder / "prepared"), print)
    for split, records in {
        "train": prepared.train.records,
        "dev": prepared.held_out["validation"].records,
    }.items():
        for side in ("source", "target"):
            text = "".join(f"{record[side]}\n" for record in records)
            (folder / f"{split}.{side}").write_text(text)
    model = prepared.task.data.target_tokenizer.model
    (folder / "pieces.model").write_bytes(model)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    names = [pieces.id_to_piece(i) for i in range(EOS + 1, pieces.get_piece_size())]
    (folder / "pieces.txt").write_text("".join(f"{name}\n" for name in names))
    path = folder / "joeynmt.yaml"  # JSON is a subset of YAML
    path.write_text(json.dumps(describe_peer(config, folder), indent=1))
    return str(path)


def describe_peer(config: ConfigDict, folder: pathlib.Path) -> dict:
    """Return Joey NMT's settings for the same model."""

    def side(name: str) -> dict:
        return {
            "lang": name, "max_length": config.data.max_length, "lowercase": False,
            "normalize": False, "level": "bpe", "voc_min_freq": 1,
            "voc_file": str(folder / "pieces.txt"), "tokenizer_type": "sentencepiece",
            "tokenizer_cfg": {"model_file": str(folder / "pieces.model")},
        }  # fmt: skip

    def stack(layers: int) -> dict:
        c = config.model
        return {
            "type": "transformer", "num_layers": layers, "num_heads": c.num_heads,
            "embeddings": {
                "embedding_dim": c.d_model, "scale": True,
                "dropout": c.dropout_embedding,
            },
            "hidden_size": c.d_model, "ff_size": c.d_ff, "dropout": c.dropout_residual,
            "layer_norm": c.norm,
        }  # fmt: skip

    return {
        "name": "peer", "use_cuda": False, "fp16": False, "random_seed": 42,
        "num_workers": 0,
        "data": {
            "train": str(folder / "train"), "dev": str(folder / "dev"),
            "dataset_type": "plain", "src": side("source"), "trg": side("target"),
            "special_symbols": {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3},
        },
        "testing": {"eval_metrics": ["bleu"]},
        "training": {
            "optimizer": "adam", "adam_betas": [0.9, 0.98], "normalization": "tokens",
            "scheduling": "warmupinversesquareroot", "learning_rate": 0.001,
            "learning_rate_warmup": 400, "learning_rate_min": 0.0,
            "label_smoothing": config.train.label_smoothing, "loss": "crossentropy",
            "batch_size": config.data.batch_tokens, "batch_type": "token",
            "early_stopping_metric": "bleu", "updates": config.train.steps,
            "epochs": 10**6, "validation_freq": 10**9, "logging_freq": EVERY,
            "shuffle": True, "overwrite": True,
        },
        "model": {
            "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform",
            "tied_embeddings": True, "tied_softmax": True,
            "encoder": stack(config.model.encoder_layers),
            "decoder": stack(config.model.decoder_layers),
        },
    }  # fmt: skip


def compare(
    args: argparse.Namespace, commands: dict, folder: pathlib.Path, steps: int
) -> None:
    """Let both sides take turns, and print a table."""
    record.begin(args.output)
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    print(f"machine    {os.cpu_count()} cores, load {load} (1, 5, 15 minutes)")
    print("ours       once before, so that its programs are compiled", flush=True)
    turn("ours", commands["ours"], folder / "before", args.updates, args.warmup, {})
    chosen = {side: choose(side, commands[side], folder, args) for side in SIDES}
    rounds = []
    for number in range(1, args.rounds + 1):
        # Whoever goes first changes too, so that a drift favours neither.
        found = {}
        for side in SIDES if number % 2 else SIDES[::-1]:
            place, given = folder / f"{side}{number}", chosen[side]
            found[side] = turn(
                side, commands[side], place, args.updates, args.warmup, given
            )
        rounds.append(found)
        texts = (
            f"{side} {found[side][0]:.2f} s an update, {found[side][1]:,.0f} target "
            "tokens/s"
            for side in SIDES
        )
        print(f"round {number:<4} {'; '.join(texts)}", flush=True)
    middle = {
        side: statistics.median(found[side][0] for found in rounds) for side in SIDES
    }
    times = " and ".join(
        f"{side} {middle[side] * steps / 60:.0f} min" for side in SIDES
    )
    print(f"{steps:,} updates at these rates: {times}")
    for what, place in (("time of an update", 0), ("target tokens a second", 1)):
        ratios = [found["ours"][place] / found["joeynmt"][place] for found in rounds]
        print(
            f"{what}, ours / joeynmt: median {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    for side in SIDES:
        print(f"settings   {side}: {settings.describe(chosen[side])}")
    record.add(
        args.output,
        [
            record.Comparison(
                f"training of {args.config}",
                "target tokens/s",
                {side: [found[side][1] for found in rounds] for side in SIDES},
                {side: settings.describe(chosen[side]) for side in SIDES},
            )
        ],
    )


def choose(
    side: str, command: list[str], folder: pathlib.Path, args: argparse.Namespace
) -> settings.Settings:
    """Return the settings with which a side is fastest."""
    if not args.search:
        return settings.combine(CHOICES[side])[0]

    def speed(given: settings.Settings) -> float:
        place = pathlib.Path(tempfile.mkdtemp(prefix=f"{side}_", dir=folder)) / "run"
        return turn(side, command, place, args.search, args.warmup, given)[1]

    return settings.search_in_turn(f"{side}, tokens/s", CHOICES[side], speed)


def turn(
    side: str,
    command: list[str],
    place: pathlib.Path,
    updates: int,
    warmup: int,
    given: settings.Settings,
) -> tuple[float, float]:
    """Return seconds per update, and target tokens per second, after the warm-up."""
    if side == "ours":
        command = [*command, "--workdir", str(place)]
    else:
        written = json.loads(pathlib.Path(command[-1]).read_text())
        written["model_dir"] = str(place)
        place.with_suffix(".yaml").write_text(json.dumps(written))
        command = [*command[:-1], str(place.with_suffix(".yaml"))]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        env={
            **settings.environment_of(given),
            "JAX_PLATFORMS": "cpu",
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            seen = list(read(process.stdout, LINES[side], updates, lines))
        finally:
            process.kill()
    if not seen or seen[-1][0] != updates:
        raise RuntimeError(f"{side} did not reach its update:\n{''.join(lines[-30:])}")
    timed = [s for s in seen if s[0] >= warmup]
    tokens = sum((b[1] - a[1]) * b[2] for a, b in itertools.pairwise(timed))
    seconds = timed[-1][1] - timed[0][1]
    return seconds / (timed[-1][0] - timed[0][0]), tokens / seconds


def read(output, pattern: re.Pattern, last: int, lines: list[str]):
    """Yield (update, time, tokens per second) of each log line, up to the end."""
    for line in output:
        lines.append(line)
        if match := pattern.search(line):
            update, rate = (int(group.replace(",", "")) for group in match.groups())
            yield update, time.monotonic(), rate
            if update >= last:
                return


if __name__ == "__main__":
    sys.exit(main())
