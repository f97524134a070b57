"""Read sound from a line, encode and pad it as frames, mask it in training.

    hidden: bands b … b + w of all frames, and frames t … t + v, of drawn widths w and v

The masks are those of SpecAugment (Park et al. 2019), without its time warping. They
depend on the key of the step and the number of the row only.
"""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax.base.errors import Refused
from transformer_jax.base.schema import option
from transformer_jax.data.batches import Batch, fill_rows
from transformer_jax.data.store import Ragged
from transformer_jax.family.speech import wav
from transformer_jax.family.speech.log_mel import DTYPE, FEATURES
from transformer_jax.models import positions

# Of a model without a transcript: a learned table would have a row per vector, while
# lengths are counted in frames.
POSITIONS = tuple(name for name in positions.POSITIONS if name != "learned")
OF_INPUT = ("data.bands", "data.features", "data.pad")
MOST = 1e30  # of a sample; its square is the power
MASKS = 7921  # folded into the key of a step, for the masks of its sounds


@dataclasses.dataclass(frozen=True)
class FrameOptions:
    """Size the frames: options of `config.data`."""

    bands: int = option(40, "Bands of the log-mel spectrogram.", least=4, most=256)
    features: str = option(
        "normalised",
        "Spectrogram: each band normalised over its sound, or that of Whisper.",
        choices=lambda: FEATURES,
    )
    pad: bool = option(
        False, "Pad sounds with silence to data.max_length frames, as Whisper."
    )


@dataclasses.dataclass(frozen=True)
class MaskOptions:
    """Hide parts of training sounds: options of `config.train`."""

    masks: int = option(2, "Masks of either kind for each sound.", least=0, most=20)
    mask_bands: int = option(
        0, "Bands that a mask hides at most; 0 hides none.", least=0
    )
    mask_frames: int = option(
        0, "Frames that a mask hides at most, below half of them.", least=0
    )


@dataclasses.dataclass(frozen=True)
class Sound:
    """Samples, 16,000 a second, and a name to show in their place."""

    samples: np.ndarray
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({len(self.samples) / wav.RATE:.1f} s)"


def make_frames(samples: np.ndarray, data: ConfigDict) -> np.ndarray:
    """Compute the frames of a sound as the options of `config.data` say."""
    kind = FEATURES[data.features]
    if data.pad:
        missing = kind.samples(data.max_length) - len(samples)
        samples = np.pad(samples, (0, max(missing, 0)))
    return kind.compute(samples, data.bands)


def fingerprint(data: ConfigDict) -> str:
    """Return a text that names the options which determine the frames of sounds."""
    found = f"{data.bands}-{DTYPE.__name__}"
    length = data.max_length if data.pad else 0
    if data.features == "normalised" and not length:
        return found
    return f"{found}-{data.features}-{length}"


def read_frames(line: Any, data: ConfigDict, max_length: int) -> np.ndarray:
    """Return the frames of a line: the path of a WAV file, or samples themselves."""
    samples = line.samples if isinstance(line, Sound) else line
    if isinstance(samples, str):
        path = samples.strip()
        if not os.path.isfile(path):
            raise Refused(f"there is no WAV file {path!r}")
        try:
            samples = wav.read(path)
        except wav.NoSound as error:
            raise Refused(*error.problems) from None
    samples = np.asarray(samples)
    shape, kind = samples.shape, samples.dtype
    if len(shape) != 1 or not len(samples) or kind.kind not in "fiu":
        what = f"shape {shape}" if len(shape) != 1 or not len(samples) else kind
        raise Refused(f"an array of {what}: give samples [N], 16,000 a second")
    if not (np.abs(samples.astype(np.float64)) <= MOST).all():
        raise Refused(f"it has samples that are not finite, or beyond {MOST:g}")
    count = FEATURES[data.features].count(len(samples))
    if data.pad and count > data.max_length:
        raise Refused(
            f"{count:,} frames ({count / 100:.1f} s) are more than the "
            f"{data.max_length:,} to which sounds are padded (data.pad): cut the sound"
        )
    if max_length and count > max_length:
        raise Refused(
            f"{count:,} frames ({count / 100:.1f} s) are more than the {max_length:,} "
            "allowed: cut the sound, or raise --max_input"
        )
    return make_frames(samples, data).astype(np.float32)


def pad_frames(column: Ragged, batch: Batch, length: int) -> dict[str, np.ndarray]:
    """Pad frames to [rows, length, bands], with segments: 1, and 0 for padding."""
    there = np.arange(length) < fill_rows(column.lengths, batch)[:, None]
    frames = np.zeros((*there.shape, *column.values.shape[1:]), np.float32)
    frames[there] = column.values
    return {"frames": frames, "segments": there.astype(np.int32)}


def check(config: ConfigDict) -> list[str]:
    """List bands that would always be empty, and a mesh that would split frames."""
    bands, kind, problems = config.data.bands, FEATURES.get(config.data.features), []
    # The checks of the options refuse other values.
    empty = kind.count_empty(bands) if kind and bands in range(4, 257) else 0
    if kind and empty:
        most = next(n for n in range(bands, 0, -1) if not kind.count_empty(n))
        problems.append(
            f"data.bands = {bands}: {empty} of them would hold nothing, as a frame has "
            f"{len(kind.filters(bands))} frequencies: use {most} at most"
        )
    if config.mesh.sequence == 1:
        return problems
    return [
        *problems,
        f"mesh.sequence {config.mesh.sequence}: frames are not split, because the "
        "convolutions change their number: set it to 1, and split rows (mesh.data)",
    ]


def hide(
    frames: Float[Array, "B S bands"], lengths: Any, drawn: Array, train: Any
) -> Float[Array, "B S bands"]:
    """Set bands and stretches of each sound to 0, which is every band's mean."""
    if not train.masks or not (train.mask_bands or train.mask_frames):
        return frames

    def within(key, most, size, length):
        """Return which of `size` places a mask covers that lies below `length`."""
        for_width, for_place = jax.random.split(key)
        width = jax.random.randint(for_width, (), 0, most + 1)
        begin = jax.random.randint(for_place, (), 0, jnp.maximum(length - width, 0) + 1)
        places = jnp.arange(size)
        return (places >= begin) & (places < begin + width)

    def hide_in_one(frames, length, key):
        size, bands = frames.shape
        for one in jax.random.split(key, train.masks):
            of_bands, of_time = jax.random.split(one)
            most = jnp.minimum(train.mask_frames, length // 2)
            time = within(of_time, most, size, length)
            band = within(of_bands, min(train.mask_bands, bands), bands, bands)
            frames = jnp.where(time[:, None] | band, 0.0, frames)
        return frames

    keys = jax.vmap(lambda row: jax.random.fold_in(drawn, row))(jnp.arange(len(frames)))
    return jax.vmap(hide_in_one)(frames, lengths, keys)
