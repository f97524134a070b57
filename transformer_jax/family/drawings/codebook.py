"""A codebook of patches: pictures as lines of codes, and back (vector quantisation).

    code = argmin_k ‖patch - codebook_k‖²        picture = codebook[codes]

The codebook is learned by k-means over the patches of the training pictures. Its codes
are the words that a model writes when it draws a picture, row by row.
Pitfall: a blend of two patches has colours that no picture has; the fewer codes, the
more of these there are.
"""

import hashlib
import io
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8

from transformer_jax.base import files
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import UNK
from transformer_jax.data.text.numerals import is_whole
from transformer_jax.data.text.tokenizer import SPECIAL, PlainTokenizer
from transformer_jax.data.text.vocabulary import NAMES

ROUNDS = 30  # of k-means, at most
PICTURES = 4000  # of the training split that are learned from


class Codebook:
    """Patches of pixels, by their codes."""

    def __init__(self, patches: UInt8[np.ndarray, "codes side side channels"]):
        """Take the patches; the code of each is its index."""
        self.patches = patches
        self._vectors = patches.reshape(len(patches), -1).astype(np.float32)
        self._known: dict[bytes, int] = {}  # the codes of patches that came before
        digest = hashlib.sha256(str(patches.shape).encode() + patches.tobytes())
        self.fingerprint = digest.hexdigest()

    def encode(self, picture: UInt8[np.ndarray, "H W C"]) -> list[int]:
        """Return the codes of a picture's patches, row by row."""
        found = split(picture, self.patches.shape[1])
        keys = [patch.tobytes() for patch in found]
        new = {key: i for i, key in enumerate(keys) if key not in self._known}
        if new:
            codes = nearest(found[list(new.values())], self._vectors)
            self._known |= dict(zip(new, map(int, codes), strict=True))
        return [self._known[key] for key in keys]

    def decode(
        self, codes: Sequence[int], size: tuple[int, int]
    ) -> UInt8[np.ndarray, "H W C"]:
        """Return the picture of so many pixels; codes that are missing repeat 0."""
        _, side, _, channels = self.patches.shape
        rows, columns = size[0] // side, size[1] // side
        whole = np.zeros(rows * columns, int)
        whole[: len(codes)] = codes[: rows * columns]
        found = self.patches[whole].reshape(rows, columns, side, side, channels)
        return found.swapaxes(1, 2).reshape(*size, channels)

    def save(self, path: pathlib.Path) -> None:
        """Write the patches as a NumPy array."""
        content = io.BytesIO()
        np.save(content, self.patches)
        files.write_bytes(path, content.getvalue())

    @staticmethod
    def load(path: pathlib.Path) -> "Codebook":
        """Read a codebook that was saved."""
        try:
            patches = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
            if patches.ndim != 4 or patches.dtype != np.uint8 or not patches.size:
                raise ValueError("it does not hold patches")
        except (OSError, ValueError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            raise UserError(f"the codebook {path} cannot be read: {reason}") from None
        return Codebook(patches)


class CodeTokenizer(PlainTokenizer):
    """Read and write codes as numbers with spaces between: "17 3 3 0"."""

    def __init__(self, codebook: Codebook):
        self.codebook = codebook

    @property
    def vocab_size(self) -> int:
        """The number of ids: the special ones and the codes."""
        return SPECIAL + len(self.codebook.patches)

    @property
    def fingerprint(self) -> str:
        """The hash of the codebook."""
        return self.codebook.fingerprint

    @property
    def lowercase(self) -> bool:
        """Return whether capitals are lost: numbers have none."""
        return False

    def encode(self, text: str) -> list[int]:
        """Return the ids of codes; any other word becomes unknown."""
        return [self._id(word) for word in text.split()]

    def _id(self, word: str) -> int:
        known = is_whole(word) and int(word) < len(self.codebook.patches)
        return SPECIAL + int(word) if known else UNK

    def decode(self, ids: Sequence[int]) -> str:
        """Return the codes of ids; special ones have none."""
        return " ".join(str(int(i) - SPECIAL) for i in ids if i >= SPECIAL)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Name each id by its code."""
        return [NAMES[i] if i < SPECIAL else str(i - SPECIAL) for i in map(int, ids)]


def learn(
    pictures: Sequence[UInt8[np.ndarray, "H W C"]], codes: int, side: int
) -> Codebook:
    """Learn a codebook of square patches by k-means.

    The first centres are drawn far from each other (k-means++), always the same ones.
    """
    patches = np.concatenate([split(picture, side) for picture in pictures])
    points, counts = np.unique(patches, axis=0, return_counts=True)
    points, random = points.astype(np.float32), np.random.RandomState(0)
    centres = draw_centres(points, counts, min(codes, len(points)), random)
    for _ in range(ROUNDS):
        owner = nearest(points, centres)
        sums, weights = np.zeros_like(centres), np.zeros(len(centres))
        np.add.at(sums, owner, points * counts[:, None])
        np.add.at(weights, owner, counts)
        used = weights > 0
        moved = centres.copy()
        moved[used] = sums[used] / weights[used, None]
        if np.allclose(moved, centres):
            break
        centres = moved
    rounded = np.rint(centres).astype(np.uint8)
    return Codebook(rounded.reshape(-1, side, side, pictures[0].shape[-1]))


def draw_centres(
    points: Float[np.ndarray, "N D"],
    counts: Int[np.ndarray, "N"],
    count: int,
    random: np.random.RandomState,
) -> Float[np.ndarray, "count D"]:
    """Draw points, each in proportion to its count and its squared distance."""
    chosen = [int(counts.argmax())]
    far = np.square(points - points[chosen[0]]).sum(axis=1)
    while len(chosen) < count:
        shares = (far * counts).cumsum()
        mark = random.uniform() * shares[-1]
        chosen.append(min(int(np.searchsorted(shares, mark)), len(points) - 1))
        far = np.minimum(far, np.square(points - points[chosen[-1]]).sum(axis=1))
    return points[chosen]


def nearest(
    points: Float[np.ndarray, "N D"] | UInt8[np.ndarray, "N D"],
    centres: Float[np.ndarray, "K D"],
) -> Int[np.ndarray, "N"]:
    """Return the number of the centre that is nearest to each point."""
    points = points.astype(np.float32)
    products = points @ centres.T
    return (np.square(centres).sum(axis=1) - 2 * products).argmin(axis=1)


def split(
    picture: UInt8[np.ndarray, "H W C"], side: int
) -> UInt8[np.ndarray, "patches pixels"]:
    """Cut a picture into square patches row by row, each flattened likewise."""
    height, width, channels = picture.shape
    x = picture.reshape(height // side, side, width // side, side, channels)
    return x.swapaxes(1, 2).reshape(-1, side * side * channels)
