"""Answers by rounded matrices: the run's own search, with rounded parameters."""

import logging

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.corpora.phrasebook import generate
from transformer_jax.engines import rounded as engine
from transformer_jax.models.layers.rounded import (
    KINDS,
    Int8Matrix,
    round_matrices,
)

LINES = [pair.source for pair in generate("test", 11)]
HERE = sharding.local_mesh


def restore(params):
    """Return rounded matrices as floats."""

    def widen(leaf):
        return leaf.values * leaf.scale if isinstance(leaf, Int8Matrix) else leaf

    return jax.tree.map(widen, params, is_leaf=lambda x: isinstance(x, Int8Matrix))


@pytest.fixture(scope="module", params=KINDS)
def rounded(tiny_run, request):
    return transformer_jax.load(tiny_run, mesh=HERE(), engine=request.param)


def test_lines_are_answered_by_the_search_with_rounded_parameters(
    rounded, tiny_run, caplog
):
    caplog.set_level(logging.INFO, logger="transformer_jax")
    found = rounded.replies([*LINES, ""], beams=2)
    assert [reply.line for reply in found] == [*LINES, ""]
    assert "matrices of" in caplog.text and "of the time of float32 here" in caplog.text
    plain = transformer_jax.load(tiny_run, mesh=HERE())
    exact = plain.replies([*LINES, ""], beams=2)
    # The model is hardly trained; what rounding changes is small, but it is there.
    pairs = [(a, b) for a, b in zip(found, exact, strict=True) if a.text == b.text]
    assert len(pairs) > len(LINES) / 2
    differences = [abs(a.score - b.score) for a, b in pairs if a.line]
    assert 0 < max(differences) < 0.05 * max(abs(b.score) for _, b in pairs if b.line)
    # Scores of given pairs and vectors are the run's own, with all digits.
    np.testing.assert_array_equal(rounded.encode(LINES), plain.encode(LINES))


def test_an_answer_does_not_depend_on_its_batch(rounded):
    together = rounded.predict(LINES)
    assert [rounded.predict(line) for line in LINES[:4]] == together[:4]


def test_matrices_and_tables_are_rounded_and_nothing_else(run):
    params = round_matrices(run.params)
    flat = jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda x: isinstance(x, Int8Matrix)
    )
    for path, leaf in flat:
        name = sharding.path_name(path).rpartition("/")[2]
        assert isinstance(leaf, Int8Matrix) == (name in ("kernel", "embedding")), name
    restored, given = restore(params), jax.tree.leaves(run.params)
    for a, b in zip(jax.tree.leaves(restored), given, strict=True):
        assert np.abs(a - b).max() <= np.abs(b).max() / 253
        assert (a.ndim == 2) == bool(np.abs(a - b).max() > 0)


def test_other_parameters_are_rounded_anew(rounded):
    change = rounded.task.inference.writer.change
    first = change(rounded.params)
    assert change(rounded.params) is first
    assert change(jax.tree.map(lambda x: x + 0, rounded.params)) is not first


@pytest.mark.parametrize("kind, said", [("int8", "8 bits"), ("bfloat16", "bfloat16")])
def test_a_machine_on_which_rounded_products_are_slower_is_told(
    run, monkeypatch, kind, said
):
    params = round_matrices(run.params, kind)
    monkeypatch.setattr(engine, "compare_speed", lambda *sizes: 1.7)
    assert (
        f"are rounded to {said}; products take 1.70 of the time of float32 here, "
        in (engine.describe(params, kind))
    )
    assert "so float32 is faster: leave --engine out" in engine.describe(params, kind)
    monkeypatch.setattr(engine, "compare_speed", lambda *sizes: 0.3)
    assert engine.describe(params, kind).endswith("0.30 of the time of float32 here")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(7, 24), (24, 7)])
def test_the_speed_of_any_matrix_is_measured(shape, kind):
    assert 0 < engine.compare_speed(kind, *shape) < float("inf")


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_and_several_devices_are_refused(tiny_run, run, kind):
    with pytest.raises(UserError, match=f"{kind} has no setting: leave it out"):
        transformer_jax.load(tiny_run, mesh=HERE(), engine=f"{kind}:fast")
    if run.mesh.size > 1:
        with pytest.raises(UserError, match="answers on one device, not on"):
            transformer_jax.load(tiny_run, engine=kind)


@pytest.mark.system
@pytest.mark.parametrize(
    "config, changes",
    [
        ("language", {"data.window": "32", "decode.max_length": "20"}),
        ("recurrent", {"data.max_length": "64"}),
        ("speech", {"data.max_length": "900", "data.batch_tokens": "7300"}),
    ],
)
def test_every_kind_of_writer_answers(config, changes, tiny_run_of):
    folder = tiny_run_of(config, **changes)
    found, plain = (
        transformer_jax.load(folder, mesh=HERE(), engine=engine)
        for engine in ("int8", "")
    )
    records = plain.records("validation")
    asked = [plain.task.inference.question(records[i]) for i in range(3)]
    assert len(found.predict(asked)) == len(plain.predict(asked)) == 3
