"""The same translations from exported programs as from here."""

import copy
import dataclasses
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.convert import exported, runner
from transformer_jax.data.text.tokenizer import Bytes


@pytest.fixture(scope="module")
def translator():
    """The translator that comes with the package: its answers are words."""
    return transformer_jax.load("tatoeba:de_en")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An export, by the command: type checks of these tests allow no free sizes."""
    pytest.importorskip("flatbuffers")
    made = tmp_path_factory.mktemp("exported") / "made"
    given = ["--workdir", "tatoeba:de_en", "--output", made]
    command = [sys.executable, "-m", "transformer_jax.convert.exported", *given]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("exported   average")
    return made


@pytest.mark.system
def test_programs_of_any_size_have_the_logits_of_the_model(translator, folder):
    start, extend = (
        export.deserialize(bytearray((folder / f"{name}.bin").read_bytes()))
        for name in ("start", "extend")
    )
    assert set(start.platforms) == {"cpu", "cuda", "tpu"}
    start, extend = jax.jit(start.call), jax.jit(extend.call)
    params = dict(np.load(folder / "params.npz"))
    module, draw = translator.task.objective.module, np.random.default_rng(0)
    for rows, length, steps in ((2, 7, 5), (3, 5, 11)):
        source = draw.integers(4, 99, (rows, length)).astype(np.int32)
        source[0, -2:] = 0  # padding
        target = draw.integers(4, 99, (rows, steps)).astype(np.int32)
        state, found = start(params, source, np.zeros(steps, np.int32)), []
        for t in range(steps):
            logits, state = extend(params, target[:, t], np.int32(t), state)
            found.append(logits)
        inputs = map(
            jnp.asarray,
            (source, target, (source != 0).astype(np.int32), np.ones_like(target)),
        )
        wanted = module.apply({"params": translator.params}, *inputs).logits
        np.testing.assert_allclose(np.stack(found, 1), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.system
def test_the_runner_translates_the_same_without_this_package(translator, folder):
    code = pathlib.Path(runner.__file__).read_text()
    assert (folder / "run.py").read_text() == code
    assert "import transformer_jax" not in code and "from transformer_jax" not in code
    lines = ["Der Hund schläft.", "Ich habe gestern ein Buch gelesen."]
    done = subprocess.run(
        [sys.executable, folder / "run.py"],
        input="\n".join(lines), capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == translator.predict(lines, beams=1)
    assert "dog" in done.stdout


def test_what_is_no_translator_of_own_pieces_is_refused(translator, tmp_path):
    other = copy.copy(translator)
    other.config = copy.deepcopy(translator.config)
    with other.config.unlocked():
        other.config.task = "language"
    with pytest.raises(UserError, match="translators are exported as programs, not a"):
        exported.export(other, tmp_path / "a")
    byte = copy.copy(translator.task.data)
    byte.source_tokenizer = byte.target_tokenizer = Bytes()
    other = copy.copy(translator)
    other.task = dataclasses.replace(other.task, data=byte)
    with pytest.raises(UserError, match="not those with a Bytes tokenizer"):
        exported.export(other, tmp_path / "b")
    assert not list(tmp_path.iterdir())
