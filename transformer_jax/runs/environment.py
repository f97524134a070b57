"""Record the versions and hardware of a run, cache its programs, use large pages."""

import functools
import hashlib
import logging
import os
import pathlib
import platform
import subprocess
import sys
from importlib import metadata

import jax

import transformer_jax
from transformer_jax.base import programs
from transformer_jax.base.errors import UserError
from transformer_jax.data import cache

logger = logging.getLogger(__name__)

PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE_PAGES = "glibc.malloc.hugetlb=1"


def versions() -> dict[str, str]:
    """Return the versions of the packages, the devices and the host."""
    found = {"transformer_jax": transformer_jax.__version__}
    if commit := _commit():
        found["commit"] = commit
    device = jax.devices()[0]
    found["devices"] = f"{jax.device_count()} × {device.device_kind}"
    seen = getattr(os, "sched_getaffinity", None)  # Linux: the cores it may use
    cores = len(seen(0)) if seen else os.cpu_count()
    found["host"] = f"{cores} × {_cpu_model()}"
    found["python"] = platform.python_version()
    for name in PACKAGES:
        found[name] = metadata.version(name)
    return found


def code() -> dict[str, str]:
    """Return the versions and the hash of the code that all processes must share."""
    package = pathlib.Path(transformer_jax.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)} ".encode() + path.read_bytes())
    found = {name: metadata.version(name) for name in PACKAGES}
    found["transformer_jax"] = transformer_jax.__version__
    return {**found, "the code of transformer_jax": digest.hexdigest()[:12]}


def use_compile_cache() -> None:
    """Compile each program once per machine; a failing cache never stops a run."""
    machine = f"jaxlib-{metadata.version('jaxlib')}-py{sys.version_info[1]}"
    try:
        root = cache.folder()
        folder = cache.make_private(root / "compiled" / machine / _cpu_name())
    except UserError as error:
        _warn_once(f"warning    compiled programs are not kept: {error}")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    logger.debug("programs   are kept in %s", folder)
    programs.notice_reads()


def use_large_pages() -> None:
    """Begin this command again in large pages, if Linux gives them on demand.

    Each step of a training on a CPU allocates its buffers anew, and clearing them in
    pages of 4 kB can take a quarter of its time. glibc reads its settings only when a
    process begins. A process goes on as it is if it has settings (`GLIBC_TUNABLES`), or
    is no command, as in a notebook.
    """
    words = sys.argv[1:]
    started = bool(words) and sys.orig_argv[-len(words) :] == words
    if not started or "GLIBC_TUNABLES" in os.environ or not _large_pages_on_demand():
        return
    logger.debug("memory     begins again, in large pages")
    os.environ["GLIBC_TUNABLES"] = LARGE_PAGES
    os.execv(sys.executable, sys.orig_argv)


def _large_pages_on_demand() -> bool:
    """Tell whether large pages must be asked for, and glibc can (since 2.35)."""
    try:
        library, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        known = library == "glibc" and [*map(int, version.split("."))] >= [2, 35]
        return known and "[madvise]" in PAGES.read_text(encoding="utf-8")
    except (OSError, ValueError):  # not Linux, or another library
        return False


@functools.cache
def _warn_once(line: str) -> None:
    logger.warning(line)


def _commit() -> str | None:
    """Return the commit of the checkout, with "-dirty" if files differ, or None."""
    checkout = pathlib.Path(transformer_jax.__file__).parents[1]
    if not (checkout / ".git").exists():
        return None
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in _cpu_lines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _cpu_name() -> str:
    """Name the CPU, because a program compiled for one may not run on another."""
    lines = "".join(sorted(set(_cpu_lines()))) or platform.machine()
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def _cpu_lines() -> list[str]:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return []
    return [x for x in lines if x.startswith(("model name", "flags"))]


PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "sentencepiece",
)
