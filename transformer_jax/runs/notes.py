"""Check values in informative files, which may have been edited or truncated.

Values of another type than the package writes are left out, so that readers of such
files need not expect them.
"""

import math
from typing import Any


def fits(name: str, key: str, value: Any) -> bool:
    """Return whether a value has the type that the package writes for its key."""
    if name == "ledger.json":
        return _is_entry(value)
    if name == "versions.json" and key == "earlier_model":
        return isinstance(value, dict) and _all(list, value.values())
    kind: Any = KINDS[name].get(key, object) if name in KINDS else dict
    if not isinstance(value, kind) or (kind is not bool and value is True):
        return False
    if name == "result.json" and isinstance(value, dict):
        return all(map(_can_be_printed, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


# Other keys may have any type; all values of scores.json are objects.
KINDS: dict[str, dict[str, Any]] = {
    "versions.json": {"earlier": list},
    "result.json": {
        "step": int,
        "stopped_early": bool,
        "seconds": int | float,
        "weights": str,
        "scores": dict,
    },
}


def _is_entry(value: Any) -> bool:
    """Return whether a value of a ledger can be compared with the data."""
    if not isinstance(value, dict) or not isinstance(value.get("examples"), int):
        return False
    found = [value[k] for k in ("store", "fingerprint", "content") if k in value]
    return _all(str, found)


def _can_be_printed(scores: Any) -> bool:
    """Return whether scores of a split have all that is printed after training."""
    if not isinstance(scores, dict):
        return False
    shown = [scores[k] for k in ("loss", "perplexity", "accuracy") if k in scores]
    groups = scores.get("groups", {})
    return (
        isinstance(scores.get("summary"), str)
        and isinstance(scores.get("examples"), int)
        and _all(int | float, shown)
        and isinstance(groups, dict)
        and all(_can_be_printed(group) for group in groups.values())
    )


def _all(kind: Any, values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)
