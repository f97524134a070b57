"""Keep compiled programs in a form that needs no tracing.

JAX's own cache finds a compiled program by its code, which takes longer to trace than
to read: half a second for each shape of a search. A `Program` is found by what its code
is made from: the module, all source code, the versions, the settings, and the shapes of
the arguments. If it is not, as after a change of other code, it is traced and found by
its own.

Pitfall: a program that is found must be the one that would be traced. So nothing is
kept where that cannot be known: in an interactive session, after an edit of loaded
source, or for a module with fields that have no description.

Pitfall: an entry is a pickle, so whoever can write it runs code. It lies in the folder
of JAX's cache, which is the user's own (`data.cache.make_private`), and never comes
with a run or bundle.
"""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import math
import os
import pathlib
import pickle
import re
import site
import sys
import sysconfig
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from ml_collections import ConfigDict

from transformer_jax.base import entry_points, extensions, files

try:
    from jax._src import config as jax_config
except ImportError:  # every program is kept twice
    jax_config = None

logger = logging.getLogger(__name__)

STARTED = time.time()  # source that is younger may differ from what has been loaded
SEALED = 32  # bytes of an entry that are the digest of the others
MOST = 1500  # entries; the oldest ones make room
LIBRARIES = "jax", "jaxlib", "flax", "numpy"
ADDRESS = re.compile(" at 0x[0-9a-f]+")


class Program:
    """A jitted function whose compiled forms are kept in the user's cache.

    Call it as the function: arrays by place, static arguments by name. `made_from` are
    the objects that the function closes over: values, classes, and dataclasses of them
    (such as modules). Nothing is kept for other objects.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        made_from: Sequence[Any] = (),
        static_argnames: Sequence[str] = (),
        **options: Any,
    ):
        # All arguments are kept, so that equal code reads equal arguments.
        self.jitted = jax.jit(
            function, static_argnames=static_argnames, keep_unused=True, **options
        )
        self._function = function
        self._options, self._made_from = options, tuple(made_from)
        self._compiled: dict[str, Callable[..., Any]] = {}  # by their keys
        self._keys: dict[Any, str] = {}  # by what they are made from
        self._locks: dict[str, threading.Lock] = {}

    def __call__(self, *arguments: Any, **static: Any) -> Any:
        """Call the function; compile it for these shapes, or read what was compiled."""
        folder = _folder() if self._source else None
        if folder is None:
            return self.jitted(*arguments, **static)
        return self._get(folder, arguments, static)(*arguments)

    def lower(self, *arguments: Any, **static: Any) -> jax.stages.Lowered:
        """Trace the function for such arguments, as the method of a jitted one."""
        return self.jitted.lower(*arguments, **static)

    def is_kept(self, *arguments: Any, **static: Any) -> bool:
        """Return whether the program for such arguments need not be traced."""
        folder = _folder() if self._source else None
        if folder is None:
            return False
        return (folder / f"{self._key(arguments, static)}.traced").exists()

    def compile(
        self, *arguments: Any, lowered: jax.stages.Lowered | None = None, **static: Any
    ) -> Callable[..., Any]:
        """Return the program for such arguments, which may be abstract.

        `lowered` is the same program, if the caller has traced it.
        """
        folder = _folder() if self._source else None
        if folder is None:
            return (lowered or self.jitted.lower(*arguments, **static)).compile()
        return self._get(folder, arguments, static, lowered)

    def _get(self, folder, arguments, static, lowered=None) -> Callable[..., Any]:
        key = self._key(arguments, static)
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._compiled:
                found = self._find(folder, key, arguments, static, lowered)
                self._compiled[key] = found
        return self._compiled[key]

    def shapes(self, *arguments: Any) -> Any:
        """Return the shapes of the function's result, as `jax.eval_shape` does."""
        folder = _folder() if self._source else None
        if folder is None:
            return self.jitted.eval_shape(*arguments)
        entry = folder / f"{self._key(arguments, {})}.shapes"
        if (found := _read(entry)) is None:
            found = self.jitted.eval_shape(*arguments)
            _write(entry, lambda: found)
        return found

    def _find(self, folder, key, arguments, static, lowered) -> Callable[..., Any]:
        """Read the program, by its key or else by its code, or compile it."""
        told = _read(folder / f"{key}.traced")
        if told is not None and (found := _load(folder, *told)) is not None:
            logger.debug("program    found in the cache, traced")
            return found
        lowered = lowered or self.jitted.lower(*arguments, **static)
        trees = lowered.in_tree, lowered.out_tree
        shapes = repr((str(trees), jax.tree.leaves(lowered.in_avals), _machine()))
        code = hashlib.sha256((shapes + lowered.as_text()).encode()).hexdigest()
        found = _load(folder, code, *trees)
        if found is None:
            read_before = _count_reads()
            with _unkept_by_jax():
                found = compiled = lowered.compile()
            if _count_reads() > read_before:
                # Serialised again, a program from JAX's cache lacks functions.
                return found
            _write(
                folder / f"{code}.program",
                lambda: serialize_executable.serialize(compiled)[0],
            )
        _write(folder / f"{key}.traced", lambda: (code, *trees))
        return found

    def _key(self, arguments: Any, static: dict[str, Any]) -> str:
        """Return the name of the program for such arguments."""
        leaves, tree = jax.tree.flatten(arguments)
        kinds = [
            leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
            for leaf in leaves
        ]
        mesh, settings = jax.sharding.get_mesh(), _settings()
        # Made once, because a step of a search is sooner done than its key.
        known = tree, *kinds, *sorted(static.items()), mesh, settings
        if known not in self._keys:
            shapes = [(kind.shape, str(kind.dtype), kind.weak_type) for kind in kinds]
            made_from = self._source, static, str(tree), shapes, mesh
            named = repr((*made_from, _machine(), settings))
            self._keys[known] = hashlib.sha256(named.encode()).hexdigest()
        return self._keys[known]

    @functools.cached_property
    def _source(self) -> str:
        """Describe the function and all code; empty if that is impossible."""
        objects = (*self._made_from, getattr(self._function, "__self__", None))
        owners = {_top(kind) for one in objects for kind in _kinds(one)}
        code = _digest_loaded(owners)
        if not code:
            return ""
        try:
            made = [_describe(one) for one in self._made_from]
        except _UnknownError:
            return ""
        options = sorted((name, str(value)) for name, value in self._options.items())
        function = self._function.__module__, self._function.__qualname__
        return repr((function, options, made, code))


class _UnknownError(Exception):
    """A value whose description might be that of another one."""


def _describe(value: Any) -> Any:
    """Describe a value so that no other one has the same description."""
    if isinstance(value, bool | int | float | str | bytes | np.dtype | None):
        return repr(value)
    if isinstance(value, type):
        if "<locals>" in value.__qualname__:
            raise _UnknownError
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Mapping):
        return [(_describe(k), _describe(v)) for k, v in value.items()]
    if isinstance(value, tuple | list):
        return [_describe(one) for one in value]
    if isinstance(value, np.ndarray) and value.dtype != object:
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return value.shape, str(value.dtype), content
    if isinstance(value, ConfigDict):
        return value.to_json_best_effort()
    if isinstance(digest := getattr(value, "fingerprint", None), str):
        return [_describe(type(value)), digest]
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value) if f.name != "parent"]
        fields = [(name, _describe(getattr(value, name))) for name in names]
        return [_describe(type(value)), fields]
    raise _UnknownError


def _kinds(value: Any) -> tuple[type, ...]:
    return (value if isinstance(value, type) else type(value)).__mro__


def _top(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _digest_loaded(owners: set[str]) -> str:
    """Digest the source of what may take part; empty if it cannot be known.

    That is this package, those that extend it or own a module, and whatever else has
    been loaded from outside of Python's and the libraries' folders.
    """
    if getattr(sys.modules["__main__"], "__file__", None) is None:
        return ""  # interactive: what was typed is in no file
    ours = {"transformer_jax", *owners, *extensions.packages()}
    ours.update(entry_points.packages())
    return _digest(frozenset(_find_source(ours - {*LIBRARIES, "builtins"})))


def digest_source(package: str) -> str:
    """Digest the source of a package and the versions of the libraries.

    The digest is empty if the package has no folder, or has been edited since this
    process began, because what is loaded may be older.
    """
    place = getattr(sys.modules.get(package), "__file__", None)
    if not place or not place.endswith("__init__.py"):
        return ""
    paths = frozenset(pathlib.Path(place).parent.rglob("*.py"))
    digest = _digest(paths)
    return digest and f"{digest} {sys.version}"


@functools.cache
def _digest(paths: frozenset[pathlib.Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(paths):
        try:
            if path.stat().st_mtime > STARTED:
                return ""
            found.update(f"{path} ".encode() + path.read_bytes())
        except OSError:
            return ""
    versions = [metadata.version(name) for name in LIBRARIES]
    return found.hexdigest() + repr(versions)


def _find_source(ours: set[str]) -> set[pathlib.Path]:
    """Find all source of our packages, and what was loaded from no library."""
    places = sysconfig.get_paths()
    names = "stdlib", "platstdlib", "purelib", "platlib"
    libraries = [*(places[name] for name in names), site.getusersitepackages()]
    found = set()
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if place is None or not place.endswith(".py"):
            continue
        if name in ours and place.endswith("__init__.py"):
            found.update(pathlib.Path(place).parent.rglob("*.py"))
        elif name.partition(".")[0] in ours or not place.startswith(tuple(libraries)):
            found.add(pathlib.Path(place))
    return found


@functools.cache
def _machine() -> tuple[str, ...]:
    """Describe the device and the flags of its compiler."""
    device = jax.devices()[0]
    flags = (os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
    version = device.client.platform_version
    return device.platform, device.device_kind, version, *flags


def _settings() -> str:
    """Describe the settings of JAX in this thread."""
    inner = getattr(jax_config, "trace_context", lambda: None)()
    return _describe_settings(inner, tuple(jax.config.values.items()))


@functools.lru_cache
def _describe_settings(inner: Any, settings: tuple[tuple[str, Any], ...]) -> str:
    values = [
        (name, str(value)) for name, value in sorted(settings) if "cache" not in name
    ]
    return ADDRESS.sub("", repr((inner, values)))


def _folder() -> pathlib.Path | None:
    """Return where programs are kept; None if they are not, or on several devices."""
    settings: Any = jax.config  # some releases declare no types for its names
    folder = settings.jax_compilation_cache_dir
    if not folder or jax.device_count() > 1 or settings.jax_disable_jit:
        return None
    return pathlib.Path(folder)


def _load(folder: pathlib.Path, code: str, *trees: Any) -> Callable[..., Any] | None:
    """Load a compiled program; None if it is not there, or cannot be used."""
    content = _read(folder / f"{code}.program")
    if content is None:
        return None
    with contextlib.suppress(Exception):  # whatever another version makes of it
        return serialize_executable.deserialize_and_load(
            content, *trees, execution_devices=jax.devices()[:1]
        )
    return None


def _read(entry: pathlib.Path) -> Any:
    """Return the content of an entry; None if it is not there, or damaged."""
    with contextlib.suppress(Exception):
        content = entry.read_bytes()
        if hashlib.sha256(content[SEALED:]).digest() == content[:SEALED]:
            return pickle.loads(zlib.decompress(content[SEALED:]))
    return None


def _write(entry: pathlib.Path, make: Callable[[], Any]) -> None:
    """Write an entry; one that cannot be made or written never stops a search."""
    with contextlib.suppress(Exception):
        data = zlib.compress(pickle.dumps(make()), level=1)
        files.write_bytes(entry, hashlib.sha256(data).digest() + data)
        for old in _find_oldest(entry.parent):
            old.unlink(missing_ok=True)


def _find_oldest(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the oldest entries of a folder that has too many, until half are left."""
    kinds = "*.program", "*.traced", "*.shapes"
    entries = [path for kind in kinds for path in folder.glob(kind)]
    if len(entries) > MOST:
        entries.sort(key=lambda path: path.stat().st_mtime)
        yield from entries[: len(entries) - MOST // 2]


def _unkept_by_jax() -> contextlib.AbstractContextManager:
    """Keep a program out of JAX's cache, from which it could not be serialised."""
    least = getattr(jax_config, "persistent_cache_min_compile_time_secs", None)
    return contextlib.nullcontext() if least is None else least(math.inf)


_reads = threading.local()  # programs that JAX has read from its cache


def _count_reads() -> int:
    """Count the programs that this thread has read from JAX's cache."""
    notice_reads()
    return getattr(_reads, "count", 0)


@functools.cache  # once per process, because JAX cannot remove a listener
def notice_reads() -> None:
    """From now on, log and count the programs that JAX reads from its cache."""

    def note(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            logger.debug("program    found in the cache")
            _reads.count = getattr(_reads, "count", 0) + 1

    jax.monitoring.register_event_listener(note)
