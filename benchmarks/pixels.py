"""Score a linear model and a small CNN on the images that a ViT classifies.

    python benchmarks/pixels.py --config configs/images.py:colour
    python benchmarks/pixels.py --config images:mnist --config.data.folder=PATH

These are the baselines for a run of an image config: on the same images, cropped and
flipped according to the config, with the same number of updates and images per update.
"""

import argparse
import functools
import sys
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from transformer_jax import cli, tasks
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.data.images.arrays import as_floats
from transformer_jax.tasks.parts import augmentation

ROWS = 64  # images of an update
RATE = 1e-3  # of Adam, falling to 0


class Linear(nn.Module):
    """Logistic regression on the pixels."""

    classes: int

    @nn.compact
    def __call__(self, x):
        """Compute logits."""
        return nn.Dense(self.classes)(x.reshape(len(x), -1))


class Convolution(nn.Module):
    """Three 3 × 3 convolutions with stride 2, and the mean over all positions."""

    classes: int

    @nn.compact
    def __call__(self, x):
        """Compute logits."""
        for width in (32, 64, 128):
            x = nn.relu(nn.Conv(width, (3, 3), strides=2)(x))
        return nn.Dense(self.classes)(x.mean((1, 2)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="of the task images")
    words, overrides = cli.split_overrides(sys.argv[1:])
    try:
        compare(configs.load(parser.parse_args(words).config, overrides))
    except UserError as error:
        cli.fail(*error.problems)
    return 0


def compare(config: ConfigDict) -> None:
    if config.task != "images":
        raise UserError(f"the task is {config.task}: name a config of images")
    source = tasks.find(config.task).source(config)
    classes = source.classes()
    splits = {
        name: read(source, name, classes) for name in ("train", *config.eval.splits)
    }
    for kind in (Linear, Convolution):
        began = time.monotonic()
        params, apply = fit(config, kind(len(classes)), *splits["train"])
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        for name in config.eval.splits:
            images, labels = splits[name]
            found = [
                apply(params, as_floats(images[i : i + 500])).argmax(-1)
                for i in range(0, len(images), 500)
            ]
            right = (np.concatenate(found) == labels).mean()
            print(
                f"{kind.__name__}, {size:,} parameters: {right:.1%} of {len(labels):,} "
                f"({name}), {time.monotonic() - began:.0f} s",
                flush=True,
            )


def read(source, split: str, classes: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Read all images of a split, and the indices of their labels."""
    records = list(source.read(split))
    labels = [classes.index(str(record["label"])) for record in records]
    return np.stack([record["image"] for record in records]), np.array(labels)


def fit(config: ConfigDict, module: nn.Module, images: np.ndarray, labels: np.ndarray):
    """Train a module; return its parameters and the function that applies them."""
    params = module.init(jax.random.key(config.seed), as_floats(images[:1]))
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, config.train.steps))
    random = np.random.default_rng(config.seed)

    def loss(params, images, labels, key):
        images = augmentation.change(images, key, config.train)
        logits = module.apply(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, images, labels, key):
        grads = jax.grad(loss)(params, images, labels, key)
        changes, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, changes), state

    state = optimizer.init(params)
    for step in range(config.train.steps):
        rows = random.integers(0, len(images), ROWS)
        key = jax.random.fold_in(jax.random.key(1), step)
        pictures = jnp.asarray(as_floats(images[rows]))
        params, state = update(params, state, pictures, jnp.asarray(labels[rows]), key)
    return params, jax.jit(module.apply)


if __name__ == "__main__":
    sys.exit(main())
