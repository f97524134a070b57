"""Fingerprints see every change, and are the same on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax import sharding
from transformer_jax.runs import signature

TYPES = (jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8, jnp.bool_)


def fingerprint(array):
    [found] = signature.examine({"x": array}).fingerprints.values()
    return found


@pytest.mark.parametrize("dtype", TYPES, ids=lambda kind: kind.__name__)
def test_any_change_of_an_element_changes_it(dtype):
    array = np.array(jnp.arange(35).reshape(5, 7).astype(dtype))
    other = array.copy()
    other.view(np.uint8)[3, 2] ^= 1
    assert fingerprint(array) != fingerprint(other)
    assert fingerprint(array) == fingerprint(array.copy())


def test_elements_that_change_places_change_it():
    array = np.arange(6.0).reshape(2, 3)
    assert fingerprint(array) != fingerprint(array[::-1])
    assert fingerprint(array) != fingerprint(array[:, ::-1])


def test_it_is_the_same_on_any_mesh():
    mesh = sharding.local_mesh(8)
    array, key = jnp.arange(16.0 * 3).reshape(16, 3), jax.random.key(7)
    split = jax.device_put(array, NamedSharding(mesh, PartitionSpec("data")))
    whole = jax.device_put(array, NamedSharding(mesh, PartitionSpec()))
    assert fingerprint(array) == fingerprint(split) == fingerprint(whole)
    assert fingerprint(key) == fingerprint(
        jax.device_put(key, mesh.devices[3, 0, 0, 0])
    )


def test_what_is_not_finite_is_found_by_its_name():
    tree = {"a": jnp.ones((2, 3)), "b": [jnp.array([1.0, -jnp.inf]), jnp.int32(5)]}
    assert signature.examine(tree).bad == ["b/[0]"]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "pieces.model").write_bytes(b"pieces")
    return "translation", {"num_heads": 8, "dropout_words": 0.1}, tmp_path


def test_parameters_mean_the_same_with_other_keys_of_no_meaning(run):
    task, model, folder = run
    signed = signature.identify(task, model, folder).content
    other = signature.identify(task, {**model, "dropout_words": 0.3, "new": 1}, folder)
    assert other.find_difference(signed) == ""


def test_edited_sizes_are_noticed_unless_the_run_had_them(run):
    task, model, folder = run
    signed = signature.identify(task, model, folder).content
    edited = {**model, "num_heads": 4}
    found = signature.identify(task, edited, folder).find_difference(signed)
    assert "trained with model.num_heads = 8, but config.json has 4" in found
    accepted = signature.identify(task, edited, folder, {"num_heads": [8]})
    assert accepted.find_difference(signed) == ""


def test_another_tokenizer_of_the_same_size_is_noticed(run):
    task, model, folder = run
    signed = signature.identify(task, model, folder).content
    (folder / "pieces.model").write_bytes(b"secret")
    found = signature.identify(task, model, folder).find_difference(signed)
    assert "was trained with another tokenizer/pieces.model" in found
