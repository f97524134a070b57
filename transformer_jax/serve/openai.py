"""The routes of OpenAI's interface that existing clients call.

`/v1/completions` continues a text with a language model, and answers a line with any
other task that writes. `/v1/chat/completions` is for conversations; other models read
the last message alone. A temperature samples, and 0 searches greedily; without one the
run searches as its config says. Samples are others each time, unless a seed is given.
"""

import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from transformer_jax.base.errors import UserError
from transformer_jax.decoding import Reply
from transformer_jax.decoding.live import Caller
from transformer_jax.serve import shapes
from transformer_jax.serve.models import Model
from transformer_jax.serve.service import Service, begin, check_lines, write_event

DONE = "[DONE]"
MOST_STOPS = 4  # strings that end an answer
Why = Literal["stop", "length"]


def make_router(service: Service) -> APIRouter:
    """Make the routes."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=shapes.Completions)
    async def complete(request: Request, asked: shapes.Completion) -> Any:
        """Continue a text, or answer a line."""
        model = _writer(service, asked.model)
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        check_lines(model, prompts)
        if not prompts:
            raise UserError("prompt is an empty list: give a text")
        search = _Search(model, asked, asked.max_tokens)
        if asked.stream:
            if len(prompts) > 1 or asked.n > 1:
                raise UserError(
                    "a stream is of one prompt and one answer: send several requests"
                )
            events = _follow(service, request, search, prompts[0], asked.echo)
            return await _stream(model, events, asked.stream_options, _text_chunk)
        written = await _answer(service, request, search, prompts, asked.echo)
        choices = [
            shapes.TextChoice(index=index, text=text, finish_reason=why)
            for index, (text, why) in enumerate(written.texts)
        ]
        return shapes.Completions(
            id=f"cmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=model.name,
            choices=choices,
            usage=written.usage,
        )

    @router.post("/v1/chat/completions", response_model=shapes.Chats)
    async def chat(request: Request, asked: shapes.Chat) -> Any:
        """Answer the last message of a conversation."""
        model = _writer(service, asked.model)
        line = _read_messages(model, asked.messages)
        check_lines(model, [line])
        search = _Search(model, asked, asked.max_completion_tokens or asked.max_tokens)
        if asked.stream:
            if asked.n > 1:
                raise UserError("a stream is of one answer: leave out n")
            events = _follow(service, request, search, line)
            return await _stream(model, events, asked.stream_options, _chat_chunk)
        written = await _answer(service, request, search, [line])
        choices = [
            shapes.ChatChoice(
                index=index,
                message=shapes.ChatMessage(content=text),
                finish_reason=why,
            )
            for index, (text, why) in enumerate(written.texts)
        ]
        return shapes.Chats(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=model.name,
            choices=choices,
            usage=written.usage,
        )

    return router


def _writer(service: Service, name: str) -> Model:
    model = service.find(name)
    if not model.writes or model.reads_file:
        route = "/v1/predict_files" if model.reads_file else "/v1/predict"
        raise UserError(f"{model.name} writes no text for a text: send to {route}")
    return model


class _Search:
    """The search for an answer, with the options of a request in OpenAI's names."""

    def __init__(self, model: Model, asked: Any, most: int | None):
        """Choose options, for answers of at most so many pieces."""
        self.model, self.count = model, asked.n
        given: dict[str, Any] = {}
        if most is not None:
            given["max_length"] = most + 1  # with the end
            if model.options.min_length > most:
                given["min_length"] = 0
        if asked.temperature is not None:
            given |= {"sample": asked.temperature > 0, "beams": 1}
            if asked.temperature > 0:
                given["temperature"] = float(asked.temperature)
        if asked.top_p is not None:
            given["top_p"] = float(asked.top_p)
        sampled = given.get("sample", model.options.sample)
        if asked.seed is not None or sampled:
            drawn = secrets.randbits(31)
            given["seed"] = drawn if asked.seed is None else asked.seed
        if asked.n > 1:
            given["n_best"] = asked.n
            if not sampled and given.get("beams", model.options.beams) < asked.n:
                given["beams"] = asked.n
        self.options = model.choose(given)
        stop = asked.stop
        self.stops = [stop] if isinstance(stop, str) else list(stop or ())
        if len(self.stops) > MOST_STOPS or not all(self.stops):
            raise UserError(
                f"stop: give at most {MOST_STOPS} texts, none of them empty"
            )

    def cut(self, text: str) -> tuple[str, bool]:
        """Cut a text before the first stop, and say whether there is one."""
        ends = [text.index(stop) for stop in self.stops if stop in text]
        return (text[: min(ends)], True) if ends else (text, False)

    def finish(self, line: str, reply: Reply) -> tuple[str, Why]:
        """Return the text of a reply, and why it ends."""
        text, stopped = self.cut(self.model.continuation(line, reply))
        most = self.options.max_length
        full = bool(most) and reply.pieces >= most and not stopped
        return text, "length" if full else "stop"

    def count_pieces(self, lines: Sequence[str], replies: Sequence[Reply]) -> Any:
        """Count the pieces that were read, and those that were written."""
        read = sum(map(self.model.count_pieces, lines))
        written = sum(max(reply.pieces - 1, 0) for reply in replies)  # without ends
        return shapes.Usage(
            prompt_tokens=read, completion_tokens=written, total_tokens=read + written
        )


class _Written(NamedTuple):
    """The texts of all answers, why each ends, and how long all are."""

    texts: list[tuple[str, Why]]
    usage: shapes.Usage


def _read_messages(model: Model, messages: Sequence[shapes.Message]) -> str:
    """Return the line that holds a conversation, or its last message."""
    if any(one.role in ("system", "developer") for one in messages):
        raise UserError(
            f"{model.name} was not trained to follow system messages: leave them out"
        )
    if messages[-1].role != "user":
        raise UserError("the last message must be the user's")
    turns = [one.text for one in messages]
    return model.read_turns(turns)[0] if model.converses else turns[-1]


async def _answer(
    service: Service,
    request: Request,
    search: _Search,
    lines: Sequence[str],
    echo: bool = False,
) -> _Written:
    """Answer lines, each as often as it is asked for."""
    caller, model = Caller(), search.model

    def answer() -> _Written:
        texts, told = [], []
        replies = model.answer(caller, lines, search.options)
        for line, reply in zip(lines, replies, strict=True):
            if reply.error:
                raise UserError(reply.error)
            begun = model.begun(line) if echo else ""
            for one in (reply, *reply.others)[: search.count]:
                text, why = search.finish(line, one)
                texts.append((begun + text, why))
                told.append(one)
        return _Written(texts, search.count_pieces(lines, told))

    written = await service.compute(request, answer, caller, len(lines))
    service.answered.labels(model.name).inc(len(lines))
    return written


async def _follow(
    service: Service,
    request: Request,
    search: _Search,
    line: str,
    echo: bool = False,
) -> AsyncIterator[tuple[str, Any]]:
    """Yield ("text", what is new), then ("stop" or "length", (the rest, the usage)).

    Text that may still change, or may be the beginning of a stop, is held back.
    """
    model, sent = search.model, ""
    given = model.begun(line)
    begun = given if echo else ""  # goes out with the first event of the search
    held = max(map(len, search.stops), default=1) - 1
    async for kind, content in service.stream(request, model, line, search.options):
        if kind == "error":
            yield kind, content
            return
        if kind == "done":
            text, why = search.finish(line, content)
            usage = search.count_pieces([line], [content])
            yield why, (begun + _added(text, sent), usage)
            return
        text, stopped = search.cut(content[len(given) :])
        if stopped:
            # How long the answer would have been is not known.
            written = Reply(pieces=model.count_pieces(text) + 1)
            usage = search.count_pieces([line], [written])
            yield "stop", (begun + _added(text, sent), usage)
            return
        ready = text.rstrip("\ufffd ")  # a character may not be complete
        ready = ready[: max(len(ready) - held, 0)]
        if ready.startswith(sent) and (begun or len(ready) > len(sent)):
            yield "text", begun + ready[len(sent) :]
            sent, begun = ready, ""


def _added(text: str, sent: str) -> str:
    """Return what comes after the part that was sent."""
    return text[len(sent) :] if text.startswith(sent) else ""


async def _stream(
    model: Model,
    events: AsyncIterator[Any],
    options: shapes.StreamOptions | None,
    chunk: Callable[[str, str | None, bool], tuple[str, str, dict[str, Any]]],
) -> Response:
    """Return a response that sends an answer as server-sent events, as it is written.

    Wait for the first event, so that a refused request gets an error status instead.
    `chunk` turns a text, its finish reason and whether it is the first into the prefix
    of an id, the name of the object and a choice.
    """
    events = await begin(events)
    identity, created = uuid.uuid4().hex, int(time.time())

    def write(choices: list[Any], prefix: str, name: str, **more: Any) -> str:
        about = {"id": f"{prefix}-{identity}", "object": name, "created": created}
        return write_event(
            "", {**about, "model": model.name, "choices": choices, **more}
        )

    async def send() -> AsyncIterator[str]:
        first = True
        async for kind, content in events:
            if kind == "error":
                yield write_event("", content)
                return
            ended = kind != "text"
            text = content[0] if ended else content
            prefix, name, choice = chunk(text, kind if ended else None, first)
            yield write([choice], prefix, name)
            if ended and options and options.include_usage:
                yield write([], prefix, name, usage=content[1].model_dump())
            first = False
        yield write_event("", DONE)

    return StreamingResponse(send(), media_type="text/event-stream")


def _text_chunk(
    text: str, why: str | None, first: bool
) -> tuple[str, str, dict[str, Any]]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": why}
    return "cmpl", "text_completion", choice


def _chat_chunk(
    text: str, why: str | None, first: bool
) -> tuple[str, str, dict[str, Any]]:
    delta = {"content": text} | ({"role": "assistant"} if first else {})
    choice = {"index": 0, "delta": delta, "finish_reason": why}
    return "chatcmpl", "chat.completion.chunk", choice
