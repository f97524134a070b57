"""Read and write safetensors one tensor at a time, in one file or several."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from transformer_jax.base import files
from transformer_jax.base.errors import UserError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NAMES = {  # NumPy's types → those of the format
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
}
TYPES = {name: dtype for dtype, name in NAMES.items()}


class Tensors:
    """The tensors of a folder, by name; each is read when it is asked for.

    Names are those of today: older files have gamma and beta for the parts of a norm,
    and those of a model without its head lack `base`.
    """

    def __init__(self, folder: pathlib.Path, base: str = ""):
        """Find the safetensors files of a folder; read only their headers.

        `base` is the prefix of names in files that also have the model's head.
        """
        self._folder = folder
        self._headers: dict[str, tuple[int, dict[str, Any]]] = {}
        if (folder / INDEX).is_file():
            self._files = _read_index(folder / INDEX)
        elif (folder / SINGLE).is_file():
            self._files = dict.fromkeys(self._header(SINGLE)[1], SINGLE)
        else:
            raise UserError(
                f"{folder} has neither {SINGLE} nor {INDEX}: weights of other formats "
                "(pytorch_model.bin) execute code when they are read; save them as "
                "safetensors first"
            )

        self._stored = {}  # today's name → that in the file
        lacks = base and not any(name.startswith(base) for name in self._files)
        for name in self._files:
            now = f"{base}{name}" if lacks and not name.startswith("lm_head") else name
            for old, new in (("LayerNorm.gamma", "weight"), ("LayerNorm.beta", "bias")):
                if now.endswith(old):
                    now = f"{now.rpartition('.')[0]}.{new}"
            self._stored[now] = name

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._stored)

    def dtype(self, name: str) -> np.dtype:
        """Return the type of a tensor's numbers without reading them."""
        path, _, entry = self._entry(name)
        if entry["dtype"] not in TYPES:
            raise UserError(
                f"{path} has {name} as {entry['dtype']}: {', '.join(TYPES)} are read"
            )
        return TYPES[entry["dtype"]]

    def read(self, name: str) -> np.ndarray:
        """Read a tensor."""
        dtype = self.dtype(name)
        path, begin, entry = self._entry(name)
        first, last = entry["data_offsets"]
        with path.open("rb") as file:
            file.seek(begin + first)
            content = file.read(last - first)
        if len(content) != last - first:
            raise UserError(f"{path} ends within {name}: fetch the file again")
        return np.frombuffer(content, dtype).reshape(entry["shape"])

    def _entry(self, name: str) -> tuple[pathlib.Path, int, dict[str, Any]]:
        if name not in self._stored:
            raise UserError(f"{self._folder} has no tensor {name!r}, which it needs")
        name = self._stored[name]
        file = self._files[name]
        begin, header = self._header(file)
        if name not in header:
            raise UserError(f"{self._folder / file} has no tensor {name!r}")
        return self._folder / file, begin, header[name]

    def _header(self, name: str) -> tuple[int, dict[str, Any]]:
        if name not in self._headers:
            path = self._folder / name
            try:
                with path.open("rb") as file:
                    size = int.from_bytes(file.read(8), "little")
                    if size > path.stat().st_size:
                        raise ValueError("its header is longer than the file")
                    header = json.loads(file.read(size))
            except (OSError, ValueError) as error:
                raise UserError(f"{path} cannot be read: {error}") from None
            header.pop("__metadata__", None)
            self._headers[name] = 8 + size, header
        return self._headers[name]


def _read_index(path: pathlib.Path) -> dict[str, str]:
    """Read which file has which tensor; all lie in the folder of the index."""
    try:
        found = files.read_object(path)["weight_map"]
        named = {str(name): str(file) for name, file in found.items()}
        if other := [f for f in named.values() if f != pathlib.PurePath(f).name]:
            raise ValueError(f"it names {other[0]}, a file of another folder")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return named


def write(
    path: pathlib.Path,
    forms: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    arrays: Iterable[tuple[str, np.ndarray]],
) -> None:
    """Write tensors of known shapes and types, which come in any order, one by one."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    places, end = {}, 0
    for name, (shape, dtype) in forms.items():
        size = int(np.prod(shape)) * dtype.itemsize
        places[name] = end, end + size
        header[name] = {
            "dtype": NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [end, end + size],
        }
        end += size
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for name, array in arrays:
            begin, last = places.pop(name)
            data = np.ascontiguousarray(array).tobytes()
            assert len(data) == last - begin, name
            file.seek(8 + len(content) + begin)
            file.write(data)
        assert not places, sorted(places)
