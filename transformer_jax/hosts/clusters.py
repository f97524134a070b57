"""Find out from the environment which process of which run this is.

Sources are tried in this order: the three variables, a TPU pod, SLURM, Open MPI,
Kubernetes. JAX's own detection does most of the reading. It has two pitfalls: without
its Kubernetes client the pods of a job would each silently train alone, and with one
task on a node of eight GPUs it would use only one of them.
"""

import dataclasses
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

import jax

from transformer_jax.base.errors import UserError

try:
    from jax._src import clusters as jax_clusters
except ImportError:  # it is private, and may be gone
    jax_clusters: Any = None

PORT = 8476  # of process 0 in a Kubernetes job
VARIABLES = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")

# The readers of JAX, and a variable by which their jobs are recognised without them.
CLUSTERS = (
    ("TPU pod", "GkeTpuCluster", "TPU_WORKER_HOSTNAMES"),
    ("TPU pod", "GceTpuCluster", "TPU_WORKER_HOSTNAMES"),
    ("SLURM", "SlurmCluster", "SLURM_STEP_NODELIST"),
    ("Open MPI", "OmpiCluster", "OMPI_COMM_WORLD_SIZE"),
)


@dataclasses.dataclass(frozen=True)
class Place:
    """The address of process 0, the number of processes, and the index of this one.

    `find_place` makes it and `jax.distributed` starts with it. `found_by` is the
    source, such as SLURM, for messages.
    """

    address: str  # host and port of process 0
    count: int
    index: int
    found_by: str
    devices: tuple[int, ...] | None = None  # local devices to use; None means all


def find_place(
    timeout: int, environment: Mapping[str, str] = os.environ
) -> Place | None:
    """Return the place of this process, or None if it trains alone."""
    place = _find(timeout, environment)
    if place is None or place.count == 1:
        return None
    if not 0 <= place.index < place.count:
        raise UserError(
            f"this is process {place.index} of {place.count} ({place.found_by}): "
            f"processes are numbered from 0 to {place.count - 1}"
        )
    return place


def _find(timeout: int, environment: Mapping[str, str]) -> Place | None:
    if environment.get("COORDINATOR_ADDRESS"):
        return _by_variables(environment)
    for name, cluster, sign in CLUSTERS:
        kind: Any = getattr(jax_clusters, cluster, None)
        if kind is None and sign in environment:
            raise UserError(
                f"{sign} is set, but jax {jax.__version__} does not read the processes "
                f"of a {name} job: set {', '.join(VARIABLES)}"
            )
        if kind is None or not kind.is_env_present():
            continue
        if (count := kind.get_process_count()) == 1:
            return None
        port = environment.get("JAX_COORDINATOR_PORT")
        address = kind.get_coordinator_address(timeout, port)
        devices = _own_devices(environment, kind.get_local_process_id())
        return Place(address, count, kind.get_process_id(), name, devices)
    if "KUBERNETES_SERVICE_HOST" in environment:
        return _by_indexed_job(environment)
    return None


def _by_variables(environment: Mapping[str, str]) -> Place:
    found = dict(environment)
    if "JOB_COMPLETION_INDEX" in found:  # set by Kubernetes in an indexed job
        found.setdefault("PROCESS_ID", found["JOB_COMPLETION_INDEX"])
    if missing := [k for k in VARIABLES if k not in found]:
        raise UserError(
            f"COORDINATOR_ADDRESS is set, but {' and '.join(missing)} is not: "
            "a run of several processes needs all three (see launch/README.md)"
        )
    address, count, index = (found[k] for k in VARIABLES)
    if not re.fullmatch(r".+:\d+", address):
        raise UserError(
            f"COORDINATOR_ADDRESS={address}: a host and a port, such as node0:1234"
        )
    for name, value in (("NUM_PROCESSES", count), ("PROCESS_ID", index)):
        if not value.isdigit():
            raise UserError(f"{name}={value}: a number is needed")
    return Place(address, int(count), int(index), "variables")


def _own_devices(
    environment: Mapping[str, str], local: int | None
) -> tuple[int, ...] | None:
    """Return the GPU of a task that shares its node with others, otherwise None."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "several,")
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get(
        "OMPI_COMM_WORLD_LOCAL_SIZE", "1"
    )
    # SLURM writes "4(x2),3" for two nodes of four tasks and one of three.
    most = max(int(n) for n in re.findall(r"\d+", re.sub(r"\(x\d+\)", "", tasks)))
    if local is None or most == 1 or "," not in visible:
        return None
    return (local,)


def _by_indexed_job(environment: Mapping[str, str]) -> Place | None:
    """Read the place of a pod in an indexed Kubernetes job from its index."""
    index = environment.get("JOB_COMPLETION_INDEX")
    if index is None:  # a notebook, or a job of one pod
        return None
    count = environment.get("NUM_PROCESSES")
    if count is None:
        raise UserError(
            f"this is pod {index} of an indexed Kubernetes job, but NUM_PROCESSES does "
            "not say of how many: set it to the job's parallelism (see "
            "launch/jobset.yaml), or to 1 to train alone"
        )
    # Pods are named after their job and number: job-3.subdomain.namespace.svc...
    host, _, domain = socket.getfqdn().partition(".")
    first = re.sub(rf"-{index}$", "-0", host)
    if int(count) > 1 and not domain:
        raise UserError(
            f"pod {host} has no subdomain, so process 0 has no name to be found by: "
            "set the job's subdomain to a headless service, use a JobSet (see "
            "launch/jobset.yaml), or set COORDINATOR_ADDRESS"
        )
    return Place(
        f"{first}.{domain}:{PORT}", int(count), int(index), "Kubernetes indexed job"
    )
