"""Drawings: a caption in, a picture out (as in DALL·E, Ramesh et al. 2021).

    echo "a red circle left of a blue square" | \\
        python -m transformer_jax.predict --workdir RUN --pictures FOLDER

A codebook of patches is learned from the training pictures, as a tokenizer is from
text. An encoder-decoder reads the caption and writes the codes of the patches, row by
row. The answer is the line of codes, or with `--pictures` the path of a PNG file. A
picture is right if it shows exactly what the caption says, by `regions.py`.
"""

import dataclasses
import functools
import importlib.util
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import UInt8
from ml_collections import ConfigDict

from transformer_jax import decoding
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import UNK
from transformer_jax.base.schema import option
from transformer_jax.data.reading.records import Records
from transformer_jax.data.reading.sources import GeneratedSource, Splits
from transformer_jax.data.text.tokenizer import Tokenizer
from transformer_jax.decoding import DecodeRequest, Reply
from transformer_jax.family.drawings import captions, codebook, regions
from transformer_jax.family.drawings.codebook import Codebook, CodeTokenizer
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts import seq2seq
from transformer_jax.tasks.parts.pairs import PairData
from transformer_jax.tasks.parts.scoring import ResampledScoring, in_percent, texts_of
from transformer_jax.tasks.parts.text import (
    EmptyTokenizer,
    learn_tokenizer,
    open_tokenizer,
)
from transformer_jax.tasks.parts.writing import Seq2SeqInference, Writer
from transformer_jax.tasks.protocols import (
    PAIRED,
    DataSource,
    Record,
    Say,
    Task,
    TaskDefinition,
)

CODEBOOK_FILE = "codebook.npy"  # in the tokenizer's folder
SIZE = captions.SIZE, captions.SIZE
ZOOM = 8  # pixels of a PNG for each pixel of a picture
METRICS = ("right", "figures", "relation")


@dataclasses.dataclass(frozen=True)
class DrawingOptions:
    """Draw pictures to learn from: options of `config.data`."""

    source: str = option("drawings", "Drawn by the package.", choices=("drawings",))
    train_size: int = option(20_000, "Pictures.", least=1, most=10**7)
    validation_size: int = option(100, "Pictures.", least=1, most=10**7)
    test_size: int = option(500, "Pictures, of each test split.", least=1, most=10**7)


@dataclasses.dataclass(frozen=True)
class CodeOptions:
    """Learn the codebook: options of `config.tokenizer`."""

    codes: int = option(64, "Patches of the codebook, at most.", least=2, most=65_000)
    patch: int = option(4, "Pixels of a patch's side.", least=1, most=32)


@dataclasses.dataclass(frozen=True)
class Options(decoding.Options):
    """Set how to draw."""

    pictures: str = option("", "Drawings: a folder to write PNG files into.")


class Source(Splits):
    """Captions and their pictures, which the package draws."""

    known_splits = captions.SPLITS

    def _open(self, split: str) -> Records:
        about = ("drawings", captions.VERSION, captions.SPLITS, captions.generate)
        return GeneratedSource(*about).read(self.data, split)


def check(config: ConfigDict) -> list[str]:
    """List what cannot work in the sizes of patches and answers."""
    patch, problems = config.tokenizer.patch, []
    if captions.SIZE % patch:
        return [
            f"tokenizer.patch = {patch} does not divide {captions.SIZE}, the pixels of "
            "a picture's side: use 2, 4 or 8"
        ]
    count = (captions.SIZE // patch) ** 2
    if config.data.max_length < count:
        problems.append(
            f"data.max_length = {config.data.max_length}: a picture has {count} "
            f"patches of tokenizer.patch {patch}: set it to {count}"
        )
    if config.decode.max_length != count + 1:
        problems.append(
            f"decode.max_length = {config.decode.max_length}: set it to {count + 1}, "
            f"the patches of tokenizer.patch {patch} and an end"
        )
    return problems


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Learn the words of captions and the codebook of pictures."""
    learn_tokenizer(config, source, folder, say, ("source",))
    path = folder / CODEBOOK_FILE
    if not path.exists():
        records, settings = source.read("train"), config.tokenizer
        few = range(min(len(records), codebook.PICTURES))
        pictures = [records[i]["picture"] for i in few]
        made = codebook.learn(pictures, settings.codes, settings.patch)
        say(f"codebook   {len(made.patches)} patches of {len(pictures):,} pictures")
        made.save(path)


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with what a run has learned."""
    book = Codebook.load(folder / CODEBOOK_FILE)
    return compose(config, open_tokenizer(folder), book)


def open_empty(config: ConfigDict, vocabulary: int) -> Task:
    """Open the task with a vocabulary of this size and a codebook of black patches."""
    settings = config.tokenizer
    black = np.zeros((settings.codes, settings.patch, settings.patch, 3), np.uint8)
    return compose(config, EmptyTokenizer(config, vocabulary), Codebook(black))


def compose(config: ConfigDict, words: Tokenizer, book: Codebook) -> Task:
    """Compose the task from its parts."""
    data = PictureData(
        config, words, CodeTokenizer(book), Options, functools.partial(as_codes, book)
    )
    return seq2seq.compose(data, DrawingInference, DrawingScoring(book))


class PictureData(PairData):
    """Captions, and the codes of pictures."""

    def make_filter(self) -> Any:
        """Make a filter that leaves no picture out."""
        return lambda record, row: None


def as_codes(book: Codebook, record: Record) -> Record:
    """Write the picture of an example as a line of codes, unless it is one."""
    if "picture" not in record:
        return record
    codes = map(str, book.encode(record["picture"]))
    return {"source": record["source"], "target": " ".join(codes)}


def as_picture(book: Codebook, text: str) -> UInt8[np.ndarray, "32 32 3"]:
    """Draw the picture of a line of codes."""
    return book.decode([int(word) for word in text.split()], SIZE)


class DrawingInference(Seq2SeqInference):
    """A caption in, a picture out, as codes or as a file."""

    def __init__(self, data: PairData, writer: Writer):
        super().__init__(data, writer)
        tokenizer = data.target_tokenizer
        assert isinstance(tokenizer, CodeTokenizer)  # see open_run
        self.book = tokenizer.codebook

    def parse(self, line: str, *arguments: Any, **named: Any) -> DecodeRequest:
        """Encode a caption; refuse words that training does not have."""
        request = super().parse(line, *arguments, **named)
        tokenizer = self.data.source_tokenizer
        for word in line.split():
            if UNK in tokenizer.encode(word):
                raise Refused(
                    f"no caption of the training pictures has the word {word[:40]!r}: "
                    "use others"
                )
        return request

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: decoding.Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, the codes of its picture, or its file)."""
        folder = getattr(options, "pictures", "")
        if folder:
            options = dataclasses.replace(options, pictures="")  # type: ignore[call-arg]
            make_folder(folder)
        for number, reply in super().answers(params, requests, mesh, options):
            if folder and reply.text:
                path = pathlib.Path(folder, f"{requests[number].seed + 1:06d}.png")
                if jax.process_index() == 0:
                    write_png(path, as_picture(self.book, reply.text))
                details = {**reply.details, "codes": reply.text}
                reply = dataclasses.replace(reply, text=str(path), details=details)
            yield number, reply


def write_png(path: pathlib.Path, picture: UInt8[np.ndarray, "H W 3"]) -> None:
    """Write a picture, each of its pixels as a square of several."""
    from PIL import Image

    height, width, _ = picture.shape
    size = ZOOM * width, ZOOM * height
    Image.fromarray(picture).resize(size, Image.Resampling.NEAREST).save(path)


def make_folder(folder: str) -> None:
    """Make the folder of pictures; refuse if they cannot be written."""
    if importlib.util.find_spec("PIL") is None:
        raise UserError(
            "--pictures needs Pillow: pip install 'transformer_jax[images]'"
        )
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--pictures={folder}: {error.strerror}: name another folder"
        ) from None


class DrawingScoring(ResampledScoring):
    """The share of pictures that show the figures and relation of their captions."""

    shares = ("right",)

    def __init__(self, book: Codebook):
        self.book = book

    def reference(self, record: Record) -> str:
        """Return the caption, by which a picture is judged."""
        return record["source"]

    def measure(
        self, answers: Sequence[str], references: Sequence[str]
    ) -> Sequence[regions.Verdict]:
        """Judge each picture by its caption."""
        return [
            regions.judge(as_picture(self.book, codes), caption)
            for codes, caption in zip(answers, references, strict=True)
        ]

    def judge(self, measured: Sequence[regions.Verdict]) -> dict[str, float]:
        """Return the share of pictures that are right, in percent."""
        return in_percent(self._shares(measured), *self.shares)

    def _shares(self, measured: Sequence[regions.Verdict]) -> dict[str, float]:
        """Return the shares that are right, and of right figures and relations."""
        count = max(len(measured), 1)
        return {
            name: sum(getattr(verdict, name) for verdict in measured) / count
            for name in METRICS
        }

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Score pictures."""
        return self._shares(self.measure(texts_of(replies), references))

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Put the shares into words."""
        return f"right {scores['right']:.1%}, figures {scores['figures']:.1%}"


TASK = TaskDefinition(
    parts=PAIRED - {"filter"},
    defaults={
        "tokenizer.kind": "word",
        "tokenizer.vocab_size": 100,
        "tokenizer.shared": False,
        "model.tie": "decoder",
        "checkpoint.best": "right",
        "eval.samples": 0,
        "data.max_length": 64,
        "data.shapes": 1,
        "decode.beams": 1,
        "decode.sample": True,
        "decode.max_length": 65,
        "eval.splits": ("test", "test_combinations"),
    },
    source=lambda config: Source(config.data),
    learn=learn,
    open=open_run,
    open_empty=open_empty,
    metrics=("right", "figures"),
    options={"data": (DrawingOptions,), "tokenizer": (CodeOptions,)},
    search=Options,
    check=check,
)
