"""Checkpoints: the newest and the best are kept, damage is never restored."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config, optim
from transformer_jax.errors import UserError
from transformer_jax.runs import checkpoint
from transformer_jax.runs.checkpoint import Checkpoints, Damaged, TrainState


def state(step):
    params = {"w": jnp.full((3, 5), float(step)), "b": jnp.arange(7.0) * step}
    return TrainState(
        jnp.int32(step), params, (params, jnp.int32(1)), jax.random.key(step)
    )


def like(found=None):
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one),
        found or state(0),
    )


def test_the_newest_and_the_best_are_both_kept(tmp_path):
    kept = Checkpoints(tmp_path, keep_last=2, keep_best=1, writer=True)
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
    again = Checkpoints(tmp_path, keep_last=2, keep_best=1, writer=True)
    again.save(8, state(8), 0.3)
    again.close()
    assert again.steps() == [2, 7, 8]


def test_a_state_comes_back_bit_for_bit(tmp_path):
    saved = Checkpoints(tmp_path, writer=True)
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
    saved = Checkpoints(tmp_path, writer=True)
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
    saved = Checkpoints(tmp_path, writer=True)
    saved.save(3, state(3))
    for _ in range(100):
        saved.sign_if_whole()
        if (tmp_path / "3" / "checksums.json").exists():
            break
        time.sleep(0.1)
    assert (tmp_path / "3" / "checksums.json").exists()  # and nobody had to wait
    saved.close()


def test_only_a_writer_clears_what_looks_half_made(tmp_path):
    saved = Checkpoints(tmp_path, writer=True)
    saved.save(3, state(3), 0.5)
    saved.close()
    half = tmp_path / "4.orbax-checkpoint-tmp"  # which a training may be writing
    half.mkdir()
    reader = Checkpoints(tmp_path)
    assert reader.best_step() == 3
    reader.restore(3, like())
    reader.restore_params(3, like().params)
    reader.close()
    assert half.exists()
    again = Checkpoints(tmp_path, writer=True)
    again.save(4, state(4))
    again.close()
    assert not half.exists() and again.steps() == [4]


def wide():
    """What a config of another size would make of it."""
    one = like().params["w"].sharding
    other = jax.ShapeDtypeStruct((3, 7), jnp.float32, sharding=one)
    return like().replace(params={**like().params, "w": other})


def without_moments():
    return like().replace(opt_state=(like().params,))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (wide, r"params/w is \(3, 5\) there, but \(3, 7\) by the config"),
        (without_moments, r"opt_state/\[1\] is \(\) there, but nothing by the config"),
    ],
)
def test_another_config_is_told_from_damage(tmp_path, other, difference):
    saved = Checkpoints(tmp_path, writer=True)
    saved.save(3, state(3))
    saved.close()
    with pytest.raises(UserError, match=rf"3 does not fit this config: .*{difference}"):
        checkpoint.restore_newest([Checkpoints(tmp_path)], other())
    (tmp_path / "3" / "checksums.json").unlink()  # unsigned
    (tmp_path / "3" / "params" / "_METADATA").write_text("{")
    with pytest.raises(UserError, match="no checkpoint can be read"):
        checkpoint.restore_newest([Checkpoints(tmp_path)], other())


DECAY = {"optim.name": "adamw", "optim.weight_decay": 0.1, "optim.clip_norm": 0.5}
FROZEN = {"model.train_word_vectors": False, "optim.clip_norm": 0.5}


@pytest.mark.parametrize(
    "changes", [*({"optim.name": n} for n in optim.OPTIMIZERS), DECAY, FROZEN], ids=str
)
def test_the_state_of_every_optimizer_comes_back(tmp_path, changes):
    chosen = config.base()
    with chosen.unlocked():
        chosen.update_from_flattened_dict(changes)
    params = {"embedding": {"embedding": jnp.ones((5, 3))}}
    params["inner"] = {"kernel": jnp.ones((3, 7)), "bias": jnp.ones(7)}
    moments = optim.make_optimizer(chosen).init(params)
    trained = TrainState(jnp.int32(1), params, moments, jax.random.key(0))
    saved = Checkpoints(tmp_path, writer=True)
    saved.save(1, trained)
    saved.wait()
    found = saved.restore(1, like(trained))
    saved.close()
    assert jax.tree.structure(found) == jax.tree.structure(trained)


def test_a_mean_that_is_asked_for_later_begins_with_the_parameters(tmp_path):
    saved = Checkpoints(tmp_path, writer=True)
    saved.save(3, state(3))
    saved.close()
    found = Checkpoints(tmp_path).restore(3, like().replace(ema=like().params))
    np.testing.assert_array_equal(found.ema["w"], found.params["w"])
    assert found.ema["w"] is not found.params["w"]  # both are given away


def test_an_empty_numbered_folder_is_no_checkpoint(tmp_path):
    saved = Checkpoints(tmp_path, writer=True)
    saved.save(3, state(3))
    saved.close()
    (tmp_path / "9").mkdir()
    step, _, passed_over = checkpoint.restore_newest([Checkpoints(tmp_path)], like())
    assert (step, passed_over) == (3, [])


def test_the_average_is_the_mean_of_the_parameters(tmp_path):
    saved = Checkpoints(tmp_path, keep_last=3, writer=True)
    for step in (1, 2, 6):
        saved.save(step, state(step))
    saved.wait()
    mean = checkpoint.average(saved, [1, 2, 6], like().params)
    saved.close()
    np.testing.assert_allclose(mean["w"], np.full((3, 5), 3.0))
    np.testing.assert_allclose(mean["b"], np.arange(7.0) * 3)
