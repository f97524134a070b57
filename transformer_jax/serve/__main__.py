"""Answer over HTTP, with one run or several.

    python -m transformer_jax.serve --workdir runs/de_en
    curl localhost:8000/v1/predict -H 'content-type: application/json' \\
      -d '{"lines": ["Guten Tag!"]}'

The page at http://localhost:8000/ answers what is typed. Only this machine can connect,
unless `--host` says otherwise; then give a token, too. SIGTERM ends the service when
the requests that it has are answered.
"""

import importlib
import importlib.util
from typing import Any

from absl import flags

from transformer_jax import cli
from transformer_jax.base.errors import UserError

PACKAGES = "fastapi", "uvicorn", "prometheus_client", "python_multipart"
INSTALL = "pip install 'transformer_jax[serve]'"


def define_flags() -> None:
    """Define the flags of the command."""
    flags.DEFINE_multi_string(
        "workdir", [], "A run or a bundle, or NAME=RUN; repeat it for several."
    )
    cli.define_weights()
    flags.DEFINE_string("engine", "", "Another search engine: int8 or bfloat16.")
    cli.define_ensemble()
    flags.DEFINE_string("host", "127.0.0.1", "The address; 0.0.0.0 means all.")
    flags.DEFINE_integer("port", 8000, "The port; 0 means a free one.", 0, 65535)
    flags.DEFINE_string("token_file", "", "A file with the token that clients give.")
    flags.DEFINE_integer("max_lines", 1000, "The most lines of a request.", 1)
    flags.DEFINE_integer("max_bytes", 16 * 2**20, "The most bytes of a request.", 1)
    flags.DEFINE_integer("queue", 4000, "The most lines answered at a time.", 1)
    flags.DEFINE_float("rate", 0.0, "Requests a second of a client; 0: any.", 0.0)
    flags.DEFINE_float("timeout", 60.0, "The most seconds of an answer.", 0.1)


def main(overrides: dict[str, str]) -> int:
    """Serve until a signal ends it; return the exit code."""
    args: Any = flags.FLAGS
    cli.refuse_overrides(overrides)
    cli.check_weights(args.weights)
    if not args.workdir:
        raise UserError("--workdir is needed: the run directory to serve")
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"the service needs {name}: {INSTALL}")
    running = importlib.import_module("transformer_jax.serve.running")
    return running.serve(args)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
