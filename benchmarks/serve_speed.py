"""The service under load: are its answers right, how fast is it, and does it leak?

    python benchmarks/serve_speed.py --workdir tatoeba:de_en --input FILE

Starts `transformer_jax.serve`, and asks from many connections at once: lines of the
file one by one and by fours, streams, and requests that must be refused. Every answer
is compared with that of the run in this process. It prints the time from start to
ready, the seconds of single requests with nobody else there and under load, sentences a
second, asked one by one from all connections and in one request, beside `run.predict`
of the same lines (in turns, medians of three), and the service's memory and open files
after the first and the last tenth of the requests. Both sides search as the run's
config says, and have answered the lines once before.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import transformer_jax

ROUNDS = 3  # of the comparison with `run.predict`
HEADERS = {"content-type": "application/json"}
REFUSED = (
    ({"lines": []}, 422),
    ({"lines": ["a"], "options": {"beams": 0}}, 400),
    ({"lines": ["wort " * 5000]}, 400),
    ({"line": "a"}, 422),
)
local = threading.local()


def main() -> int:
    """Run all parts, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--input", required=True, help="sentences, one per line")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=32)
    args = parser.parse_args()
    text = pathlib.Path(args.input).read_text(encoding="utf-8")
    lines = text.splitlines()[: args.lines]
    run = transformer_jax.load(args.workdir)
    expected = dict(zip(lines, run.predict(lines), strict=True))  # compiles
    service = Started(args.workdir)
    try:
        print(f"start to ready        {service.seconds:.1f} s", flush=True)
        with ThreadPoolExecutor(args.connections) as pool:
            list(pool.map(lambda line: ask(service, [line]), lines))  # compiles
            measure_single(service, lines[:200])
            measure_rates(service, pool, run, lines)
            mix(service, pool, expected, args.requests)
    finally:
        service.stop()
    return 0


class Started:
    """A service in a process of its own."""

    def __init__(self, workdir: str):
        began = time.perf_counter()
        command = [sys.executable, "-m", "transformer_jax.serve", "--port=0"]
        command += [f"--workdir=run={workdir}"]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "http://" in line:
                break
        self.port = int(line.rsplit(":", 1)[1])
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        while fetch(self, "GET", "/readyz")[0] != 200:
            time.sleep(0.05)
        self.seconds = time.perf_counter() - began

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        if code := self.process.wait(90):
            print(f"the service ended with exit code {code}")


def fetch(service: Started, method: str, path: str, body=None) -> tuple[int, bytes]:
    """Ask over the connection of this thread; return (status, body)."""
    for last in (False, True):
        if getattr(local, "connection", None) is None:
            local.connection = http.client.HTTPConnection("127.0.0.1", service.port)
        try:
            content = None if body is None else json.dumps(body)
            local.connection.request(method, path, content, HEADERS)
            response = local.connection.getresponse()
            return response.status, response.read()
        except (http.client.HTTPException, ConnectionError):
            local.connection.close()  # an idle connection ends after some seconds
            local.connection = None
            if last:
                raise
    raise AssertionError


def ask(service: Started, lines: list[str]) -> tuple[list[str], float]:
    """Return the answers to lines, and the seconds that they took."""
    began = time.perf_counter()
    status, content = fetch(service, "POST", "/v1/predict", {"lines": lines})
    seconds = time.perf_counter() - began
    assert status == 200, content
    return [reply["text"] for reply in json.loads(content)["replies"]], seconds


def measure_single(service: Started, lines: list[str]) -> None:
    """Ask one line after the other."""
    show("nobody else there", [ask(service, [line])[1] for line in lines])


def measure_rates(
    service: Started, pool: ThreadPoolExecutor, run: Any, lines: list[str]
) -> None:
    """Ask all lines in each way in turn, again and again; print the medians."""
    seconds: list[float] = []
    ways: dict[str, Callable[[], Any]] = {
        "run.predict": lambda: run.predict(lines),
        "one by one": lambda: seconds.extend(
            pool.map(lambda line: ask(service, [line])[1], lines)
        ),
        "all at once": lambda: ask(service, lines),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, call in ways.items():
            began = time.perf_counter()
            call()
            rates[way].append(len(lines) / (time.perf_counter() - began))
    show("under load", seconds)
    usual = statistics.median(rates["run.predict"])
    for way, found in rates.items():
        middle = statistics.median(found)
        spread = f"{min(found):.0f} to {max(found):.0f}"
        print(
            f"sentences a second    {way}: {middle:.0f} ({spread}), "
            f"{middle / usual:.2f} of run.predict's",
            flush=True,
        )


def show(when: str, seconds: list[float]) -> None:
    """Print the median and the 99th percentile."""
    parts = statistics.quantiles(seconds, n=100)
    print(
        f"{when:<21} p50 {1000 * parts[49]:.0f} ms  p99 {1000 * parts[98]:.0f} ms",
        flush=True,
    )


def mix(service: Started, pool: ThreadPoolExecutor, expected: dict, count: int) -> None:
    """Ask requests of all kinds, and count what is not as it should be."""
    rng, lines = random.Random(0), list(expected)
    kinds = rng.choices(("one", "four", "stream", "refused"), (6, 1, 2, 1), k=count)
    asked = [(kind, rng.sample(lines, 4), rng.choice(REFUSED)) for kind in kinds]

    def call(one) -> bool:
        kind, some, (body, status) = one
        if kind == "refused":
            return fetch(service, "POST", "/v1/predict", body)[0] == status
        if kind == "stream":
            body = {"line": some[0]}
            status, content = fetch(service, "POST", "/v1/stream", body)
            last = content.decode().strip().rsplit("data: ", 1)[1]
            return status == 200 and json.loads(last)["text"] == expected[some[0]]
        some = some[:1] if kind == "one" else some
        return ask(service, some)[0] == [expected[line] for line in some]

    tenth, wrong, used = max(count // 10, 1), 0, []
    for first in range(0, count, tenth):
        found = pool.map(call, asked[first : first + tenth])
        wrong += sum(not right for right in found)
        used.append(usage(service))
    print(f"mixed requests        {count:,}; {wrong} not answered as they should be")
    for name, place in (("memory, MB", 0), ("open files", 1)):
        then, now = used[0][place], used[-1][place]
        print(f"{name:<21} {then:,} after a tenth, {now:,} at the end")


def usage(service: Started) -> tuple[int, int]:
    """Return the service's resident megabytes and open files."""
    text = fetch(service, "GET", "/metrics")[1].decode()
    values = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
    )
    memory = float(values["process_resident_memory_bytes"]) / 1e6
    return round(memory), round(float(values["process_open_fds"]))


if __name__ == "__main__":
    sys.exit(main())
