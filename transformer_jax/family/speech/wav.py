"""Read WAV files: PCM of 8 to 32 bits or floats, any rate, any number of channels.

    RIFF size WAVE   fmt  size format channels rate …   data size samples

Channels are averaged, and another rate is brought to 16,000 samples a second. Python's
own `wave` knows neither floats nor, before 3.12, the extensible form.
"""

import math
import os

import numpy as np
from jaxtyping import Float

from transformer_jax.base.errors import UserError

RATE = 16_000  # samples a second of everything that a model hears
RATES = (4_000, 384_000)  # of a file, at least and at most
LARGEST = 1 << 28  # bytes of a file, which is read into memory
LONGEST = 1800  # seconds: frames take 50 times the memory of their samples
UNKNOWN = 0x7FFF_0000  # a size from here on stands for sound written to a pipe
PCM, FLOATS, EXTENSIBLE = 1, 3, 0xFFFE
OTHERS = {b"fLaC": "FLAC", b"OggS": "Ogg", b"ID3": "MP3", b"\xff\xfb": "MP3"}


class NoSound(UserError):
    """A file that cannot be read as sound."""


def read(path: str | os.PathLike) -> Float[np.ndarray, "samples"]:
    """Read a file: float32 samples of ±1, 16,000 a second."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise NoSound(f"{path} cannot be read: {error.strerror}") from None
    try:
        samples, rate = decode(content)
    except ValueError as error:
        raise NoSound(f"{path} cannot be read as sound: {error}") from None
    return resample(samples, rate)


def write(path: str | os.PathLike, samples: Float[np.ndarray, "samples"]) -> None:
    """Write samples of ±1 as PCM of 16 bits, 16,000 a second."""
    data = np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    numbers = [(PCM, 2), (1, 2), (RATE, 4), (2 * RATE, 4), (2, 2), (16, 2)]
    form = b"".join(number.to_bytes(size, "little") for number, size in numbers)
    parts = b"WAVE" + _chunk(b"fmt ", form) + _chunk(b"data", data)
    with open(path, "wb") as file:
        file.write(_chunk(b"RIFF", parts))


def decode(content: bytes) -> tuple[Float[np.ndarray, "samples"], int]:
    """Return the samples of a file's bytes, channels averaged, and their rate."""
    if len(content) > LARGEST:
        raise ValueError(
            f"it has more than {LARGEST:,} bytes: cut it, or convert it to one channel "
            f"and {RATE:,} samples a second"
        )
    for magic, name in OTHERS.items():
        if content.startswith(magic):
            raise ValueError(
                f"it is {name}, and only WAV is read: convert it, such as by ffmpeg -i "
                "IN -ar 16000 -ac 1 OUT.wav"
            )
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise ValueError("it does not begin as a WAV file does (RIFF, size, WAVE)")
    chunks = _chunks(content)
    form, data = chunks.get(b"fmt "), chunks.get(b"data")
    if form is None or data is None or len(form) < 16:
        raise ValueError("it has no sound: the parts 'fmt ' and 'data' must be there")
    kind, channels, frame, bits = (_number(form, at, 2) for at in (0, 2, 12, 14))
    if kind == EXTENSIBLE and len(form) >= 26:
        kind = _number(form, 24, 2)
    rate = _number(form, 4, 4)
    if not RATES[0] <= rate <= RATES[1]:
        raise ValueError(
            f"it has {rate:,} samples a second: {RATES[0]:,} to {RATES[1]:,} are read"
        )
    if not channels:
        raise ValueError("it has no channel")
    if frame not in (0, channels * bits // 8):  # some writers leave it 0
        raise ValueError(
            f"{frame} bytes hold {channels} samples of {bits} bits, with gaps whose "
            "place is not stated: convert it, such as by ffmpeg -i IN -c:a pcm_s16le "
            "OUT.wav"
        )
    values = _values(data, kind, bits)
    whole = values[: len(values) // channels * channels]
    if not len(whole):
        raise ValueError("it holds no samples")
    if (seconds := len(whole) / channels / rate) > LONGEST:
        raise ValueError(f"it lasts {seconds:,.0f} s, more than {LONGEST:,}: cut it")
    with np.errstate(all="ignore"):  # what overflows is not finite, and refused
        samples = whole.reshape(-1, channels).mean(axis=1, dtype=np.float64)
        samples = samples.astype(np.float32)
    if not np.isfinite(samples).all():
        raise ValueError("it has samples that are not finite")
    return samples, rate


def resample(
    samples: Float[np.ndarray, "samples"], rate: int
) -> Float[np.ndarray, "samples"]:
    """Bring samples to 16,000 a second, by the spectrum of all of them.

    Frequencies that the lower rate cannot hold are left out.
    """
    if rate == RATE:
        return samples
    common = math.gcd(rate, RATE)
    blocks = -(-len(samples) // (rate // common))
    before, after = blocks * (rate // common), blocks * (RATE // common)
    spectrum = np.fft.rfft(samples.astype(np.float64), before)
    kept = np.zeros(after // 2 + 1, complex)
    size = min(len(kept), len(spectrum))
    kept[:size] = spectrum[:size]
    found = np.fft.irfft(kept, after) * (after / before)
    return found[: -(-len(samples) * RATE // rate)].astype(np.float32)


def _values(data: bytes, kind: int, bits: int) -> np.ndarray:
    """Decode samples, one of each channel in turn; scale integers to ±1."""
    size = bits // 8
    data = data[: len(data) // size * size] if size else b""
    if kind == PCM and bits == 8:  # the only one without a sign
        return (np.frombuffer(data, np.uint8) - np.float32(128)) / 128
    if kind == PCM and bits in (16, 32):
        return np.frombuffer(data, f"<i{size}") / np.float32(1 << (bits - 1))
    if kind == PCM and bits == 24:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(parts), 4), np.uint8)
        wide[:, 1:] = parts
        return wide.view("<i4")[:, 0] / np.float32(1 << 31)
    if kind == FLOATS and bits in (32, 64):
        return np.frombuffer(data, f"<f{size}")
    raise ValueError(
        f"its samples are of format {kind} with {bits} bits: PCM (1) of 8, 16, 24 or "
        "32 bits and floats (3) of 32 or 64 are read; convert it, such as by ffmpeg "
        "-i IN -c:a pcm_s16le OUT.wav"
    )


def _chunks(content: bytes) -> dict[bytes, bytes]:
    """Return the parts of a file by their names; refuse sound that was cut short."""
    found, place = {}, 12
    while place + 8 <= len(content):
        name, size = content[place : place + 4], _number(content, place + 4, 4)
        part = content[place + 8 : place + 8 + size]
        if name == b"data" and len(part) < size < UNKNOWN:
            raise ValueError(
                f"it was cut short: of {size:,} bytes of sound {len(part):,} are "
                "there. Copy it again"
            )
        if name in found and name in (b"fmt ", b"data"):
            raise ValueError(
                f"it has two parts {name.decode()!r}, and only one is read: convert "
                "it, such as by ffmpeg -i IN -ar 16000 -ac 1 OUT.wav"
            )
        found.setdefault(name, part)
        place += 8 + size + size % 2
    return found


def _number(content: bytes, at: int, size: int) -> int:
    return int.from_bytes(content[at : at + size], "little")


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + len(content).to_bytes(4, "little") + content
