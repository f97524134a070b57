"""Look inside a run: outputs by path, loss, gradient, outputs replaced on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, PAD

SOURCE, TARGET = "O gato dorme.", "The cat sleeps."


@pytest.fixture(scope="module")
def run(tiny_run_of):
    changes = {"model.encoder_layers": "2", "model.remat": "full"}
    return transformer_jax.load(tiny_run_of("quickstart", **changes))


def test_logits_are_those_that_score_the_pair(run):
    inside = run.forward(SOURCE, TARGET)
    target = inside.batch["target"]
    logits = inside.logits.at[..., jnp.array([PAD, BOS])].set(-np.inf)  # no answers
    found = np.take_along_axis(
        np.asarray(jax.nn.log_softmax(logits)), target[..., None], axis=-1
    )
    total = (found[..., 0] * (target != 0)).sum()
    assert inside.logits.shape[-1] == run.task.data.target_tokenizer.vocab_size
    assert total == pytest.approx(run.score(SOURCE, TARGET), rel=1e-4)


def test_every_module_has_its_output_by_the_path_of_its_parameters(run):
    inside = run.forward(SOURCE, TARGET)
    rows, source = inside.batch["source"].shape
    target = inside.batch["target"].shape[1]
    layer = inside.activations["encoder/layer_1/feed_forward"]
    assert layer.shape == (rows, source, 16)
    assert inside.activations["decoder"].shape == (rows, target, 16)
    paths = {"/".join(k.key for k in path[:-1]) for path, _ in leaves(run.params)}
    assert paths - {"embedding"} <= inside.activations.keys()
    assert not [path for path in inside.activations if "rop" in path]  # dropout
    cross = inside.attention["decoder/layer_0/cross_attention"]
    assert cross.shape == (rows, 2, target, source)
    np.testing.assert_allclose(cross.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(inside.outputs.cross_attention[0], cross, atol=1e-6)


def leaves(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


def test_an_output_of_another_sentence_can_take_its_place(run):
    other = "O rato dorme."
    there = run.forward(other, TARGET)
    here = run.forward(SOURCE, TARGET)
    if there.batch["source"].shape != here.batch["source"].shape:
        pytest.skip("the sentences have different numbers of pieces")
    patched = run.forward(
        SOURCE, TARGET, patch={"encoder": lambda _: there.activations["encoder"]}
    )
    np.testing.assert_allclose(patched.logits, there.logits, atol=1e-5)
    assert patched.loss == pytest.approx(there.loss, rel=1e-5)
    assert np.abs(patched.logits - here.logits).max() > 1e-5


def test_a_sublayer_without_output_is_left_out(run):
    """Patched to 0, it adds nothing to the residual stream, as without its matrix."""
    name = "encoder/layer_0/feed_forward"
    patched = run.forward(SOURCE, TARGET, patch={name: jnp.zeros_like})
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (
            0 * x if f"{name}/outer" in "/".join(k.key for k in path) else x
        ),
        run.params,
    )
    run = transformer_jax.runs.run.dataclasses.replace(run, params=params)
    np.testing.assert_allclose(
        patched.logits, run.forward(SOURCE, TARGET).logits, atol=1e-5
    )


def test_the_gradient_is_that_of_the_loss(run):
    slope = run.gradient(SOURCE, TARGET)
    kernel = run.params["decoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]
    steepest = np.unravel_index(
        np.abs(slope["decoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]).argmax(),
        kernel.shape,
    )
    losses = []
    for step in (-1e-2, 1e-2):

        def move(path, x, step=step):
            name = "/".join(k.key for k in path)
            moved = name == "decoder/layer_0/feed_forward/inner/kernel"
            return x.at[steepest].add(step) if moved else x

        params = jax.tree_util.tree_map_with_path(move, run.params)
        moved = transformer_jax.runs.run.dataclasses.replace(run, params=params)
        losses.append(moved.loss(SOURCE, TARGET))
    found = slope["decoder"]["layer_0"]["feed_forward"]["inner"]["kernel"][steepest]
    assert found == pytest.approx((losses[1] - losses[0]) / 2e-2, rel=0.05)


@pytest.mark.system
def test_lists_records_and_own_answers_are_read_too(run):
    whole = run.forward([SOURCE] * 2, [TARGET] * 2)
    single = run.forward({"source": SOURCE, "target": TARGET})
    assert whole.loss == pytest.approx(single.loss, rel=1e-5)
    assert run.forward([{"source": SOURCE, "target": TARGET}]).loss == single.loss
    answer = run.predict(SOURCE)
    assert run.loss(SOURCE) == pytest.approx(run.loss(SOURCE, answer), rel=1e-5)
    assert run.flops(SOURCE, TARGET) < run.flops([SOURCE] * 3, [TARGET] * 3)


def test_what_is_no_example_and_no_output_is_refused(run):
    with pytest.raises(UserError, match="an example has source and target, but 3"):
        run.forward(SOURCE, TARGET, TARGET)
    with pytest.raises(UserError, match="an example has source and target, but 0"):
        run.forward()
    with pytest.raises(UserError, match="there are 2 sources, but 1 targets"):
        run.forward([SOURCE] * 2, [TARGET])
    with pytest.raises(UserError, match="the model has no output 'encodr'"):
        run.forward(SOURCE, TARGET, patch={"encodr": lambda x: x})


@pytest.mark.parametrize(
    ("spec", "values", "output"),
    [
        ("opinions:label", ("a good film", "positive"), "head"),
        pytest.param(
            "language:phrasebook",
            ("The cat sleeps.",),
            "decoder",
            marks=pytest.mark.system,
        ),
        pytest.param(
            "masked:phrasebook",
            ("The cat sleeps.",),
            "encoder",
            marks=pytest.mark.system,
        ),
    ],
)
def test_other_tasks_can_be_looked_into(tiny_run_of, spec, values, output):
    small = {"data.batch_tokens": "2080"} if ":phrasebook" in spec else {}
    run = transformer_jax.load(tiny_run_of(spec, **small))
    inside = run.forward(*values)
    assert np.isfinite(inside.loss)
    assert output in inside.activations
    assert any(np.abs(x).max() > 0 for x in jax.tree.leaves(run.gradient(*values)))
    if inside.outputs is None:
        with pytest.raises(UserError, match="returns no logits by themselves"):
            _ = inside.logits
