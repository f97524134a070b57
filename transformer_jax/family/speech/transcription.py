"""Speech: the path of a WAV file in, its transcript out.

    python -m transformer_jax.predict --workdir RUN < paths.txt

The encoder reads log-mel frames through two convolutions (`model.py`); the
decoder and its search are those of translation.

    loss = 0.7 · decoder's cross-entropy + 0.3 · CTC of the encoder

Without CTC (`train.ctc`; Watanabe et al. 2017) the decoder learns the grammar of the
transcripts first, and much later where in the sound each word is. Evaluation and search
do not use it. Pitfall: a transcript of more pieces than its sound has vectors has no
alignment, so that its loss is infinite; such examples are left out. Source lengths are
counted in frames, 100 per second, target lengths in pieces.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base.ids import BOS, EOS, PAD
from transformer_jax.base.schema import option
from transformer_jax.data.batches import Batch, pad_or_pack
from transformer_jax.data.reading import filters
from transformer_jax.data.store import Column, Store
from transformer_jax.data.text import learning
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.decoding.engine import longest_answer
from transformer_jax.decoding.searches.constraints import Suppression
from transformer_jax.family.speech import sounds as sound
from transformer_jax.family.speech.log_mel import DTYPE
from transformer_jax.family.speech.model import frames_per_vector, shorten
from transformer_jax.family.speech.recordings import (
    RecordingOptions,
    Recordings,
    open_recordings,
)
from transformer_jax.family.speech.sounds import FrameOptions, MaskOptions, Sound
from transformer_jax.family.speech.word_errors import WordErrorScoring
from transformer_jax.models import kernels, registry
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts.pairs import Seq2SeqObjective
from transformer_jax.tasks.parts.reading import check_shown
from transformer_jax.tasks.parts.text import (
    TEXT_FILE,
    attention_of,
    check_positions,
    empty_opener,
    open_tokenizer,
)
from transformer_jax.tasks.parts.writing import Writer, make_reply
from transformer_jax.tasks.protocols import (
    AttentionMaps,
    Data,
    DataSource,
    Record,
    Row,
    Say,
    ShowsAttention,
    Task,
    TaskDefinition,
)

ALLOW_LESS = "allow shorter transcripts (decode.max_length)"


@dataclasses.dataclass(frozen=True)
class AlignmentOptions:
    """Learn the alignment of sound and text: an option of `config.train`."""

    ctc: float = option(
        0.3,
        "Share of the loss that is the encoder's own, by CTC; 0.0: none.",
        least=0,
        below=1,
    )


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Learn the tokenizer from the transcripts, unless the folder has it."""
    if not (folder / TEXT_FILE).exists():
        assert isinstance(source, Recordings)
        settings, texts = config.tokenizer, source.transcripts("train")
        made = learning.make(settings, texts, ("text",), settings.file, [], say)
        folder.mkdir(parents=True, exist_ok=True)
        made.save(folder / TEXT_FILE)


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the tokenizer that a run has learned."""
    return compose(config, open_tokenizer(folder).of_target())


def compose(config: ConfigDict, tokenizer: Tokenizer) -> Task:
    """Compose the task of its parts."""
    module = registry.build(
        config,
        "transcriber",
        vocab_size=tokenizer.vocab_size,
        absent=tokenizer.absent,
        ctc=config.train.ctc > 0,
    )
    data = SpeechData(config, tokenizer)
    constraint = Suppression() if any(tokenizer.suppressed) else None
    writer = Writer(config, module, tokenizer, constraint)
    inference = SpeechInference(config, writer)
    return Task(
        config,
        data,
        SpeechObjective(config, module, tokenizer.vocab_size),
        inference,
        WordErrorScoring(),
        SpeechInspector(data, inference, module),
    )


class SpeechData(Data):
    """Frames of sound, and the pieces of transcripts with their ends."""

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer):
        self.config, self.max_length = config, config.data.max_length
        self.aligns = config.train.ctc > 0
        self.longest = config.decode.max_length
        self.tokenizer = tokenizer
        self.vocabularies = {"target_embedding": tokenizer}
        self.fingerprint = f"speech-{sound.fingerprint(config.data)}"
        self.fingerprint += f"-{tokenizer.fingerprint}"
        learned = config.model.positions == "learned"
        self.room = config.model.max_positions if learned else 0  # 0: no end
        self.filter_fingerprint = f"{self.max_length}-{self.aligns}-{self.room}"

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of frames, and one of pieces."""
        wide = self.tokenizer.vocab_size > 1 << 16
        return {
            "source": Column(DTYPE.__name__, (None, self.config.data.bands)),
            "target": Column("int32" if wide else "uint16"),
        }

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Compute the frames and encode the transcripts."""
        texts = self.tokenizer.encode_all([record["text"] for record in records])
        heard = (sound.make_frames(r["samples"], self.config.data) for r in records)
        return [
            {"source": frames.astype(DTYPE), "target": [*ids, EOS]}
            for frames, ids in zip(heard, texts, strict=True)
        ]

    def make_filter(self) -> Callable[[Record, Row], str | None]:
        """Make a filter of lengths, and of transcripts too long for CTC to align."""
        too_long = filters.by_length("source", self.max_length, "frames")
        each = frames_per_vector(self.config.model)

        def why_not(record: Record, row: Row) -> str | None:
            if reason := too_long(record, row):
                return reason
            pieces, frames = row["target"][:-1], len(row["source"])
            if self.room and len(pieces) >= self.room:
                return f"a transcript beyond model.max_positions {self.room}"
            if self.aligns and vectors_needed(pieces) > -(-frames // each):
                return "a transcript too long for its sound (train.ctc)"
            return None

        return why_not

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 2]: frames, and pieces."""
        heard, written = store.lengths("source"), store.lengths("target")
        needed = int(written.max(initial=0))
        check_positions(self.config, needed, "a transcript")
        return np.stack([heard, written], axis=1)

    def sides_of(self, length: int) -> tuple[int, ...]:
        """Return the length of a sound, and that of the longest transcript."""
        return length, self.longest

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Pad frames and pieces."""
        frames, pieces = batch.shape.lengths
        heard = sound.pad_frames(columns["source"], batch, frames)
        written = pad_or_pack(columns["target"], batch, pieces)
        return {
            "source": heard["frames"],
            "source_segments": heard["segments"],
            "target": written["tokens"],
        }


class SpeechObjective(Seq2SeqObjective):
    """The loss of translation over masked frames, and CTC of the encoder."""

    def __init__(self, config: ConfigDict, module: Any, vocab_size: int):
        super().__init__(config, module, vocab_size)
        self.train, self.bands = config.train, config.data.bands
        self.each = frames_per_vector(config.model)

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return frames of sound, and the tokens of transcripts."""
        frames = jnp.ones((rows, max(length, self.each), self.bands), jnp.float32)
        return frames, jnp.ones((rows, target), jnp.int32)

    def loss(self, params: Params, batch: Any, key: Array | None = None) -> losses.Sums:
        """Sum over the pieces; a key masks the sounds and adds the loss of CTC."""
        if key is None:
            return super().loss(params, batch)
        lengths = batch["source_segments"].sum(axis=1)
        drawn = jax.random.fold_in(key, sound.MASKS)
        hidden = sound.hide(batch["source"], lengths, drawn, self.train)
        outputs = self.outputs(params, {**batch, "source": hidden}, key)
        sums = losses.cross_entropy_of(*self.compare(params, outputs, batch["target"]))
        if not (share := self.train.ctc):
            return sums
        aligned, pieces = self._align(params, outputs.memory, batch)
        return sums.replace(
            loss=(1 - share) * sums.loss + share * aligned,
            metrics={**sums.metrics, "ctc": (aligned, pieces)},
        )

    def _align(self, params: Params, memory: Array, batch: Any) -> tuple[Array, Array]:
        """Sum CTC's loss: over all monotonic alignments of pieces and vectors.

        Return it with the number of pieces. A row without an alignment counts in
        neither.
        """
        logits = self.module.apply({"params": params}, memory, method="ctc_logits")
        unheard = shorten(batch["source_segments"], self.each) == 0
        unsaid = (batch["target"] == PAD) | (batch["target"] == EOS)
        target, said = batch["target"], ~unsaid
        repeats = (target[:, 1:] == target[:, :-1]) & said[:, 1:]
        possible = said.sum(axis=1) + repeats.sum(axis=1) <= (~unheard).sum(axis=1)
        unheard, unsaid = (x.astype(jnp.float32) for x in (unheard, unsaid))
        loss = optax.ctc_loss(logits, unheard, target, unsaid, blank_id=PAD)
        pieces = jnp.where(possible, said.sum(axis=1), 0).sum()
        return jnp.where(possible, loss, 0.0).sum(), pieces.astype(jnp.float32)


def vectors_needed(pieces: Sequence[int]) -> int:
    """Count the vectors that CTC needs: one a piece, and a blank between equal ones."""
    return len(pieces) + sum(a == b for a, b in itertools.pairwise(pieces))


class SpeechInference:
    """The path of a WAV file in, its transcript out."""

    reads_file = "sound"  # whose path a line is

    def __init__(self, config: ConfigDict, writer: Writer):
        self.config, self.writer = config, writer
        never, first = writer.tokenizer.suppressed
        self.suppressed = None
        if never or first:
            ids = {"never": never, "first": first}
            self.suppressed = {k: np.asarray(v, np.int32) for k, v in ids.items()}

    def parse(
        self,
        line: Any,
        max_length: int = 0,
        prefix: str = "",
        draw_seed: int = 0,
        options: Options | None = None,
    ) -> DecodeRequest:
        """Read the sound of a path; samples are read as they are."""
        frames = sound.read_frames(line, self.config.data, max_length)
        tokenizer = self.writer.tokenizer
        begun = tokenizer.encode(prefix) if prefix else tokenizer.opening
        request = DecodeRequest(
            frames, tuple(begun), draw_seed, line, constraint=self.suppressed
        )
        options = options or Options(**self.config.decode)
        needed = len(begun) + longest_answer(request, options)
        what = f"a transcript of {needed - len(begun):,} pieces, with its beginning,"
        check_positions(self.config, needed, what, ALLOW_LESS)
        return request

    def longest_request(self, length: int) -> DecodeRequest:
        """Return a request with silence of this many frames."""
        silence = np.zeros((length, self.config.data.bands), np.float32)
        return DecodeRequest(silence, prefix=(), constraint=self.suppressed)

    def question(self, record: Record) -> Sound:
        """Return the sound of an example."""
        return Sound(record["samples"], record["name"])

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its transcript) as found."""
        found = self.writer.write(params, requests, mesh, options)
        for number, texts in found:
            # A first piece that begins a word is read as a space by some tokenizers.
            texts = [written._replace(text=written.text.strip()) for written in texts]
            yield number, make_reply(requests[number].line, texts)


class SpeechInspector(ShowsAttention):
    """Show the attention while a transcript is written."""

    def __init__(self, data: SpeechData, inference: SpeechInference, module: Any):
        self.data, self.inference = data, inference
        self.module = kernels.with_weights(module)

    def attention(self, params: Params, source: Any, target: str) -> AttentionMaps:
        """Return the weights; vectors of sound are named by their times in seconds."""
        frames = self.inference.parse(source).source
        each = frames_per_vector(self.inference.config.model)
        check_shown(self.inference.config, len(frames) // each)
        written = [*self.data.tokenizer.encode(target), EOS]
        read = [BOS, *written[:-1]]
        outputs = self.module.apply(
            {"params": params}, jnp.asarray(frames)[None], jnp.asarray([read])
        )
        pieces = self.data.tokenizer.pieces
        times = [f"{i / 100:.2f}" for i in range(0, len(frames), each)]
        names, seen = pieces(written), pieces(read)
        return AttentionMaps(
            {
                "encoder": attention_of(outputs.encoder_attention),
                "decoder": attention_of(outputs.self_attention),
                "cross": attention_of(outputs.cross_attention),
            },
            {
                "encoder": (times, times),
                "decoder": (seen, seen),
                "cross": (seen, times),
            },
            names,
        )


TASK = TaskDefinition(
    parts=frozenset(
        "text lengths search source encoder decoder positions tie words".split()
    ),
    defaults={
        "data.batch_tokens": 16_000,
        "data.max_length": 3000,
        "eval.max_length": 4000,
        "model.norm": "pre",
        "model.activation": "gelu_tanh",
        "decode.max_length": 200,
        "model.tie": "decoder",
        "checkpoint.best": "word_accuracy",
    },
    source=lambda config: open_recordings(config.data),
    learn=learn,
    open=open_run,
    open_empty=empty_opener(compose),
    interface="transcriber",
    model="speech",
    metrics=("word_accuracy",),
    options={
        "data": (RecordingOptions, FrameOptions),
        "train": (MaskOptions, AlignmentOptions),
    },
    choices={
        "data.batching": ("buckets",),
        "model.tie": ("decoder", "none"),
    },
    check=sound.check,
    of_input=sound.OF_INPUT,
    limited="decode.max_length",
)
