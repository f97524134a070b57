"""Augmented training images: possible results, the keys behind them, and learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.tasks import images as images_task
from transformer_jax.tasks.parts import augmentation

B, HEIGHT, WIDTH = 6, 5, 7
IMAGES = jnp.asarray(
    np.random.default_rng(0).uniform(0.1, 1, (B, HEIGHT, WIDTH, 2)), jnp.float32
)


def changed(seed, images=IMAGES, crop=0, flip=False):
    train = ConfigDict({"random_crop": crop, "random_flip": flip})
    return np.asarray(augmentation.change(images, jax.random.key(seed), train))


def test_a_crop_is_one_of_the_windows_of_the_padded_image():
    padded = np.pad(IMAGES, ((0, 0), (2, 2), (2, 2), (0, 0)))
    seen = set()
    for seed in range(12):
        for i, got in enumerate(changed(seed, crop=2)):
            [at] = [
                (y, x)
                for y in range(5)
                for x in range(5)
                if (padded[i, y : y + HEIGHT, x : x + WIDTH] == got).all()
            ]
            seen.add(at)
    assert len(seen) > 20 and {y for y, _ in seen} == {x for _, x in seen} == set(
        range(5)
    )


def test_half_of_the_images_are_mirrored():
    mirrored = 0
    for seed in range(20):
        for image, got in zip(
            np.asarray(IMAGES), changed(seed, flip=True), strict=True
        ):
            same = (got == image).all()
            assert same or (got == image[:, ::-1]).all()
            mirrored += not same
    assert 40 < mirrored < 80


def test_the_change_of_a_row_depends_only_on_the_key_and_its_number():
    """So neither a resumed step nor more rows on more devices change the result."""
    options = dict(crop=2, flip=True)
    more = jnp.concatenate([IMAGES, 0 * IMAGES])
    np.testing.assert_array_equal(changed(3, **options), changed(3, **options))
    np.testing.assert_array_equal(
        changed(3, more, **options)[:B], changed(3, **options)
    )
    assert (changed(3, **options) != changed(4, **options)).any()
    np.testing.assert_array_equal(changed(3), IMAGES)


def test_a_mixture_has_the_stated_shares_of_two_neighbours():
    labels = jnp.array([3, 5, 7, -1, 4, 9])
    mixed, others, shares = augmentation.mix(IMAGES, labels, jax.random.key(1), 0.4)
    assert others.tolist() == [5, 3, -1, 7, 9, 4]
    own, partner = np.asarray(IMAGES), np.asarray(IMAGES)[[1, 0, 3, 2, 5, 4]]
    s = np.asarray(shares)[:, None, None, None]
    np.testing.assert_allclose(mixed, s * own + (1 - s) * partner, atol=1e-6)
    assert shares[2] == shares[3] == 1.0  # neither has a partner
    assert all(0 < share < 1 for share in shares[jnp.array([0, 1, 4, 5])])


def test_shares_have_the_moments_of_their_distribution():
    count, alpha = 2000, 0.4
    images, labels = jnp.zeros((count, 1, 1, 1)), jnp.zeros(count, jnp.int32)
    shares = augmentation.mix(images, labels, jax.random.key(0), alpha)[2]
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(shares.mean() - 0.5) < 4 * np.sqrt(variance / count)
    assert abs(shares.var() - variance) < 0.1 * variance


def objective(**train):
    config = configs.base(task="images")
    with config.unlocked():
        config.model.update(encoder_layers=1, d_model=8, d_ff=8, num_heads=2, patch=1)
        config.model.update(dropout_embedding=0.0, dropout_residual=0.0)
        config.train.update(train)
    about = images_task.About(HEIGHT, WIDTH, 2, tuple("abcd"))
    return images_task.compose(config, about).objective


@functools.cache
def parameters():
    return objective().init(jax.random.key(0))


BATCH = {"images": IMAGES, "labels": jnp.array([3, 0, 1, -1, 2, 2])}


def test_the_loss_of_a_mixture_is_that_of_both_labels_in_their_shares():
    found = objective(mixup=0.5, label_smoothing=0.1)
    key = jax.random.key(5)
    sums = jax.jit(found.loss)(parameters(), BATCH, key)
    drawn = jax.random.split(jax.random.fold_in(key, images_task.CHANGES))[1]
    mixed, others, shares = augmentation.mix(IMAGES, BATCH["labels"], drawn, 0.5)
    logits = np.asarray(jax.jit(found.outputs)(parameters(), mixed), np.float64)
    chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = 0.0
    for i, (own, other) in enumerate(zip(BATCH["labels"], others, strict=True)):
        for label, share in ((int(own), shares[i]), (int(other), 1 - shares[i])):
            if label >= 0:
                truth = np.where(np.arange(4) == label, 0.9, 0.1 / 3)
                entropy = (truth * np.log(truth)).sum()
                expected += float(share) * (entropy - (truth * chances[i]).sum())
    np.testing.assert_allclose(sums.loss, expected, rtol=1e-4)
    assert sums.weight == 5


def test_only_training_changes_images():
    train = dict(random_crop=1, random_flip=True, mixup=0.5)
    plain, found = objective(), objective(**train)
    calm = found.loss(parameters(), BATCH)
    assert calm == plain.loss(parameters(), BATCH)
    key = jax.random.key(5)
    assert found.loss(parameters(), BATCH, key).loss != calm.loss
    assert plain.loss(parameters(), BATCH, key) == calm  # there is no dropout
