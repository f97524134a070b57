"""Tasks and the protocols by which commands know what a task can do."""

import importlib
import inspect
import pkgutil

import pytest

from transformer_jax import tasks
from transformer_jax.tasks import protocols

KINDS = [
    protocols.ReadsPairs, protocols.Aligns, protocols.ReadsTexts, protocols.Embeds,
    protocols.ShowsAttention,
]  # fmt: skip


def classes():
    """All classes of the tasks and of their parts."""
    found = {}
    for module in pkgutil.walk_packages(tasks.__path__, f"{tasks.__name__}."):
        content = vars(importlib.import_module(module.name))
        found |= {one: module.name for one in content.values() if isinstance(one, type)}
    return [one for one in found if one not in KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_with_the_name_of_a_protocol_has_its_parameters(kind):
    """A protocol is recognised by names alone, and is called with its parameters."""
    names = [name for name in vars(kind) if not name.startswith("_")]
    having = [one for one in classes() if all(hasattr(one, name) for name in names)]
    assert having
    for one in having:
        for name in names:
            own, asked = (inspect.signature(getattr(x, name)) for x in (one, kind))
            assert list(own.parameters) == list(asked.parameters), (one, name)
