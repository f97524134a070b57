"""Numbers that are not finite: stop, skip the batch, or go back at a lower rate."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import cli, config, losses, optim, train
from transformer_jax.base.errors import UserError
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import Checkpoints, TrainState
from transformer_jax.training import log as metrics
from transformer_jax.training.parts import StepOutcome
from transformer_jax.training.preemption import Preemption
from transformer_jax.training.steps import divergence

BAD = 8  # the step whose gradient is not finite


@pytest.fixture
def diverge(monkeypatch):
    """Make the gradients of an encoder not finite at some steps, while `when()`."""
    whole = losses.make_gradient

    def spoil(steps=(BAD,), when=lambda: True):
        root = jax.random.split(jax.random.key(0))[1]  # as `train.make_update` has it
        keys = [jax.random.fold_in(root, step - 1) for step in steps]
        bad = jnp.stack([jax.random.key_data(key) for key in keys])

        def gradient(*given):
            def spoiled(params, batch, key):
                grads, sums = whole(*given)(params, batch, key)
                hit = (jax.random.key_data(key) == np.asarray(bad)).all(-1).any()
                nan = jnp.where(hit & when(), jnp.nan, 1.0)
                return {**grads, "encoder": jax.tree.map(
                    lambda g: g * nan, grads["encoder"])}, sums  # fmt: skip

            return spoiled

        bad = np.asarray(bad)
        monkeypatch.setattr(losses, "make_gradient", gradient)

    return spoil


def end_of(folder):
    """The last parameters of a run, and its curves."""
    params = jax.tree.map(np.asarray, runs.load(folder, "last").params)
    clock = ("time", "seconds", "seconds_left", "tokens_per_second")
    entries = metrics.read_entries(folder / "metrics.jsonl")
    return params, [{k: v for k, v in e.items() if k not in clock} for e in entries]


def same(one, other):
    equal = jax.tree.map(np.array_equal, one[0], other[0])
    return all(jax.tree.leaves(equal)) and one[1] == other[1]


@pytest.mark.system
def test_a_training_that_stops_says_which_parameters_and_examples(
    tiny, tmp_path, one_device, diverge
):
    diverge()
    with pytest.raises(UserError) as caught:
        train.train(config.load("quickstart", tiny()), tmp_path)
    first, gradients, examples = caught.value.problems
    assert first.startswith(f"step {BAD}: the loss is ") and "norm nan. The" in first
    assert f"step {BAD}: the gradients of " in gradients
    assert "not finite: encoder/layer_0/" in gradients
    assert "decoder" not in gradients
    assert "generated example " in examples
    [line] = (tmp_path / divergence.FILE).read_text().splitlines()
    entry = json.loads(line)
    assert entry["step"] == BAD and all("encoder/" in x for x in entry["not_finite"])
    assert f"its batch has {len(entry['examples'])} examples: " in examples
    assert Checkpoints(tmp_path / "checkpoints").steps() == [3, 6]


@pytest.mark.system
def test_a_batch_is_skipped_and_counted(
    tiny, tmp_path, one_device, diverge, monkeypatch, capsys
):
    diverge()
    keys = tiny(train__on_divergence="skip", log__every=2)
    loaded = config.load("quickstart", keys)
    assert train.train(loaded, tmp_path / "whole") == 0
    out = capsys.readouterr().out
    assert f"skipped    step {BAD}: the loss is " in out and "skipped 1  " in out
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["skipped"] == 1
    params, entries = end_of(tmp_path / "whole")
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
    rates = {e["step"]: e["learning_rate"] for e in entries if e["kind"] == "train"}
    schedule = optim.make_schedule(loaded)
    assert rates[6] == pytest.approx(float(schedule(5)))
    assert rates[10] == pytest.approx(float(schedule(8)))  # the 9th update
    # Stopped behind it and continued, the run ends in the same bits.
    monkeypatch.setattr(Preemption, "requested", lambda self, step: step == 10)
    assert train.train(loaded, tmp_path / "stopped") == cli.PREEMPTED
    monkeypatch.setattr(Preemption, "requested", lambda self, step: False)
    assert train.train(loaded, tmp_path / "stopped") == 0
    assert same(end_of(tmp_path / "stopped"), (params, entries))


@pytest.mark.system
def test_too_many_batches_in_sequence_end_the_run(tiny, tmp_path, one_device, diverge):
    diverge(steps=(2, 4, 5, 6))
    keys = tiny(train__on_divergence="skip", train__divergences=2)
    with pytest.raises(UserError, match=r"step 6: .* 2 batches before it were skipped"):
        train.train(config.load("quickstart", keys), tmp_path)
    entries = metrics.read_entries(tmp_path / "metrics.jsonl")
    assert [e["step"] for e in entries if "loss" not in e] == [2, 4, 5]
    assert "grad_norm" not in entries[1] and entries[1]["skipped"] == 1
    assert Checkpoints(tmp_path / "checkpoints").steps() == [3]


@pytest.mark.system
def test_a_training_goes_back_and_on_at_half_the_rate(
    tiny, tmp_path, one_device, diverge, monkeypatch, capsys
):
    loaded = config.load("quickstart", tiny(train__on_divergence="back"))

    def full_rate(folder):
        def look():
            stored = json.loads((folder / "config.json").read_text())
            return not stored["optim"]["lowered"]

        return look

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    diverge(when=full_rate(whole))
    assert train.train(loaded, whole) == 0
    out = capsys.readouterr().out
    assert f"diverged   step {BAD}: the loss is " in out
    assert "back       to step 6, from there on 0.5 times the rate (1 of at most" in out
    assert "resumed    from step 6" in out
    end = end_of(whole)
    rates = {e["step"]: e["learning_rate"] for e in end[1] if e["kind"] == "train"}
    schedule = optim.make_schedule(loaded)
    for step, factor in {5: 1, 6: 1, 7: 0.5, 12: 0.5}.items():
        assert rates[step] == pytest.approx(factor * float(schedule(step - 1)))
    # Stopped behind it and continued by the same command: the same bits.
    diverge(when=full_rate(stopped))
    monkeypatch.setattr(Preemption, "requested", lambda self, step: step == 10)
    assert train.train(loaded, stopped) == cli.PREEMPTED
    monkeypatch.setattr(Preemption, "requested", lambda self, step: False)
    assert train.train(loaded, stopped) == 0
    assert same(end_of(stopped), end)
    assert train.train(loaded, stopped) == 0  # and is done


@pytest.mark.system
def test_a_training_that_diverges_again_and_again_stops(
    tiny, tmp_path, one_device, diverge, capsys
):
    diverge()
    keys = tiny(train__on_divergence="back", train__divergences=2)
    with pytest.raises(UserError, match=f"step {BAD}: the loss is "):
        train.train(config.load("quickstart", keys), tmp_path)
    assert capsys.readouterr().out.count("back       to step 6") == 2
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["optim"]["lowered"] == [[6, 0.5], [6, 0.5]]


@pytest.mark.parametrize("bad", ["loss", "gradient", "update"])
def test_an_update_that_is_not_finite_changes_nothing(bad):
    size = {"loss": 1.0, "gradient": 1.0, "update": 1.0, bad: jnp.inf}
    counts = [({"count": jnp.int32(n), "mean": jnp.float32(n)},) for n in (3, 4)]
    states = [
        TrainState(jnp.int32(n), {"w": jnp.float32(n)}, count, jax.random.key(0))
        for n, count in zip((5, 6), counts, strict=True)
    ]
    sums = losses.Sums(size["loss"], 1.0, {"nll": 1.0, "accuracy": 1.0})
    outcome = StepOutcome(size["gradient"], jnp.zeros(1), sums)
    updates = {"w": jnp.float32(size["update"])}
    kept, found = divergence.keep_if_finite(*states, updates, outcome)
    assert not found.good and found.applied == 3
    assert (kept.step, kept.params["w"], kept.opt_state[0]["mean"]) == (6, 5, 3)


def test_the_gradient_nearest_to_the_loss_is_named_first():
    names = [
        "decoder/layer_0/norm", "decoder/layer_10/norm", "decoder/layer_2/norm",
        "decoder/norm", "embedding/embedding", "encoder/layer_1/norm",
    ]  # fmt: skip
    params = {}
    for name in names:
        *folders, last = name.split("/")
        place = params
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = 0.0
    size = len(names)
    assert divergence.name_parameters(params, np.ones(size)) == []
    found = divergence.name_parameters(params, np.full(size, np.nan))
    assert found == [
        "decoder/norm", "decoder/layer_10/norm", "decoder/layer_2/norm",
        "decoder/layer_0/norm", "encoder/layer_1/norm", "embedding/embedding",
    ]  # fmt: skip
    assert divergence.in_words(found, 6).startswith("the gradients of all 6 parameters")
    assert divergence.in_words(found[:4], 6).endswith("layer_2/norm and 1 more")
    assert divergence.in_words([], 6) == "the gradients are finite"


def test_the_rate_is_lowered_from_a_step_on():
    chosen = config.base()
    before = optim.make_schedule(chosen)
    chosen.optim.lowered = ((10, 0.5), (10, 0.5), (20, 0.1))
    after = optim.make_schedule(chosen)
    for count, factor in {9: 1, 10: 0.25, 19: 0.25, 20: 0.025}.items():
        assert float(after(count)) == pytest.approx(factor * float(before(count)))


VALUES = "(3,) ((3,0),) ((-1,0.5),) ((1,2),) (('a',0.5),) ((True,0.5),) ((1,0.5,2),)"


@pytest.mark.parametrize("value", VALUES.split())
def test_what_is_no_step_and_factor_is_refused(value):
    with pytest.raises(UserError, match="optim.lowered = .*pairs of a step"):
        config.load("quickstart", {"optim.lowered": value})
