"""Connect to the other processes of a run, and notice when one of them is lost.

Process 0 waits for the others on the coordinator's port before JAX does, so that a
message can name missing processes. The connections stay open as a star around process
0. When a process dies, its kernel closes its connection, and the others know at once. A
silent process only counts as lost when JAX says so, because Python may be busy for
minutes.
"""

import contextlib
import dataclasses
import faulthandler
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable

from transformer_jax.base.errors import UserError
from transformer_jax.hosts.clusters import Place
from transformer_jax.hosts.ending import HUNG, RESTART, end_at_once

PING = 5.0  # seconds between heartbeats
SILENT = 15.0  # seconds without one after which a process is named as silent
GRACE = 5.0  # seconds that a failing process waits for others that also fail


class Absent(Exception):
    """Raised for processes that did not connect; the message lists those that did."""


@dataclasses.dataclass
class _Link:
    """The connection to another process."""

    socket: socket.socket
    heard: float = dataclasses.field(default_factory=time.monotonic)
    buffer: bytes = b""
    code: int | None = None  # the exit code that the process has announced

    def send(self, *words: object) -> None:
        """Send a line, ignoring errors: a lost process is noticed in other ways."""
        with contextlib.suppress(OSError):
            self.socket.send(" ".join(map(str, words)).encode() + b"\n")


class Peers:
    """The connections of a process: to all others from process 0, otherwise to it."""

    def __init__(self, index: int, hosts: list[str], sockets: dict[int, socket.socket]):
        """Start the thread that listens to the other processes.

        `index` is that of this process, `hosts` has the host name of every process, and
        `sockets` the connections by the index of the other process.
        """
        self.index, self.hosts = index, hosts
        self._links = {i: _Link(connection) for i, connection in sockets.items()}
        self._left: int | None = None  # the exit code of this process
        self._all_end = threading.Event()
        for connection in sockets.values():
            connection.setblocking(False)
        threading.Thread(target=self._watch, name="peers", daemon=True).start()

    def name(self, index: int) -> str:
        """Name a process, as in "process 3 (node1)"."""
        return f"process {index} ({self.hosts[index]})"

    def silent(self) -> list[int]:
        """List the processes that have sent no heartbeat for a while."""
        now = time.monotonic()
        return [i for i, link in self._links.items() if now - link.heard > SILENT]

    def announce(self, code: int) -> None:
        """Tell the others the exit code of this process."""
        self._left = code
        for link in self._links.values():
            link.send("ends", code)
        self._check_all_end()

    def leave(self, code: int) -> None:
        """Announce a failure, and give others time to fail with the same error."""
        self.announce(code)
        self._all_end.wait(GRACE)

    def _watch(self) -> None:
        selector, pinged = selectors.DefaultSelector(), 0.0
        for i, link in self._links.items():
            selector.register(link.socket, selectors.EVENT_READ, i)
        while True:
            for key, _ in selector.select(timeout=1.0):
                if not self._read(key.data):
                    selector.unregister(key.fileobj)
                    self._note_closed(key.data)
            if time.monotonic() - pinged >= PING:
                pinged = time.monotonic()
                for link in self._links.values():
                    link.send("")

    def _read(self, i: int) -> bool:
        """Read the messages of a process; return False if it is gone."""
        link = self._links[i]
        try:
            content = link.socket.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        link.heard = time.monotonic()
        *lines, link.buffer = (link.buffer + content).split(b"\n")
        for line in lines:
            match line.decode().split():
                case ["ends", code]:
                    link.code = int(code)
                    self._check_all_end()
                case ["all"]:
                    self._all_end.set()
                case ["lost", number, code]:
                    self._end_by_loss(int(number), int(code))
        return bool(content)

    def _note_closed(self, i: int) -> None:
        code = self._links[i].code
        if code != 0:  # otherwise it has ended normally
            self._end_by_loss(i, -1 if code is None else code)

    def _end_by_loss(self, i: int, code: int) -> None:
        """End this process because another is lost; process 0 tells the others."""
        for link in self._links.values() if self.index == 0 else ():
            link.send("lost", i, code)
        if self._left is not None:  # this one is ending anyway
            self._all_end.set()
            return
        why = "is lost: it was killed, has crashed, or its host is gone"
        if code >= 0:
            why = f"has ended with exit code {code}: its own messages say why"
        self.end_by_loss([i], why, code)

    def end_by_loss(self, lost: list[int], why: str, code: int = -1) -> None:
        """End this process with a line that names the lost processes.

        A user error (2) is passed on; after any other, starting again may help.
        """
        if code == HUNG:  # it may have been waiting for this process
            faulthandler.dump_traceback(file=2, all_threads=True)
        names = ", ".join(map(self.name, lost))
        end_at_once(
            code if code == 2 else RESTART,
            f"error: {names} of {len(self.hosts)} {why}. This is "
            f"{self.name(self.index)}; the run continues from its last checkpoint "
            "when the same command is started again",
        )

    def _check_all_end(self) -> None:
        codes = [self._left, *(link.code for link in self._links.values())]
        if self.index == 0 and None not in codes:
            for link in self._links.values():
                link.send("all")
            self._all_end.set()


def meet(place: Place, timeout: float, say: Callable[[str], None]) -> Peers:
    """Wait until all processes of a run are connected."""
    own, until = socket.gethostname(), time.monotonic() + timeout
    if place.index:
        hosts, connection = _join(place, own, until, timeout)
        return Peers(place.index, hosts, {0: connection})
    found = _collect(place, own, until, timeout, say)
    hosts = [own, *(found[i][0] for i in range(1, place.count))]
    for _, connection in found.values():
        connection.sendall(json.dumps({"hosts": hosts}).encode() + b"\n")
    return Peers(0, hosts, {i: connection for i, (_, connection) in found.items()})


def _collect(
    place: Place, own: str, until: float, timeout: float, say: Callable[[str], None]
) -> dict[int, tuple[str, socket.socket]]:
    """Accept the connections of all other processes: {index: (host, connection)}."""
    found: dict[int, tuple[str, socket.socket]] = {}
    said = time.monotonic()
    with _listen(place.address) as listener:
        while len(found) < place.count - 1:
            listener.settimeout(1.0)
            with contextlib.suppress(TimeoutError):
                _welcome(listener.accept()[0], place, found)
            absent = sorted(set(range(1, place.count)) - set(found))
            if time.monotonic() > until:
                here = {0: own, **{i: host for i, (host, _) in found.items()}}
                present = ", ".join(f"{i} ({here[i]})" for i in sorted(here))
                problem = (
                    f"{_list(absent)} of {place.count} did not connect within "
                    f"{timeout:.0f} s. Connected: {present}. See whether it runs and "
                    f"can reach {place.address}, or give it longer (timeout.start)"
                )
                _refuse(found, "absent", problem)
                raise Absent(problem)
            if absent and time.monotonic() - said > 15:
                said = time.monotonic()
                say(f"waiting    for {_list(absent)} of {place.count}")
    return found


def _welcome(connection: socket.socket, place: Place, found: dict) -> None:
    """Register a new connection; refuse one that cannot belong to this run."""
    connection.settimeout(5.0)
    try:
        hello = json.loads(_read_line(connection))
        index, host, count = hello["index"], hello["host"], hello["count"]
    except (OSError, ValueError, KeyError, TypeError):  # not a process of a run
        connection.close()
        return
    problem = ""
    if count != place.count:
        problem = (
            f"process {index} ({host}) is one of {count}, but process 0 is one of "
            f"{place.count}: give all processes the same number of processes"
        )
    elif index in found:
        problem = (
            f"two processes have the number {index}, on {found[index][0]} and on "
            f"{host}: give each its own"
        )
    if problem:
        _refuse({**found, -1: (host, connection)}, "problem", problem)
        raise UserError(problem)
    found[index] = host, connection


def _refuse(found: dict, kind: str, problem: str) -> None:
    for _, connection in found.values():
        with contextlib.suppress(OSError), connection:
            connection.sendall(json.dumps({kind: problem}).encode() + b"\n")


def _join(
    place: Place, own: str, until: float, timeout: float
) -> tuple[list[str], socket.socket]:
    """Connect to process 0; return the hosts of all processes once all have."""
    host, _, port = place.address.rpartition(":")
    hello = {"index": place.index, "count": place.count, "host": own}
    why = "it did not answer"
    while time.monotonic() < until:
        connection = None
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), 5.0)
            connection.sendall(json.dumps(hello).encode() + b"\n")
            # When its own time is over, process 0 reports the missing processes.
            connection.settimeout(max(until - time.monotonic(), 0.0) + 2 * GRACE)
            answer = json.loads(_read_line(connection))
        except (OSError, ValueError) as error:  # perhaps an earlier run that is ending
            why = str(error) or why
            if connection is not None:
                connection.close()
            time.sleep(0.5)
            continue
        if "hosts" in answer:
            return answer["hosts"], connection
        connection.close()
        if "absent" in answer:
            raise Absent(answer["absent"])
        raise UserError(answer["problem"])
    raise Absent(
        f"process 0 of {place.count} did not answer at {place.address} within "
        f"{timeout:.0f} s ({why}). This is process {place.index} ({own}). See whether "
        "process 0 runs and can be reached, or give it longer (timeout.start)"
    )


def _listen(address: str) -> socket.socket:
    port = int(address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(
            ("", port), family=family, dualstack_ipv6=both, backlog=1024
        )
    except OSError as error:
        raise UserError(
            f"process 0 cannot wait for the others on port {port} of {address}: "
            f"{error.strerror}. Is another run using it? Choose another port"
        ) from None


def _read_line(connection: socket.socket) -> bytes:
    content = b""
    while not content.endswith(b"\n"):
        if not (more := connection.recv(4096)):
            raise ConnectionError("it closed the connection")
        content += more
        if len(content) > 1 << 20:
            raise ValueError("this is not a process of a run")
    return content


def _list(absent: list[int]) -> str:
    shown = ", ".join(map(str, absent[:10])) + ", …" * (len(absent) > 10)
    return f"process{'es' * (len(absent) > 1)} {shown}"
