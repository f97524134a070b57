"""Errors that the user can fix, shown without a traceback.

Commands print the problems and exit with code 2. Library callers catch `UserError`.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """One or more problems, each a full sentence that says how to solve it."""

    def __init__(self, *problems: str):
        self.problems = problems
        super().__init__("\n".join(problems))


class Refused(UserError):
    """Raised for an input that is not answered, read or shown; the message says why."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean …?' with the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
