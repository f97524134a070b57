"""Hooks that write to TensorBoard, Weights & Biases and MLflow, and a program's own."""

import importlib
import json
import sys
import types

import pytest

from transformer_jax import config as configs
from transformer_jax import train
from transformer_jax.base.errors import UserError
from transformer_jax.training import hooks, writers

ENTRY = {"loss": 2.5, "tokens": 7, "answers": [["a", "b"]], "text": "c"}


@pytest.fixture
def config(tiny):
    return configs.load("quickstart", tiny())


class FakeWandb(types.ModuleType):
    """Take down what is called of wandb."""

    def __init__(self):
        super().__init__("wandb")
        self.calls = []

    def init(self, **given):
        self.calls.append(("init", given))
        return self

    def __getattr__(self, name):
        return lambda *args, **given: self.calls.append((name, args or given))


def test_a_record_of_wandb_is_begun_once_and_continued(config, tmp_path, monkeypatch):
    api = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", api)
    for step in (3, 2):  # the second start repeats a step
        with config.unlocked():
            config.log.wandb = True
        (writer,) = (
            hook
            for hook in hooks.make(config, tmp_path)
            if isinstance(hook, writers.WeightsAndBiases)
        )
        writer.record(step, "train", ENTRY)
        writer.close()
    names = [name for name, _ in api.calls]
    assert names == 2 * ["init", "define_metric", "log", "finish"]
    first, second = (given for name, given in api.calls if name == "init")
    assert first["id"] == second["id"] and first["config"] == config.to_dict()
    assert [given for name, given in api.calls if name == "log"] == [
        ({"step": step, "train/loss": 2.5, "train/tokens": 7.0},) for step in (3, 2)
    ]


def test_a_record_that_cannot_be_opened_is_said_in_words(config, tmp_path, monkeypatch):
    class Refusing(FakeWandb):
        def init(self, **given):
            raise OSError("no route to host\nmore")

    monkeypatch.setitem(sys.modules, "wandb", Refusing())
    with pytest.raises(UserError, match="cannot be opened: no route to host. Mend"):
        writers.WeightsAndBiases(config, tmp_path)
    assert not (tmp_path / "trackers.json").exists()


def test_entries_that_a_service_refuses_are_offered_again(
    config, tmp_path, monkeypatch, caplog
):
    api = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", api)
    writer = writers.WeightsAndBiases(config, tmp_path)
    taken, answers = [], [OSError("time out"), OSError("time out"), None]

    def write(step, values):
        if answers and (error := answers.pop(0)):
            raise error
        taken.append(step)

    monkeypatch.setattr(writer, "write", write)
    for step in (3, 5, 7):
        writer.record(step, "train", ENTRY)
    writer.close()
    assert taken == [3, 5, 7]
    assert "wandb has not taken 2 entries (time out)" in caplog.text


def test_processes_after_the_first_open_nothing(config, tmp_path, monkeypatch):
    api = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", api)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    writers.WeightsAndBiases(config, tmp_path).close()
    assert api.calls == []


def test_a_missing_package_is_named_before_the_training(
    config, tmp_path, one_device, monkeypatch
):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with config.unlocked():
        config.log.mlflow = True
    with pytest.raises(UserError, match="needs another package .*pip install mlflow"):
        train.train(config, tmp_path / "run")


@pytest.mark.system
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_package_itself_takes_a_run_and_its_continuation(
    name, config, tmp_path, monkeypatch
):
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    kind = hooks.find()[name]
    for step in (3, 2):
        writer = kind(config, tmp_path)
        writer.record(step, "train", ENTRY)
        writer.close()
    known = json.loads((tmp_path / "trackers.json").read_text())[name]
    if name == "wandb":
        kept = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
        assert kept and all(known in path.name for path in kept)
    else:
        run = importlib.import_module("mlflow").get_run(known)
        assert run.data.params["model.d_model"] == "16"
        assert run.data.metrics == {"train/loss": 2.5, "train/tokens": 7.0}


def test_curves_of_tensorboard_have_the_numbers_of_an_entry(config, tmp_path):
    pytest.importorskip("tensorboardX")
    writer = writers.TensorBoard(config, tmp_path)
    writer.record(3, "train", ENTRY)
    writer.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"train/loss" in content and b"train/answers" not in content
