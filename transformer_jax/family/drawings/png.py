"""Write pictures as PNG files, without Pillow."""

import pathlib
import struct
import zlib

import numpy as np
from jaxtyping import UInt8

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB = 2  # the type of a picture in colour


def write(
    path: pathlib.Path, picture: UInt8[np.ndarray, "H W 3"], scale: int = 1
) -> None:
    """Write a picture, each of its pixels as a square of `scale` × `scale` pixels."""
    large = picture.repeat(scale, axis=0).repeat(scale, axis=1)
    height, width, _ = large.shape
    # Before each row stands the number of its filter: 0 is none.
    rows = np.pad(large.reshape(height, -1), ((0, 0), (1, 0)))
    header = struct.pack(">IIBBBBB", width, height, 8, RGB, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")
    path.write_bytes(SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks))


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
