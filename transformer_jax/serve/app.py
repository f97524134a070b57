"""The application: routes, and errors as answers in words."""

import asyncio
import contextlib
import json
import logging
import pathlib
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, File, Form, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.decoding.live import Caller, Cancelled
from transformer_jax.serve import openai, page, shapes
from transformer_jax.serve.guards import Guards, problem
from transformer_jax.serve.models import Model
from transformer_jax.serve.service import (
    FAULT,
    SLOW,
    Overloaded,
    Service,
    as_answer,
    begin,
    check_count,
    check_lines,
    write_event,
)
from transformer_jax.tasks import protocols

logger = logging.getLogger("transformer_jax.serve")

QUIET = "/healthz", "/readyz", "/metrics"  # asked by machines, again and again
SHOWN = 300  # pieces of the longest text whose attention is shown
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": shapes.Problems, "description": text}
    for status, text in {
        400: "A request that cannot be answered",
        401: "No token, or a wrong one",
        404: "There is no such page, or model",
        408: "A body that does not arrive",
        413: "A body that is too large",
        422: "A request of another shape",
        429: "Too many requests of one client",
        503: "Too many requests wait, or the models are not ready",
        504: "An answer that takes too long",
    }.items()
}
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Events"}
}


def make_app(
    service: Service,
    *,
    warm_up: Callable[[], None] = lambda: None,
    most_bytes: int = 16 * 2**20,
    rate: float = 0.0,
    token: str = "",
    hosts: Sequence[str] = ("*",),
) -> Any:
    """Make the application: routes, and the guards around them."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with contextlib.ExitStack() as stack:
            for model in service.models.values():
                stack.enter_context(model.serving())
            loop = asyncio.get_running_loop()
            warming = loop.run_in_executor(None, warm_up)
            yield
            service.closing = True
            await asyncio.wait({warming})
            service.threads.shutdown(wait=True)

    app = FastAPI(
        title="transformer_jax",
        version=transformer_jax.__version__,
        description="Answers of trained models.",
        lifespan=lifespan,
        responses=ERRORS,
        docs_url=None,  # its scripts would be loaded from another host
        redoc_url=None,
    )
    _handle_errors(app)
    _add_routes(app, service)
    app.include_router(openai.make_router(service))
    page.add_routes(app)
    app.add_middleware(
        Guards,
        most_bytes=most_bytes,
        seconds=min(service.seconds, 30.0),
        rate=rate,
        token=token,
    )
    if "*" not in hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return _Observed(app, service)


def _handle_errors(app: FastAPI) -> None:
    """Answer errors with their status, in words, without what the client has sent."""

    def respond(status: int, message: str, **headers: str) -> JSONResponse:
        return JSONResponse(problem(status, message), status, headers=headers)

    @app.exception_handler(UserError)
    async def refuse(request: Request, error: UserError) -> Response:
        return respond(400, " ".join(error.problems))

    @app.exception_handler(RequestValidationError)
    async def refuse_shape(request: Request, error: RequestValidationError) -> Response:
        problems = [
            f"{'.'.join(map(str, one['loc'][:6]))}: {one['msg']}"
            for one in error.errors()[:5]
        ]
        return respond(422, "; ".join(problems).encode("ascii", "replace").decode())

    @app.exception_handler(HTTPException)
    async def refuse_page(request: Request, error: HTTPException) -> Response:
        found = respond(error.status_code, str(error.detail))
        found.headers.update(error.headers or {})
        return found

    @app.exception_handler(Overloaded)
    async def put_off(request: Request, error: Overloaded) -> Response:
        return respond(503, str(error), **{"retry-after": "1"})

    @app.exception_handler(TimeoutError)
    async def give_up(request: Request, error: TimeoutError) -> Response:
        return respond(504, SLOW)

    @app.exception_handler(Cancelled)
    async def leave(request: Request, error: Cancelled) -> Response:
        return respond(499, "the client has left")

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        return respond(500, FAULT)


def _add_routes(app: FastAPI, service: Service) -> None:
    looking = threading.Lock()  # aligned and shown by one thread at a time
    reading = threading.Lock()  # files are read by one thread at a time

    def finish(model: Model, found: list[shapes.Answer]) -> shapes.Answers:
        """Count answers; refuse a request of which no line was answered."""
        errors = [one.error for one in found if one.error]
        if len(errors) == len(found):
            raise UserError(errors[0])
        service.answered.labels(model.name).inc(len(found) - len(errors))
        return shapes.Answers(model=model.name, replies=found)

    @app.post("/v1/predict", response_model_exclude_none=True)
    async def predict(request: Request, asked: shapes.Predict) -> shapes.Answers:
        """Answer lines, in their order. A line that is refused has an error."""
        model = service.find(asked.model)
        if model.reads_file:
            raise UserError(
                f"{model.name} reads {model.reads_file} files: upload them to "
                "/v1/predict_files"
            )
        check_lines(model, asked.lines)
        check_lines(model, asked.prefixes)
        for phrases in asked.include:
            check_lines(model, phrases)
        given = {"prefixes": asked.prefixes, "lists to include": asked.include}
        for name, beside in given.items():
            if len(beside) not in (0, len(asked.lines)):
                raise UserError(
                    f"there are {len(beside)} {name} for {len(asked.lines)} lines: "
                    "give one for each"
                )
        aligner = model.run.task.inspector
        if asked.alignment and not isinstance(aligner, protocols.Aligns):
            raise UserError(f"{model.name} does not align words: leave out alignment")
        options, caller = model.choose(asked.options), Caller()

        def answer() -> list[shapes.Answer]:
            replies = model.answer(
                caller, asked.lines, options, asked.prefixes, asked.include
            )
            found = [as_answer(reply) for reply in replies]
            if asked.alignment and not caller.cancelled:
                right = [i for i, reply in enumerate(replies) if not reply.error]
                sides = (
                    [replies[i].line for i in right],
                    [replies[i].text for i in right],
                )
                with looking:
                    for i, links in zip(right, model.run.align(*sides), strict=True):
                        found[i].alignment = links
            return found

        found = await service.compute(request, answer, caller, len(asked.lines))
        return finish(model, found)

    @app.post("/v1/predict_files", response_model_exclude_none=True)
    async def predict_files(
        request: Request,
        files: Annotated[list[UploadFile], File(description="Pictures, or WAV files.")],
        model: Annotated[str | None, Form(max_length=200)] = None,
        options: Annotated[str, Form(max_length=10_000)] = "{}",
    ) -> shapes.Answers:
        """Answer files: the classes of pictures, what is said in sounds."""
        found_model = service.find(model)
        if not found_model.reads_file:
            raise UserError(f"{found_model.name} reads text: send it to /v1/predict")
        chosen, caller = found_model.choose(_read_options(options)), Caller()
        check_count(found_model, len(files))
        contents = [await one.read() for one in files]

        def answer() -> list[shapes.Answer]:
            with tempfile.TemporaryDirectory(prefix="transformer_jax-") as folder:
                paths = [pathlib.Path(folder, f"{i}.wav") for i in range(len(contents))]
                for path, content in zip(paths, contents, strict=True):
                    path.write_bytes(content)
                with reading:  # as a picture may need much memory
                    for path in paths:
                        found_model.check_file(path)
                    replies = found_model.answer(caller, list(map(str, paths)), chosen)
                found = [as_answer(reply) for reply in replies]
            for one, path in zip(found, paths, strict=True):
                if one.error:  # names no file of this machine
                    one.error = one.error.replace(repr(str(path)), "").replace(
                        str(path), "the file"
                    )
            return found

        found = await service.compute(request, answer, caller, len(files))
        return finish(found_model, found)

    @app.post("/v1/stream", responses=STREAMED, response_class=StreamingResponse)
    async def stream(request: Request, asked: shapes.Stream) -> Response:
        """Answer a line while it is written, as server-sent events.

        `data: {"text": …}` is the text so far, `event: done` the whole answer, and
        `event: error` a problem.
        """
        model = service.find(asked.model)
        if (asked.line is None) == (asked.turns is None):
            raise UserError("give either a line or turns")
        if model.reads_file:
            raise UserError(f"{model.name} reads files: upload them")
        line, extra = asked.line or "", {}
        if asked.turns is not None:
            check_lines(model, asked.turns)
            line, forgotten = model.read_turns(asked.turns)
            extra = {"forgotten": forgotten}
        check_lines(model, [line, asked.prefix])
        options = model.choose(asked.options)
        events = service.stream(request, model, line, options, asked.prefix)
        events = await begin(events)

        async def write() -> AsyncIterator[str]:
            async for kind, content in events:
                if kind == "text":
                    yield write_event("", {"text": content})
                elif kind == "error":
                    yield write_event(kind, content)
                else:
                    found = as_answer(content).model_dump(exclude_none=True)
                    yield write_event(kind, {**found, **extra})

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(write(), 200, headers, "text/event-stream")

    @app.post("/v1/attention")
    async def attention(
        request: Request, asked: shapes.Attention
    ) -> shapes.AttentionAnswer:
        """Show what a model looks at while it reads a line and writes its answer."""
        model = service.find(asked.model)
        if not isinstance(model.run.task.inspector, protocols.ShowsAttention):
            raise UserError(f"{model.name} shows no attention: ask another model")
        if model.reads_file:
            raise UserError(f"{model.name} reads files, whose attention is not shown")
        check_lines(model, [asked.line, asked.answer or ""])
        caller = Caller()

        def look() -> shapes.AttentionAnswer:
            answer = asked.answer
            if model.count_pieces(asked.line + (answer or "")) > SHOWN:
                raise UserError(
                    f"a text of more than {SHOWN} pieces: send a part of it"
                )
            if answer is None:
                reply = model.answer(caller, [asked.line], model.options)[0]
                if reply.error:
                    raise UserError(reply.error)
                answer = model.run.task.inspector.texts_of(asked.line, reply)[1]
            with looking:
                found = model.run.attention(asked.line, answer)
            maps = {
                kind: shapes.Maps(
                    queries=list(found.tokens[kind][0]),
                    keys=list(found.tokens[kind][1]),
                    weights=weights.mean(axis=1).round(4).tolist(),
                )
                for kind, weights in found.items()
            }
            return shapes.AttentionAnswer(answer=answer, maps=maps)

        return await service.compute(request, look, caller, 1)

    @app.get("/v1/models")
    async def list_models() -> shapes.Models:
        """List the models, what they do, and their options."""
        return shapes.Models(data=[about(m) for m in service.models.values()])

    @app.get("/v1/models/{name}")
    async def show_model(name: str) -> shapes.About:
        """Describe a model."""
        return about(service.find(name))

    def about(model: Model) -> shapes.About:
        return shapes.About(
            id=model.name, created=service.created, about=model.describe()
        )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Say that the process is alive."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Say that requests are answered."""
        if not service.ready or service.closing:
            raise Overloaded("stopping" if service.closing else "warming up")
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Show the counts, in the format of Prometheus."""
        return Response(generate_latest(service.metrics), media_type="text/plain")


def _read_options(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError('options must be a JSON object, such as {"beams": 1}')
    return found


class _Observed:
    """Log and count each request, without any text of its client."""

    def __init__(self, app: FastAPI, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def observe(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, observe)
        except (ConnectionError, ClientDisconnect, Cancelled):  # the client has left
            status = 499
        except Exception:
            logger.exception("a request failed")
        finally:
            seconds = time.monotonic() - began
            route = getattr(scope.get("route"), "path", "other")
            self.service.requests.labels(route, str(status)).inc()
            self.service.request_seconds.labels(route).observe(seconds)
            method = scope["method"] if scope["method"].isalpha() else "?"
            level = logging.DEBUG if route in QUIET else logging.INFO
            shown = method[:10], route, status, seconds
            logger.log(level, "%s %s %s %.3f s", *shown)
