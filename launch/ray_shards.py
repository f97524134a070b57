"""Do the shards of a corpus on the devices of a Ray cluster.

    python launch/ray_shards.py --address auto --gpus_per_actor 1 -- \\
        predict --workdir RUN --input DIR --output OUT --shards 1000

What follows -- is a command, `predict` or `prepare`. All nodes must have the code, its
files and the current folder under the same names. Each actor holds GPUs, or a share of
the CPUs, and a process that loads the model once. Nodes may join and be lost at any
time: the shards of a lost one are given to others. If this command or the head of the
cluster is lost, start the same command again to continue. Exit codes: 0 all is done, 1
some lines or shards have failed, or Ray has, 2 a mistake, 75 the cluster was lost.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.shards import PLAN, workers

CHECK = 10.0  # seconds without an answer before the cluster is looked at
AHEAD = 16  # actors that wait for a place at a time, for which autoscalers add nodes
UNSTARTED = 10  # times in a row that actors may be lost before they start
FORWARDED = ("JAX_", "XLA_", "TRANSFORMER_JAX_", "PYTHONPATH")  # variables

logger = logging.getLogger("transformer_jax.ray_shards")


class Device:
    """An actor: a place in the cluster, and a process there that does shards."""

    def start(self, words: Sequence[str], folder: str) -> dict[str, Any]:
        try:
            os.chdir(folder)
        except OSError as error:
            problem = f"{folder} on {os.uname().nodename}: {error.strerror}: start in "
            return {"mistake": [f"{problem}a folder that all nodes have"]}
        self.worker = workers.Worker(make_command(words))
        return {}

    def do(self, shard: int) -> dict[str, Any]:
        """Return the counts of a shard, or what has ended the process."""
        self.worker.give(shard)
        try:
            answer = self.worker.read()
        except UserError as error:
            return {"mistake": error.problems}
        if answer:
            return answer
        code = self.worker.wait()
        return {"lost": f"a process ended with {code}", "code": code}


class Actors:
    """Actors with a place in the cluster, and some that wait for one.

    Each executes one call, to start or to do a shard. It then is given another, or is
    forgotten, which makes Ray end it.
    """

    def __init__(self, ray: Any, args: argparse.Namespace, words: Sequence[str]):
        cpus, gpus = args.cpus_per_actor, args.gpus_per_actor
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
        logger.info(f"actors     each with {cpus:g} CPUs and {gpus:g} GPUs")
        self.ray, self.words, self.most = ray, words, args.actors or sys.maxsize
        self.make = ray.remote(Device).options(num_cpus=cpus, num_gpus=gpus).remote
        self.calls: dict[Any, tuple[Any, int | None]] = {}  # (actor, its shard)

    def count_starting(self) -> int:
        return sum(shard is None for _, shard in self.calls.values())

    def are_working(self) -> bool:
        return self.count_starting() < len(self.calls)

    def start(self, wanted: int) -> None:
        """Make up to this number of actors wait for a place."""
        more = min(wanted, AHEAD) - self.count_starting()
        for _ in range(min(more, self.most - len(self.calls))):
            actor = self.make()
            self.calls[actor.start.remote(self.words, os.getcwd())] = actor, None

    def give(self, actor: Any, shard: int) -> None:
        self.calls[actor.do.remote(shard)] = actor, shard

    def wait(self) -> tuple[Any, int | None, dict[str, Any]] | None:
        """Return an actor whose call has ended, its shard and its answer, if any."""
        ended, _ = self.ray.wait(list(self.calls), timeout=CHECK)
        if not ended:
            return None
        actor, shard = self.calls.pop(ended[0])
        try:
            return actor, shard, self.ray.get(ended[0])
        except self.ray.exceptions.RayActorError as error:
            return actor, shard, {"lost": str(error).strip().splitlines()[-1]}

    def have_cluster(self) -> bool:
        """Ask whether the node of this process still is in the cluster.

        If the head was started anew, Ray tells only those that ask: it ends them.
        """
        here = self.ray.get_runtime_context().get_node_id()
        return any(n["NodeID"] == here and n["Alive"] for n in self.ray.nodes())


def main() -> int:
    args, words = read_arguments()
    cli.show_messages()
    command = make_command(words)
    planned = subprocess.run(
        [*command, f"--worker={PLAN}"], stdout=subprocess.PIPE, text=True
    )
    if planned.returncode:
        return planned.returncode
    plan = json.loads(planned.stdout)
    if plan["missing"]:
        actors = Actors(connect(args.address), args, words)
        if code := share(actors, plan["shards"], plan["missing"]):
            return code
    return subprocess.run(command).returncode  # completes the work, and says so


def read_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Return the options of the cluster, and the words of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--address", help="of the cluster (default: RAY_ADDRESS, or this machine)")
    add("--actors", type=int, metavar="N", help="the most (default: all that fit)")
    add("--gpus_per_actor", type=float, metavar="G", help="default: 1 if there are any")
    add("--cpus_per_actor", type=float, metavar="C", default=1.0, help="default: 1")
    add("command", choices=("predict", "prepare"), help="after --")
    add("options", nargs=argparse.REMAINDER, help="of the command")
    args = parser.parse_args()
    if args.actors is not None and args.actors < 1:
        parser.error(f"--actors {args.actors}: must be at least 1")
    return args, [args.command, *args.options]


def make_command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", f"transformer_jax.{words[0]}", *words[1:]]


def connect(address: str | None) -> Any:
    """Join a cluster, or start one on this machine; return Ray's module.

    It is left, or ended, when Python exits: Ray then shows the last messages first.
    """
    try:
        import ray
    except ImportError:
        raise UserError(
            "Ray is not installed: use pip install 'transformer_jax[ray]'"
        ) from None
    given = {k: v for k, v in os.environ.items() if k.startswith(FORWARDED)}
    try:
        ray.init(address, runtime_env={"env_vars": given}, logging_level="warning")
    except ConnectionError as error:
        raise UserError(
            f"--address {address}: {error}: give that of a running cluster, or leave "
            "it out to use this machine"
        ) from None
    return ray


def share(actors: Actors, shards: int, missing: Sequence[int]) -> int:
    """Do the missing shards on all devices, also those that come later."""
    queue, progress = workers.Queue(missing), workers.Progress(shards, len(missing))
    unstarted, together, said = 0, 0, False
    while queue.waiting or actors.are_working():
        actors.start(len(queue.waiting))
        returned = actors.wait()
        if returned is None:
            if not actors.have_cluster():
                logger.error("the cluster was lost: start the same command again")
                return cli.PREEMPTED
            if not said and not actors.are_working():
                said = True
                logger.info("actors     none has a place in the cluster yet")
            continue
        actor, shard, answer = returned
        if "mistake" in answer:
            raise UserError(*answer["mistake"])
        if answer.get("code") == cli.USER_MISTAKE:
            raise UserError("a node refuses the command: see its message above")
        if "lost" not in answer:
            unstarted = 0
            if shard is not None:
                progress.note(answer)
            if queue.waiting:
                actors.give(actor, queue.waiting.popleft())
        elif shard is not None:
            queue.put_back(shard, answer["lost"])
        elif together:  # the loss of a node or head, which has been counted
            together -= 1
        elif (unstarted := unstarted + 1) == UNSTARTED:
            raise UserError(
                f"actors were lost before they started, {UNSTARTED} times in a row: "
                f"{answer['lost']}: see that all nodes have transformer_jax"
            )
        else:
            together = actors.count_starting()
    progress.end()
    return queue.end()


if __name__ == "__main__":
    cli.prepare_streams()
    try:
        sys.exit(main())
    except UserError as error:
        cli.fail(*error.problems)
    except KeyboardInterrupt:
        sys.exit(130)
