"""Only rows are split over the slow network between the slices of a machine."""

import types

import jax
import numpy as np
import pytest

from transformer_jax import sharding
from transformer_jax.base.errors import UserError


def test_a_mesh_that_leaves_devices_over_is_refused():
    sizes = {"data": 3, "fsdp": 1, "tensor": 1, "sequence": 1}
    said = (
        "the mesh data 3 × fsdp 1 × tensor 1 × sequence 1 does not fill the 8 devices: "
        "the sizes must multiply to 8, or one of them be -1"
    )
    with pytest.raises(UserError, match=said):
        sharding.mesh_shape(sizes, 8)


@pytest.fixture
def machine(monkeypatch):
    """A function: what jax finds on a machine of so many slices of four devices."""

    def find(slices):
        devices = [
            types.SimpleNamespace(
                id=i, slice_index=i // 4, process_index=i // 4, platform="gpu"
            )
            for i in np.random.default_rng(0).permutation(4 * slices).tolist()
        ]
        for device in devices:
            device.device_kind = "a kind"
        monkeypatch.setattr(jax, "devices", lambda: devices)
        monkeypatch.setattr(jax, "device_count", lambda: len(devices))
        monkeypatch.setattr(sharding, "Mesh", lambda devices, *_, **__: devices)
        return devices

    return find


@pytest.mark.parametrize(
    ("sizes", "within"),
    [
        ({"data": -1, "fsdp": 1, "tensor": 2, "sequence": 1}, (2, 1, 2, 1)),
        ({"data": 2, "fsdp": -1, "tensor": 1, "sequence": 1}, (1, 4, 1, 1)),
        ({"data": 1, "fsdp": 4, "tensor": 2, "sequence": 1}, (1, 2, 2, 1)),
    ],
)
def test_each_slice_holds_a_whole_part_of_the_mesh(machine, sizes, within):
    machine(2)
    mesh = sharding.make_mesh(sizes)
    assert mesh.shape == sharding.mesh_shape(sizes, 8)
    found = np.vectorize(lambda device: device.slice_index)(mesh)
    for first in np.ndindex(*(m // w for m, w in zip(mesh.shape, within, strict=True))):
        begin = [i * w for i, w in zip(first, within, strict=True)]
        part = tuple(slice(b, b + w) for b, w in zip(begin, within, strict=True))
        assert len(np.unique(found[part])) == 1


def test_both_kinds_of_rows_may_go_over_the_slices(machine):
    assert sharding.slice_shape((2, 6, 1, 1), machine(3)) == [1, 3, 1, 1]
    assert sharding.slice_shape((6, 4, 1, 1), machine(6)) == [6, 1, 1, 1]
    assert sharding.slice_shape((2, 12, 1, 1), machine(6)) == [2, 3, 1, 1]


def test_other_meshes_are_left_to_jax(machine):
    assert sharding.slice_shape((1, 1, 8, 1), machine(2)) is None
    assert sharding.slice_shape((4, 1, 1, 1), machine(1)) is None
