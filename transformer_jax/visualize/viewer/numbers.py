"""Write weights into a page, one byte each, and read them again.

    byte = round(255 √w)    |w - (byte / 255)²| ≤ √w / 255 + 1 / 510²

The square root keeps small weights distinguishable: among 300 words a uniform weight is
0.003, which is one or two of 255 equal steps.
"""

import base64
import zlib

import numpy as np
from jaxtyping import Float, UInt8

STEPS = 255


def quantize(weights: Float[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Return the bytes of weights between 0 and 1."""
    roots = np.sqrt(np.clip(np.asarray(weights, np.float64), 0, 1))
    return np.rint(STEPS * roots).astype(np.uint8)


def restore(levels: UInt8[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return the weights that the bytes encode."""
    return (levels / STEPS) ** 2


def error_bound(weights: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return the largest possible error of the restored weights."""
    return np.sqrt(weights) / STEPS + 1 / (2 * STEPS) ** 2


def pack(levels: UInt8[np.ndarray, "..."]) -> str:
    """Write bytes as text: deflated (zlib), base64."""
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode("ascii")


def unpack(text: str, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
    """Restore from text the bytes that `pack` encoded, as an array of this shape."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return levels.reshape(shape)
