"""The same answers from ONNX Runtime as from here."""

import copy
import dataclasses
import functools
import json
import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax.base.errors import UserError
from transformer_jax.convert import onnx, onnx_runner
from transformer_jax.data.text.tokenizer import Bytes

# Type checks of these tests allow no free sizes, so another process exports.
VARIED = """
import copy, dataclasses, json, pathlib, sys
import jax, transformer_jax
from transformer_jax import tasks
from transformer_jax.convert import onnx

workdir, folder, options = sys.argv[1:]
run = transformer_jax.load(workdir)
config = copy.deepcopy(run.config)
config.model.update(json.loads(options))
task = tasks.find(config.task).open(config, run.folder.tokenizer)
keys = iter(jax.random.split(jax.random.key(3), 999))
params = jax.tree.map(
    lambda p: p + 0.2 * jax.random.normal(next(keys), p.shape),
    task.objective.init(jax.random.key(2)),
)
run = dataclasses.replace(run, config=config, task=task, params=params)
print(onnx.export(run, pathlib.Path(folder)))
"""
ALONE = """
import runpy, sys
sys.modules.update(dict.fromkeys(["jax", "transformer_jax"]))  # neither is there
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def execute(*words, lines=()):
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        input="\n".join(lines), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def workdirs(tiny_run, tiny_run_of):
    """By task, a function: the directory of a tiny run."""
    few = {"eval.every": "12", "eval.answers": "1"}
    text = few | {"data.window": "32", "decode.max_length": "20"}
    return {
        "translation": lambda: tiny_run,
        "language": functools.cache(lambda: tiny_run_of("language", **text)),
        "classification": functools.cache(lambda: tiny_run_of("opinions", **few)),
    }


@pytest.fixture(scope="module", params=["translation", "language", "classification"])
def exported(request, workdirs, tmp_path_factory):
    """A run, and its export by the command, whose comparison found no difference."""
    for package in ("jax2onnx", "onnxruntime"):
        pytest.importorskip(package)
    workdir = workdirs[request.param]()
    folder = tmp_path_factory.mktemp("exported") / "made"
    given = ["--workdir", workdir, "--output", folder]
    said = execute("-m", "transformer_jax.convert.onnx", *given)
    assert said.startswith("exported   ") and "logits differ by" in said
    asked = said.split(" lines have the same answer")[0].split(", ")[-1]
    equal, _, lines = asked.partition(" of ")
    assert equal == lines and int(lines) > 10
    return transformer_jax.load(workdir), folder


@pytest.mark.system
def test_the_runner_answers_the_same_without_jax(exported):
    run, folder = exported
    code = pathlib.Path(onnx_runner.__file__).read_text(encoding="utf-8")
    assert (folder / "run.py").read_text(encoding="utf-8") == code
    records = list(run.records("test"))
    lines = [run.task.inference.question(record) for record in records]
    lines = [line.replace("\n", " ") for line in 4 * lines]  # two batches
    options = {} if run.config.task == "classification" else {"beams": 1}
    options |= {"sample": False} if run.config.task == "language" else {}
    said = execute("-c", ALONE, folder / "run.py", lines=lines)
    assert said.splitlines() == run.predict(lines, **options)
    assert len(lines) > onnx_runner.ROWS


@pytest.mark.system
@pytest.mark.parametrize("sizes", [(3, 11, 6), (1, 13, 17)])
def test_programs_of_any_size_have_the_logits_of_the_model(exported, sizes):
    run, folder = exported
    programs, draw = onnx_runner.open_programs(folder), np.random.default_rng(0)
    rows, length, steps = sizes
    source = draw.integers(4, 30, (rows, length)).astype(np.int32)
    target = draw.integers(4, 30, (rows, steps)).astype(np.int32)
    source[0, -2:] = 0  # padding
    module, task = run.task.objective.module, run.config.task
    if task == "classification":
        found = onnx_runner.call(programs["classify"], {"tokens": source})["logits"]
        inputs = source, source != 0
    else:
        given = {"source": source, "room": np.zeros(steps, np.int32)}
        state, logits = onnx_runner.call(programs["start"], given), []
        for place, token in enumerate(target.T):
            made = onnx_runner.extend_by(programs["extend"], token, place, state)
            logits.append(made[0])
            state = made[1]
        found = np.stack(logits, 1)
        inputs = source, target, source != 0, np.ones_like(target)
        inputs = (target,) if task == "language" else inputs
    inputs = (jnp.asarray(one, jnp.int32) for one in inputs)
    wanted = module.apply({"params": run.params}, *inputs).logits
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


VARIANTS = {
    "llama": {
        "positions": "rotary", "norm": "pre", "norm_kind": "rms", "bias": "none",
        "activation": "swiglu", "num_heads": 4, "kv_heads": 2, "d_k": 6, "d_v": 6,
    },
    "relative": {"positions": "relative", "dtype": "bfloat16"},
    "universal": {"positions": "sinusoid", "shared_layers": "universal"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translation", "language", "classification"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_models_are_exported(workdirs, task, name, tmp_path):
    for package in ("jax2onnx", "onnxruntime"):
        pytest.importorskip(package)
    options = json.dumps(VARIANTS[name])
    said = execute("-c", VARIED, workdirs[task](), tmp_path / "made", options)
    assert "lines have the same answer" in said


def test_calls_of_other_programs_are_replaced_with_what_they_call():
    def function(x):
        inner = jax.jit(lambda y: jax.nn.relu(y) * 2)
        return jax.checkpoint(inner)(x) + jax.lax.optimization_barrier(x)

    x = jnp.arange(-3.0, 4.0)
    closed = jax.make_jaxpr(function)(x)
    inside = getattr(closed, "jaxpr", closed), closed.consts
    flat = jax.make_jaxpr(lambda x: onnx.evaluate(*inside, [x]))(x)
    names = {one.primitive.name for one in getattr(flat, "jaxpr", flat).eqns}
    assert names and not names & {*onnx.CALLS, onnx.BARRIER}
    np.testing.assert_array_equal(onnx.evaluate(*inside, [x])[0], function(x))


class Program:
    """A classifier of JAX in place of ONNX Runtime's, and what is added to it."""

    def __init__(self, run, error):
        self.run_, self.error = run, error

    def get_outputs(self):
        return [types.SimpleNamespace(name="logits")]

    def run(self, _, given):
        tokens = jnp.asarray(given["tokens"])
        real = (tokens != 0).astype(jnp.int32)
        module, params = self.run_.task.objective.module, {"params": self.run_.params}
        logits = np.array(module.apply(params, tokens, real).logits)
        logits[:, 0] += self.error
        return [logits]


@pytest.fixture
def pretend(workdirs, monkeypatch):
    """A function: the classifier, whose export computes with an error."""
    run = transformer_jax.load(workdirs["classification"]())
    message = types.SimpleNamespace(SerializeToString=lambda: b"a program")
    monkeypatch.setattr(onnx, "check_libraries", lambda: None)
    monkeypatch.setattr(onnx, "convert", lambda run: {"classify": message})

    def make(error):
        opened = {"classify": Program(run, error)}
        monkeypatch.setattr(onnx_runner, "open_programs", lambda folder: opened)
        return run

    return make


def test_an_export_is_compared_before_the_command_ends(pretend, monkeypatch, tmp_path):
    found = onnx.export(pretend(0.0), tmp_path / "right")
    assert found.startswith("logits differ by ") and "13 of 13 lines" in found
    assert {path.name for path in (tmp_path / "right").iterdir()} == {
        "classify.onnx", "model.json", "run.py", "source.model", "target.model",
    }  # fmt: skip
    assert (tmp_path / "right" / "classify.onnx").read_bytes() == b"a program"
    with pytest.raises(UserError, match="the logits of ONNX Runtime and JAX diff"):
        onnx.export(pretend(0.01), tmp_path / "wrong")
    monkeypatch.setattr(onnx, "compare_logits", lambda *_: "")
    with pytest.raises(
        UserError, match="13 lines have the same answer by ONNX Runtime"
    ):
        onnx.export(pretend(float("nan")), tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_lines_are_drawn_where_the_validation_split_is_missing(run):
    given = onnx.sample_lines(run)
    assert given == [record["source"] for record in run.records("validation")]
    other = copy.copy(run)
    other.config = copy.deepcopy(run.config)
    with other.config.unlocked():
        other.config.data.source, other.config.data.folder = "parallel", "nowhere"
    drawn = onnx.sample_lines(other)
    assert len({*drawn}) > 40 and drawn == onnx.sample_lines(other)
    assert not any("\n" in line for line in drawn)


def test_what_cannot_be_exported_is_refused(run, tmp_path, monkeypatch):
    other = copy.copy(run)
    other.config = copy.deepcopy(run.config)
    with other.config.unlocked():
        other.config.task = "parsing"
    with pytest.raises(UserError, match="only Transformers of the tasks translation"):
        onnx.export(other, tmp_path / "a")
    byte = copy.copy(run.task.data)
    byte.source_tokenizer = byte.target_tokenizer = Bytes()
    other = copy.copy(run)
    other.task = dataclasses.replace(other.task, data=byte)
    with pytest.raises(UserError, match="exported to ONNX, not those with a Bytes"):
        onnx.export(other, tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(onnx, "LARGEST", 1000)
        with pytest.raises(UserError, match="0.0 GB in float32, and an ONNX file hold"):
            onnx.export(run, tmp_path / "c")
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(UserError, match="jax2onnx is missing: pip install jax2onnx"):
        onnx.export(run, tmp_path / "d")
    assert not list(tmp_path.iterdir())


def test_a_model_that_jax2onnx_does_not_know_is_refused(monkeypatch):
    def refuse(*_, **__):
        raise NotImplementedError("No plugins registered for primitive 'erf_inv'")

    fake = types.SimpleNamespace(to_onnx=refuse)
    monkeypatch.setitem(sys.modules, "jax2onnx", fake)
    with pytest.raises(UserError, match="jax2onnx cannot convert .*'erf_inv'"):
        onnx.to_onnx(lambda x: [x + 1], [jnp.ones(3)], ["x"], ["y"])
