# Installs the package if it is missing: from a wheel beside this notebook, from the
# checkout that the notebook lies in, or from REPOSITORY. The runtime's own JAX, which
# fits its GPU or TPU, keeps its version.
import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

REPOSITORY = ""


def is_missing(module):
    spec = importlib.util.find_spec(module)
    return spec is None or spec.origin is None  # a mere folder of that name


def find_package():
    here = pathlib.Path.cwd()
    if wheels := sorted(here.glob("transformer_jax-*.whl")):
        return f"{wheels[-1]}[plots]"
    for folder in (here, *here.parents):
        if (folder / "transformer_jax" / "__init__.py").is_file():
            return f"{folder}[plots]"
    if REPOSITORY:
        return f"transformer_jax[plots] @ {REPOSITORY}"
    raise RuntimeError(
        "The package transformer_jax is not installed: put its wheel "
        "(transformer_jax-….whl) beside this notebook, or its pip address into "
        "REPOSITORY above, and run this cell again."
    )


def pip_install(package):
    own = [p for p in ("jax", "jaxlib", "numpy") if not is_missing(p)]
    kept = [f"{p}=={importlib.metadata.version(p)}" for p in own]
    with tempfile.TemporaryDirectory() as folder:
        constraints = pathlib.Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(kept))
        command = [sys.executable, "-m", "pip", "install", "-q", "-c", constraints]
        subprocess.run([*map(str, command), package], check=True)
    importlib.invalidate_caches()


def find_extra():
    # What brings the plugin of this runtime's GPU or TPU.
    known = {"jax-cuda12-plugin": "cuda12", "jax-cuda13-plugin": "cuda13"}
    for package, extra in {**known, "libtpu": "tpu"}.items():
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        return f"[{extra}]"
    return ""


if not is_missing("jax"):
    version = importlib.metadata.version("jax")
    if tuple(map(int, version.split(".")[:2])) < (0, 10):
        raise RuntimeError(
            f"JAX {version} is too old: run !pip install -U 'jax{find_extra()}>=0.10', "
            "restart the runtime, and run this cell again."
        )
if is_missing("transformer_jax"):
    pip_install(find_package())
elif is_missing("matplotlib"):
    pip_install("matplotlib>=3.8")
