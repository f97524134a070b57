"""Time and memory of a training step on long rows: attention in blocks, and einsum.

    python benchmarks/attention.py --lengths 512,1024,2048,4096,8192,16384

The model is a language model of the quickstart's width; the memory is what the compiled
step needs in addition to its parameters (`memory_analysis`), and the time is a median.
"""

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from transformer_jax import losses
from transformer_jax.models.transformer import LanguageModel
from transformer_jax.models.transformer_config import TransformerConfig

FLAGS = flags.FLAGS
flags.DEFINE_list("lengths", ["512", "1024", "2048", "4096"], "Tokens of the one row.")
flags.DEFINE_list("kernels", ["einsum", "blockwise"], "Values of model.attention.")
flags.DEFINE_integer("repeats", 5, "Steps timed; the first is left out.")
flags.DEFINE_bool("remat", False, "Recompute layers: model.remat.")
flags.DEFINE_float("most_memory", 12.0, "GB; a step that needs more is not run.")

CONFIG = TransformerConfig(
    decoder_layers=4, encoder_layers=0, d_model=128, d_ff=512, num_heads=4,
    vocab_size=2000, vocab_rows=2048, norm="pre", positions="rotary",
)  # fmt: skip


def step(module, params, tokens, key):
    """Compute the gradients of one row, as the training step does."""

    def loss(params):
        outputs = module.apply(
            {"params": params}, tokens, train=True, rngs={"dropout": key}
        )
        weights = jnp.ones(tokens.shape)
        return losses.cross_entropy(outputs.logits, tokens, weights, 0.1, 2000).loss

    return jax.value_and_grad(loss)(params)


def compile_step(kernel: str, length: int) -> tuple[Callable[[], Any], float]:
    """Return a function that runs a step, and the GB of temporary memory it needs."""
    module = LanguageModel(
        dataclasses.replace(CONFIG, attention=kernel, remat=FLAGS.remat)
    )
    tokens = jnp.ones((1, length), jnp.int32)
    params = jax.jit(module.init)(jax.random.key(0), tokens[:, :1])["params"]
    arguments = params, tokens, jax.random.key(1)
    compiled = jax.jit(lambda *x: step(module, *x)).lower(*arguments).compile()
    memory: Any = compiled.memory_analysis()
    return lambda: compiled(*arguments), memory.temp_size_in_bytes / 1e9


def measure(length: int) -> list[tuple[float, float | None]]:
    """Return (GB, median seconds per step or None if not run) for each kernel.

    The kernels take turns, so that other load on the machine slows down both.
    """
    steps = [compile_step(kernel, length) for kernel in FLAGS.kernels]
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(FLAGS.repeats + 1):
        for (run, memory), taken in zip(steps, times, strict=True):
            if memory <= FLAGS.most_memory:
                began = time.perf_counter()
                jax.block_until_ready(run())
                taken.append(time.perf_counter() - began)
    return [
        (memory, statistics.median(taken[1:]) if taken else None)
        for (_, memory), taken in zip(steps, times, strict=True)
    ]


def main(_) -> None:
    """Print a table, one line per length."""
    print("| tokens | " + " | ".join(f"{k}: s, GB" for k in FLAGS.kernels) + " |")
    print("|---" * (1 + len(FLAGS.kernels)) + "|")
    for length in map(int, FLAGS.lengths):
        cells = []
        for memory, seconds in measure(length):
            took = "not run" if seconds is None else f"{seconds:.3f}"
            cells.append(f"{took}, {memory:.3f}")
        gc.collect()
        print(f"| {length:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    app.run(main)
