"""Measure a GPU or TPU in one sitting, most valuable parts first.

    python benchmarks/accelerator.py --output sitting --multi30k PATH
    python benchmarks/accelerator.py --output tried --tiny        (here, on a CPU)

Each part runs in its own process and writes FOLDER/PART.json as soon as it has results,
so a sitting that is cut short loses nothing: the same command continues with the
missing parts. A part that fails is recorded with its last lines of output.

    kernels      outputs and gradients of each kernel against the einsum's, and times
    base, big, 350m   a training step: tokens/s, MFU, memory next to the forecast
    torch        the 350m model by torch.compile and SDPA, the same batch
    quickstart   trained as on a CPU, with the same scores
    multi30k     DE→EN, trained to its score
    decoding     translations of the last two models next to CTranslate2 in float16

The parts torch and decoding need torch and ctranslate2, and are skipped without them.
"""

import argparse
import functools
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PARTS = ("kernels", "base", "big", "350m", "torch", "quickstart", "multi30k",
         "decoding")  # fmt: skip
SECONDS = {"quickstart": 400, "multi30k": 900}  # the most that a part may take
LIMIT = 300
MODELS = {  # config, rows, length of each side, vocabulary
    "base": ("wmt14:en_de_base", 640, 40, 37_000),
    "big": ("wmt14:en_de_big", 640, 40, 37_000),
    "350m": ("language_models:350m", 8, 2048, 32_000),
}
SMALL = {
    "model.d_model": "64", "model.d_ff": "128", "model.num_heads": "4",
    "model.encoder_layers": "1", "model.decoder_layers": "1",
}  # fmt: skip


def main() -> int:
    """Run the parts that are not done yet, each in its own process."""
    args = parse_arguments()
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    if args.part:
        answer(args.part, args, folder)
        return 0
    began = time.monotonic()
    for part in args.parts.split(","):
        left = 60 * args.minutes - (time.monotonic() - began)
        if (folder / f"{part}.json").exists():
            print(f"{part:10} is there already", flush=True)
        elif left <= 0:
            print(
                f"{part:10} left out: the {args.minutes} minutes are over", flush=True
            )
        else:
            run_part(part, folder, min(left, SECONDS.get(part, LIMIT)))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", required=True, help="a folder for the results")
    parser.add_argument("--minutes", type=float, default=40.0, help="of the sitting")
    parser.add_argument("--multi30k", default="", help="the folder of its text")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--parts", default=",".join(PARTS), help="those to run")
    parser.add_argument("--steps", type=int, default=20, help="timed, of each model")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_part(part: str, folder: pathlib.Path, seconds: float) -> None:
    """Run a part in its own process; record how it ended if it failed."""
    began, words = time.monotonic(), [sys.executable, __file__, *sys.argv[1:]]
    try:
        done = subprocess.run(
            [*words, "--part", part], capture_output=True, text=True, timeout=seconds
        )
        failed, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        failed, said = f"stopped after {seconds:.0f} s", str(error.stderr or "")
    took = time.monotonic() - began
    if failed:
        known = read(folder / f"{part}.part.json")
        known |= {"failed": failed, "said": said[-2000:]}
        (folder / f"{part}.json").write_text(json.dumps(known, indent=1) + "\n")
    print(f"{part:10} {took:6.0f} s  {read(folder / f'{part}.json')}", flush=True)


def read(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def answer(part: str, args: argparse.Namespace, folder: pathlib.Path) -> None:
    """Compute one part, and write its results as they become known."""

    def note(**found: Any) -> None:
        path = folder / f"{part}.part.json"
        path.write_text(json.dumps(read(path) | found, indent=1) + "\n")

    if part in MODELS:
        measure_model(part, args, note)
    else:
        globals()[f"answer_{part}"](args, folder, note)
    (folder / f"{part}.part.json").rename(folder / f"{part}.json")


def answer_kernels(args: Any, folder: pathlib.Path, note: Callable) -> None:
    """Compare each kernel that runs here with the einsum in float32."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.models import kernels
    from transformer_jax.models.attention import attend, look_ahead_mask
    from transformer_jax.models.masks import Mask

    heads, size, platform = 8, 64, jax.default_backend()
    note(device=jax.devices()[0].device_kind)
    for length in (32,) if args.tiny else (256, 1024, 2048, 4096, 8192):
        keys = jax.random.split(jax.random.key(length), 3)
        exact = [jax.random.normal(k, (2, length, heads, size)) for k in keys]
        half = [x.astype(jnp.bfloat16) for x in exact]
        place = jnp.arange(length)[None]
        real = jnp.broadcast_to(place < length * 3 // 4, (2, length)).astype(jnp.int32)
        packed = jnp.broadcast_to(place // (length // 4) + 1, (2, length))
        masks = {
            "causal": look_ahead_mask(place, whole=True),
            "padded": Mask(real, real, whole=True),
            "packed": look_ahead_mask(place % (length // 4), packed),
        }
        for name, mask in masks.items():
            read_here = real if name == "padded" else jnp.ones_like(real)
            step = functools.partial(_attend_and_back, attend, mask, read_here)
            expected = jax.jit(functools.partial(step, kernel="einsum"))(*exact)
            for kernel in kernels.KERNELS[1:]:
                packs = name == "packed"
                case = kernels.Case(
                    platform=platform, dtype=jnp.bfloat16, d_k=size, d_v=size,
                    kv_heads=heads, packed=packs, queries=length, keys=length,
                )  # fmt: skip
                if kernels.find_problem(kernel, case):
                    continue
                run = jax.jit(functools.partial(step, kernel=kernel))
                found = run(*half)
                errors = [
                    float(abs(a - b).max() / abs(b).max())
                    for a, b in zip(found, expected, strict=True)
                ]
                seconds = time_of(lambda r=run, h=half: r(*h), 1 if args.tiny else 10)
                note(**{f"{kernel} {name} {length}": {
                    "errors of output, q, k, v": errors, "ms": 1000 * seconds,
                }})  # fmt: skip


def _attend_and_back(attend, mask, real, query, key, value, kernel):
    import jax
    import jax.numpy as jnp

    def total(query, key, value):
        output = attend(query, key, value, mask, kernel=kernel)[0]
        output = jnp.where(real[..., None, None] > 0, output, 0).astype(jnp.float32)
        return (output**2).sum(), output

    gradients, output = jax.grad(total, (0, 1, 2), has_aux=True)(query, key, value)
    return output, *(g.astype(jnp.float32) for g in gradients)


def time_of(run: Callable, times: int) -> float:
    """Return the median seconds of a call, after an uncounted first call."""
    import jax

    jax.block_until_ready(run())
    found = []
    for _ in range(times):
        began = time.monotonic()
        jax.block_until_ready(run())
        found.append(time.monotonic() - began)
    return statistics.median(found)


def measure_model(part: str, args: Any, note: Callable) -> None:
    """Time a config's steps on random tokens, next to the forecast of `plan`."""
    import jax
    import numpy as np

    from transformer_jax import config as configs
    from transformer_jax import hardware as targets
    from transformer_jax import plan, sharding, train
    from transformer_jax.planning import forecast, workload
    from transformer_jax.training.steps import programs

    spec, rows, length, vocabulary = MODELS[part]
    overrides = {"data.row_multiple": "8", "train.accumulation": "1"}
    if args.tiny:
        rows, length, vocabulary = 8, 16, 100
        known = dict(configs.items(configs.load(spec, data=False)))
        overrides |= {k: v for k, v in SMALL.items() if k in known}
    config, target = configs.load(spec, overrides, data=False), targets.find("here")
    mesh = plan.make_mesh(config, target)
    load = workload.without_data(config, rows, length, vocabulary)
    init, abstract, update = train.make_update(config, load.task, mesh)
    like = load.abstract(load.largest, mesh)
    found = plan.compile_step(
        config, target, mesh, load, update, abstract, load.largest
    )
    note(config=spec, shape=found["shape"], forecast=found["memory"],
         kernels=found["kernels"], compile_seconds=found["seconds"]["compile"],
         parameters=sum(forecast.count_parameters(abstract.params).values()),
    )  # fmt: skip
    random = np.random.default_rng(0)
    arrays = {
        name: random.integers(4, vocabulary, x.shape).astype(x.dtype)
        for name, x in like.items()
    }
    batch, state = sharding.to_global(arrays, mesh), init(jax.random.key(0))
    steps, seconds = 2 if args.tiny else args.steps, []
    with jax.set_mesh(mesh):
        for _ in range(steps + 2):
            began = time.monotonic()
            state, outcome = update(state, batch)
            jax.block_until_ready((state, outcome))
            seconds.append(time.monotonic() - began)
    step = statistics.median(seconds[2:])
    work = programs.count_step(load.task.objective, abstract.params, like)
    peak = targets.peak_of(mesh, config.model.dtype)
    used = jax.devices()[0].memory_stats() or {}
    note(step_ms=1000 * step, target_tokens_a_second=rows * length / step, flops=work,
         mfu=work / step / peak if peak else None,
         peak_bytes=used.get("peak_bytes_in_use"), loss=float(outcome.sums.loss),
    )  # fmt: skip


def answer_torch(args: Any, folder: pathlib.Path, note: Callable) -> None:
    """Time a decoder of the 350m config's sizes in torch, compiled, with SDPA."""
    try:
        import torch
    except ImportError:
        return note(left_out="torch is not installed")
    from torch_decoder import Decoder

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.tiny:
        return note(left_out="torch finds no GPU")
    _, rows, length, vocabulary = MODELS["350m"]
    sizes = {"layers": 24, "width": 1024, "heads": 16}
    if args.tiny:
        rows, length, vocabulary = 2, 16, 100
        sizes = {"layers": 1, "width": 64, "heads": 4}
    model = Decoder(vocabulary, **sizes).to(device)
    # To compile for a CPU takes a C++ compiler, and says nothing.
    stepper = model if args.tiny else torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), fused=device == "cuda")
    tokens = torch.randint(4, vocabulary, (rows, length + 1), device=device)
    seconds = []
    for _ in range((2 if args.tiny else args.steps) + 3):
        began = time.monotonic()
        with torch.autocast(device, torch.bfloat16):
            loss = stepper(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
    step = statistics.median(seconds[3:])
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else None
    note(torch=torch.__version__, parameters=sum(p.numel() for p in model.parameters()),
         step_ms=1000 * step, target_tokens_a_second=rows * length / step,
         peak_bytes=memory, loss=float(loss),
    )  # fmt: skip


def answer_quickstart(args: Any, folder: pathlib.Path, note: Callable) -> None:
    """Train the quickstart; its scores must be those of results/quickstart.json."""
    few = {
        "data.train_size": "200", "data.validation_size": "20", "data.test_size": "20",
        "train.steps": "4", "eval.every": "4", "checkpoint.every": "2",
        "checkpoint.average": "2", "optim.warmup_steps": "2", "decode.beams": "1",
        "tokenizer.vocab_size": "420", "data.shapes": "1", "decode.extra_length": "2",
    }  # fmt: skip
    overrides = SMALL | few if args.tiny else {}
    train_config("quickstart", folder / "quickstart", overrides, note)


def answer_multi30k(args: Any, folder: pathlib.Path, note: Callable) -> None:
    """Train Multi30k DE→EN; compare with results/multi30k_de_en.json."""
    if not args.multi30k:
        return note(left_out="--multi30k names no folder")
    overrides = {"data.folder": args.multi30k}
    train_config("multi30k:de_en", folder / "de_en", overrides, note)


def train_config(
    spec: str, workdir: pathlib.Path, overrides: dict, note: Callable
) -> None:
    from transformer_jax import config as configs
    from transformer_jax import train

    code = train.train(configs.load(spec, overrides), workdir)
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    last = [e for e in map(json.loads, lines) if e["kind"] == "train"][-1]
    note(exit_code=code, result=read(workdir / "result.json"), last=last)


def answer_decoding(args: Any, folder: pathlib.Path, note: Callable) -> None:
    """Translate with the runs of this sitting here and in CTranslate2."""
    import jax

    from transformer_jax.corpora.phrasebook import generate

    gpu = jax.default_backend() == "gpu"
    kind = ["cuda", "float16"] if gpu else ["cpu", "float32"]
    lines = folder / "lines.txt"
    pairs = generate("test", 20 if args.tiny else 2000)
    lines.write_text("".join(pair.source + "\n" for pair in pairs))
    inputs = {"quickstart": lines}
    if (folder / "de_en" / "result.json").exists():
        packed = pathlib.Path(args.multi30k) / "test_2016_flickr.de.gz"
        inputs["de_en"] = folder / "flickr.txt"
        inputs["de_en"].write_bytes(gzip.decompress(packed.read_bytes()))
    for run, path in inputs.items():
        count = len(path.read_text().splitlines())
        words = ["--workdir", folder / run, "--input", path, "--rounds", 1,
                 "--search", 0, "--batch", 512, "--sides", "ours,ctranslate2",
                 "--lines", count, "--device", kind[0], "--compute_type", kind[1],
                 "--output", folder / f"{run}.json"]  # fmt: skip
        script = pathlib.Path(__file__).with_name("decode_speed.py")
        done = subprocess.run(
            [sys.executable, script, *map(str, words)], capture_output=True, text=True,
            env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        )  # fmt: skip
        if "No module named 'ctranslate2'" in done.stderr:
            return note(left_out="ctranslate2 is not installed")
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        speeds = json.loads((folder / f"{run}.json").read_text())["comparisons"]
        note(**{run: {"compute_type": kind[1], "sentences_a_second": speeds,
                      "said": done.stdout}})  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
