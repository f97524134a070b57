"""Open the runs, listen, and end in order."""

import functools
import logging
import pathlib
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

import uvicorn

from transformer_jax import cli, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import find_runs
from transformer_jax.serve.app import make_app
from transformer_jax.serve.models import Limits, Model
from transformer_jax.serve.service import Service

logger = logging.getLogger("transformer_jax.serve")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")


def serve(args: Any) -> int:
    """Serve as the flags say, until a signal ends it; return the exit code."""
    limits = Limits(lines=args.max_lines)
    token = _read_token(args.token_file)
    ensemble = find_runs("ensemble", args.ensemble)
    opened = open_models(args.workdir, args.weights, limits, args.engine, ensemble)
    found = Service(opened, queue=args.queue, seconds=args.timeout)
    application = make_app(
        found,
        warm_up=functools.partial(_warm_up, found),
        most_bytes=args.max_bytes,
        rate=args.rate,
        token=token,
        hosts=LOOPBACK if args.host in LOOPBACK else ("*",),
    )
    return listen(application, args)


def open_models(
    places: Sequence[str],
    weights: str,
    limits: Limits,
    engine: str = "",
    ensemble: Sequence[str] = (),
) -> list[Model]:
    """Open runs, given as RUN or NAME=RUN; those of an ensemble join the only one."""
    if ensemble and len(places) > 1:
        raise UserError(
            f"--ensemble joins further runs to one, and --workdir names {len(places)}: "
            "serve the ensemble alone"
        )
    named: dict[str, str] = {}
    for entry in places:
        name, equals, place = entry.partition("=")
        if not equals or pathlib.Path(entry).exists():
            name, place = pathlib.PurePath(entry).name, entry
        if not NAME.fullmatch(name):
            raise UserError(
                f"--workdir={entry}: {name!r} is no name of a model (letters, digits "
                "and ._:-): give one, as in --workdir=NAME=RUN"
            )
        if name in named:
            raise UserError(
                f"--workdir={entry}: {named[name]} has the same name {name!r}: give "
                "others, as in --workdir=NAME=RUN"
            )
        named[name] = place
    mesh = sharding.local_mesh(1)
    opened = []
    for name, place in named.items():
        found = runs.load(place, weights, mesh, engine=engine, ensemble=ensemble)
        writer = getattr(found.task.inference, "writer", None)
        if writer is not None and writer.other is not None:
            raise UserError(
                f"--engine={engine} does not let clients share batches, and has no "
                "streams: choose int8 or bfloat16, or leave it out"
            )
        logger.info("%s: %r", name, found)
        opened.append(Model(name, found, limits))
    return opened


def _warm_up(found: Service) -> None:
    """Compile what the first clients need; then requests are answered."""
    began = time.monotonic()
    try:
        for model in found.models.values():
            model.warm_up()
        found.ready = True
        logger.info("ready after %.1f s", time.monotonic() - began)
    except Exception:
        logger.exception("the models cannot answer")


def _read_token(path: str) -> str:
    if not path:
        return ""
    with cli.open_file(path, "r", encoding="utf-8") as file:
        token = file.read().strip()
    if not token or not token.isascii() or len(token.split()) > 1:
        raise UserError(f"--token_file={path} must hold one word of ASCII characters")
    return token


def listen(application: Any, args: Any) -> int:
    """Listen until a signal ends it, and answer what has been asked."""
    if args.host not in LOOPBACK and not args.token_file:
        logger.warning(
            "warning    anyone who reaches %s may ask: give --token_file", args.host
        )
    # uvicorn raises the signal again when it has ended, which would be an error.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        application,
        host=args.host,
        port=args.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(args.timeout) + 5,
    )
    server = uvicorn.Server(config)
    shown = f"[{args.host}]" if ":" in args.host else args.host
    try:
        sock = config.bind_socket()
    except SystemExit:
        raise UserError(
            f"--host={args.host} --port={args.port}: this address cannot be used: "
            "another process has it, or it is not of this machine"
        ) from None
    sock.listen(config.backlog)  # clients may come from now on
    logger.info("http://%s:%d", shown, sock.getsockname()[1])
    server.run(sockets=[sock])
    logger.info("stopped")
    return 0
