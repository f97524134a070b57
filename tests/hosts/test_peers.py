"""Processes that meet, and those that do not come or are lost (threads stand in)."""

import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.hosts import peers
from transformer_jax.hosts.clusters import Place
from transformer_jax.hosts.peers import Absent, meet


@pytest.fixture
def address():
    with socket.create_server(("", 0)) as free:
        return f"localhost:{free.getsockname()[1]}"


@pytest.fixture
def ends(monkeypatch):
    """A queue of the (exit code, last line) of processes that end themselves."""
    found = queue.Queue()
    monkeypatch.setattr(peers, "end_at_once", lambda *end: found.put(end))
    return found


@pytest.fixture
def meet_all(address):
    """A function: meet with so many processes, of which some come; their outcomes."""
    opened = []

    def run(count, present, timeout=20.0, counts=None):
        def one(order):
            size = (counts or {}).get(order, count)
            place = Place(address, size, present[order], "test")
            try:
                found = meet(place, timeout, say=lambda line: None)
            except (Absent, UserError) as error:
                return error
            opened.append(found)
            return found

        with ThreadPoolExecutor(len(present)) as pool:
            return list(pool.map(one, range(len(present))))

    yield run
    for found in opened:
        found.announce(0)
        for link in found._links.values():
            link.socket.close()


def test_all_meet_and_know_each_other(meet_all):
    found = meet_all(3, [2, 0, 1])
    assert [p.index for p in found] == [2, 0, 1]
    host = socket.gethostname()
    assert all(p.hosts == [host] * 3 for p in found)
    assert found[0].name(1) == f"process 1 ({host})"


def test_who_has_not_come_is_named_to_all_who_have(meet_all):
    for problem in meet_all(4, [0, 2], timeout=2.0):
        assert isinstance(problem, Absent)
        assert "processes 1, 3 of 4" in str(problem)


def test_a_process_0_that_has_not_come_is_named(meet_all):
    [problem] = meet_all(2, [1], timeout=1.0)
    assert isinstance(problem, Absent) and "process 0 of 2" in str(problem)


def test_two_processes_of_one_number_are_refused(meet_all):
    found = meet_all(3, [0, 1, 1])
    assert all("two processes have the number 1" in str(error) for error in found)


def test_processes_of_different_runs_are_refused(meet_all):
    found = meet_all(2, [0, 1], counts={1: 3})
    assert all("same number of processes" in str(error) for error in found)


def test_a_stranger_on_the_port_is_passed_over(meet_all, address):
    host, _, port = address.rpartition(":")

    def call():
        for _ in range(100):
            try:
                with socket.create_connection((host, int(port)), 1.0) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                return
            except ConnectionRefusedError:
                threading.Event().wait(0.05)

    caller = threading.Thread(target=call)
    caller.start()
    [first] = meet_all(2, [0], timeout=3.0)
    caller.join()
    assert isinstance(first, Absent) and "process 1 of 2" in str(first)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_dies_is_named_by_the_others(meet_all, ends, lost):
    found = meet_all(2, [0, 1])
    for link in found[lost]._links.values():
        link.socket.shutdown(socket.SHUT_RDWR)  # as the kernel does of a dead process
    both = [ends.get(timeout=30) for _ in range(2)]  # here each sees the other go
    code, line = next(e for e in both if e[1].startswith(f"error: process {lost} "))
    assert code == 75 and "is lost" in line


def test_a_mistake_of_one_process_is_the_exit_code_of_all(meet_all, ends):
    found = meet_all(2, [0, 1])
    found[1].announce(2)
    for link in found[1]._links.values():
        link.socket.shutdown(socket.SHUT_RDWR)
    code, line = ends.get(timeout=30)
    assert code == 2 and "has ended with exit code 2" in line


def test_a_process_that_is_done_is_not_lost(meet_all, ends):
    found = meet_all(2, [0, 1])
    found[1].announce(0)
    for link in found[1]._links.values():
        link.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(queue.Empty):
        ends.get(timeout=2.0)
    assert found[0].silent() == []


def test_processes_that_fail_together_do_not_wait(meet_all):
    found = meet_all(2, [0, 1])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda p: p.leave(2), found))
    assert all(p._all_end.is_set() for p in found)
