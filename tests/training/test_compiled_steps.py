"""A step is compiled by threads, and its model is called where a reader sees it."""

import json
import logging
import os
import pathlib
import subprocess
import sys
import threading
import traceback

import jax
import jax.numpy as jnp
import pytest
from absl import flags

import transformer_jax
from transformer_jax import sharding, train
from transformer_jax.base.programs import Program
from transformer_jax.data.batches import Shape
from transformer_jax.tasks.parts.pairs import Seq2SeqObjective
from transformer_jax.training.steps import compiled_steps
from transformer_jax.training.steps.compiled_steps import CompiledSteps

PACKAGE = pathlib.Path(transformer_jax.__file__).parent


@pytest.mark.usefixtures("one_device")
def test_six_frames_lead_from_the_command_to_the_loss(tiny, tmp_path, monkeypatch):
    """The stack of an error in a model is one that a newcomer can read."""

    class Broken(Exception):
        pass

    def loss(self, params, batch, key):
        raise Broken

    monkeypatch.setattr(Seq2SeqObjective, "loss", loss)
    values = flags.FlagValues()
    flags.DEFINE_string("config", "quickstart", "", values)
    flags.DEFINE_string("workdir", str(tmp_path / "run"), "", values)
    for name in ("profile", "start_from"):
        flags.DEFINE_string(name, "", "", values)
    for name in ("accept_changes", "smoke", "plots"):
        flags.DEFINE_bool(name, False, "", values)
    flags.DEFINE_list("seeds", [], "", values)
    values.mark_as_parsed()
    monkeypatch.setattr(flags, "FLAGS", values)
    with pytest.raises(Broken) as caught:
        train.main(tiny())
    stack = traceback.extract_tb(caught.value.__traceback__)
    own = [f.name for f in stack if PACKAGE in pathlib.Path(f.filename).parents]
    # The last one is the loss, which this test has replaced by its own.
    assert own == ["main", "train", "train_steps", "train_step", "loss_and_sums"]
    assert stack[-1].name == "loss"


def test_each_shape_is_compiled_once_and_the_first_by_its_caller(caplog):
    traced = []

    @Program
    def update(state, batch):
        traced.append(batch.shape)
        return state + batch.sum()

    def abstract(shape):
        return jax.ShapeDtypeStruct((shape.rows, *shape.lengths), jnp.float32)

    state = jax.ShapeDtypeStruct((), jnp.float32)
    mesh = sharding.local_mesh()
    large, small = Shape(8, (5,)), Shape(2, (3,))
    compiled = CompiledSteps(update, state, abstract, [large, small, large], mesh)
    first = update.lower(state, abstract(large))
    assert traced == [(8, 5)]
    with caplog.at_level(logging.DEBUG, "transformer_jax"):
        compiled.start(first)
        assert compiled.get(small)(1.0, jnp.ones((2, 3))) == 7
        assert compiled.get(large)(1.0, jnp.ones((8, 5))) == 41
    compiled.close()
    assert traced == [(8, 5), (2, 3)]
    assert "compiled   8×5 in " in caplog.text and "2×3 in " in caplog.text
    assert compiled.needs_most() == large
    assert compiled.pop_wait_seconds() > 0 and compiled.pop_wait_seconds() == 0


@pytest.mark.system
def test_a_second_training_traces_no_step(tiny, tmp_path):
    """Two commands on one device, with one cache and the same losses."""
    options = [f"--config.{name}={value}" for name, value in tiny().items()]
    here = {
        **os.environ,
        "JAX_NUM_CPU_DEVICES": "1",
        "TRANSFORMER_JAX_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(pathlib.Path(PACKAGE).parent),
    }
    found, losses = [], []
    for name in ("first", "second"):
        command = [sys.executable, "-m", "transformer_jax.train", "-v", *options]
        command += ["--config", "quickstart", "--workdir", str(tmp_path / name)]
        done = subprocess.run(command, env=here, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append((done.stdout + done.stderr).count("found in the cache, traced"))
        log = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in log])
    assert found[1] > found[0]
    assert losses[0] == losses[1]
    kept = list((tmp_path / "cache").rglob("*.traced"))
    assert kept and found[1] >= 3  # the state, the step and the loss of a validation


def test_a_terminal_is_told_which_shape_is_being_compiled(monkeypatch):
    monkeypatch.setattr(compiled_steps, "REDRAWN", 0.0)
    shown, begun = [], threading.Event()

    def update(state, batch):
        begun.wait(60)  # this runs while the step is traced, in a thread
        return state

    def show(done, total, text):
        shown.append((done, total, text))
        begun.set()

    def abstract(shape):
        return jax.ShapeDtypeStruct((shape.rows, *shape.lengths), jnp.float32)

    state = jax.ShapeDtypeStruct((), jnp.float32)
    shapes = [Shape(8, (5,)), Shape(2, (3,))]
    steps = CompiledSteps(
        Program(update), state, abstract, shapes, sharding.local_mesh(), show
    )
    steps.start(jax.jit(lambda state, batch: state).lower(state, abstract(shapes[0])))
    steps.get(shapes[1])
    steps.close()
    done, total, text = shown[0]
    assert total == 2 and text == f"compiling shape {done + 1} of 2"
