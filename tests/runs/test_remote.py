"""Runs in an object store: small files by a mirror, checkpoints by Orbax.

The tests of whole commands need `pip install gcsfs`, and no Google.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import jax
import pytest
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem
from waiting import wait_for

from transformer_jax import cli, config, train
from transformer_jax.base.errors import UserError
from transformer_jax.runs import lock, remote
from transformer_jax.runs.folder import Folder
from transformer_jax.training.log import read_entries

RUN = "gs://bucket/run"


class Store(MemoryFileSystem):
    """A bucket in the memory of this process, in place of gcsfs."""

    protocol = "gcs", "gs"
    store, pseudo_dirs, cachable = {}, [""], False

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).removeprefix("gs://"))


@pytest.fixture
def store(monkeypatch):
    """The files of a bucket by their names."""
    monkeypatch.setattr(Store, "store", {})
    monkeypatch.setattr(Store, "pseudo_dirs", [""])
    monkeypatch.setattr(backend.fsspec_backend, "fs", lambda path: Store())
    monkeypatch.setattr(remote, "BEAT", 0.05)
    return lambda: {name.removeprefix("/bucket/run/") for name in Store.store}


@pytest.mark.parametrize("address", ["s3://bucket/run", "http://host/run"])
def test_another_address_is_not_taken_for_a_folder(address):
    with pytest.raises(UserError, match=f"{address}: a run directory on remote"):
        Folder(address)


def test_a_package_that_is_missing_is_named(monkeypatch):
    def missing(path):
        raise ImportError("Please install gcsfs")

    monkeypatch.setattr(backend.fsspec_backend, "fs", missing)
    with pytest.raises(UserError, match=r"pip install 'transformer_jax\[gcs\]'"):
        Folder(RUN)


def test_a_bucket_that_cannot_be_read_is_named(monkeypatch):
    def refuse(path):
        raise OSError("Forbidden: no permission\nand a page more")

    monkeypatch.setattr(backend.fsspec_backend, "fs", refuse)
    with pytest.raises(UserError, match=f"{RUN} cannot be read: Forbidden: no perm"):
        Folder(RUN)


def test_what_is_written_is_found_elsewhere(store):
    folder = Folder(RUN)
    folder.tokenizer.mkdir()
    (folder.tokenizer / "text.model").write_bytes(b"\x00pieces")
    folder.write("result.json", {"step": 3})
    assert store() == {"result.json", "tokenizer/text.model"}
    other = Folder(RUN)
    assert other.path != folder.path
    assert other.read("result.json") == {"step": 3}
    assert (other.tokenizer / "text.model").read_bytes() == b"\x00pieces"
    folder.write("result.json", {"step": 4})
    other.pull()
    assert other.read("result.json") == {"step": 4}


def test_only_what_has_changed_is_pushed_and_traces_at_the_end(store, monkeypatch):
    folder, written = Folder(RUN), []
    (folder.path / "tensorboard").mkdir()
    (folder.path / "tensorboard" / "events").write_text("curves")
    folder.write("config.json", {"a": 1})
    pipe = Store.pipe_file

    def note(self, path, value, **rest):
        written.append(path)
        return pipe(self, path, value, **rest)

    monkeypatch.setattr(Store, "pipe_file", note)
    before = dict(Store.store)
    folder.push()
    assert Store.store == before and store() == {"config.json"}
    (folder.path / "metrics.jsonl").write_text("{}\n")
    folder.push_soon()  # not yet
    assert store() == {"config.json"}
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    folder.push_soon()
    assert store() == {"config.json", "metrics.jsonl"}
    folder.push(everything=True)
    assert store() == {"config.json", "metrics.jsonl", "tensorboard/events"}
    assert not (Folder(RUN).path / "tensorboard").exists()


def test_only_process_0_pushes(store, monkeypatch):
    folder = Folder(RUN)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    (folder.path / "metrics.jsonl").write_text("{}\n")
    folder.push(everything=True)
    assert store() == set()


def test_the_mirror_is_removed_with_its_folder(store):
    folder = Folder(RUN)
    path = folder.path
    assert path.is_dir()
    del folder
    assert not path.exists()


def test_a_living_holder_refuses_others_and_leaves_nothing(store):
    place = Folder(RUN).place
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    held = pytest.raises(UserError, match=f"{RUN} is being trained by {holder}")
    with lock.alone(place), held, lock.alone(place):
        pass
    assert store() == set()


def test_the_lock_of_a_dead_process_is_taken_over(store):
    place = Folder(RUN).place
    about = {"holder": "process 7 on node3", "nonce": "x", "beat": 12}
    (place / lock.FILE).write_text(json.dumps(about))
    with lock.alone(place):
        assert str(os.getpid()) in remote.read_holder(place / lock.FILE)


def test_a_training_whose_lock_was_taken_over_ends(store, monkeypatch):
    ended = threading.Event()
    codes = []
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    place = Folder(RUN).place
    with lock.alone(place):
        (place / lock.FILE).write_text('{"holder": "process 8", "nonce": "y"}')
        assert ended.wait(5)
    assert set(codes) == {cli.PREEMPTED}


@pytest.fixture(scope="module")
def cloud():
    """The environment of a machine whose Google Cloud Storage is a local server."""
    pytest.importorskip("gcsfs")
    server = [sys.executable, pathlib.Path(__file__).with_name("object_store.py")]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        yield os.environ | {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "GOOGLE_CLOUD_PROJECT": "none",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "FSSPEC_GCS_TOKEN": "anon",
            "JAX_NUM_CPU_DEVICES": "1",
        }
        process.kill()


DAMAGE = """
import sys
import jax, optax
import jax.numpy as jnp
from transformer_jax.runs.checkpoint import Checkpoints, TrainState, restore_newest
from transformer_jax.runs.folder import Folder

def state(step):
    params = {"dense": {"kernel": jnp.full(1000, float(step))}}
    moments = optax.adam(0.1).init(params)
    return TrainState(jnp.int32(step), params, moments, jax.random.key(0))

folder = Folder(sys.argv[1])
saved = Checkpoints(folder.checkpoints, keep_last=2, keep_best=1, writer=True)
for step in (1, 2, 3, 4):
    saved.save(step, state(step), score=-step)
saved.close()
assert saved.steps() == [1, 3, 4], saved.steps()
assert saved.best_step() == 1
for file in (saved.folder / "4" / "params" / "d").iterdir():
    file.write_bytes(b"damaged")
(saved.folder / "5" / "params" / "manifest.ocdbt").write_text("half made")

again = Checkpoints(folder.checkpoints, keep_last=2, keep_best=1, writer=True)
again.clear()
step, restored, damaged = restore_newest([again], state(0))
assert step == 3 and restored.params["dense"]["kernel"][0] == 3, step
assert damaged[1].endswith("/damaged/checkpoints-4"), damaged
assert again.steps() == [1, 3]
again.save(4, state(4))
again.close()
assert again.steps() == [1, 3, 4]
"""


@pytest.mark.system
def test_a_damaged_checkpoint_is_kept_and_passed_over(cloud):
    script = [sys.executable, "-c", DAMAGE, "gs://bucket/damaged_run"]
    done = subprocess.run(script, env=cloud, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def command(name, *words, **overrides):
    changed = [f"--config.{key}={value}" for key, value in overrides.items()]
    return [sys.executable, "-m", f"transformer_jax.{name}", *words, *changed]


@pytest.mark.system
def test_a_killed_run_goes_on_to_what_an_undisturbed_one_ends_with(
    cloud, tiny, one_device, tmp_path
):
    where = "gs://bucket/killed"
    few = {"train__steps": 18, "checkpoint__every": 6, "checkpoint__average": 1}
    asked = tiny(eval__splits="validation", **few)
    begin = command("train", "--config", "quickstart", "--workdir", where, **asked)
    log = tmp_path / "log"
    with log.open("w") as output:
        first = subprocess.Popen(begin, env=cloud, stdout=output, stderr=output)
        wait_for(lambda: "step     13" in log.read_text() or first.poll() is not None)
        first.send_signal(signal.SIGKILL)
        first.wait()
    again = subprocess.run(begin, env=cloud, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "resumed    from step" in again.stdout
    assert f"done: {where}, step 18" in again.stdout
    assert train.train(config.load("quickstart", asked), tmp_path / "local") == 0

    score = command("evaluate", "--workdir", where, "--split", "validation")
    scored = subprocess.run(score, env=cloud, capture_output=True, text=True)
    assert scored.returncode == 0, scored.stderr
    read = (
        "import sys; from transformer_jax.runs.folder import Folder; import shutil; "
        "folder = Folder(sys.argv[1]); shutil.copytree(folder.path, sys.argv[2])"
    )
    copy = tmp_path / "copy"
    subprocess.run([sys.executable, "-c", read, where, copy], env=cloud, check=True)
    assert losses(copy) == losses(tmp_path / "local")
    assert "validation" in json.loads((copy / "scores.json").read_text())


def losses(run: pathlib.Path):
    entries = read_entries(run / "metrics.jsonl")
    return [(e["step"], e["kind"], e["loss"]) for e in entries]
