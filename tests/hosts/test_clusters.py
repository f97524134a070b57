"""From an environment to the place of a process in a run."""

import socket

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.hosts.clusters import Place, find_place

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[03-06]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
}


@pytest.fixture
def place(monkeypatch):
    """A function: the place that an environment of these variables tells."""

    def find(**variables):
        for name in variables:  # JAX's own detection reads the real ones
            monkeypatch.setenv(name, variables[name])
        return find_place(timeout=5, environment=variables)

    return find


def test_without_a_cluster_a_process_trains_alone(place):
    assert place() is None
    assert place(**{**SLURM, "SLURM_NTASKS": "1"}) is None


def test_three_variables_name_the_place(place):
    found = place(COORDINATOR_ADDRESS="node0:1234", NUM_PROCESSES="3", PROCESS_ID="2")
    assert found == Place("node0:1234", 3, 2, "variables")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"NUM_PROCESSES": None}, "NUM_PROCESSES is not"),
        ({"PROCESS_ID": "3"}, "this is process 3 of 3"),
        ({"PROCESS_ID": "two"}, "PROCESS_ID=two: a number is needed"),
        (
            {"COORDINATOR_ADDRESS": "node0"},
            "COORDINATOR_ADDRESS=node0: a host and a port, such as node0:1234",
        ),
    ],
)
def test_variables_that_name_no_place_are_refused(place, changed, words):
    given = {"COORDINATOR_ADDRESS": "n:1", "NUM_PROCESSES": "3", "PROCESS_ID": "0"}
    given = {k: v for k, v in {**given, **changed}.items() if v}
    with pytest.raises(UserError, match=words):
        place(**given)


def test_slurm_is_found_and_one_task_on_a_node_has_all_its_gpus(place):
    found = place(**SLURM)
    assert (found.count, found.index, found.found_by) == (4, 2, "SLURM")
    assert found.address.startswith("node03:")
    assert found.devices is None


def test_tasks_that_share_a_node_take_a_gpu_each(place):
    shared = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "1"}
    assert place(**shared).devices == (1,)
    # SLURM may have given each its own GPU already.
    assert place(**shared, CUDA_VISIBLE_DEVICES="1").devices is None


def test_open_mpi_is_found(place):
    found = place(
        OMPI_MCA_orte_hnp_uri="1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
        OMPI_COMM_WORLD_SIZE="2",
        OMPI_COMM_WORLD_RANK="1",
        OMPI_COMM_WORLD_LOCAL_RANK="1",
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
    )
    assert (found.count, found.index, found.found_by) == (2, 1, "Open MPI")
    assert found.address.startswith("10.96.0.1:") and found.devices == (1,)


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}


def test_a_pod_of_an_indexed_job_finds_pod_0(place, monkeypatch):
    name = "transformer-train-0-3.transformer.default.svc.cluster.local"
    monkeypatch.setattr(socket, "getfqdn", lambda: name)
    found = place(**POD, NUM_PROCESSES="4")
    first = "transformer-train-0-0.transformer.default.svc.cluster.local:8476"
    assert (found.address, found.count, found.index) == (first, 4, 3)


def test_a_pod_never_trains_alone_in_silence(place, monkeypatch):
    with pytest.raises(UserError, match="pod 3 of an indexed Kubernetes job"):
        place(**POD)
    monkeypatch.setattr(socket, "getfqdn", lambda: "job-3")
    with pytest.raises(UserError, match="pod job-3 has no subdomain"):
        place(**POD, NUM_PROCESSES="4")


def test_a_pod_with_an_address_needs_no_number(place):
    found = place(**POD, COORDINATOR_ADDRESS="job-0.job:1", NUM_PROCESSES="4")
    assert (found.address, found.index) == ("job-0.job:1", 3)
