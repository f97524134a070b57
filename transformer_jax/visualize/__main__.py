"""Draw, explain or view: the first word of the command line selects which.

python -m transformer_jax.visualize NAME [RUN …] --output FILE
"""

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from transformer_jax import cli
from transformer_jax.base import entry_points
from transformer_jax.base.errors import nearest
from transformer_jax.visualize.flags import Drawing, Explain, define_flags
from transformer_jax.visualize.viewer import command as view

# Each has define_flags() and main(overrides).
COMMANDS: dict[str, Any] = {
    **{name: Drawing(name) for name in entry_points.names("figures")},
    "explain": Explain,
    "view": view,
}

__all__ = ["COMMANDS", "define_flags", "main"]


def main(argv: Sequence[str]) -> None:
    """Run the command that the first word names; the words after it are runs."""
    name = argv[1] if len(argv) > 1 else ""
    helped = any(word in cli.HELP for word in argv[1:])
    if name == "help" or (helped and name not in COMMANDS):
        with cli.reported():
            print(usage())
        return
    if name.startswith("-"):
        cli.fail(
            f"{name}: name what to draw first, as in `visualize attention {name}`: "
            f"{' | '.join(COMMANDS)}"
        )
    if name not in COMMANDS:
        what = f"there is no figure {name!r}" if name else "name what to draw"
        cli.fail(f"{what}: {' | '.join(COMMANDS)}.{nearest(name, list(COMMANDS))}")
    command, words = COMMANDS[name], []
    if getattr(command, "takes_runs", False):
        words = list(itertools.takewhile(lambda w: not w.startswith("-"), argv[2:]))
    rest = [*(f"--run={word}" for word in words), *argv[2 + len(words) :]]
    sys.argv = [f"{argv[0]} {name}", *rest]
    command.define_flags()
    cli.run(command.main)


def usage() -> str:
    """List the names and what each of them draws."""
    names = entry_points.names("figures")
    listed = [(name, entry_points.require("figures", name).__doc__) for name in names]
    listed.append(("explain", "Print one attention computation with its numbers."))
    listed.append(
        ("view", "Write a page that shows attention and search in a browser.")
    )
    lines = [f"  {name:<12}{(text or '').splitlines()[0]}" for name, text in listed]
    head = "python -m transformer_jax.visualize NAME [RUN …] --output FILE"
    return "\n".join([head, "", *lines, "", "NAME --help lists the options."])


if __name__ == "__main__":
    main(sys.argv)
