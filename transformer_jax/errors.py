"""The one kind of error that is shown without a traceback: the user's to mend.

Entry points print its lines and exit with code 2. Library callers catch `UserError`.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """One or several problems, each a full sentence that names the way out."""

    def __init__(self, *problems: str):
        self.problems = problems
        super().__init__("\n".join(problems))


class Refused(UserError):
    """A line that cannot be answered, and why."""


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
