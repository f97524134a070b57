"""Settings that a run decides once and keeps whenever it continues."""

import copy
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import hosts
from transformer_jax.runs.folder import Folder


def resolve(config: ConfigDict, folder: Folder, platform: str) -> ConfigDict:
    """Return a copy of the config with the settings that the run has decided.

    "auto" in `data.shapes_for` becomes the choice of the platform where the run began,
    by default this one, so that the plan stays the same on other hardware.
    `optim.lowered` takes over the reductions of the rate after earlier divergences.
    """
    config = copy.deepcopy(config)
    config.data.shapes_for = hosts.decide_in_first(
        lambda: _choose_shapes(config, folder, platform)
    )
    if not config.optim.lowered:
        lowered = hosts.decide_in_first(lambda: _read_lowered(folder))
        config.optim.lowered = tuple(
            tuple(pair) if isinstance(pair, list) else pair for pair in lowered
        )
    return config


def _choose_shapes(config: ConfigDict, folder: Folder, platform: str) -> str:
    if config.data.shapes_for != "auto":
        return config.data.shapes_for
    stored = folder.stored_config()
    began_for = stored["data"].get("shapes_for", "auto") if stored else platform
    return "tpu" if began_for == "tpu" else "auto"


def _read_lowered(folder: Folder) -> list[Any]:
    stored = folder.stored_config() or {}
    settings = stored.get("optim")
    found = settings.get("lowered") if isinstance(settings, dict) else None
    return found if isinstance(found, list) else []
