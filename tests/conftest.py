"""Eight fake devices for the sharding tests, and a cache that dies with the session.

TESTS_CACHE names a folder that keeps the compiled programs and the tiny runs for other
sessions.
"""

import functools
import gc
import hashlib
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] += (
    " --xla_cpu_collective_call_terminate_timeout_seconds=120"
    # Tests compile much and compute little.
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ.setdefault("GLIBC_TUNABLES", "")  # `train` need not begin twice
# With fewer cores than devices, collectives can deadlock for want of threads.
os.environ.setdefault("PJRT_NPROC", "16")
if "PYTEST_XDIST_WORKER" not in os.environ:  # the workers share what they compile
    if _KEPT := os.environ.get("TESTS_CACHE"):
        pathlib.Path(_KEPT).mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        _CACHE = tempfile.TemporaryDirectory(prefix="transformer_jax_tests_")
    os.environ["TRANSFORMER_JAX_CACHE"] = _KEPT or _CACHE.name

import pytest  # noqa: E402  (after the environment is set)

SHARED = pathlib.Path(os.environ["TRANSFORMER_JAX_CACHE"])
MAPPED = 20_000  # mappings of memory
SCORED = {"data.shapes": "2", "eval.splits": "test"}


def pytest_sessionstart(session):
    """Start JAX once before the workers do, which would end as "node down"."""
    if hasattr(session.config, "workerinput"):
        return
    code = "import transformer_jax, jax; jax.devices()"
    started = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    if started.returncode:
        said = "\n".join(started.stderr.strip().splitlines()[-8:])
        pytest.exit(
            f"no test can run: `python -c '{code}'` ends with exit code "
            f"{started.returncode}. XLA_FLAGS is {os.environ['XLA_FLAGS']!r}.\n{said}",
            returncode=pytest.ExitCode.INTERNAL_ERROR,
        )


@pytest.fixture(autouse=True)
def few_programs():
    """Forget compiled programs once a worker has very many of them.

    Each takes several mappings of memory, of which Linux allows a process 65,530;
    jaxlib ends the worker at the next one. The tests of one module can make that many.
    """
    yield
    mapped = pathlib.Path("/proc/self/maps")
    if mapped.exists() and mapped.read_bytes().count(b"\n") > MAPPED:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def tiny():
    """A function: the overrides of a run that trains in seconds, and any changes."""

    def overrides(**changes):
        small = {
            "data.train_size": "80",
            "data.validation_size": "13",
            "data.test_size": "11",
            "data.batch_tokens": "528",
            "data.max_length": "64",
            "data.shapes": "1",
            "tokenizer.vocab_size": "420",
            "model.encoder_layers": "1",
            "model.decoder_layers": "1",
            "model.d_model": "16",
            "model.d_ff": "24",
            "model.num_heads": "2",
            "model.dropout_attention": "0.1",
            "train.steps": "12",
            "optim.warmup_steps": "5",
            "optim.ema": "0.5",
            "eval.every": "6",
            "eval.answers": "2",
            "eval.samples": "1",
            "eval.batch_rows": "16",
            "eval.splits": "",
            "decode.extra_length": "2",
            "decode.beams": "1",
            "checkpoint.every": "3",
            "checkpoint.average": "2",
            "checkpoint.keep_last": "3",
            "log.every": "1",
            "log.tensorboard": "false",
            "mesh.data": "1",
        }
        changed = {k.replace("__", "."): str(v) for k, v in changes.items()}
        return {**small, **changed}

    return overrides


@pytest.fixture
def one_device(monkeypatch):
    """A machine of one device, for runs that are not about the mesh."""
    _see_one_device(monkeypatch)


@pytest.fixture(scope="session")
def tiny_run_of(tiny, tmp_path_factory):
    """A function: the directory of a tiny run of a config, trained to its last step.

    One worker trains a run with these changes; each call makes a copy.
    """
    from transformer_jax import config, train
    from transformer_jax.base import files, programs

    source = programs.digest_source("transformer_jax") or os.getpid()  # if just edited

    def make(spec, **changes):
        known = dict(config.items(config.load(spec)))
        overrides = {k: v for k, v in tiny().items() if k in known} | changes
        own = json.dumps([spec, known | overrides, source], sort_keys=True)
        shared = SHARED / f"tiny_run_{hashlib.sha256(own.encode()).hexdigest()[:16]}"
        with open(f"{shared}.lock", "a") as file:
            files.lock(file, wait=True)
            if not shared.exists():
                folder = tmp_path_factory.mktemp("tiny") / "run"
                with pytest.MonkeyPatch.context() as monkeypatch:
                    _see_one_device(monkeypatch)
                    assert train.train(config.load(spec, overrides), folder) == 0
                shutil.move(folder, shared)
        return shutil.copytree(shared, tmp_path_factory.mktemp("tiny") / "run")

    return make


@pytest.fixture(scope="session")
def tiny_run(tiny_run_of):
    """A run directory of translation, scored. Tests must not change it."""
    return tiny_run_of("quickstart", **SCORED)


@pytest.fixture(scope="module")
def run(tiny_run):
    """The run of `tiny_run`, opened."""
    import transformer_jax

    return transformer_jax.load(tiny_run)


@pytest.fixture
def run_main(monkeypatch, capsys):
    """A function: what the `main` of a module prints, given flags and options."""
    from absl import flags

    def run(module, *words, **overrides):
        values = flags.FlagValues()
        with monkeypatch.context() as patch:
            for kind in ("string", "integer", "float", "bool", "multi_string", "list"):
                name = f"DEFINE_{kind}"
                define = functools.partial(getattr(flags, name), flag_values=values)
                patch.setattr(flags, name, define)
            module.define_flags()
        values(["command", *map(str, words)])
        monkeypatch.setattr(flags, "FLAGS", values)
        module.main(overrides)
        return capsys.readouterr().out

    return run


def _see_one_device(monkeypatch):
    from transformer_jax import sharding

    monkeypatch.setattr(
        sharding, "make_mesh", lambda sizes, platform="any": sharding.local_mesh()
    )


@pytest.fixture(scope="session")
def quick_run_of(tiny_run_of):
    """A function: the directory of a tiny run that is rarely saved and scored."""
    few = {
        "eval.answers": "1", "eval.batch_rows": "8", "eval.every": "12",
        "checkpoint.every": "6",
    }  # fmt: skip
    return lambda spec, **changes: tiny_run_of(spec, **few | changes)


@pytest.fixture
def compare_seeds(run_main, tmp_path):
    """A function: the task's metrics by which groups of copies of a run are compared.

    The loss, which all tasks have, and the perplexity are left out.
    """

    def compare(path):
        for seed in (1, 2, 3, 4):
            copy = shutil.copytree(path, tmp_path / f"run_{seed}")
            stored = json.loads((copy / "config.json").read_text())
            (copy / "config.json").write_text(json.dumps(stored | {"seed": seed}))
        runs = [f"{tmp_path}/run_{seed}" for seed in (1, 2, 3, 4)]
        out = run_main(
            importlib.import_module("transformer_jax.evaluate"),
            f"--workdir={','.join(runs[:2])}",
            f"--compare={','.join(runs[2:])}",
            "--split=test",
        )
        assert out.count("scores.json") == 4
        means = re.findall(
            r"^(.*): mean ±.*\n +2 seeds +(\S+) ± 0.00", out, re.MULTILINE
        )
        assert out.count("the means are equal") == len(means)
        found = {name: float(mean) for name, mean in means}
        assert found.pop("loss") >= 0
        found.pop("perplexity", None)
        return found

    return compare


@pytest.fixture
def read_files(tmp_path):
    """A function: the records of a split of files that hold these texts."""
    from transformer_jax import config as configs
    from transformer_jax import tasks

    def read(task, form, split="train", **texts):
        config = configs.base(task)
        with config.unlocked():
            config.data.source, config.data.folder = form, str(tmp_path)
            for name, text in texts.items():
                (tmp_path / f"{name}.txt").write_text(text)
                config.data[f"{name}_files"] = f"{name}.txt"
        source = tasks.find(task).source(config)
        assert source.find_problems() == []
        return source.read(split)

    return read


@pytest.fixture
def fast_cache(tmp_path, monkeypatch):
    """Keep no index of a file that is read once, and flush nothing to the disk."""
    from transformer_jax.base import files
    from transformer_jax.data import cache

    def build(place, make, content=""):
        folder = tmp_path / "built"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)
        return folder

    monkeypatch.setattr(cache, "build_once", build)
    monkeypatch.setattr(files, "flush", lambda path: None)


@pytest.fixture
def prepare_of(tiny, tmp_path):
    """A function: a config, and what is made of its data."""
    from transformer_jax import config as configs
    from transformer_jax.runs.folder import Folder
    from transformer_jax.training.prepare import prepare

    def make(spec, say=lambda line: None, **changes):
        known = dict(configs.items(configs.load(spec)))
        small = {k: v for k, v in tiny().items() if k in known} | changes
        config = configs.load(spec, small)
        return config, prepare(config, Folder(tmp_path / "run"), say)

    return make
