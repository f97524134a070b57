"""Shapes of requests and answers: checked on arrival, documented in OpenAPI."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Text = Annotated[str, StringConstraints(max_length=1_000_000)]
Options = dict[Annotated[str, StringConstraints(max_length=64)], bool | int | float]


class Shape(BaseModel):
    """A part of a request; names that are not declared are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Predict(Shape):
    """Lines to answer."""

    lines: list[Text] = Field(min_length=1, description="One answer is given for each.")
    model: str | None = Field(None, description="Its name, if several are served.")
    options: Options = Field(
        default_factory=dict,
        description="Search options, as the flags of predict: see /v1/models.",
    )
    prefixes: list[Text] = Field(
        default_factory=list, description="The beginning of each answer."
    )
    include: list[list[Text]] = Field(
        default_factory=list, description="Words that each answer must contain."
    )
    alignment: bool = Field(False, description="Add the aligned words.")


class Stream(Shape):
    """A line, whose answer is read while it grows."""

    line: Text | None = None
    turns: list[Text] | None = Field(
        None, description="In place of a line: the turns of a conversation so far."
    )
    model: str | None = None
    options: Options = Field(default_factory=dict)
    prefix: Text = ""


class Attention(Shape):
    """A line and its answer, whose attention is shown."""

    line: Text
    answer: Text | None = Field(None, description="By default the model's own.")
    model: str | None = None


class Other(BaseModel):
    """Another answer to a line."""

    text: str
    score: float | None = None


class Answer(BaseModel):
    """The answer to a line, or the reason why there is none."""

    text: str
    score: float | None = None
    others: list[Other] | None = None
    alignment: list[tuple[int, int]] | None = None
    details: dict[str, Any] | None = None
    unknown: list[str] | None = Field(
        default=None, description="Characters or words that the model does not know."
    )
    error: str | None = None


class Answers(BaseModel):
    """An answer for each line, in their order."""

    model: str
    replies: list[Answer]


class Maps(BaseModel):
    """Attention weights [layers, queries, keys], as means over the heads of a layer."""

    queries: list[str]
    keys: list[str]
    weights: list[list[list[float]]]


class AttentionAnswer(BaseModel):
    """The attention by kind (encoder, decoder, cross) while an answer is read."""

    answer: str
    maps: dict[str, Maps]


class About(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "transformer_jax"
    about: dict[str, Any]


class Models(BaseModel):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[About]


class Problem(BaseModel):
    """What is wrong, and the way out."""

    message: str
    type: str
    code: int


class Problems(BaseModel):
    """The body of an answer with status 4xx or 5xx."""

    error: Problem


# OpenAI's interface: what is declared is honoured, and the rest is refused.


class StreamOptions(Shape):
    """What a stream has besides its texts."""

    include_usage: bool = False


class Asked(Shape):
    """Fields that both kinds of requests share."""

    model: str
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: int | None = Field(None, ge=0, le=2**32 - 1)
    stop: Text | list[Text] | None = None
    user: str | None = Field(None, description="Not used.")
    frequency_penalty: float | None = Field(None, ge=0, le=0, description="Only 0.")
    presence_penalty: float | None = Field(None, ge=0, le=0, description="Only 0.")


class Completion(Asked):
    """A text to continue, or for other tasks a line to answer."""

    prompt: Text | list[Text]
    echo: bool = False


class Part(Shape):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(Shape):
    """A turn of a chat."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Text | list[Part]

    @property
    def text(self) -> str:
        """The whole text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class Chat(Asked):
    """A conversation to go on with."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000)


class Usage(BaseModel):
    """Pieces that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TextChoice(BaseModel):
    """A text that was written."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None


class Completions(BaseModel):
    """Texts that were written."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class ChatMessage(BaseModel):
    """The model's turn."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """A turn that was written."""

    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length"]


class Chats(BaseModel):
    """Turns that were written."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
