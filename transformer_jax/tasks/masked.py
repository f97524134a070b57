"""Masked language modelling: predict a token from its context on both sides (BERT).

    P(token_i | the text, in which several tokens, including i, are hidden)

Devlin et al. (2019), section 3.1: 15 % of the tokens are predicted. Of these, 80 % are
shown as the mask, 10 % as a random token and 10 % unchanged, because texts to be read
later contain no masks. A classifier can begin with the parameters of such a model
(`train.initial`).
"""

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import BOS, EOS, UNK
from transformer_jax.base.schema import option
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.reading import sources
from transformer_jax.data.reading.windows import WindowOptions
from transformer_jax.data.store import Column
from transformer_jax.data.text.tokenizer import SPACE, SPECIAL, Tokenizer
from transformer_jax.decoding import DecodeRequest, Reply
from transformer_jax.decoding.requests import one_line
from transformer_jax.models import registry
from transformer_jax.models.attention import MASKED
from transformer_jax.models.classifier import MaskedHeadOptions, MaskedLM
from transformer_jax.models.layers import GATES
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.masking import PERCENT, hide, of_content
from transformer_jax.tasks.parts.reading import EncoderInspector
from transformer_jax.tasks.parts.streams import Stream
from transformer_jax.tasks.parts.text import (
    SHORTEN_OR_RAISE,
    TextData,
    TextObjective,
    apply_to,
    check_count,
    check_positions,
    empty_opener,
    learn_tokenizer,
    opener,
    project,
)
from transformer_jax.tasks.parts.whole_answers import TextAnswers
from transformer_jax.tasks.protocols import (
    CrossEntropy,
    Record,
    Scoring,
    Task,
    TaskDefinition,
)

MASK = "<mask>"


MODULES = {"transformer": MaskedLM}


@dataclasses.dataclass(frozen=True)
class GuessOptions:
    """The guesses of a mask: options of `config.eval`."""

    guesses: int = option(5, "Guesses per mask, in jsonl.", least=1)


def check(config: ConfigDict) -> list[str]:
    """List the problems in the options of windows and masks."""
    problems, activation = [], config.model.get("activation", "")
    if config.model.head_transform and activation in GATES:
        problems.append(
            f"model.head_transform has no gate: model.activation = {activation!r} "
            "cannot be its activation; set it to False"
        )
    if MASK not in config.tokenizer.user_symbols:
        problems.append(
            f"tokenizer.user_symbols = {config.tokenizer.user_symbols}: {MASK} "
            "must be among them"
        )
    return problems


def compose(config: ConfigDict, tokenizer: Tokenizer) -> Task:
    """Compose the task from its parts."""
    module = registry.build(
        config,
        "masked_language_model",
        MODULES,
        source_vocab_size=tokenizer.vocab_size,
        absent=tokenizer.absent,
        head_transform=config.model.head_transform,
    )
    masks = Masks(tokenizer)
    inference = FillingInference(config, module, masks)
    return Task(
        config=config,
        data=WindowData(config, tokenizer),
        objective=MaskedObjective(config, module, masks),
        inference=inference,
        scoring=FillingScoring(tokenizer),
        inspector=EncoderInspector(inference, module, tokenizer),
    )


class Masks:
    """The mask in a vocabulary: encode texts that contain it."""

    def __init__(self, tokenizer: Tokenizer):
        """Find the mask's id; refuse a vocabulary without a mask."""
        self.tokenizer = tokenizer
        self.pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        if MASK not in self.pieces:
            raise UserError(
                f"the tokenizer has no piece {MASK}: learn one with {MASK} in "
                "tokenizer.user_symbols"
            )
        self.id = self.pieces.index(MASK)
        # A vocabulary of words does not find a mask inside a word.
        self._words_only = self.id not in tokenizer.encode(f"{MASK}a")

    def encode(self, line: str) -> list[int]:
        """Encode a text with masks; a mask is one piece, with the space before it."""
        first, *rest = line.replace(f" {MASK}", MASK).split(MASK)
        ids = [BOS, *self.tokenizer.encode(first)]
        for part in rest:
            ids += [self.id, *self._encode_after(part)]
        return [*ids, EOS]

    def _encode_after(self, part: str) -> list[int]:
        """Encode the text between a mask and the next one, or the end."""
        if self._words_only:
            return self.tokenizer.encode(part.strip())
        return self.tokenizer.encode_inside(part)

    def cover(self, text: str) -> str:
        """Hide some words of a text, with one mask per piece."""
        words = text.split()
        encoded = self.tokenizer.encode_all(words)
        # Words that are unknown, or known only as bytes, are not hidden.
        known = [
            i
            for i, ids in enumerate(encoded)
            if len(ids) <= len(words[i]) and UNK not in ids
        ]
        draw = random.Random(text)
        order = sorted(known or [0], key=lambda i: draw.random())
        for i in order[: -(-len(words) * PERCENT // 100)]:
            words[i] = MASK * len(encoded[i])
        return " ".join(words)


class WindowData(TextData):
    """Windows of text, with the same ends as a classifier's texts."""

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe the pieces of a window."""
        return {"text": Column("int32")}

    def encode(self, records: Sequence[Record]) -> list[dict[str, list[int]]]:
        """Encode windows."""
        encoded = self.tokenizer.encode_all([r["text"] for r in records])
        return [{"text": [BOS, *ids, EOS]} for ids in encoded]

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Pad windows."""
        return pad_or_pack(columns["text"], batch, batch.shape.lengths[0])


class MaskedObjective(TextObjective, CrossEntropy):
    """Cross-entropy of hidden tokens, given the shown text."""

    unit = "masks"
    draws = True

    def __init__(self, config: ConfigDict, module: Any, masks: Masks):
        self.module, self.mask = module, masks.id
        self.vocab_size = masks.tokenizer.vocab_size
        self.smoothing = config.train.label_smoothing

    def predictions(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Predictions:
        """Predict the hidden tokens; without a key, the text determines which."""
        tokens = batch["tokens"]
        if key is None:
            seeds = of_content(tokens)
        else:
            key, own = jax.random.split(key)
            seeds = jax.random.bits(own, (len(tokens), 1), jnp.uint32)
        shown, places, weights = hide(tokens, seeds, self.mask, self.vocab_size)
        outputs = self.outputs(params, shown, key, places)
        return losses.Predictions(
            outputs.hidden,
            project(self.module, params),
            jnp.take_along_axis(tokens, places, axis=1),
            weights,
            self.smoothing,
            self.vocab_size,
        )


class FillingInference(TextAnswers):
    """A line with masks in, the line without them out."""

    def __init__(self, config: ConfigDict, module: Any, masks: Masks):
        super().__init__(config, module, masks.tokenizer)
        self.masks = masks

    def read_line(self, line: str, max_length: int) -> DecodeRequest:
        """Encode a text with masks, at most as long as a window."""
        if MASK not in line:
            raise Refused(f"there is no {MASK} in the line, so nothing to predict")
        window = self.config.data.window
        length = len(line.replace(MASK, ""))
        if length > window:
            raise Refused(
                f"{length} characters are more than the {window} of a window that the "
                "model was trained to see: shorten it"
            )
        ids = self.masks.encode(line)
        check_positions(self.config, len(ids), "a text with masks")
        check_count(len(ids) - TASK.ends, max_length, SHORTEN_OR_RAISE)
        return DecodeRequest(ids, line=line)

    def question(self, record: Mapping[str, str]) -> str:
        """Return the text of an example with some words hidden."""
        return self.masks.cover(record["text"])

    def sides(self, requests: Sequence[DecodeRequest]) -> dict[str, Sequence[Any]]:
        """Return the pieces of texts, and the places of their masks."""
        texts = [request.source for request in requests]
        places = [[i for i, t in enumerate(ids) if t == self.masks.id] for ids in texts]
        return {"tokens": texts, "places": places}

    def outputs(self, params: Params, batch: Mapping[str, Array]) -> tuple[Array, ...]:
        """Return the likeliest pieces at each place, [B, K, guesses], best first."""
        inputs = batch["tokens"], None, batch["places"]
        logits = apply_to(self.module, params, *inputs).logits
        never = jnp.array([*range(SPECIAL), self.masks.id])
        chances = jax.nn.softmax(logits.at[..., never].set(MASKED))
        most = len(self.masks.pieces) - len(never)
        return tuple(jax.lax.top_k(chances, min(self.config.eval.guesses, most)))

    def reply(self, request: DecodeRequest, output: tuple[np.ndarray, ...]) -> Reply:
        """Fill each mask with its likeliest piece, independently of the others.

        A guess that begins a word begins with a space.
        """
        count = list(request.source).count(self.masks.id)
        chances, found = (array[:count] for array in output)  # [K, guesses]
        best = iter(found[:, 0])
        ids = [next(best) if t == self.masks.id else t for t in request.source]
        guesses = [
            [
                {
                    "text": self.masks.pieces[token].replace(SPACE, " "),
                    "chance": float(chance),
                }
                for token, chance in zip(*both, strict=True)
            ]
            for both in zip(found, chances, strict=True)
        ]
        text = one_line(self.masks.tokenizer.decode(ids))
        return Reply(request.line, text, details={"masks": guesses})


class FillingScoring(Scoring):
    """The share of hidden words that are filled in right."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def reference(self, record: Mapping[str, str]) -> str:
        """Return the text of an example."""
        return record["text"]

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Compare each hidden word with the best guesses of its masks."""
        right = hidden = 0
        for reply, reference in zip(replies, references, strict=True):
            best = (guesses[0]["text"] for guesses in reply.details["masks"])
            words = zip(reply.line.split(), reference.split(), strict=True)
            for shown, word in words:
                if masks := shown.count(MASK):
                    hidden += 1
                    found = "".join(itertools.islice(best, masks))
                    right += found.strip() == self.tokenizer.as_read(word)
        return {"filled": 100 * right / max(hidden, 1)}

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the score."""
        return f"hidden words filled in right {scores['filled']:.1f}%"

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return the share of the hidden words, in percent."""
        return {"filled (%)": scores["filled"]}


TASK = TaskDefinition(
    parts=frozenset({"text", "encoder", "positions", "tie"}),
    defaults={
        "tokenizer.user_symbols": (MASK,),
        "train.label_smoothing": 0.0,
    },
    source=lambda config: Stream(config, "masked", flat=True),
    check=check,
    learn=learn_tokenizer,
    open=opener(compose),
    open_empty=empty_opener(compose, (MASK,)),
    interface="masked_language_model",
    modules=MODULES,
    metrics=("filled",),
    options={
        "data": (
            sources.declare(("text",), "phrasebook", "opinions", task="masked"),
            WindowOptions,
        ),
        "eval": (GuessOptions,),
        "model": (MaskedHeadOptions,),
    },
    choices={
        "data.batching": ("buckets",),
        "model.tie": ("all",),
        "tokenizer.kind": ("unigram", "bpe", "word", "file"),  # kinds with words
    },
    ends=2,
)
