"""Bundles: a run as one folder with everything needed to answer, and nothing else.

Written by `python -m transformer_jax.convert.bundle`:

    weights.safetensors   the parameters that answer, by path
    config.json versions.json card.md tokenizer/
    bundle.json           step and weights of the run, and the SHA-256 of every file

`transformer_jax.load(FOLDER)` and `predict --workdir FOLDER` read it like a run. Files
that were changed, are missing or do not belong are refused by name.

A bundle of what a run has trained has only those weights. Its bundle.json names the
base that has the others, with their fingerprints.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import numpy as np

from transformer_jax import optim, sharding
from transformer_jax.base import entry_points, files
from transformer_jax.base.errors import UserError, nearest
from transformer_jax.data import cache
from transformer_jax.models.layers.rounded import quantize
from transformer_jax.runs import signature
from transformer_jax.sharding import Params

logger = logging.getLogger(__name__)
FORMAT, INT8 = 1, 2  # of floats alone; with matrices of 8 bits
MANIFEST, WEIGHTS, CARD = "bundle.json", "weights.safetensors", "card.md"
SCALE = ":scale"  # ends the name of the factors of an int8 matrix
MODELS = pathlib.Path(__file__).parents[1] / "pretrained"  # bundles in this package
CONVERTED = 8  # folders of other libraries whose bundles are kept
LARGEST = 1 << 28  # bytes of any file except the weights
FILES = ("config.json", "versions.json", CARD, WEIGHTS)  # beside the tokenizer
SHOWN = 8  # problems reported at once
FLOATS = ("F32", "BF16", "F16")


class Reader(NamedTuple):
    """A converter from another library's folders to bundles: one of `readers`."""

    reads: Callable[[pathlib.Path], bool]  # whether a folder is one of these
    convert: Callable[[pathlib.Path, pathlib.Path], Any]  # (folder, bundle to make)
    version: int = 1  # raised when what it makes changes


def shipped() -> dict[str, pathlib.Path]:
    """List the models that come with the package by name, such as tatoeba:de_en."""
    found = sorted(MODELS.glob(f"*/*/{MANIFEST}"))
    return {f"{p.parent.parent.name}:{p.parent.name}": p.parent for p in found}


def as_bundle(path: str | os.PathLike) -> str | os.PathLike:
    """Return the path of a run, also of one that comes with the package by its name.

    A folder of another library is converted first. Its bundle is kept in the cache, and
    made again when a file has changed. Those that were used last stay there.
    """
    place = pathlib.Path(path)
    if str(path) in (models := shipped()) and not os.path.lexists(place):
        return models[str(path)]
    if re.fullmatch(r"[a-z]\w*:\w+", str(path)) and not os.path.lexists(place):
        raise UserError(
            f"there is no model {str(path)!r} in this package."
            f"{nearest(str(path), models)} It has {', '.join(models) or 'none'}; name "
            "one, or a run directory"
        )
    ours = any(os.path.isfile(place / name) for name in ("versions.json", MANIFEST))
    if ours or not os.path.isfile(place / "config.json"):
        return path
    for name in entry_points.names("readers"):
        reader = entry_points.require("readers", name)
        if reader.reads(place):
            listed = sorted(p for p in place.rglob("*") if p.is_file())
            about = repr([reader.version, *map(files.identify, listed)])
            key = hashlib.sha256(about.encode()).hexdigest()[:24]
            made = cache.folder() / "imported" / key
            cache.make_private(made.parent)
            if not made.is_dir():
                logger.info("converting %s, once", place)
                cache.remove_oldest(made.parent, CONVERTED)
                try:
                    reader.convert(place, made)
                except OSError:  # another process has made it meanwhile
                    if not made.is_dir():
                        raise
            with contextlib.suppress(OSError):  # a cache that is only read
                os.utime(made)  # used now
            return made
    return path


def export(run: Any, folder: pathlib.Path, int8: bool = False) -> None:
    """Write a run (from `transformer_jax.load`) as a bundle, atomically.

    With `int8`, matrices are rounded to 8 bits, which takes a quarter of the space.
    """
    _write(run, folder, run.params, {}, int8)


def export_trained(run: Any, params: Params, folder: pathlib.Path) -> None:
    """Write what a run has trained, its adapters for example, as a bundle.

    The parameters are those of its checkpoint, with adapters that are not merged.
    """
    config = run.config
    factors = flax.traverse_util.flatten_dict(
        optim.rate_factors(config, params), sep="/"
    )
    flat = flax.traverse_util.flatten_dict(dict(params), sep="/")
    trained = {name: leaf for name, leaf in flat.items() if factors[name]}
    frozen = {name: leaf for name, leaf in flat.items() if not factors[name]}
    if not config.train.initial or not frozen:
        raise UserError(
            f"{run.folder.place} has trained all of its parameters, or from random "
            "ones: write it as a bundle (convert.bundle)"
        )
    fingerprints = signature.examine(frozen).fingerprints
    about = {"base": config.train.initial, "frozen": fingerprints}
    _write(run, folder, trained, about)


def _write(
    run: Any, folder: pathlib.Path, params: Params, about: dict, int8: bool = False
) -> None:
    from safetensors.numpy import save_file

    more = {**about, "format": INT8} if int8 else about
    with assemble(folder, run.step, run.weights, more) as temporary:
        paths = jax.tree_util.tree_leaves_with_path(params)
        named = {sharding.path_name(p): np.asarray(leaf) for p, leaf in paths}
        save_file(_round(named) if int8 else named, temporary / WEIGHTS)
        if (card := run.folder.path / CARD).is_file():
            shutil.copyfile(card, temporary / CARD)
        options = files.read_object(run.folder.path / "config.json")
        if "folder" in options.get("data", {}):
            options["data"]["folder"] = ""  # of another machine, perhaps a private path
        files.write(temporary / "config.json", json.dumps(options, indent=1) + "\n")
        if (versions := run.folder.path / "versions.json").is_file():
            shutil.copyfile(versions, temporary / versions.name)
        else:
            logger.warning("warning    %s is missing: the bundle has none", versions)
        _copy_tokenizer(run.folder.tokenizer, temporary / "tokenizer")


@contextlib.contextmanager
def assemble(
    folder: pathlib.Path, step: int, weights: str, more: Mapping[str, Any] | None = None
) -> Iterator[pathlib.Path]:
    """Yield a folder to write a bundle's files into; it is renamed when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=".bundle.", dir=folder.parent))
    try:
        yield temporary
        for path in (temporary, temporary / WEIGHTS):
            files.open_mode(path)
        parts = sorted(p for p in temporary.rglob("*") if p.is_file())
        about = {
            "format": FORMAT,
            "step": step,
            "weights": weights,
            "files": {str(p.relative_to(temporary)): _hash(p) for p in parts},
            **(more or {}),
        }
        files.write(temporary / MANIFEST, json.dumps(about, indent=1) + "\n")
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_bundle(folder: pathlib.Path) -> bool:
    """Return whether a folder is a bundle, even an incomplete one, not a run."""
    return any(os.path.lexists(folder / name) for name in (MANIFEST, WEIGHTS))


def check(folder: pathlib.Path) -> dict[str, Any]:
    """Return the manifest, after checking that every file is as it was written.

    A bundle may come from an untrusted source. So only regular files are opened, only
    those named in the manifest, and none that is too large.
    """
    about = _read_manifest(folder)
    named = about["files"]
    listed, problems = _list(folder)
    for name in sorted(listed - named.keys() - {MANIFEST}):
        problems.append(f"{folder / name} does not belong to the bundle: remove it")
    for name, digest in named.items():
        path = folder / name
        if not (name in FILES or _is_text(name)):
            problems.append(f"{folder / MANIFEST} names {name!r}: no bundle has that")
        elif name not in listed:
            problems.append(f"{path} is missing from the bundle: copy all of it")
        elif name != WEIGHTS and (size := path.stat().st_size) > LARGEST:
            problems.append(f"{path} has {size:,} bytes: at most {LARGEST:,} are read")
        elif _hash(path) != digest:
            what = "another tokenizer" if name.startswith("tokenizer/") else "damaged"
            problems.append(
                f"{path} is not what was exported ({what}: its SHA-256 differs): copy "
                "the bundle again"
            )
    if problems:
        raise UserError(*problems[:SHOWN])
    if missing := {"config.json", WEIGHTS} - named.keys():
        raise UserError(
            f"{folder / MANIFEST} does not name {missing.pop()}: copy the bundle again"
        )
    return about


def _read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        about = files.read_object(path)
        named, version = about["files"], about["format"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} cannot be read: {error!r}") from None
    if version not in (FORMAT, INT8):
        raise UserError(
            f"{folder} is a bundle of format {version!r}, and this version reads "
            f"formats {FORMAT} and {INT8}: export the run again"
        )
    kinds = {"files": dict, "step": int, "weights": str}
    if "base" in about:
        kinds |= {"base": str, "frozen": dict}
    for key, kind in kinds.items():
        if type(about.get(key)) is not kind:
            raise UserError(f"{path} cannot be read: {key!r} has the wrong type")
    if not all(isinstance(digest, str) for digest in named.values()):
        raise UserError(f"{path} cannot be read: a SHA-256 is not a string")
    return about


def _list(folder: pathlib.Path) -> tuple[set[str], list[str]]:
    """Return the names of all regular files, and the problems with other entries."""
    found, problems = set(), []
    for root, folders, names in os.walk(folder):
        place = pathlib.Path(root)
        for name in [*folders, *names]:
            path, mode = place / name, (place / name).lstat().st_mode
            if stat.S_ISREG(mode):
                found.add(path.relative_to(folder).as_posix())
            elif not stat.S_ISDIR(mode):
                problems.append(f"{path} is a link or a device, and no bundle has one")
    return found, problems


def _copy_tokenizer(source: pathlib.Path, folder: pathlib.Path) -> None:
    folder.mkdir()
    for path in sorted(source.iterdir()):
        if _is_text(f"tokenizer/{path.name}"):
            shutil.copyfile(path, folder / path.name)
        else:
            logger.warning("warning    %s is left out: no bundle has such a file", path)


def _is_text(name: str) -> bool:
    """Return whether a name is that of a file of data in tokenizer/."""
    return bool(re.fullmatch(r"tokenizer/\w[\w-]*\.(model|json|npy)", name))


def read_params(folder: pathlib.Path, like: Any) -> Params:
    """Read the parameters of a checked bundle, with types and shardings of `like`."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / WEIGHTS
    try:
        _compare_header(path, like)
        found = _restore_rounded(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read: {str(error)[:120]}") from None

    def place(keys, leaf):
        name = sharding.path_name(keys)
        if not np.isfinite(found[name].astype(np.float32)).all():
            raise UserError(f"{path} has numbers that are not finite in {name}")
        return jax.device_put(found[name].astype(leaf.dtype), leaf.sharding)

    return jax.tree_util.tree_map_with_path(place, like)


def read_trained(
    folder: pathlib.Path, like: Any, base: Params, about: dict[str, Any]
) -> Params:
    """Read a bundle of what was trained; the other parameters are those of its base."""
    flat = flax.traverse_util.flatten_dict(like, sep="/")
    there = flax.traverse_util.flatten_dict(dict(base), sep="/")
    frozen = {name: there[name] for name in about["frozen"] if name in there}
    found = signature.examine(frozen).fingerprints
    for name, fingerprint in about["frozen"].items():
        if found.get(name) != fingerprint:
            raise UserError(
                f"{folder} was trained on other parameters than those of "
                f"{about['base']!r}: {name} differs. Name its base in "
                f"{folder / MANIFEST}, or load(…, base=…) in Python"
            )
    own = {name: leaf for name, leaf in flat.items() if name not in frozen}
    read = flax.traverse_util.flatten_dict(dict(read_params(folder, own)), sep="/")
    return flax.traverse_util.unflatten_dict(frozen | read, sep="/")


def _compare_header(path: pathlib.Path, like: Any) -> None:
    """Refuse tensors that do not fit the config, before allocating any memory."""
    from safetensors import safe_open

    leaves = jax.tree_util.tree_leaves_with_path(like)
    wanted = {sharding.path_name(keys): leaf.shape for keys, leaf in leaves}
    with safe_open(path, "numpy") as file:
        names = set(file.keys())
        for name, shape in wanted.items():
            there = tuple(file.get_slice(name).get_shape()) if name in names else None
            if there != shape:
                raise UserError(
                    f"{path} has {there or 'nothing'} for {name}, but its config.json "
                    f"makes it {shape}"
                )
            kind = file.get_slice(name).get_dtype()
            if kind == "I8" and len(shape) == 2 and name + SCALE in names:
                names.remove(name + SCALE)
                rows, columns = file.get_slice(name + SCALE).get_shape()
                fits = (rows, columns) in ((shape[0], 1), (1, shape[-1]))
                kind = file.get_slice(name + SCALE).get_dtype() if fits else kind
            if kind not in FLOATS:
                raise UserError(
                    f"{path} has {name} as {kind}, not {' or '.join(FLOATS)}"
                )
        if extra := sorted(names - wanted.keys()):
            raise UserError(
                f"{path} has {extra[0]}, which its config.json does not make"
            )


def _round(named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Round matrices to 8 bits, with a factor for each output.

    The outputs of a linear map are columns. A row of a table is a token, and the output
    for it where the table is also the output layer.
    """
    found = {}
    for name, leaf in named.items():
        if leaf.ndim != 2:
            found[name] = leaf
            continue
        axis = 0 if name.endswith("kernel") else 1
        found[name], found[name + SCALE] = quantize(leaf.astype(np.float32), axis)
    return found


def _restore_rounded(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Multiply matrices of 8 bits by their factors."""
    return {
        name: leaf * found[name + SCALE] if name + SCALE in found else leaf
        for name, leaf in found.items()
        if not name.endswith(SCALE)
    }


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
