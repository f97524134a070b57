"""Applications of runs with random parameters, and a server in a thread."""

import threading

import pytest
from viewing import browser, untrained  # noqa: F401  (fixtures)
from waiting import wait_for

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient  # noqa: E402  (optional packages)

from transformer_jax.serve import app as application  # noqa: E402
from transformer_jax.serve.models import Limits, Model  # noqa: E402
from transformer_jax.serve.service import Service  # noqa: E402

LIMITS = Limits(lines=20, characters=300, beams=6, pieces=40)


@pytest.fixture(scope="session")
def runs_of(untrained):  # noqa: F811
    """A function: a run with random parameters, made once."""
    made = {}
    kinds = {
        "translator": ("quickstart", {}),
        "writer": ("language", {"data__batch_tokens": 2048, "decode__max_length": 8}),
        "chatbot": ("smalltalk", {"decode__max_length": 4}),
        "judge": ("opinions", {}),
        "eye": ("images", {}),
    }

    def find(name):
        if name not in made:
            spec, changes = kinds[name]
            made[name] = untrained(spec, **changes)
        return made[name]

    return find


@pytest.fixture
def service_of(runs_of):
    """A function: a service of runs by name, which is ready."""

    def make(*names, limits=LIMITS, queue=50, seconds=120.0):
        found = [Model(name, runs_of(name), limits) for name in names]
        service = Service(found, queue=queue, seconds=seconds)
        service.ready = True
        return service

    return make


@pytest.fixture
def client_of(service_of):
    """A function: a client of an application of these runs."""
    opened = []

    def make(*names, guards=(), **options):
        app = application.make_app(service_of(*names, **options), **dict(guards))
        client = TestClient(app, raise_server_exceptions=False)
        opened.append(client.__enter__())
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def server_of(service_of):
    """A function: the address of a server of these runs, and its service."""
    import uvicorn

    running = []

    def start(*names, guards=(), **options):
        service = service_of(*names, **options)
        app = application.make_app(service, **dict(guards))
        config = uvicorn.Config(app, port=0, log_config=None, access_log=False)
        sock = config.bind_socket()
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        running.append((server, thread))
        wait_for(lambda: server.started)
        return f"http://127.0.0.1:{sock.getsockname()[1]}", service

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()
