"""Coordinates to colour: a network that represents one picture (Tancik et al. 2020).

    echo "0.25 0.5" | python -m transformer_jax.predict --workdir RUN

Each line is a place, x to the right and y downwards, from 0 to 1; the answer is its
colour, #rrggbb. The encoding of a place (`model.features`) determines how much detail
the network can learn. The score is the PSNR of held-out pixels, in dB.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.base import files
from transformer_jax.base.errors import Refused
from transformer_jax.base.schema import option
from transformer_jax.data.batches import Batch, fill_rows
from transformer_jax.data.reading.sources import Splits
from transformer_jax.data.store import Column, Store
from transformer_jax.data.text.numerals import read_number
from transformer_jax.decoding import DecodeRequest, Options, Reply
from transformer_jax.family.coordinates import picture as drawn
from transformer_jax.family.coordinates import pixels
from transformer_jax.family.coordinates.pixels import Pixels
from transformer_jax.models import registry
from transformer_jax.sharding import Params
from transformer_jax.tasks.parts import learnt
from transformer_jax.tasks.parts.scoring import texts_of
from transformer_jax.tasks.parts.text import dropout_rngs
from transformer_jax.tasks.parts.whole_answers import WholeAnswers
from transformer_jax.tasks.protocols import (
    Data,
    DataSource,
    Objective,
    Record,
    Say,
    Scoring,
    Task,
    TaskDefinition,
)

SOURCES = ("drawn", "file")
ABOUT_FILE = "picture.json"  # in the tokenizer's folder


@dataclasses.dataclass(frozen=True)
class About:
    """The size of the picture that a run learns."""

    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class PictureOptions:
    """The picture: options of `config.data`."""

    source: str = option("drawn", "Drawn in code, or an image file.", choices=SOURCES)
    folder: str = option("", "Folder of relative paths.")
    picture: str = option("", "file: the path of the image.")
    size: int = option(128, "Pixels of the longer side.", least=4, most=4096)


class Picture(Splits):
    """The pixels of one picture; three quarters of them are for training."""

    known_splits = "train", "validation"

    def _open(self, split: str) -> Pixels:
        return Pixels(self.image, split)

    @functools.cached_property
    def image(self) -> np.ndarray:
        """The picture as float32 0..1, [height, width, 3]."""
        if self.data.source == "drawn":
            return drawn.draw(self.data.size).astype(np.float32)
        return pixels.read_picture(str(self._path), self.data.size)

    @property
    def _path(self) -> pathlib.Path:
        return pathlib.Path(self.data.folder, self.data.picture)

    def find_problems(self) -> list[str]:
        """Report a missing file."""
        if self.data.source == "drawn":
            return []
        if not self.data.picture:
            return ["data.picture is empty: name an image file"]
        if not os.path.isfile(self._path):
            return [f"data.picture: {files.describe_missing(self._path)}"]
        return []


def learn(
    config: ConfigDict, source: DataSource, folder: pathlib.Path, say: Say
) -> None:
    """Record the size of the picture."""
    if not (folder / ABOUT_FILE).exists():
        height, width, _ = source.read("train").parts[0].picture.shape  # type: ignore
        learnt.write(folder / ABOUT_FILE, About(height, width))


def open_run(config: ConfigDict, folder: pathlib.Path) -> Task:
    """Open the task with the size that a run has recorded."""
    return compose(
        config, About(**learnt.read(folder / ABOUT_FILE, height=int, width=int))
    )


def open_empty(config: ConfigDict, vocabulary: int) -> Task:
    """Open the task for a square picture."""
    return compose(config, About(config.data.size, config.data.size))


def compose(config: ConfigDict, about: About) -> Task:
    """Compose the task from its parts."""
    size = about.height, about.width
    objective = ColourObjective(registry.build(config, "coordinates", size=size))
    inference = ColourInference(config, objective)
    return Task(
        config=config,
        data=PixelData(about),
        objective=objective,
        inference=inference,
        scoring=ColourScoring(),
    )


class PixelData(Data):
    """Places and colours."""

    def __init__(self, about: About):
        self.fingerprint = f"coordinates-{about}"

    def columns_for(self, records: Sequence[Record]) -> dict[str, Column]:
        """Describe a column of places and one of colours."""
        return {"place": Column("float32", (2,)), "colour": Column("float32", (3,))}

    def encode(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Return the place and the colour of each record unchanged."""
        return [{"place": r["place"], "colour": r["colour"]} for r in records]

    def lengths(self, store: Store) -> np.ndarray:
        """Return the lengths [examples, 1]: 1 for each pixel."""
        return np.ones((len(store), 1), int)

    def sides_of(self, length: int) -> tuple[int, ...]:
        """Return a length of 1."""
        return (1,)

    def collate(self, columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Fill rows without a pixel with zeros, and give them a weight of 0."""
        return {
            "places": fill_rows(columns["place"], batch),
            "colours": fill_rows(columns["colour"], batch),
            "weights": (batch.examples[:, 0] >= 0).astype(np.float32),
        }


class ColourObjective(Objective):
    """The mean squared error of colours."""

    def __init__(self, module: Any):
        self.module = module

    def example_inputs(self, rows: int, length: int, target: int) -> tuple[Any, ...]:
        """Return places."""
        return (jnp.ones((rows, 2)),)

    def outputs(self, params: Params, places: Array, key: Array | None = None) -> Array:
        """Return the colours of places, [B, 3]."""
        return self.module.apply({"params": params}, places, **dropout_rngs(key))

    def loss(
        self, params: Params, batch: Mapping[str, Array], key: Array | None = None
    ) -> losses.Sums:
        """Sum over the pixels the mean squared error of their three channels."""
        painted = self.outputs(params, batch["places"], key)
        errors = jnp.square(painted - batch["colours"]).mean(axis=-1)
        weights = batch["weights"]
        total = (errors * weights).sum()
        return losses.Sums(total, weights.sum())

    def means(
        self, sums: losses.Sums, records: Sequence[Record] | None = None
    ) -> dict[str, float]:
        """Return the mean squared error and the corresponding PSNR."""
        found = super().means(sums)
        return found | {"psnr": pixels.psnr(found["loss"])}


class ColourInference(WholeAnswers):
    """A place in, its colour out."""

    equal = True

    def __init__(self, config: ConfigDict, objective: ColourObjective):
        super().__init__(config)
        self.objective = objective

    def outputs(self, params: Params, batch: Mapping[str, Array]) -> Array:
        """Return the colours of places, [B, 3]."""
        return self.objective.outputs(params, batch["places"])

    def read_line(self, line: Any, max_length: int) -> DecodeRequest:
        """Read two numbers."""
        try:
            x, y = map(read_number, line.split() if isinstance(line, str) else line)
        except ValueError:
            raise Refused(
                f"{str(line)[:60]!r} is not a place: give x and y, such as 0.25 0.5"
            ) from None
        if not (0 <= x <= 1 and 0 <= y <= 1):
            raise Refused(
                f"{x:g} {y:g} is outside of the picture: give numbers from 0 to 1"
            )
        return DecodeRequest((x, y), line=line)

    def question(self, record: Record) -> str:
        """Return the place of a pixel."""
        x, y = record["place"]
        return f"{x:.7g} {y:.7g}"

    def answers(
        self,
        params: Params,
        requests: Sequence[DecodeRequest],
        mesh: Mesh,
        options: Options,
    ) -> Iterator[tuple[int, Reply]]:
        """Yield (number of a request, its colour)."""
        places = np.array([request.source for request in requests], np.float32)
        for i, colour in enumerate(self.paint(params, places, mesh)):
            yield i, Reply(requests[i].line, as_text(colour))

    def paint(self, params: Params, places: np.ndarray, mesh: Mesh) -> np.ndarray:
        """Return the colours [N, 3] of places [N, 2]."""
        found = np.zeros((len(places), 3), np.float32)
        for i, colour in self.forward(params, {"places": places}, mesh):
            found[i] = colour
        return found


class ColourScoring(Scoring):
    """The PSNR of the answered colours, which are rounded to bytes."""

    def reference(self, record: Record) -> str:
        """Return the colour of a pixel."""
        return as_text(record["colour"])

    def score(self, replies: Sequence[Reply], references: Sequence[str]) -> dict:
        """Compare colours."""
        sides = (texts_of(replies), references)
        painted, true = (np.array([as_colour(t) for t in texts]) for texts in sides)
        return {"psnr": pixels.psnr(float(np.square(painted - true).mean()))}

    def summary(self, scores: Mapping[str, Any]) -> str:
        """Format the PSNR."""
        return f"PSNR = {scores['psnr']:.2f} dB"

    def measures(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Return the PSNR."""
        return {"PSNR (dB)": scores["psnr"]}


def as_text(colour: Float[np.ndarray, "3"]) -> str:
    """Write red, green and blue in 0..1 as #rrggbb."""
    return "#" + "".join(f"{round(255 * float(np.clip(c, 0, 1))):02x}" for c in colour)


def as_colour(text: str) -> Float[np.ndarray, "3"]:
    """Read #rrggbb."""
    return np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255


TASK = TaskDefinition(
    parts=frozenset(),
    defaults={
        "train.label_smoothing": 0.0,
        "checkpoint.best": "psnr",
        "eval.splits": ("validation",),
        "eval.samples": 0,
        "data.shapes": 1,
    },
    source=lambda config: Picture(config.data),
    learn=learn,
    open=open_run,
    open_empty=open_empty,
    interface="coordinates",
    model="coordinate_mlp",
    metrics=("psnr",),
    options={"data": (PictureOptions,)},
    choices={"data.batching": ("buckets",), "checkpoint.best": ("loss", "psnr")},
)
