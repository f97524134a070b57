"""Language modelling: continue a text token by token.

    P(text) = Π_t P(token_t | tokens before it in the same window)

The context rule, which also holds for perplexity: each window is read alone, and its
first token is predicted without context. With `eval.context`, held-out windows are read
after the text before them, which is not judged. With `eval.cache`, a cache of the last
tokens is kept from window to window (`decoding/neural_cache.py`). Bits per character
are the negative log-likelihood of a window divided by its characters, so that
vocabularies compare.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import decoding, losses, scores
from transformer_jax.base.errors import Refused
from transformer_jax.base.ids import PAD
from transformer_jax.base.schema import option
from transformer_jax.data.batches import Batch, fill_rows, pad_or_pack
from transformer_jax.data.reading import canaries, sources
from transformer_jax.data.reading.windows import WindowOptions
from transformer_jax.data.store import Column
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Reply, sliding
from transformer_jax.decoding.engine import longest_answer
from transformer_jax.decoding.requests import one_line
from transformer_jax.models import registry
from transformer_jax.models.positions import BIASES
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.reading import TextInspector
from transformer_jax.tasks.parts.scoring import texts_of
from transformer_jax.tasks.parts.streams import CHARACTERS, Stream
from transformer_jax.tasks.parts.text import (
    SHORTEN_OR_RAISE,
    TextData,
    TextObjective,
    check_length,
    check_positions,
    dropout_rngs,
    empty_opener,
    learn_tokenizer,
    opener,
    project,
    segments,
    shift_right,
)
from transformer_jax.tasks.parts.writing import Writer, Written
from transformer_jax.tasks.protocols import (
    CrossEntropy,
    Record,
    Scoring,
    Task,
    TaskDefinition,
)

SLIDING = ("rotary", "relative", *BIASES, "none")  # positions that are distances
PROMPT = 1 / 4  # share of a held-out window that is given, to be continued


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """Set the evaluation of held-out windows."""

    context: int = option(
        0, "Characters of a language model's window that are not judged.", least=0
    )
    cache: int = option(
        0,
        "Language models: also score with a cache of this many tokens read before.",
        least=0,
        most=100_000,
    )


@dataclasses.dataclass(frozen=True)
class Options(decoding.Options):
    """Set how to continue a text."""

    window: int = option(
        0,
        "Language models: pieces that are read at once; of a longer text, the last; 0 "
        "means data.window, if the positions allow longer texts.",
        least=0,
    )


def check(config: ConfigDict) -> list[str]:
    """List the problems in the lengths of windows and of texts to write."""
    data, context = config.data, config.eval.context
    problems = canaries.find_problems(data.canaries)
    if not 0 <= context < data.window:  # also for `evaluate --context`
        problems.append(
            f"eval.context = {context}: must be 0 to {data.window - 1}, because at "
            f"least one of the {data.window} characters of data.window must be judged"
        )
    most = data.window - int(data.window * PROMPT)
    if 1 <= config.decode.max_length <= most:
        return problems
    if config.decode.max_length and slides(config, config.decode.get("window", 0)):
        return problems
    return [
        *problems,
        f"decode.max_length = {config.decode.max_length}: must be 1 to {most} pieces, "
        f"so that the text fits into data.window {data.window} after a prompt of a "
        "quarter of it; for longer texts set decode.window, or one of model.positions "
        f"{', '.join(SLIDING)}",
    ]


def slides(config: ConfigDict, window: int) -> bool:
    """Return whether a text may outgrow what is read at once.

    Positions that are distances look the same wherever the window stands. With others
    it must be asked for.
    """
    return window > 0 or config.model.get("positions") in SLIDING


def compose(config: ConfigDict, tokenizer: Tokenizer) -> Task:
    """Compose the task from its parts."""
    module = registry.build(
        config,
        "language_model",
        vocab_size=tokenizer.vocab_size,
        absent=tokenizer.absent,
    )
    prompts = Prompts(config, tokenizer)
    return Task(
        config=config,
        data=StreamData(config, tokenizer),
        objective=LanguageObjective(config, module, tokenizer.vocab_size),
        inference=TextInference(config, prompts, Writer(config, module, tokenizer)),
        scoring=TextScoring(config, prompts),
        inspector=TextInspector(config, module, tokenizer),
    )


class StreamData(TextData):
    """Windows of text as rows of pieces."""

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer):
        super().__init__(config, tokenizer)
        whole_words = config.tokenizer.kind not in CHARACTERS
        self.fingerprint += "-inside" * whole_words

    def columns_for(self, records: Any) -> dict[str, Column]:
        """Describe the pieces and, with a context, how many of them are not judged."""
        small = self.tokenizer.vocab_size <= 1 << 16
        columns = {"text": Column("uint16" if small else "int32")}
        return columns | (
            {"before": Column("int32", ())} if getattr(records, "context", 0) else {}
        )

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Encode windows, each after its context."""
        rows = []
        for record in records:
            row: dict[str, Any] = {"text": self.tokenizer.encode_inside(record["text"])}
            if "before" in record:
                before = self.tokenizer.encode_inside(record["before"])
                row = {"text": before + row["text"], "before": len(before)}
            rows.append(row)
        return rows

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Pad or pack windows; with a context, add the number of pieces not judged."""
        arrays = pad_or_pack(columns["text"], batch, batch.shape.lengths[0])
        if "before" in columns:  # in held-out windows, which are never packed
            arrays["before"] = fill_rows(columns["before"], batch)
        return arrays


class LanguageObjective(TextObjective, CrossEntropy):
    """Cross-entropy of each token, given those before it."""

    unit = "tokens"

    def __init__(self, config: ConfigDict, module: Any, vocab_size: int):
        self.config, self.module, self.vocab_size = config, module, vocab_size
        self.smoothing = config.train.label_smoothing
        self.whole_words = config.tokenizer.kind not in CHARACTERS

    @property
    def remembered(self) -> int:
        """The number of tokens in the cache of an evaluation (`eval.cache`)."""
        return self.config.eval.cache

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return the tokens of targets, because there is no source."""
        return super().example_inputs(rows, target, target)

    def predictions(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Predictions:
        """Predict the real tokens that do not belong to a context."""
        tokens, positions = batch["tokens"], batch.get("positions")
        judged = tokens != PAD
        if "before" in batch:
            judged &= jnp.arange(tokens.shape[1]) >= batch["before"][:, None]
        outputs = self.module.apply(
            {"params": params},
            shift_right(tokens, positions),
            batch.get("segments", segments(tokens)),
            positions,
            **dropout_rngs(key),
        )
        return losses.Predictions(
            outputs.hidden,
            project(self.module, params),
            tokens,
            judged.astype(jnp.float32),
            self.smoothing,
            self.vocab_size,
        )

    def read(
        self, params: Params, batch: Mapping[str, Array]
    ) -> tuple[Array, Array, Array, Array]:
        """Return hidden states, targets, losses and weights of each token [B, T]."""
        found = self.predictions(params, batch)
        nll = losses.token_losses(
            found.hidden, found.logits_of, found.targets, found.vocab_size
        )
        return found.hidden, found.targets, nll, found.weights

    def means(self, sums: losses.Sums, records: Any = None) -> dict[str, float]:
        """Return means per token and, for a complete split, those of its text."""
        found = super().means(sums)
        if records is not None:
            found |= self._text_means(float(sums.metrics["nll"]), records)
            found["context"] = records.context
        return found

    def cached_means(self, nll: float, records: Any) -> dict[str, float]:
        """Return the means of a text whose losses with the cache add up to `nll`."""
        found = self._text_means(nll, records)
        return {f"cached_{name}": value for name, value in found.items()}

    def _text_means(self, nll: float, records: Any) -> dict[str, float]:
        """Return bits per character and, of whole words, perplexity per word.

        The end of a line counts as a word, because it is predicted like one.
        """
        texts = [record["text"] for record in records]
        found = {"bits_per_character": nll / sum(map(len, texts)) / math.log(2)}
        if self.whole_words:
            words = sum(len(text.split()) + text.count("\n") for text in texts)
            found["word_perplexity"] = math.exp(min(nll / max(words, 1), 700.0))
        return found


class Prompts:
    """Cut held-out windows into a prompt and its continuation."""

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        window = config.data.window
        self.longest = max(window - config.decode.max_length, int(window * PROMPT))

    def cut(self, record: Mapping[str, str]) -> tuple[str, str]:
        """Return prompt and rest; the prompt leaves space for the longest answer."""
        text = record.get("before", "") + record["text"]
        given = max(int(len(text) * PROMPT), 1)
        while len(self.tokenizer.encode_inside(text[:given])) > self.longest:
            given -= 1  # a character may be several bytes
        return text[:given], text[given:]


class TextInference:
    """The beginning of a text in, the complete text out."""

    def __init__(self, config: ConfigDict, prompts: Prompts, writer: Writer):
        self.config, self.prompts, self.writer = config, prompts, writer
        self.reads = writer.tokenizer  # the tokenizer of the lines

    def parse(
        self,
        line: str,
        max_length: int = 0,
        prefix: str = "",
        draw_seed: int = 0,
        options: decoding.Options | None = None,
    ) -> DecodeRequest:
        """Encode a beginning, which may have to fit into a window with the rest."""
        options = options or Options(**self.config.decode)
        tokenizer = self.writer.tokenizer
        check_length(tokenizer, line, max_length, SHORTEN_OR_RAISE)
        given = tokenizer.encode_inside(line + tokenizer.compose(prefix))
        request = DecodeRequest((), tuple(given), draw_seed, line)
        window, most = getattr(options, "window", 0), self._window(options)
        check_positions(self.config, window, f"a window of {window} pieces", "lower it")
        if sliding.fits(request, options, most):
            return request
        following = options.max_length or options.extra_length
        lengths = f"{len(given)} pieces and {following} to follow are more than the "
        if not slides(self.config, window):
            raise Refused(
                f"{lengths}{most} that the model was trained to see: shorten the line, "
                f"lower --max_length, or read only the last {most}: --window={most}"
            )
        if options.beams > 1 and not (options.sample or options.contrast):
            raise Refused(
                f"{lengths}{most} that are read at once, and a beam cannot go beyond: "
                "use --beams=1 or --sample, or lower --max_length"
            )
        return request

    def include(
        self, request: DecodeRequest, phrases: Sequence[str], options: decoding.Options
    ) -> DecodeRequest:
        """Return a request whose continuation must include the phrases."""
        from transformer_jax.decoding.searches import inclusion

        most = longest_answer(request, options)
        return inclusion.add_phrases(
            request, phrases, self.writer.tokenizer, options, most
        )

    def _window(self, options: decoding.Options) -> int:
        """Return how many pieces are read at once.

        With one piece per character this is data.window; longer pieces are fewer.
        """
        return getattr(options, "window", 0) or self.config.data.window

    def longest_request(self, length: int) -> DecodeRequest:
        """Return a request without a prompt."""
        return DecodeRequest((), prefix=())

    def question(self, record: Mapping[str, str]) -> str:
        """Return the beginning of a window."""
        return self.prompts.cut(record)[0]

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: decoding.Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its continued text) as found."""
        window = self._window(options)
        for number, texts in self.writer.write(params, requests, mesh, options, window):
            yield number, make_reply(requests[number].line, texts)


def make_reply(line: str, texts: Sequence[Written]) -> Reply:
    """Make a reply from texts; only the details keep their line breaks."""
    best, *others = texts
    details: dict[str, Any] = {"score": best.score, "text": best.text}
    if others:
        details["others"] = [{"text": t.text, "score": t.score} for t in others]
    first, *rest = (
        Reply(line, one_line(t.text), t.score, (), {"text": t.text}, pieces=t.pieces)
        for t in texts
    )
    return dataclasses.replace(first, others=tuple(rest), details=details)


class TextScoring(Scoring):
    """The diversity of the texts; their likelihood is the loss."""

    def __init__(self, config: ConfigDict, prompts: Prompts):
        self.window, self.prompts = config.data.window, prompts

    def reference(self, record: Mapping[str, str]) -> str:
        """Return the rest of a window after its beginning."""
        return self.prompts.cut(record)[1]

    def count_answered(self, records: Any) -> int:
        """Count windows; with a context, as many as cover the text once."""
        if not records.context:
            return len(records)
        return min(len(records), -(-len(records.text) // records.size))

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Return the share of distinct pairs of words."""
        return {"distinct_2": scores.distinct(texts_of(replies), 2)}

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the means of the text, how it was read, and distinct pairs."""
        written = f"distinct pairs of words {scores['distinct_2']:.0%}"
        if "bits_per_character" not in scores:
            return written
        context = scores.get("context")
        rule = f"{context} of them only read" if context else "each read alone"
        rule = f"(windows of {self.window} characters, {rule})"
        parts = [f"{_in_words(scores)} {rule}", written]
        if "cached_bits_per_character" in scores:
            cached = f"with a cache {_in_words(scores, 'cached_')}"
            parts.insert(1, cached)
        return "  ".join(parts)

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return bits per character, which are comparable across vocabularies."""
        return {"bits per character": scores["bits_per_character"]}


def _in_words(scores: Mapping[str, Any], prefix: str = "") -> str:
    found = f"bits per character = {scores[f'{prefix}bits_per_character']:.4f}"
    perplexity = scores.get(f"{prefix}word_perplexity")
    return f"{found}, perplexity per word = {perplexity:.1f}" if perplexity else found


TASK = TaskDefinition(
    parts=frozenset("text packing search decoder positions tie words".split()),
    defaults={
        "train.label_smoothing": 0.0,
        "eval.answers": 3,
        "decode.beams": 1,
        "decode.sample": True,
        "decode.max_length": 100,
    },
    source=Stream,
    check=check,
    learn=learn_tokenizer,
    open=opener(compose),
    open_empty=empty_opener(compose),
    interface="language_model",
    search=Options,
    options={
        "data": (
            sources.declare(("text",), "phrasebook", "stories", task="language"),
            WindowOptions,
            canaries.CanaryOptions,
        ),
        "eval": (EvaluationOptions,),
    },
    choices={"model.tie": ("all", "none")},
    ends=0,
    evaluation=EvaluationOptions,
)
