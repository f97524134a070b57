"""Checkpoints: the newest and the best are kept, damage is never restored."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import checkpoint
from transformer_jax.checkpoint import Checkpoints, Damaged, TrainState


def state(step):
    params = {"w": jnp.full((3, 5), float(step)), "b": jnp.arange(7.0) * step}
    return TrainState(
        jnp.int32(step), params, (params, jnp.int32(1)), jax.random.key(step)
    )


def like():
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), state(0)
    )


def test_the_newest_and_the_best_are_both_kept(tmp_path):
    kept = Checkpoints(tmp_path, keep_last=2, keep_best=1)
    scores = {
        1: 0.1,
        2: 0.9,
        3: None,
        4: float("nan"),
        5: 0.2,
        6: float("inf"),
        7: None,
    }
    for step, score in scores.items():
        kept.save(step, state(step), score)
    kept.close()
    assert kept.steps() == [2, 6, 7]
    assert kept.best_step() == 2
    kept.close()
    again = Checkpoints(tmp_path, keep_last=2, keep_best=1)  # scores outlive a process
    again.save(8, state(8), 0.3)
    again.close()
    assert again.steps() == [2, 7, 8]


def test_a_state_comes_back_bit_for_bit(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(3, state(3))
    saved.wait()
    found = saved.restore(3, like())
    saved.close()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(state(3)), strict=True):
        assert a.dtype == b.dtype
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert (np.asarray(a) == np.asarray(b)).all()


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_damage_is_noticed_before_it_is_restored(tmp_path, damage):
    saved = Checkpoints(tmp_path)
    saved.save(3, state(3))
    saved.close()
    data = max(
        (
            f
            for f in (tmp_path / "3").rglob("*")
            if f.is_file() and f.name != "checksums.json"
        ),
        key=lambda f: f.stat().st_size,
    )
    content = bytearray(data.read_bytes())
    if damage == "flip":
        content[-1] ^= 16
        data.write_bytes(content)
    elif damage == "truncate":
        data.write_bytes(content[:-1])
    else:
        data.unlink()
    with pytest.raises(Damaged, match="changed since it was saved"):
        saved.restore(3, like())


def test_a_checkpoint_is_signed_as_soon_as_it_is_whole(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(3, state(3))
    for _ in range(100):
        saved.sign_if_whole()
        if (tmp_path / "3" / "checksums.json").exists():
            break
        time.sleep(0.1)
    assert (tmp_path / "3" / "checksums.json").exists()  # and nobody had to wait
    saved.close()


def test_an_empty_numbered_folder_is_no_checkpoint(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(3, state(3))
    saved.close()
    (tmp_path / "9").mkdir()
    step, _, passed_over = checkpoint.restore_newest([Checkpoints(tmp_path)], like())
    assert (step, passed_over) == (3, [])


def test_the_average_is_the_mean_of_the_parameters(tmp_path):
    saved = Checkpoints(tmp_path, keep_last=3)
    for step in (1, 2, 6):
        saved.save(step, state(step))
    saved.wait()
    mean = checkpoint.average(saved, [1, 2, 6], like().params)
    saved.close()
    np.testing.assert_allclose(mean["w"], np.full((3, 5), 3.0))
    np.testing.assert_allclose(mean["b"], np.arange(7.0) * 3)
