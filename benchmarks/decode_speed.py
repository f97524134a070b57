"""Speed of answers on one machine: this package, CTranslate2 and Hugging Face.

    python benchmarks/decode_speed.py --workdir RUN --input FILE --lines 1000
    python benchmarks/decode_speed.py --workdir LANGUAGE_MODEL --input FILE --lines 128
    python benchmarks/decode_speed.py --workdir RUN --input FILE --lines 200 --alone

All three use the same weights in float32 (or, except Hugging Face, in 8 bits, with
--compute_type int8), the same sentences, and greedy and beam-4
search (without length penalty, which the three define differently). Loading, exporting
and a first pass over the sentences (which compiles the programs) are excluded. First,
each side's threads, batches and libraries are searched on fewer sentences (--search
lines; 0 keeps the defaults, with batches of --batch), and printed. Then the sides take
turns, each in its own process, with the settings that were fastest. On a GPU a process
measures three passes and tells the median. Needs ctranslate2, transformers and torch.
Hugging Face's Marian supports only post-norm, so it is left out for models with another
norm. A language model continues each line by at most --length tokens, greedily, and
only CTranslate2 stands beside it. With --alone, each line is answered alone, and a
speed is one divided by the median time of a line.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import record
import settings

import transformer_jax

SIDES = ["ours", "ctranslate2", "huggingface"]
BEAMS = (1, 4)
# What is tried for each side, apart for each beam. The first of each is the default.
CHOICES = {
    "ours": {"batch": (128, 32, 64, 256), **settings.PAGES},
    "ctranslate2": {
        "workers_threads": tuple(settings.factor_cores()),
        "CT2_USE_MKL": ("1", "0"),
        "batch": (128, 64, 32, 16),
    },
    "huggingface": {
        "threads": tuple(settings.count_threads()),
        "batch": (128, 32),
        **settings.MKL,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, help="a run")
    parser.add_argument("--input", required=True, help="sentences, one per line")
    parser.add_argument("--length", type=int, default=100, help="of a continuation")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--search", type=int, default=300, help="lines; 0: no search")
    parser.add_argument("--batch", type=int, help="of each side, without a search")
    parser.add_argument("--alone", action="store_true", help="one line at a time")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--compute_type", default="float32", help="or int8")
    parser.add_argument("--sides", default=",".join(SIDES), help="those that take part")
    parser.add_argument("--output", default="", help="a JSON file (`record.py`)")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--export", help=argparse.SUPPRESS)
    parser.add_argument("--beams", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--settings", default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args, json.loads(args.settings))))
        return 0
    record.begin(args.output)
    loaded = transformer_jax.load(args.workdir).config
    language = loaded.task == "language"
    widths = BEAMS[:1] if language else BEAMS
    unit = "tokens/s" if language and not args.alone else "sentences/s"
    sides = SIDES if loaded.model.norm == "post" and not language else SIDES[:2]
    sides = [side for side in sides if side in args.sides.split(",")]
    if args.compute_type != "float32":  # Marian has no other here
        sides = [side for side in sides if side != "huggingface"]
    with tempfile.TemporaryDirectory() as folder:
        args.export = str(pathlib.Path(folder) / "exported")
        subprocess.run(
            [sys.executable, "-m", "transformer_jax.convert.ctranslate2"]
            + ["--workdir", args.workdir, "--output", args.export],
            check=True,
        )
        chosen = {side: choose(side, args, widths) for side in sides}
        rounds = []
        for number in range(1, args.rounds + 1):
            order = sides if number % 2 else sides[::-1]
            found = {
                side: {
                    str(beams): run_side(side, args, beams, chosen[side][beams])
                    for beams in widths
                }
                for side in order
            }
            rounds.append({side: found[side] for side in sides})
            for beams in widths:
                speeds = ", ".join(
                    f"{side} {rounds[-1][side][str(beams)]['speed']:.1f}"
                    for side in sides
                )
                print(f"round {number}, beam {beams}: {speeds} {unit}", flush=True)
    notes = conclude(rounds, widths)
    for side in sides:
        for beams in widths:
            words = settings.describe(chosen[side][beams])
            print(f"settings   {side}, beam {beams}: {words}")
    name = pathlib.PurePath(args.workdir).name
    record.add(
        args.output,
        [
            record.Comparison(
                f"answers of {name}, {'beam ' + str(b) if b > 1 else 'greedy'}, "
                f"{args.compute_type}{', one line at a time' * args.alone}",
                unit,
                {side: [r[side][str(b)]["speed"] for r in rounds] for side in sides},
                {side: settings.describe(chosen[side][b]) for side in sides},
                notes[b],
            )
            for b in widths
        ],
    )
    return 0


def choose(
    side: str, args: argparse.Namespace, widths: Sequence[int]
) -> dict[int, settings.Settings]:
    """Return the settings of a side that are fastest, for each number of beams."""
    choices = CHOICES[side]
    if args.alone:  # no line has a batch
        choices = choices | {"batch": choices["batch"][:1]}
    tried = settings.combine(choices)
    if not args.search:
        given = tried[0] | ({"batch": args.batch} if args.batch else {})
        return dict.fromkeys(widths, given)

    def find(beams: int) -> settings.Settings:
        def speed(given: settings.Settings) -> float:
            return run_side(side, args, beams, given, args.search)["speed"]

        return settings.search(f"{side}, beam {beams}", tried, speed)

    return {beams: find(beams) for beams in widths}


def run_side(
    side: str,
    args: argparse.Namespace,
    beams: int,
    given: settings.Settings,
    lines: int = 0,
) -> dict:
    """Measure a side in its own process; raise RuntimeError if it fails."""
    command = [sys.executable, __file__, "--side", side, "--export", args.export]
    command += ["--workdir", args.workdir, "--input", args.input]
    command += ["--device", args.device, "--compute_type", args.compute_type]
    command += ["--beams", str(beams), "--settings", json.dumps(given)]
    command += ["--length", str(args.length)] + ["--alone"] * args.alone
    done = subprocess.run(
        [*command, "--lines", str(lines or args.lines)],
        capture_output=True,
        text=True,
        env=settings.environment_of(given),
    )
    if done.returncode:
        raise RuntimeError(f"the {side} side failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def conclude(rounds: list[dict], widths: Sequence[int]) -> dict[int, dict[str, str]]:
    """Print the ratios; return how many answers of each other side are the same."""
    notes: dict[int, dict[str, str]] = {}
    for number in widths:
        beams, notes[number] = str(number), {}
        ours = [r["ours"][beams]["speed"] for r in rounds]
        texts = {side: found[beams]["texts"] for side, found in rounds[0].items()}
        for other in list(texts)[1:]:
            ratios = [
                a / r[other][beams]["speed"] for a, r in zip(ours, rounds, strict=True)
            ]
            same = sum(map(str.__eq__, texts["ours"], texts[other]))
            notes[number][other] = (
                f"{same} of {len(texts['ours'])} answers are the same"
            )
            print(
                f"beam {beams}, ours / {other}: median {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f}); {same} of "
                f"{len(texts['ours'])} answers are the same"
            )
    return notes


def measure(args: argparse.Namespace, given: settings.Settings) -> dict:
    """Return the sentences or tokens a second of one side, and its answers."""
    lines = pathlib.Path(args.input).read_text().split("\n")[: args.lines]
    translate = globals()[f"load_{args.side}"](args, given)
    texts = translate(lines, args.beams)
    if args.alone:
        return {
            "speed": 1 / _time_of_a_line(translate, lines, args.beams),
            "texts": texts,
        }
    seconds = []
    for _ in range(1 if args.device == "cpu" else 3):
        began = time.monotonic()
        translate(lines, args.beams)
        seconds.append(time.monotonic() - began)
    data = transformer_jax.load(args.workdir).task.data
    written = len(lines)
    if hasattr(data, "tokenizer"):  # of a language model
        count = data.tokenizer.encode_inside
        written = sum(len(count(text)) for text in texts)
        written -= sum(len(count(line)) for line in lines)
    return {"speed": written / statistics.median(seconds), "texts": texts}


def _time_of_a_line(translate: Callable, lines: list[str], beams: int) -> float:
    """Return the median seconds of a line that is answered alone."""
    translate(lines[:1], beams)
    taken = []
    for line in lines:
        began = time.monotonic()
        translate([line], beams)
        taken.append(time.monotonic() - began)
    return statistics.median(taken)


def load_ours(args: argparse.Namespace, given: settings.Settings):
    if args.device == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import transformer_jax

    engine = "" if args.compute_type == "float32" else args.compute_type
    run = transformer_jax.load(args.workdir, engine=engine)
    run.task.config.eval.batch_rows = given["batch"]
    if run.config.task == "language":
        given = {"sample": False, "max_length": args.length + 1}  # with the end

        def go_on(lines, beams):
            replies = run.replies(lines, beams=beams, **given)
            return [reply.details["text"] for reply in replies]

        return go_on
    return lambda lines, beams: run.predict(lines, beams=beams, alpha=0.0)


def load_ctranslate2(args: argparse.Namespace, given: settings.Settings):
    import ctranslate2

    from transformer_jax.data.text.tokenizer import Tokenizer

    workers, threads = given["workers_threads"]
    options = {
        "device": args.device,
        "compute_type": args.compute_type,
        "inter_threads": workers,
        "intra_threads": threads,
    }
    if (model := pathlib.Path(args.export, "text.model")).is_file():
        tokenizer = Tokenizer.load(model)
        generator = ctranslate2.Generator(args.export, **options)

        def go_on(lines, beams):
            rows = [tokenizer.encode_inside(line) for line in lines]
            found = generator.generate_batch(
                [["<s>", *tokenizer.pieces(row)] for row in rows], beam_size=beams,
                max_length=args.length, max_batch_size=given["batch"],
                include_prompt_in_result=False,
            )  # fmt: skip
            return [
                tokenizer.decode([*row, *f.sequences_ids[0]])
                for row, f in zip(rows, found, strict=True)
            ]

        return go_on
    source, target = (
        Tokenizer.load(path)
        for path in sorted(pathlib.Path(args.export).glob("*.model"))[:1] * 2
    )
    translator = ctranslate2.Translator(args.export, **options)
    ids = {name: i for i, name in enumerate(target.pieces(range(target.vocab_size)))}

    def translate(lines, beams):
        pieces = [source.pieces(source.encode(line)) for line in lines]
        found = translator.translate_batch(
            pieces, beam_size=beams, length_penalty=0.0, max_batch_size=given["batch"],
            max_decoding_length=max(map(len, pieces)) + 50,
        )  # fmt: skip
        return [target.decode([ids[p] for p in f.hypotheses[0]]) for f in found]

    return translate


def load_huggingface(args: argparse.Namespace, given: settings.Settings):
    import torch

    torch.set_num_threads(given["threads"])
    size = given["batch"]
    run, model = make_marian(args.workdir)
    source, target = run.task.data.source_tokenizer, run.task.data.target_tokenizer

    def translate(lines, beams):
        rows = [[*source.encode(line), 3] for line in lines]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        texts = [""] * len(rows)
        for begin in range(0, len(order), size):
            members = order[begin : begin + size]
            width = max(len(rows[i]) for i in members)
            ids = torch.tensor(
                [rows[i] + [0] * (width - len(rows[i])) for i in members]
            )
            with torch.inference_mode():
                found = model.generate(
                    input_ids=ids, attention_mask=(ids != 0).long(), num_beams=beams,
                    do_sample=False, max_new_tokens=width + 50, length_penalty=0.0,
                )  # fmt: skip
            for i, row in zip(members, found.tolist(), strict=True):
                texts[i] = target.decode(row)
        return texts

    return translate


def make_marian(workdir: str):
    """Return the run, and its weights in a MarianMTModel."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    import transformer_jax
    from transformer_jax.convert.ctranslate2 import _numpy, _positions

    run = transformer_jax.load(workdir)
    c, params = run.config.model, _numpy(run.params)
    size = run.task.data.target_tokenizer.vocab_size
    model = MarianMTModel(
        MarianConfig(
            vocab_size=size, d_model=c.d_model, encoder_layers=c.encoder_layers,
            decoder_layers=c.decoder_layers, encoder_attention_heads=c.num_heads,
            decoder_attention_heads=c.num_heads, encoder_ffn_dim=c.d_ff,
            decoder_ffn_dim=c.d_ff, activation_function=c.activation, dropout=0.0,
            scale_embedding=True, pad_token_id=0, bos_token_id=2, eos_token_id=3,
            decoder_start_token_id=2, forced_eos_token_id=None,
            max_position_embeddings=512, tie_word_embeddings=True,
        )
    )  # fmt: skip
    model.generation_config.bad_words_ids = [[0], [2]]
    state = model.state_dict()

    def put(name, value):
        assert state[name].shape == value.shape, name
        state[name] = torch.tensor(value)

    for name in list(state):
        if "embed_tokens" in name or "shared" in name or "lm_head" in name:
            put(name, params["embedding"]["embedding"][:size])
        elif "embed_positions" in name:
            put(name, _positions(c, params, "encoder")[:512])
    parts = {
        "self_attn": "self_attention", "encoder_attn": "cross_attention",
        "q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out",
    }  # fmt: skip
    for stack in ("encoder", "decoder"):
        for i in range(c[f"{stack}_layers"]):
            given, at = params[stack][f"layer_{i}"], f"model.{stack}.layers.{i}."
            for theirs in ("self_attn", "encoder_attn"):
                if parts[theirs] not in given:
                    continue
                for proj in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    one = given[parts[theirs]][parts[proj]]
                    put(f"{at}{theirs}.{proj}.weight", one["kernel"].T)
                    put(f"{at}{theirs}.{proj}.bias", one["bias"])
                norm = given[f"{parts[theirs]}_norm"]
                put(f"{at}{theirs}_layer_norm.weight", norm["scale"])
                put(f"{at}{theirs}_layer_norm.bias", norm["bias"])
            for fc, ours in (("fc1", "inner"), ("fc2", "outer")):
                put(f"{at}{fc}.weight", given["feed_forward"][ours]["kernel"].T)
                put(f"{at}{fc}.bias", given["feed_forward"][ours]["bias"])
            put(f"{at}final_layer_norm.weight", given["feed_forward_norm"]["scale"])
            put(f"{at}final_layer_norm.bias", given["feed_forward_norm"]["bias"])
    model.load_state_dict(state)
    return run, model.eval()


if __name__ == "__main__":
    sys.exit(main())
