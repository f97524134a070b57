"""Training throughput on one machine: this package against torch.nn.Transformer.

    python benchmarks/torch_throughput.py --rounds 5 --steps 30

Measures real (unpadded) target tokens per second in float32, on the same batches in the
same order. First, each side's settings are searched with fewer updates (--search; 0
keeps the defaults) and printed: for torch its threads, `torch.compile` and MKL's
instructions, for both large pages. Then the two sides take turns with the fastest, each
in its own process; compiling and warming up happen before the clock starts. Rounds in
which other processes used the machine are marked. Needs torch.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata

import numpy as np
import record
import settings

from transformer_jax.base.ids import BOS, EOS, PAD
from transformer_jax.data.batches import Buckets
from transformer_jax.runs import environment

SIDES = ("ours", "torch")
BUSY = 0.10  # share of the machine that others may use in a round that counts
VOCABULARY, D_MODEL, D_FF, HEADS, LAYERS, FIRST_ID = 8000, 256, 1024, 8, 3, 4
DROPOUT, SMOOTHING, BETAS, EPSILON, WARMUP = 0.1, 0.1, (0.9, 0.98), 1e-9, 4000
SENTENCES, SHAPES, BATCH_TOKENS = 29_000, 6, 2900
# What is tried for each side. The first of each is the default.
CHOICES = {
    "ours": settings.PAGES,
    "torch": {
        "compile": (False, True),
        "threads": tuple(settings.count_threads()),
        **settings.MKL,
        **settings.PAGES,
    },
}


def main() -> int:
    """Let both sides take turns, and print the speed of each."""
    args = parse_arguments()
    if args.side:
        given = json.loads(args.settings)
        print(json.dumps(measure(args.side, args.steps, args.seed, given)))
        return 0
    # Whoever stops this stops the side that is running too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: stopped"))
    record.begin(args.output)
    describe_machine()
    describe_batches(args)
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        chosen = {side: choose(side, args, cache) for side in SIDES}
        for number in range(1, args.rounds + 1):
            # Whoever goes first changes too, so that a drift favours neither.
            order = SIDES if number % 2 else SIDES[::-1]
            results = {
                side: run_side(side, args, cache, chosen[side], args.steps)
                for side in order
            }
            rows.append((number, {side: results[side] for side in SIDES}))
            print_round(*rows[-1])
    code, used = conclude(rows)
    record.add(
        args.output,
        [
            record.Comparison(
                f"training, {LAYERS}+{LAYERS} layers, d_model {D_MODEL}",
                "target tokens/s",
                {s: [r[s]["tokens_per_second"] for r in used] for s in SIDES},
                {side: settings.describe(chosen[side]) for side in SIDES},
                {SIDES[1]: "" if code == 0 else "the machine was busy"},
            )
        ],
    )
    for side in SIDES:
        print(f"settings   {side}: {settings.describe(chosen[side])}")
    return code


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of both sides")
    parser.add_argument("--steps", type=int, default=30, help="timed updates a turn")
    parser.add_argument("--seed", type=int, default=0, help="of lengths and tokens")
    parser.add_argument("--search", type=int, default=8, help="updates; 0: no search")
    parser.add_argument("--output", default="", help="a JSON file (`record.py`)")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--settings", default="{}", help=argparse.SUPPRESS)
    return parser.parse_args()


def choose(side: str, args: argparse.Namespace, cache: str) -> settings.Settings:
    """Return the settings with which a side is fastest."""
    if not args.search:
        return settings.combine(CHOICES[side])[0]

    def speed(given: settings.Settings) -> float:
        return run_side(side, args, cache, given, args.search)["tokens_per_second"]

    return settings.search_in_turn(side, CHOICES[side], speed)


def run_side(
    side: str,
    args: argparse.Namespace,
    cache: str,
    given: settings.Settings,
    steps: int,
) -> dict:
    """Measure a side in its own process; raise RuntimeError if it fails."""
    command = [sys.executable, __file__, "--side", side]
    command += ["--steps", str(steps), "--seed", str(args.seed)]
    command += ["--settings", json.dumps(given)]
    environment = {**settings.environment_of(given), "TRANSFORMER_JAX_CACHE": cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the {side} side failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def make_plan(seed: int) -> Buckets:
    """Plan batches with lengths like those of Multi30k in subword pieces."""
    random = np.random.default_rng(seed)
    sigma = np.sqrt(np.log(1 + (5 / 15) ** 2))  # mean 15, standard deviation 5
    target = random.lognormal(np.log(15) - sigma**2 / 2, sigma, SENTENCES)
    source = target + random.normal(0, 2, SENTENCES)
    lengths = np.stack([source, target], axis=1).round().clip(2, 60).astype(np.int64)
    return Buckets(lengths, BATCH_TOKENS, SHAPES, 8, 1, seed)


def make_batch(plan: Buckets, step: int, seed: int) -> dict[str, np.ndarray]:
    """Draw random ids for the positions that hold a token in the plan."""
    planned = plan.batch(step)
    random = np.random.default_rng([seed, step])
    batch = {}
    for side, name in enumerate(("source", "target")):
        width = planned.shape.lengths[side]
        examples = planned.examples[:, 0]
        sizes = np.where(examples < 0, 0, plan.lengths[examples, side])
        ids = random.integers(FIRST_ID, VOCABULARY, (planned.shape.rows, width))
        place = np.arange(width)[None]
        ids[place == sizes[:, None] - 1] = EOS
        ids[place >= sizes[:, None]] = PAD
        batch[name] = ids.astype(np.int32)
    return batch


def rehearsals(plan: Buckets, seed: int) -> list[dict[str, np.ndarray]]:
    """Make one batch of each shape."""
    first = {}
    for step, planned in enumerate(plan.epoch(0)):
        first.setdefault(planned.shape, step)
    return [make_batch(plan, first[shape], seed) for shape in plan.shapes]


def measure(side: str, steps: int, seed: int, given: settings.Settings) -> dict:
    """Measure one side: warm up in every shape, then time it."""
    began = time.monotonic()
    if side == "ours":
        train, finish, versions = our_training()
    else:
        train, finish, versions = torch_training(given["threads"], given["compile"])
    plan = make_plan(seed)
    for batch in rehearsals(plan, seed):
        train(batch)
    finish()
    warm = time.monotonic()
    batches = [make_batch(plan, step, seed) for step in range(steps)]
    tokens = sum(int((batch["target"] != PAD).sum()) for batch in batches)
    busy, own, start = busy_seconds(), time.process_time(), time.monotonic()
    for batch in batches:
        train(batch)
    loss, norm = finish()
    seconds = time.monotonic() - start
    others = None
    if busy is not None:
        others = busy_seconds() - busy - (time.process_time() - own)
        others = max(others, 0.0) / (seconds * os.cpu_count())
    return {
        "tokens_per_second": tokens / seconds,
        "loss": loss,
        "norm": norm,
        "warm_seconds": warm - began,
        "others": others,
        "versions": versions,
    }


def our_training() -> tuple[Callable, Callable, str]:
    """Return train(batch), finish() → (loss, gradient norm), and the versions."""
    import jax
    import jax.numpy as jnp

    from transformer_jax import config as configs
    from transformer_jax import optim, sharding
    from transformer_jax.models import registry
    from transformer_jax.runs.checkpoint import TrainState
    from transformer_jax.tasks.parts.pairs import Seq2SeqObjective
    from transformer_jax.train import IN_FLIGHT, train_step

    environment.use_compile_cache()
    config = our_config(configs.base("translation", "transformer"))
    sizes = {"vocab_size": VOCABULARY, "source_vocab_size": VOCABULARY}
    module = registry.build(config, "seq2seq", **sizes)
    objective = Seq2SeqObjective(config, module, VOCABULARY)
    optimizer = optim.make_optimizer(config)
    mesh = sharding.make_mesh(config.mesh)

    def init(key: jax.Array) -> TrainState:
        params = objective.init(key)
        return TrainState(jnp.int32(0), params, optimizer.init(params), key)

    key = jax.random.key(0)
    places = sharding.shardings(jax.eval_shape(init, key), mesh)
    update = jax.jit(
        functools.partial(
            train_step, loss=objective.loss, optimizer=optimizer, micro_batches=1
        ),
        donate_argnums=0,
        out_shardings=(places, sharding.replicated(mesh)),
    )
    with jax.set_mesh(mesh):
        state = jax.jit(init, out_shardings=places)(key)
    share = SMOOTHING / (VOCABULARY - 1)
    least = -(1 - SMOOTHING) * math.log(1 - SMOOTHING) - SMOOTHING * math.log(share)
    pending, last = [], [0.0, 0.0]

    def read() -> None:
        outcome = jax.device_get(pending.pop(0))
        # Ours has the constant taken out that the smoothed loss cannot fall below.
        last[0] = float(outcome.sums.loss / outcome.sums.weight) + least
        last[1] = float(outcome.grad_norm)

    def train(batch: dict) -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            state, outcome = update(state, sharding.to_global(batch, mesh))
        pending.append(outcome)
        if len(pending) >= IN_FLIGHT:
            read()

    def finish() -> tuple[float, float]:
        while pending:
            read()
        jax.block_until_ready(state)
        return last[0], last[1]

    versions = [f"{name} {metadata.version(name)}" for name in ("jax", "flax")]
    return train, finish, ", ".join(versions)


def our_config(config):
    """Set the sizes of this comparison in the base config."""
    changes = {
        "d_model": D_MODEL,
        "d_ff": D_FF,
        "num_heads": HEADS,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "norm_epsilon": 1e-5,  # as torch has it
    }
    for place in ("embedding", "residual", "attention", "feed_forward"):
        changes[f"dropout_{place}"] = DROPOUT
    config.model.update(changes)
    config.train.label_smoothing = SMOOTHING
    config.optim.beta1, config.optim.beta2 = BETAS
    config.optim.epsilon, config.optim.warmup_steps = EPSILON, WARMUP
    return config


def torch_training(threads: int, compiled: bool) -> tuple[Callable, Callable, str]:
    """Return the same for torch.nn.Transformer, as in its documentation."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layer = {
        "d_model": D_MODEL,
        "nhead": HEADS,
        "dim_feedforward": D_FF,
        "dropout": DROPOUT,
        "batch_first": True,
    }
    encoder_layer = nn.TransformerEncoderLayer(**layer)
    decoder_layer = nn.TransformerDecoderLayer(**layer)
    # Stacks of our own making, as nn.Transformer's have a last norm that the paper's
    # post-norm model does not have.
    transformer = nn.Transformer(
        D_MODEL,
        HEADS,
        batch_first=True,
        custom_encoder=nn.TransformerEncoder(
            encoder_layer, LAYERS, enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(decoder_layer, LAYERS),
    )
    embedding = nn.Embedding(VOCABULARY, D_MODEL)
    nn.init.normal_(embedding.weight, std=D_MODEL**-0.5)
    drop = nn.Dropout(DROPOUT)
    rates = 10_000.0 ** (-torch.arange(0, D_MODEL, 2) / D_MODEL)
    angles = torch.arange(128)[:, None] * rates
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    weights = [*transformer.parameters(), *embedding.parameters()]
    optimizer = torch.optim.Adam(weights, betas=BETAS, eps=EPSILON, fused=True)
    count, last = 0, [0.0, 0.0]

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        return drop(embedding(tokens) * D_MODEL**0.5 + waves[: tokens.shape[1]])

    def compute_loss(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        shifted = F.pad(target[:, :-1], (1, 0), value=BOS)
        length = target.shape[1]
        padding = source == PAD
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = transformer(
            embed(source),
            embed(shifted),
            tgt_mask=ahead,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.cross_entropy(
            (hidden @ embedding.weight.T).flatten(0, 1),
            target.flatten(),
            ignore_index=PAD,
            label_smoothing=SMOOTHING,
        )

    if compiled:  # one program for each of the few shapes, as ours has
        torch._dynamo.config.cache_size_limit = 64
        compute_loss = torch.compile(compute_loss, dynamic=False)

    def train(batch: dict) -> None:
        nonlocal count
        count += 1
        source = torch.from_numpy(batch["source"]).long()
        target = torch.from_numpy(batch["target"]).long()
        loss = compute_loss(source, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.get_total_norm([w.grad for w in weights])
        rate = D_MODEL**-0.5 * min(count**-0.5, count * WARMUP**-1.5)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        last[0], last[1] = loss.item(), norm.item()

    return train, lambda: (last[0], last[1]), f"torch {torch.__version__}"


def busy_seconds() -> float | None:
    """Read the processor time used since the machine started, including its host's."""
    try:
        line = pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, interrupts, soft, steal = map(int, line[:8])
    ticks = user + nice + system + interrupts + soft + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def describe_machine() -> None:
    """Print the machine and its load."""
    name = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [x for x in cpuinfo.read_text().split("\n") if "model name" in x]
        name = lines[0].split(":")[1].strip() if lines else name
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    print(f"machine    {name}, {os.cpu_count()} cores, {platform.system()}")
    print(f"load       {load} before the first round (1, 5, 15 minutes)")


def describe_batches(args: argparse.Namespace) -> None:
    """Print the batches that both sides get."""
    plan = make_plan(args.seed)
    batches = [plan.batch(step) for step in range(args.steps)]
    tokens = [int(plan.lengths[b.examples[b.examples >= 0], 1].sum()) for b in batches]
    shapes = ", ".join(f"{s.rows}×{'/'.join(map(str, s.lengths))}" for s in plan.shapes)
    print(
        f"model      {LAYERS}+{LAYERS} layers, d_model {D_MODEL}, d_ff {D_FF}, {HEADS} "
        f"heads, vocabulary {VOCABULARY}, dropout {DROPOUT} everywhere, float32"
    )
    print(
        f"batches    {args.steps} a turn, {np.mean(tokens):.0f} target tokens each, "
        f"shapes {shapes}",
        flush=True,
    )


def print_round(number: int, results: dict[str, dict]) -> None:
    """Print the row of a round."""
    if number == 1:
        print("versions  ", ", ".join(results[side]["versions"] for side in SIDES))
        print("\n| round | ours, tokens/s | torch, tokens/s | ratio | others used |"
              " warm-up, s | last loss | last norm |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|")

    def pair(text: str, key: str) -> str:
        values = [results[side][key] for side in SIDES]
        return " / ".join("?" if v is None else format(v, text) for v in values)

    ours, torch = (results[side]["tokens_per_second"] for side in SIDES)
    busy = " (busy)" if is_busy(results) else ""
    print(
        f"| {number} | {ours:,.0f} | {torch:,.0f} | {ours / torch:.3f} | "
        f"{pair('.0%', 'others')}{busy} | {pair('.1f', 'warm_seconds')} | "
        f"{pair('.3f', 'loss')} | {pair('.3f', 'norm')} |",
        flush=True,
    )


def is_busy(results: dict[str, dict]) -> bool:
    """Return whether other processes used the machine in a round."""
    return any((results[side]["others"] or 0.0) > BUSY for side in SIDES)


def conclude(rows: list[tuple[int, dict]]) -> tuple[int, list[dict]]:
    """Print the medians of the rounds that count, and return these.

    The exit code is 1 if the machine was too busy to be fair.
    """
    quiet = [results for _, results in rows if not is_busy(results)]
    fair = len(quiet) >= min(3, len(rows))
    used = quiet if fair else [results for _, results in rows]
    speeds = {s: [r[s]["tokens_per_second"] for r in used] for s in SIDES}
    ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
    print()
    if len(quiet) < len(rows):
        fate = "left out" if fair else "kept, as fewer than 3 others remain"
        busy = f"{len(rows) - len(quiet)} of {len(rows)} rounds"
        print(f"others used more than {BUSY:.0%} of the machine in {busy}: {fate}")
    ours, torch = (statistics.median(speeds[side]) for side in SIDES)
    print(f"median of {len(used)} rounds: {ours:,.0f} and {torch:,.0f} tokens/s")
    print(
        f"median ratio ours / torch: {statistics.median(ratios):.3f} "
        f"(from {min(ratios):.3f} to {max(ratios):.3f})"
    )
    if not fair:
        print("NOT A FAIR FIGURE: a busy machine slows the two unequally; run it again")
    return 0 if fair else 1, used


if __name__ == "__main__":
    sys.exit(main())
