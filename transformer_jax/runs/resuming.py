"""Compare a config with that of the run it continues, and keep what the run decided."""

import copy
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import hosts, optim
from transformer_jax.config.defaults import base, items

ReadStored = Callable[
    [], dict[str, Any] | None
]  # the config of the run, if there is one

# Options that may differ when a run is continued, because they do not change what is
# learned from which example. All others must be as in the run's config.json.
MAY_CHANGE_ON_RESUME = (
    "train.steps",  # unless the schedule ends there: see `differences`
    "train.patience",
    "train.on_divergence",
    "train.divergences",
    "train.teacher",  # compared by its parameters, not by its place
    "model.scan_layers",  # parameters and dropout are the same
    "model.remat",
    "targets",
    "card",
    "imports",
    "data.folder",  # the data are compared by their content, not by their place
    "mesh",
    "log",
    "eval",
    "checkpoint",
    "timeout",
)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Describe each option that differs and may not change when a run is continued."""
    may_change = set(MAY_CHANGE_ON_RESUME)
    if new["optim.schedule"] in optim.ENDING and not new["optim.decay_steps"]:
        may_change.remove("train.steps")
    # An option that is newer than the run had its default value, in JSON's form.
    default = dict(items(base(new["task"], new["model.name"])))
    old = {k: list(v) if type(v) is tuple else v for k, v in default.items()} | old
    lines = []
    if bool(old.get("train.teacher")) != bool(new.get("train.teacher")):
        may_change.remove("train.teacher")
    for key in sorted({*old, *new}):
        free = any(key == k or key.startswith(k + ".") for k in may_change)
        if not free and old.get(key) != new.get(key):
            lines.append(f"{key}: {old.get(key)!r} in the run, now {new.get(key)!r}")
    return lines


def resolve(config: ConfigDict, read_stored: ReadStored, platform: str) -> ConfigDict:
    """Return a copy of the config with the settings that the run has decided.

    "auto" in `data.shapes_for` becomes the choice of the platform where the run began,
    by default this one, so that the plan stays the same on other hardware.
    `optim.lowered` takes over the reductions of the rate after earlier divergences.
    """
    config = copy.deepcopy(config)
    config.data.shapes_for = hosts.decide_in_first(
        lambda: _choose_shapes(config, read_stored, platform)
    )
    if not config.optim.lowered:
        lowered = hosts.decide_in_first(lambda: _read_lowered(read_stored))
        config.optim.lowered = tuple(
            tuple(pair) if isinstance(pair, list) else pair for pair in lowered
        )
    return config


def _choose_shapes(config: ConfigDict, read_stored: ReadStored, platform: str) -> str:
    if config.data.shapes_for != "auto":
        return config.data.shapes_for
    stored = read_stored()
    began_for = stored["data"].get("shapes_for", "auto") if stored else platform
    return "tpu" if began_for == "tpu" else "auto"


def _read_lowered(read_stored: ReadStored) -> list[Any]:
    stored = read_stored() or {}
    settings = stored.get("optim")
    found = settings.get("lowered") if isinstance(settings, dict) else None
    return found if isinstance(found, list) else []
