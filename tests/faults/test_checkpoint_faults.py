"""Checkpoints that are not whole, are damaged, or cannot be written."""

import errno
import os
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.metadata import array_metadata_store

from transformer_jax import config, train
from transformer_jax.base.errors import UserError
from transformer_jax.runs.checkpoint import Checkpoints, TrainState
from transformer_jax.runs.folder import Folder
from transformer_jax.training.checkpointing import Saver
from transformer_jax.training.scoring import average_last


def state(step, size=7):
    params = {"w": jnp.full((3, 5), float(step)), "b": jnp.arange(float(size)) * step}
    return TrainState(jnp.int32(step), params, (params,), jax.random.key(step))


def like(found=None):
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one),
        found or state(0),
    )


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints 3, 6 and 9, and its config."""
    chosen = config.load("quickstart", CHANGES)
    folder = Folder(tmp_path / "run")
    saver = Saver(chosen, folder)
    for step in (3, 6, 9):
        saver.save(step, state(step))
    saver.close()
    return folder, chosen


CHANGES = {
    "checkpoint.every": "3",
    "checkpoint.keep_last": "3",
    "checkpoint.average": "3",
    "checkpoint.keep_best": "1",
    "optim.warmup_steps": "1",
    "train.steps": "9",
    "eval.every": "3",
}


def damage(checkpoint):
    shutil.rmtree(checkpoint / "params")


@pytest.mark.parametrize("name", ["12", "012", "12.old", "notes", "12\n"])
def test_what_is_no_checkpoint_is_set_aside_and_blocks_nothing(run, name, caplog):
    folder, chosen = run
    (folder.checkpoints / name).mkdir()
    (folder.checkpoints / name / "precious").write_text("content")
    saver = Saver(chosen, folder)
    step, *_ = saver.restore(like())
    saver.save(12, state(12))
    saver.close()
    assert step == 9 and saver.regular.steps() == [6, 9, 12]
    kept = folder.damaged / f"checkpoints-{name}"
    assert (kept / "precious").read_text() == "content"
    assert f"is not a complete checkpoint: kept as {kept}" in caplog.text


def test_a_file_and_a_dangling_link_are_no_checkpoints(run):
    folder, chosen = run
    (folder.checkpoints / "12").write_text("")
    os.symlink(folder.path / "nowhere", folder.checkpoints / "15")
    saver = Saver(chosen, folder)
    assert saver.restore(like())[0] == 9
    saver.close()
    assert {p.name for p in folder.damaged.iterdir()} == {
        "checkpoints-12",
        "checkpoints-15",
    }


def test_checkpoints_on_a_disk_that_is_gone_are_no_new_start(run):
    folder, chosen = run
    folder.checkpoints.rename(folder.path / "elsewhere")
    folder.checkpoints.symlink_to(folder.path / "unmounted")
    with pytest.raises(UserError, match="a dangling link: mount its disk"):
        Saver(chosen, folder).restore(like())


def test_the_average_is_that_of_the_good_checkpoints(run):
    folder, chosen = run
    damage(folder.checkpoints / "6")
    said = []
    saved = Checkpoints(folder.checkpoints)
    last, used = average_last(chosen, folder, saved, like().params, said.append)
    assert (last, used) == (9, [9])  # 6 is late enough, 3 is not
    assert any("not averaged" in line and "checkpoints/6" in line for line in said)
    averaged = Checkpoints(folder.averaged)
    found = averaged.restore_params(9, like().params)
    np.testing.assert_array_equal(found["w"], state(9).params["w"])
    again = average_last(chosen, folder, saved, like().params, said.append)
    assert again == (9, [9])  # as it was made, not as it would be now


@pytest.mark.parametrize("reader", [ocp.JsonCheckpointHandler, ocp.CheckpointManager])
@pytest.mark.parametrize("failures", [1, 2])
def test_a_read_that_fails_once_is_repeated(run, monkeypatch, reader, failures):
    folder, chosen = run
    saved, said, read = Checkpoints(folder.checkpoints), [], reader.restore
    left = [OSError(errno.EIO, "Input/output error")] * failures

    def restore(*args, **kwargs):
        if left:
            raise left.pop()
        return read(*args, **kwargs)

    monkeypatch.setattr(reader, "restore", restore)
    used = average_last(chosen, folder, saved, like().params, said.append)[1]
    assert used == ([6, 9] if failures == 1 else [9])  # 6 is read first
    assert any("not averaged" in line for line in said) == (failures == 2)


def test_a_damaged_average_is_made_again(run):
    folder, chosen = run
    saved, said = Checkpoints(folder.checkpoints), []
    average_last(chosen, folder, saved, like().params, said.append)
    damage(folder.averaged / "9")
    assert average_last(chosen, folder, saved, like().params, said.append)[1] == [6, 9]
    assert any("it is made again" in line for line in said)
    found = Checkpoints(folder.averaged).restore_params(9, like().params)
    np.testing.assert_allclose(found["w"], 7.5)


def test_an_average_of_another_number_of_steps_is_replaced(run):
    folder, chosen = run
    saved, said = Checkpoints(folder.checkpoints), []
    for number, mean in ((2, 7.5), (1, 9.0), (2, 7.5)):
        chosen.checkpoint.average = number
        steps = [6, 9][-number:]
        for _ in range(2):  # the second finds it
            used = average_last(chosen, folder, saved, like().params, said.append)
            assert used == (9, steps)
        found = Checkpoints(folder.averaged).restore_params(9, like().params)
        np.testing.assert_allclose(found["w"], mean)
    assert len(list(folder.damaged.iterdir())) == 2


def test_without_any_good_checkpoint_the_average_says_so(run):
    folder, chosen = run
    for step in (6, 9):
        damage(folder.checkpoints / str(step))
    with pytest.raises(UserError, match="none of the checkpoints to average"):
        average_last(
            chosen, folder, Checkpoints(folder.checkpoints), like().params, print
        )


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"score": "x"}', b"\xff{"])
def test_a_damaged_score_of_a_checkpoint_stops_nothing(tmp_path, content):
    kept = Checkpoints(tmp_path, keep_last=3, keep_best=1, writer=True)
    for step in (1, 2):
        kept.save(step, state(step))
        kept.score(step, step / 10)
    kept.close()
    (tmp_path / "2" / "metrics" / "metrics").write_bytes(content)
    assert Checkpoints(tmp_path).best_step() == 1
    again = Checkpoints(tmp_path, keep_last=3, keep_best=1, writer=True)
    again.restore(2, like())
    again.save(3, state(3))
    again.score(3, 0.3)
    again.close()
    assert again.steps() == [1, 2, 3]


@pytest.fixture
def full_disk():
    """A disk on which no file can have more than 5,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Threads of a save that has failed complain at odd times.
UNRAISABLE = "ignore::pytest.PytestUnraisableExceptionWarning"
# On a full disk the compile cache cannot write either, which stops nothing.
UNCACHED = "ignore:Error writing persistent compilation cache"


@pytest.mark.filterwarnings(UNRAISABLE)
@pytest.mark.filterwarnings(UNCACHED)
def test_a_full_disk_is_one_line_and_the_last_checkpoint_is_kept(tmp_path, full_disk):
    kept = Checkpoints(tmp_path, keep_last=2, writer=True)
    kept.save(3, state(3, 100_000))
    kept.wait()
    full_disk()
    with pytest.raises(UserError) as caught:
        kept.save(4, state(4, 100_000))
        kept.wait()
    kept.close()
    assert "step 4 cannot be saved" in str(caught.value)
    assert "file too large. The checkpoint of step 3 is kept" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["3"]
    kept.restore(3, like(state(3, 100_000)))
    kept.close()


@pytest.mark.filterwarnings(UNRAISABLE)
@pytest.mark.filterwarnings(UNCACHED)
def test_a_save_that_failed_is_noticed_without_waiting_for_the_next(
    tmp_path, full_disk
):
    kept = Checkpoints(tmp_path, writer=True)
    kept.save(3, state(3, 100_000))
    kept.wait()
    kept.check()
    full_disk()
    kept.save(4, state(4, 100_000))
    while kept._manager.is_saving_in_progress():
        pass
    with pytest.raises(UserError, match="step 4 cannot be saved"):
        kept.check()
    kept.check()  # it is said once
    kept.close()


@pytest.mark.filterwarnings(UNRAISABLE)
def test_a_file_that_a_save_loses_is_one_line(tmp_path, monkeypatch):
    async def lose(self, *_, **__):
        pass

    kept = Checkpoints(tmp_path, writer=True)
    kept.save(3, state(3))
    kept.wait()
    with monkeypatch.context() as faulty:
        faulty.setattr(array_metadata_store.Store, "write", lose)
        with pytest.raises(UserError, match=r"just written is missing.*3 is kept"):
            kept.save(4, state(4))
            kept.wait()
    assert [p.name for p in tmp_path.iterdir()] == ["3"]
    kept.close()


@pytest.mark.system
@pytest.mark.filterwarnings(UNRAISABLE)
@pytest.mark.filterwarnings(UNCACHED)
def test_a_training_on_a_full_disk_stops_and_continues(
    tiny, tmp_path, one_device, full_disk, capsys
):
    loaded, save = config.load("quickstart", tiny()), Checkpoints.save

    def fill(self, step, *rest):
        if step == 6:
            self.wait()
            full_disk()
        save(self, step, *rest)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Checkpoints, "save", fill)
        with pytest.raises(UserError, match=r"step 6 cannot be saved.*step 3 is kept"):
            train.train(loaded, tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["3"]
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert train.train(loaded, tmp_path) == 0
    assert "resumed    from step 3" in capsys.readouterr().out
