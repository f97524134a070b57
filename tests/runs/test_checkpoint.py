"""Checkpoints: the newest and the best are kept, damage is never restored."""

import gc
import shutil
import sys
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint._src.path import atomicity

from transformer_jax import config, optim
from transformer_jax.base.errors import UserError
from transformer_jax.runs import checkpoint, signature
from transformer_jax.runs.checkpoint import Checkpoints, Damaged, TrainState
from transformer_jax.runs.signature import Examined
from transformer_jax.training import checkpointing
from transformer_jax.training import scoring as averaging


def state(step, size=7):
    params = {"w": jnp.full((3, 5), float(step)), "b": jnp.arange(float(size)) * step}
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
        kept.save(step, state(step))
        if score is not None:
            kept.score(step, score)
    kept.close()
    assert kept.steps() == [2, 6, 7]
    assert kept.best_step() == 2
    kept.close()
    again = Checkpoints(tmp_path, keep_last=2, keep_best=1, writer=True)
    again.save(8, state(8))
    again.score(8, 0.3)
    assert again.steps() == [2, 7, 8]
    again.score(8, 0.95)  # the best so far is outdone at once, not at the next save
    again.close()
    assert again.steps() == [7, 8]


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


@pytest.fixture
def saved(tmp_path):
    """Checkpoint 3, with arrays that are large enough for files of their own."""
    kept = Checkpoints(tmp_path, writer=True)
    kept.save(3, state(3, 10_000))
    kept.wait()
    yield kept
    kept.close()


def largest_file(folder):
    return max(
        (f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size
    )


@pytest.mark.parametrize("at", [0.2, 0.5, 0.8])
def test_a_flipped_bit_is_never_restored(saved, tmp_path, at):
    data = largest_file(tmp_path / "3" / "params")
    content = bytearray(data.read_bytes())
    content[int(at * len(content))] ^= 16
    data.write_bytes(content)
    with pytest.raises(Damaged, match=r"params/b (changed|holds)|cannot be restored"):
        saved.restore_params(3, like(state(3, 10_000)).params)


def test_values_that_orbax_takes_for_good_are_compared(saved, tmp_path):
    other = Checkpoints(tmp_path / "other", writer=True)
    other.save(3, state(4, 10_000).replace(step=jnp.int32(3)))
    other.close()
    shutil.rmtree(tmp_path / "3" / "params")
    shutil.copytree(tmp_path / "other" / "3" / "params", tmp_path / "3" / "params")
    with pytest.raises(Damaged, match="3: params/b changed since it was saved"):
        saved.restore(3, like(state(3, 10_000)))


@pytest.mark.parametrize("damage", ["truncate", "delete"])
def test_damage_is_noticed(saved, tmp_path, damage):
    data = largest_file(tmp_path / "3" / "rest")
    content = data.read_bytes()
    data.unlink() if damage == "delete" else data.write_bytes(content[:100])
    with pytest.raises(Damaged, match="cannot be restored|changed since it was saved"):
        saved.restore(3, like(state(3, 10_000)))


def test_reads_that_end_after_a_failed_one_are_not_heard(saved, tmp_path, monkeypatch):
    """They run in threads of their own, and wake a loop that is closed by then."""
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    largest_file(tmp_path / "3" / "rest").unlink()
    for _ in range(2):  # the hook is put in place once, before anything is read
        with pytest.raises(Damaged):
            Checkpoints(tmp_path).restore(3, like(state(3, 10_000)))
    late, other = (
        types.SimpleNamespace(exc_value=RuntimeError(words))
        for words in ("Event loop is closed", "of another kind")
    )
    sys.unraisablehook(late)
    sys.unraisablehook(other)
    assert heard == [other]
    assert sys.unraisablehook.hook == heard.append


def test_a_hook_that_threads_may_be_calling_is_not_freed():
    """Python holds no reference to the hook that it calls: that was a crash."""
    seen = []

    class Late:
        def __init__(self):
            self.own = self  # only the collector finds it

        def __del__(self):
            seen.append(weakref.ref(sys.unraisablehook))

    Late()
    checkpoint._drop_coroutines()
    gc.collect()
    assert seen[0]() is not None


def test_a_checkpoint_is_signed_before_anybody_sees_it(tmp_path, monkeypatch):
    """The one who commits it is killed, or has just ended."""
    seen = []
    finalize = atomicity.on_commit_callback

    async def commit(folder, **options):
        seen.append((folder.get() / "signature" / "metadata").exists())
        await finalize(folder, **options)

    monkeypatch.setattr(atomicity, "on_commit_callback", commit)
    kept = Checkpoints(tmp_path, writer=True)
    kept.save(3, state(3))
    kept.close()
    assert seen == [True]


def test_a_copy_under_another_number_is_noticed(saved, tmp_path):
    shutil.copytree(tmp_path / "3", tmp_path / "5")
    wanted = like(state(3, 10_000))
    with pytest.raises(Damaged, match="5: it is a copy of step 3"):
        Checkpoints(tmp_path).restore_params(5, wanted.params)
    shutil.rmtree(tmp_path / "5" / "signature")
    with pytest.raises(Damaged, match="5: it is a copy of step 3"):
        Checkpoints(tmp_path).restore(5, wanted)


def test_what_is_not_signed_is_read_with_a_warning(saved, tmp_path, caplog):
    shutil.rmtree(tmp_path / "3" / "signature")
    saved.restore(3, like(state(3, 10_000)))
    assert "3 is not signed" in caplog.text


def test_a_damaged_signature_is_no_signature(saved, tmp_path):
    (tmp_path / "3" / "signature" / "metadata").write_text("[1]")
    with pytest.raises(Damaged, match="its signature changed since it was saved"):
        saved.restore(3, like(state(3, 10_000)))


@pytest.mark.parametrize("where", ["params", "opt_state"])
def test_a_number_that_is_not_finite_is_not_saved(saved, tmp_path, where):
    bad = {"w": jnp.array([1.0, jnp.nan]), "b": jnp.zeros(2)}
    with pytest.raises(UserError, match=r"step 4: \w+/(opt_state/)?w is not finite"):
        saved.save(4, state(4).replace(**{where: bad}))
    saved.wait()
    assert saved.steps() == [3]


def test_a_number_that_is_not_finite_is_not_restored(saved, tmp_path, monkeypatch):
    good = state(4, 10_000)
    with monkeypatch.context() as careless:  # as earlier versions were
        careless.setattr(signature, "examine", lambda tree: Examined({}, []))
        saved.save(4, good.replace(params={**good.params, "b": good.params["b"] / 0}))
        saved.wait()
    with pytest.raises(Damaged, match="4: params/b holds numbers that are not finite"):
        saved.restore_params(4, like(good).params)


def test_a_type_that_has_changed_is_cast_after_the_check(saved, tmp_path):
    half = like(state(3, 10_000)).params
    half["w"] = jax.ShapeDtypeStruct((3, 5), jnp.bfloat16, sharding=half["w"].sharding)
    found = saved.restore_params(3, half)
    assert (found["w"].dtype, found["b"].dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_array_equal(found["w"], state(3).params["w"])


def test_only_a_writer_clears_what_looks_half_made(tmp_path):
    saved = Checkpoints(tmp_path, writer=True)
    saved.save(3, state(3))
    saved.score(3, 0.5)
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
        checkpointing.restore_newest([Checkpoints(tmp_path)], other())
    (tmp_path / "3" / "params" / "_METADATA").write_text("{")
    with pytest.raises(UserError, match="no checkpoint can be read"):
        checkpointing.restore_newest([Checkpoints(tmp_path)], other())


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
    step, _, passed_over = checkpointing.restore_newest([Checkpoints(tmp_path)], like())
    assert (step, passed_over) == (3, [])


def test_the_average_is_the_mean_of_the_parameters(tmp_path):
    saved = Checkpoints(tmp_path, keep_last=3, writer=True)
    for step in (1, 2, 6):
        saved.save(step, state(step))
    saved.wait()
    mean, used, _ = averaging.average(saved, [1, 2, 6], like().params)
    assert used == [1, 2, 6]
    saved.close()
    np.testing.assert_allclose(mean["w"], np.full((3, 5), 3.0))
    np.testing.assert_allclose(mean["b"], np.arange(7.0) * 3)
