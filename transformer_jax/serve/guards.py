"""Limits that a request meets before it is read: size, time, rate, token of access.

Pure ASGI middleware, so that a stream is passed on as it comes.
"""

import asyncio
import hmac
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

logger = logging.getLogger("transformer_jax.serve")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/healthz", "/readyz", "/page.js", "/page.css")  # without a token
CLIENTS = 10_000  # whose rates are remembered
TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    499: "cancelled",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def problem(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error, in the form that clients of OpenAI know."""
    kind = TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "code": status}}


class Guards:
    """Refuse requests that are too large, too slow, too many or without a token."""

    def __init__(
        self,
        app: App,
        *,
        most_bytes: int,
        seconds: float,
        rate: float = 0.0,
        token: str = "",
    ):
        """Guard an application; `seconds` are those in which a body must arrive."""
        self.app, self.most_bytes, self.seconds = app, most_bytes, seconds
        self.rate, self.token = rate, token
        self._buckets: dict[str, tuple[float, float]] = {}  # by client: (left, when)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self._refuse(scope)
        body, headers = b"", ()
        if refused is None:
            body, refused = await self._read(scope, receive)
        if refused is not None:
            status, message, headers = refused
            await _answer(send, status, message, headers)
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    def _refuse(self, scope: Scope) -> tuple[int, str, tuple] | None:
        """Return (status, message, headers) of a refusal that needs no body."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self.token and scope["path"] not in OPEN:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
                text = "give the token of this service: Authorization: Bearer TOKEN"
                return 401, text, ((b"www-authenticate", b"Bearer"),)
        if self.rate and scope["path"] not in OPEN:
            wait = self._wait((scope.get("client") or ("",))[0])
            if wait > 0:
                text = f"more than {self.rate:g} requests a second: wait {wait:.1f} s"
                after = str(math.ceil(wait)).encode()
                return 429, text, ((b"retry-after", after),)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            return 400, "Content-Length is not a number", ()
        if int(length) > self.most_bytes:
            return self._too_large(int(length))
        return None

    def _too_large(self, size: int) -> tuple[int, str, tuple]:
        text = f"a body of {size:,} bytes or more: at most {self.most_bytes:,} are read"
        return 413, text, ((b"connection", b"close"),)

    def _wait(self, client: str) -> float:
        """Take a request from a client's bucket; return the seconds until it has one.

        A bucket holds the requests of one second, and one at least.
        """
        now, most = time.monotonic(), max(self.rate, 1.0)
        left, then = self._buckets.pop(client, (most, now))
        left = min(left + (now - then) * self.rate, most)
        if len(self._buckets) >= CLIENTS:  # those that were here long ago are forgotten
            self._buckets.pop(next(iter(self._buckets)))
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._buckets[client] = (left - (wait == 0), now)
        return wait

    async def _read(self, scope: Scope, receive: Receive) -> Any:
        """Return the body, and a refusal if it is too large or too slow."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return b"", (499, "the client has left", ())
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.most_bytes:
                        return b"", self._too_large(size)
                    if not message.get("more_body", False):
                        return b"".join(parts), None
        except TimeoutError:
            text = f"the body did not arrive within {self.seconds:g} seconds"
            return b"", (408, text, ((b"connection", b"close"),))


async def _answer(send: Send, status: int, message: str, headers: tuple) -> None:
    body = json.dumps(problem(status, message)).encode()
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *headers,
        ],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
