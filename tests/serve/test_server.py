"""A running server: rude clients, an orderly end, whatever its OpenAPI page allows."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import wait_for

import transformer_jax
from transformer_jax import sharding
from transformer_jax.base.errors import UserError
from transformer_jax.decoding.live import Caller
from transformer_jax.runs.run import Run
from transformer_jax.serve import __main__ as serve
from transformer_jax.serve.models import Limits

pytestmark = pytest.mark.system

BODY = {"lines": ["O gato dorme."]}


def ask(place, path="/v1/predict", body=None, timeout=60):
    data = json.dumps(BODY if body is None else body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(place + path, data, headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.loads(response.read())


def connect(place):
    host, port = place.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_rude_clients_do_no_harm(server_of, runs_of):
    place, service = server_of(
        "translator", guards={"most_bytes": 10_000}, seconds=20.0
    )
    expected = runs_of("translator").predict(BODY["lines"][0])
    ask(place)
    body = json.dumps({"line": "O gato muito grande dorme."}).encode()
    head = f"POST /v1/stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head = head.encode() + b"Content-Type: application/json\r\n\r\n"
    idle = [connect(place) for _ in range(100)]
    for _ in range(10):  # these leave before, while or after they are answered
        for sent, read in ((head[:20], 0), (head + body, 0), (head + body, 40)):
            with connect(place) as client:
                client.sendall(sent)
                if read:
                    client.recv(read)
    for rubbish in (
        b"\x00\xff\r\n\r\n",
        b"GET " + b"a" * 100_000,
        b"POST / HTTP/9\r\n\r\n",
    ):
        with connect(place) as client:
            client.sendall(rubbish)
    with connect(place) as client:  # a body without a length that never ends
        client.sendall(
            head.replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\nX: ")
        )
        for _ in range(30):
            try:
                client.sendall(b"400\r\n" + b"a" * 1024 + b"\r\n")
            except OSError:
                break
        assert b"413" in client.recv(1000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ask(place), range(16)))
    assert {one["replies"][0]["text"] for one in found} == {expected}
    for client in idle:
        client.close()
    wait_for(lambda: not service.lines, seconds=20)


def test_a_body_that_does_not_arrive_is_given_up(server_of):
    place, _ = server_of("judge", seconds=1.0)
    with connect(place) as client:
        client.sendall(
            b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        )
        said = client.recv(1000)
    assert b"408" in said and b"did not arrive within 1 seconds" in said


def test_requests_that_the_openapi_page_allows_are_answered_as_it_says(server_of):
    schemathesis = pytest.importorskip("schemathesis", reason="not installed")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    place, _ = server_of("translator", "judge", "eye")
    schema = schemathesis.openapi.from_url(f"{place}/openapi.json")
    quick = settings(
        max_examples=12, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    count = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @quick
        @given(case=operation.as_strategy())
        def check(case):
            # A request of the right shape may name no model, or ask for too much.
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        check()
        count += 1
    assert count >= 10


@pytest.fixture
def started(tiny_run, tmp_path):
    """A function: the command in a process of its own, and its address."""
    running = []

    def start(*words):
        command = [sys.executable, "-m", "transformer_jax.serve", "--port=0", *words]
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        )
        running.append(process)
        said = []
        while not said or "http://" not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], said
        return process, said[-1].strip(), said

    yield start
    for process in running:
        process.kill()
        process.wait()


def wait_until_ready(place):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{place}/readyz", timeout=10):
                return
        except urllib.error.HTTPError:
            time.sleep(0.2)
    raise AssertionError("not ready")


def test_the_command_answers_and_finishes_what_it_has_when_it_is_stopped(
    started, tiny_run
):
    process, place, said = started(f"--workdir=de={tiny_run}", "--timeout=100")
    wait_until_ready(place)
    assert ask(place, body=BODY | {"model": "de"})["model"] == "de"
    with urllib.request.urlopen(place + "/", timeout=10) as response:
        assert b"<title>" in response.read()
    with ThreadPoolExecutor(1) as pool:
        lines = [f"O gato {'muito ' * (n % 3)}dorme {n}." for n in range(200)]
        asked = pool.submit(ask, place, body={"lines": lines})
        time.sleep(0.15)
        process.send_signal(signal.SIGTERM)
        assert len(asked.result()["replies"]) == 200
    assert process.wait(60) == 0
    rest = process.stderr.read()
    assert "stopped" in rest and "Traceback" not in rest and "gato" not in rest


def test_an_address_that_is_taken_is_an_error_in_words(tiny_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "transformer_jax.serve"]
        command += [f"--workdir=run={tiny_run}", f"--port={port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "this address cannot be used: another process has it" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--workdir is needed: the run directory to serve"),
        (["--workdir=RUN", "--workdir=run=RUN"], "has the same name 'run': give"),
        (
            ["--workdir=a b=RUN"],
            "'a b' is no name of a model (letters, digits and ._:-): give one, as in",
        ),
        (["--workdir=RUN", "--token_file=EMPTY"], "must hold one word of ASCII"),
    ],
)
def test_flags_that_cannot_be_used_are_refused(
    run_main, tiny_run, tmp_path, words, said
):
    empty = tmp_path / "empty"
    empty.write_text("")
    given = [
        w.replace("RUN", str(tiny_run)).replace("EMPTY", str(empty)) for w in words
    ]
    with pytest.raises(ValueError, match=re.escape(said)):
        run_main(serve, *given)


def test_a_missing_package_is_named(run_main, tiny_run, monkeypatch):
    find = serve.importlib.util.find_spec
    monkeypatch.setattr(
        serve.importlib.util, "find_spec", lambda n: None if n == "uvicorn" else find(n)
    )
    with pytest.raises(ValueError, match="the service needs uvicorn: pip install"):
        run_main(serve, f"--workdir={tiny_run}")


def test_strangers_are_warned_of(tmp_path, caplog, monkeypatch):
    class Server:
        def __init__(self, config):
            self.config = config

        def run(self, sockets):
            for one in sockets:
                one.close()

    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    from transformer_jax.serve import running

    monkeypatch.setattr(uvicorn, "Server", Server)
    monkeypatch.setattr(signal, "signal", lambda *args: None)

    class Args:
        host, port, timeout, token_file = "0.0.0.0", 0, 5.0, ""

    assert running.listen(None, Args) == 0
    assert "anyone who reaches 0.0.0.0 may ask: give --token_file" in caplog.text


def test_the_package_has_the_page(client_of):
    folder = pathlib.Path(serve.__file__).parent
    client = client_of("judge")
    for place, name in (("/", "page.html"), ("/page.js", "page.js")):
        response = client.get(place)
        assert response.text == (folder / name).read_text(encoding="utf-8")
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")


def test_clients_share_the_batches_of_another_engine(tiny_run, monkeypatch):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    from transformer_jax.serve import running

    lines = ["O gato dorme.", "A casa é azul e grande.", "Onde está o livro?"]
    [model] = running.open_models([f"de={tiny_run}"], "", Limits(), "int8")
    with model.serving():
        found = model.answer(Caller(), lines, model.options)
    run = transformer_jax.load(tiny_run, mesh=sharding.local_mesh(), engine="int8")
    wanted = run.replies(lines)
    assert [one.text for one in found] == [one.text for one in wanted]
    # The scores tell that the parameters are the rounded ones.
    plain = transformer_jax.load(tiny_run, mesh=sharding.local_mesh()).replies(lines)
    scores = [[r.score for r in replies] for replies in (found, wanted, plain)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert scores[0] != pytest.approx(scores[2], abs=1e-4)

    def take(run, name):
        run.task.inference.writer.other = object()

    monkeypatch.setattr(Run, "use_engine", take)
    with pytest.raises(UserError, match="does not let clients share batches"):
        running.open_models([f"de={tiny_run}"], "", Limits(), "other")


def test_clients_are_answered_by_several_runs_together(tiny_run, tmp_path):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    from transformer_jax.serve import running

    lines = ["O gato dorme.", "A casa é azul e grande.", "Onde está o livro?"]
    other = str(shutil.copytree(tiny_run, tmp_path / "other"))
    shutil.rmtree(f"{other}/averaged")  # so its last parameters answer
    places = [f"de={tiny_run}"], "", Limits(), ""
    [model] = running.open_models(*places, [other])
    with model.serving():
        found = model.answer(Caller(), lines, model.options)
    run = transformer_jax.load(
        tiny_run, mesh=sharding.local_mesh(), ensemble=[other]
    ).replies(lines)
    scores = [reply.score for reply in found]
    assert scores == pytest.approx([reply.score for reply in run], abs=1e-5)
    alone = transformer_jax.load(tiny_run, mesh=sharding.local_mesh()).replies(lines)
    assert scores != pytest.approx([reply.score for reply in alone], abs=1e-4)
    with pytest.raises(UserError, match="--workdir names 2: serve the ensemble alone"):
        running.open_models(["a=A", "b=B"], "", Limits(), "", [other])
