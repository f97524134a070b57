"""Look into runs: the first word of the command line says how.

python -m transformer_jax.visualize view --workdir RUN --text "…" --output F.html
"""

import sys
from collections.abc import Sequence

from transformer_jax import cli
from transformer_jax.visualize.viewer import command

COMMANDS = {"view": command}  # each has define_flags() and main(overrides)


def main(argv: Sequence[str]) -> None:
    """Run the command that the first word names."""
    name = argv[1] if len(argv) > 1 else ""
    if name not in COMMANDS:
        cli.fail(f"name what to draw: {' | '.join(COMMANDS)}")
    sys.argv = [f"{argv[0]} {name}", *argv[2:]]
    COMMANDS[name].define_flags()
    cli.run(COMMANDS[name].main)


if __name__ == "__main__":
    main(sys.argv)
