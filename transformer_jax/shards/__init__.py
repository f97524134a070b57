"""Do work on a large corpus shard by shard, in any number of processes."""

import re
from typing import Any

from transformer_jax.base.errors import UserError

MOST = 100_000  # shards
STDIN, PLAN = "stdin", "plan"  # values of --worker
SHARE = re.compile(r"(\d+)/(\d+)")  # others


def define_flags(flags: Any) -> None:
    """Define the flags that the commands share whose work is cut into shards."""
    flags.DEFINE_integer("shards", 0, "Cut --input into so many, --output is a folder.")
    flags.DEFINE_integer("workers", 0, "Processes that share the shards, on this host.")
    flags.DEFINE_string("worker", "", "The share of this process, of all: 3/8, from 0.")


def check_flags(args: Any) -> None:
    """Refuse values of these flags that make no sense, before time is spent."""
    if not args.shards:
        for name in ("workers", "worker"):
            if args[name].value:
                raise UserError(f"--{name} shares shards: give their number: --shards")
        return
    if not 1 <= args.shards <= MOST:
        raise UserError(f"--shards={args.shards}: must be 1 to {MOST:,}")
    if args.workers < 0:
        raise UserError(f"--workers={args.workers}: must be at least 1")
    if args.workers and args.worker:
        raise UserError("--workers starts processes with a --worker each: give one")
    if args.worker and args.worker not in (STDIN, PLAN):
        share = SHARE.fullmatch(args.worker)
        if not share or int(share[1]) >= int(share[2]):
            raise UserError(
                f"--worker={args.worker}: give a share such as 0/8 to 7/8, or {STDIN}"
            )
