"""Programs that are kept: found without tracing, and only where they are the same."""

import dataclasses
import math
import os
import pathlib
import subprocess
import sys
import textwrap

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from transformer_jax.base import files, programs
from transformer_jax.base.programs import Program


@dataclasses.dataclass(frozen=True)
class Factor:
    value: object


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    # A worker of the tests was started from a string, which is in no file.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    # Other tests load modules that they have written, or removed since.
    own = {pathlib.Path(programs.__file__)}
    monkeypatch.setattr(programs, "_find_source", lambda ours: own)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def make(factor, traced):
    def scale(x, times):
        traced.append(x.shape)
        return {"scaled": x * factor.value * times}

    return Program(scale, made_from=[factor], static_argnames="times")


def call(program, *shape, times=1):
    return np.asarray(program(jnp.ones(shape), times=times)["scaled"])


def entries(folder: pathlib.Path, kind="program"):
    return sorted(folder.glob(f"*.{kind}"))


def test_a_program_that_was_kept_is_not_traced_again(folder):
    traced = []
    first = call(make(Factor(7), traced), 2, 3)
    assert traced == [(2, 3)] and (first == 7).all()
    again = make(Factor(7), traced)
    np.testing.assert_array_equal(call(again, 2, 3), first)
    np.testing.assert_array_equal(call(again, 2, 3), first)
    assert traced == [(2, 3)]
    assert len(entries(folder)) == len(entries(folder, "traced")) == 1


@pytest.mark.parametrize(
    ("factor", "shape", "times"),
    [(Factor(5), (2, 3), 1), (Factor(7), (3, 2), 1), (Factor(7), (2, 3), 2)],
    ids=["module", "shape", "static"],
)
def test_another_program_is_not_taken_for_it(folder, factor, shape, times):
    traced = []
    call(make(Factor(7), traced), 2, 3)
    found = call(make(factor, traced), *shape, times=times)
    assert (found == factor.value * times).all() and found.shape == shape
    assert len(traced) == len(entries(folder)) == 2


def test_functions_of_the_same_text_that_read_other_arguments_are_told_apart(folder):
    for read in (0, 1):
        choose = Program(lambda *given, n=read: given[n] + 1, made_from=[read])
        assert float(choose(jnp.float32(1), jnp.float32(50))) == (2, 51)[read]


def test_a_program_that_is_traced_again_is_found_by_its_code(folder, monkeypatch):
    traced, compiled = [], []
    call(make(Factor(7), traced), 2, 3)
    monkeypatch.setattr(programs, "_digest_loaded", lambda owners: "another")
    compile_it = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered,
        "compile",
        lambda *given: compiled.append(1) or compile_it(*given),
    )
    assert (call(make(Factor(7), traced), 2, 3) == 7).all()
    assert len(traced) == 2 and not compiled
    assert len(entries(folder)) == 1 and len(entries(folder, "traced")) == 2


class Vocabulary:
    def __init__(self, fingerprint):
        self.fingerprint = fingerprint


@pytest.mark.parametrize(
    "values",
    [
        (np.zeros(2000), np.eye(1, 2000)[0]),
        (Vocabulary("a"), Vocabulary("b")),
        tuple(ConfigDict({"rate": rate}) for rate in (0.1, 0.2)),
    ],
    ids=["array", "fingerprint", "config"],
)
def test_what_a_program_is_made_from_tells_it_apart(folder, values):
    traced = []
    for value in (*values, *values):

        def scale(x):
            traced.append(x)
            return x * 2

        Program(scale, made_from=[value])(jnp.ones(3))
    assert len(traced) == len(entries(folder, "traced")) == 2


def test_abstract_arguments_find_the_program_of_real_ones(folder):
    traced = []
    shape = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    program = make(Factor(7), traced)
    assert not program.is_kept(shape, times=1)
    compiled = program.compile(shape, times=1)
    assert (np.asarray(compiled(jnp.ones((2, 3)))["scaled"]) == 7).all()
    again = make(Factor(7), traced)
    assert again.is_kept(shape, times=1) and not again.is_kept(shape, times=2)
    assert (call(again, 2, 3) == 7).all() and len(traced) == 1
    # What the caller has traced is not traced again.
    other = make(Factor(5), traced)
    lowered = other.lower(shape, times=1)
    compiled = other.compile(shape, lowered=lowered, times=1)
    assert (np.asarray(compiled(jnp.ones((2, 3)))["scaled"]) == 5).all()
    assert len(traced) == 2


def test_the_source_of_a_package_is_digested(monkeypatch):
    monkeypatch.setattr(programs, "STARTED", math.inf)
    programs._digest.cache_clear()
    digest = programs.digest_source("transformer_jax")
    assert digest and digest == programs.digest_source("transformer_jax")
    assert digest != programs.digest_source("ml_collections")
    assert programs.digest_source("test_programs") == ""  # a file has no folder
    monkeypatch.setattr(programs, "STARTED", 0.0)
    programs._digest.cache_clear()
    assert programs.digest_source("transformer_jax") == ""
    programs._digest.cache_clear()


def test_other_settings_are_another_program(folder):
    traced = []
    program = make(Factor(7), traced)
    call(program, 2, 3)
    with jax.default_matmul_precision("float32"):
        call(program, 2, 3)
    assert len(traced) == len(entries(folder, "traced")) == 2


@pytest.mark.parametrize("kind", ["program", "traced"])
@pytest.mark.parametrize("damage", [b"", b"x" * 99, "a bit"])
def test_a_damaged_entry_is_made_anew(folder, damage, kind):
    traced = []
    call(make(Factor(7), traced), 2, 3)
    (entry,) = entries(folder, kind)
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content if damage == "a bit" else damage)
    assert (call(make(Factor(7), traced), 2, 3) == 7).all()
    assert len(traced) == 2
    call(make(Factor(7), traced), 2, 3)
    assert len(traced) == 2, "the damaged entry was not replaced"


class Apply(nn.Module):
    function: object

    def __call__(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "value",
    [Apply(lambda x: x), np.array([object()]), object(), {"key": len}],
    ids=["module of a function", "array of objects", "object", "dictionary"],
)
def test_what_has_no_description_is_not_kept(folder, value):
    program = Program(lambda x: x + 1, made_from=[value])
    assert float(program(jnp.float32(1))) == 2
    assert not list(folder.iterdir())


def test_nothing_is_kept_of_an_interactive_session(folder, monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    assert (call(make(Factor(7), []), 2, 3) == 7).all()
    assert not list(folder.iterdir())


def test_a_program_that_cannot_be_serialised_runs(folder):
    def show(x):
        jax.debug.callback(lambda _: None, x)
        return x + 1

    assert float(Program(show)(jnp.float32(1))) == 2
    assert not entries(folder)


def test_a_folder_that_cannot_be_written_stops_nothing(folder, monkeypatch):
    def refuse(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(files, "write_bytes", refuse)
    assert (call(make(Factor(7), []), 2, 3) == 7).all()


def test_several_devices_compile_as_always(folder, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert (call(make(Factor(7), []), 2, 3) == 7).all()
    assert not list(folder.iterdir())


def test_shapes_that_were_kept_are_not_traced_again(folder):
    traced = []
    for _ in range(2):
        found = make(Factor(7), traced).shapes(jnp.ones((2, 3)), 2.0)["scaled"]
        assert (found.shape, found.dtype) == ((2, 3), jnp.float32)
    assert len(traced) == len(entries(folder, "shapes")) == 1


def test_the_oldest_entries_make_room(folder, monkeypatch):
    monkeypatch.setattr(programs, "MOST", 4)
    for times in range(5):
        call(make(Factor(7), []), 2, 3, times=times)
    left = len(entries(folder)) + len(entries(folder, "traced"))
    assert 2 <= left <= 4


SCRIPT = """
    import pathlib, sys
    import jax
    import extension
    from transformer_jax.base.programs import Program

    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    place = pathlib.Path(extension.__file__)
    if len(sys.argv) > 2:  # an edit while the process runs
        place.write_text(sys.argv[2])
    program = Program(lambda x: extension.change(x))
    print(float(program(jax.numpy.float32(1))))
"""


def test_code_that_was_edited_is_never_taken_for_what_it_was(tmp_path):
    """Neither between two processes, nor while one runs."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    one, other = (f"def change(x):\n    return x + {n}\n" for n in (1, 1000))
    hidden = {"XLA_FLAGS", "JAX_NUM_CPU_DEVICES"}  # which make several devices
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu"}
    extension = tmp_path / "extension.py"
    extension.write_text(one)

    def start(*given):
        command = [sys.executable, "script.py", "kept", *given]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)

    (tmp_path / "kept").mkdir()
    assert start(other) == 2  # of the code that it had loaded
    assert not list((tmp_path / "kept").iterdir())
    assert start() == 1001
    assert list((tmp_path / "kept").iterdir())
    extension.write_text(one)
    assert start() == 2
