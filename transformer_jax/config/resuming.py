"""Compare a config with that of the run it would continue."""

from typing import Any

from transformer_jax import optim
from transformer_jax.config.defaults import base, items

# Keys that may differ when a run is continued, because they do not change what is
# learned from which example. All others must be as in the run's config.json.
MAY_CHANGE_ON_RESUME = (
    "train.steps",  # unless the schedule ends there: see `differences`
    "train.patience",
    "train.on_divergence",
    "train.divergences",
    "model.scan_layers",  # parameters and dropout are the same
    "model.remat",
    "targets",
    "imports",
    "data.folder",  # the data are compared by their content, not by their place
    "mesh",
    "log",
    "eval",
    "checkpoint",
    "timeout",
)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Describe each key that differs and may not change when a run is continued."""
    may_change = set(MAY_CHANGE_ON_RESUME)
    if new["optim.schedule"] in optim.ENDING and not new["optim.decay_steps"]:
        may_change.remove("train.steps")
    # A key that is newer than the run had its default value, in the form of JSON.
    default = dict(items(base(new["task"], new["model.name"])))
    old = {k: list(v) if type(v) is tuple else v for k, v in default.items()} | old
    lines = []
    for key in sorted({*old, *new}):
        free = any(key == k or key.startswith(k + ".") for k in may_change)
        if not free and old.get(key) != new.get(key):
            lines.append(f"{key}: {old.get(key)!r} in the run, now {new.get(key)!r}")
    return lines
