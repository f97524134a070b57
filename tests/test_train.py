"""Training: one device or eight, killed or not, the same run."""

import functools
import hashlib
import itertools
import json
import logging
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import cli, config, losses, sharding, train
from transformer_jax.base.errors import UserError
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.data.reading.records import Concatenation, Generated
from transformer_jax.decoding import Reply
from transformer_jax.runs import checkpoint
from transformer_jax.runs import folder as folders
from transformer_jax.runs import run as runs
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.training import evaluator as evaluators
from transformer_jax.training import log as metrics
from transformer_jax.training import scoring
from transformer_jax.training import scoring as averaging
from transformer_jax.training.checkpointing import Saver
from transformer_jax.training.evaluator import evenly_spaced
from transformer_jax.training.preemption import Preemption
from transformer_jax.training.steps.compiled_steps import CompiledSteps
from transformer_jax.training.steps.window import LogWindow

SCORED = dict(data__shapes=2, eval__splits="test")  # as `tiny_run` is


def digest(tree) -> str:
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        sha.update(np.asarray(leaf).tobytes())
    return sha.hexdigest()


def build(overrides, folder, mesh, spec="quickstart"):
    known = dict(config.items(config.load(spec)))
    small = {key: value for key, value in overrides.items() if key in known}
    loaded = config.load(spec, small)
    place = folders.Folder(folder)
    place.adopt(loaded, accept_changes=False)
    log = metrics.RunLog(place, True)
    prepared = train.prepare_together(loaded, place, log)
    return train.build(loaded, place, mesh, prepared, log)


def end_of(folder):
    """Hashes of the last state and of the averaged parameters, and the logged steps."""
    trained = runs.load(folder)
    mesh = sharding.local_mesh()
    last = Checkpoints(trained.folder.checkpoints)
    like = make_abstract(trained, mesh)
    state = last.restore(last.steps()[-1], like)
    entries = metrics.read_entries(trained.folder.path / "metrics.jsonl")
    logged = [(e["kind"], e["step"], e.get("loss")) for e in entries]
    return digest(state), digest(trained.params), logged


def make_abstract(trained, mesh):
    from transformer_jax import optim

    optimizer = optim.make_optimizer(trained.config)

    def init(key):
        params = trained.task.objective.init(key)
        return checkpoint.TrainState(0, params, optimizer.init(params), key, params)

    shapes = jax.eval_shape(init, jax.random.key(0))
    places = sharding.shardings(shapes, mesh)
    shapes = shapes.replace(step=jax.ShapeDtypeStruct((), np.int32))
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, places
    )


@pytest.fixture(scope="module")
def whole(tiny_run):
    """How an uninterrupted run of 12 steps, with dropout, ends."""
    return end_of(tiny_run)


def test_a_run_ends_with_all_that_is_needed_to_use_it(tiny_run):
    names = {p.name for p in tiny_run.iterdir()}
    assert names >= {
        "config.json", "versions.json", "tokenizer", "checkpoints", "averaged",
        "metrics.jsonl", "ledger.json", "scores.json", "result.json",
    }  # fmt: skip
    result = json.loads((tiny_run / "result.json").read_text())
    assert result["step"] == 12 and result["averaged_steps"] == [9, 12]
    versions = json.loads((tiny_run / "versions.json").read_text())
    assert versions["jax"] == jax.__version__ and " × " in versions["host"]
    assert versions["devices"] == f"{jax.device_count()} × cpu"
    assert "bleu_signature" in result["scores"]["test"]


def test_step_k_means_k_updates_in_metrics_and_checkpoints(tiny_run):
    entries = metrics.read_entries(tiny_run / "metrics.jsonl")
    logged = [e["step"] for e in entries if e["kind"] == "train"]
    assert logged == list(range(1, 13))
    assert [e["step"] for e in entries if e["kind"] == "validation"] == [6, 12]
    trained = runs.load(tiny_run)
    last = Checkpoints(trained.folder.checkpoints)
    state = last.restore(12, make_abstract(trained, sharding.local_mesh()))
    assert int(state.step) == 12
    rates = [e["learning_rate"] for e in entries if e["kind"] == "train"]
    peak = trained.config.optim.constant * (16 * 5) ** -0.5
    assert rates[0] == pytest.approx(peak / 5)  # s = 1 at the first update
    assert rates[4] == pytest.approx(peak) == max(rates)


@pytest.mark.system
def test_preempted_and_continued_ends_in_the_same_bits(
    whole, tiny, tmp_path, monkeypatch, one_device
):
    loaded = config.load("quickstart", tiny(**SCORED))
    folder = tmp_path / "run"
    stops = iter([4, 11])  # 11 is in the second epoch; neither is a regular one
    stop = next(stops)
    monkeypatch.setattr(Preemption, "requested", lambda self, step: step == stop)
    assert train.train(loaded, folder) == cli.PREEMPTED
    assert Checkpoints(folder / "preempted").steps() == [4]
    assert Checkpoints(folder / "checkpoints").steps() == [3]
    stop = next(stops)
    assert train.train(loaded, folder) == cli.PREEMPTED
    stop = None
    assert train.train(loaded, folder) == 0
    assert end_of(folder) == whole


@pytest.mark.system
def test_checkpoints_by_time_change_nothing_and_are_resumed_from(
    whole, tiny, tmp_path, monkeypatch, one_device
):
    often = tiny(**SCORED, checkpoint__minutes=1e-9, log__every=2)
    loaded = config.load("quickstart", often)
    saved, save = [], Saver.save_between

    def watch(self, step, state):
        save(self, step, state)
        saved.append(step)

    monkeypatch.setattr(Saver, "save_between", watch)
    folder = tmp_path / "run"
    monkeypatch.setattr(Preemption, "requested", lambda self, step: step == 9)
    monkeypatch.setattr(Saver, "save_preempted", lambda self, *_: self.emergency.wait())
    assert train.train(loaded, folder) == cli.PREEMPTED
    assert saved == [2, 4, 8]  # 6 is a regular one
    shutil.rmtree(folder / "checkpoints" / "9")
    monkeypatch.setattr(Preemption, "requested", lambda self, step: False)
    once = config.load("quickstart", tiny(**SCORED))
    assert train.train(once, folder) == 0
    state, params, _ = end_of(folder)
    assert (state, params) == whole[:2]


@pytest.mark.system
def test_killed_after_a_checkpoint_and_continued_ends_in_the_same_bits(
    whole, tiny, tmp_path, monkeypatch, one_device, capsys, caplog
):
    loaded = config.load("quickstart", tiny(**SCORED))
    folder = tmp_path / "run"
    add = LogWindow.add

    def die_at_eight(self, dispatched):
        if dispatched.step == 8:
            raise KeyboardInterrupt  # nothing gets to tidy up the run
        add(self, dispatched)

    monkeypatch.setattr(LogWindow, "add", die_at_eight)
    with pytest.raises(KeyboardInterrupt):
        train.train(loaded, folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "kind": "tr')  # a line cut short
    monkeypatch.setattr(LogWindow, "add", add)
    with caplog.at_level(logging.DEBUG, "transformer_jax"):
        assert train.train(loaded, folder) == 0
    assert "resumed    from step 6" in capsys.readouterr().out
    assert f"restored   {folder / 'checkpoints' / '6'} (params" in caplog.text
    assert "train      found in the cache: " in caplog.text
    assert re.search(r"compiled   \d+×\d+/\d+ in [\d.]+ s", caplog.text)
    assert end_of(folder) == whole


@pytest.mark.system
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    whole, tiny, tmp_path, monkeypatch, one_device, capsys
):
    loaded = config.load("quickstart", tiny(**SCORED))
    folder = tmp_path / "run"
    monkeypatch.setattr(Preemption, "requested", lambda self, step: step == 7)
    assert train.train(loaded, folder) == cli.PREEMPTED
    for place in ("preempted/7", "checkpoints/6"):
        flip_bits(folder / place)
    monkeypatch.setattr(Preemption, "requested", lambda self, step: False)
    assert train.train(loaded, folder) == 0
    out = capsys.readouterr().out
    assert "resumed    from step 3" in out and "passed over" in out
    kept = {p.name for p in (folder / "damaged").iterdir()}
    assert kept == {"preempted-7", "checkpoints-6"}
    assert end_of(folder) == whole


@pytest.mark.system
def test_a_run_whose_checkpoints_are_all_damaged_says_so(
    tiny, tmp_path, monkeypatch, one_device
):
    loaded = config.load("quickstart", tiny(**SCORED))
    monkeypatch.setattr(Preemption, "requested", lambda self, step: step == 4)
    assert train.train(loaded, tmp_path) == cli.PREEMPTED
    for place in ("preempted/4", "checkpoints/3"):
        flip_bits(tmp_path / place)
    with pytest.raises(UserError, match="no checkpoint can be read"):
        train.train(loaded, tmp_path)


def flip_bits(folder):
    """Flip a bit in every 64 bytes of data: of small arrays Orbax keeps old copies."""
    for data in folder.rglob("d/*"):
        content = bytearray(data.read_bytes())
        for at in range(0, len(content), 64):
            content[at] ^= 1
        data.write_bytes(content)


def test_a_finished_run_prints_its_result_again(tiny, tiny_run, capsys, one_device):
    before = (tiny_run / "metrics.jsonl").read_text()
    assert train.train(config.load("quickstart", tiny(**SCORED)), tiny_run) == 0
    out = capsys.readouterr().out
    assert "was already done" in out and "BLEU = " in out
    assert (tiny_run / "metrics.jsonl").read_text() == before


def test_a_run_is_checked_without_being_trained(tiny, tiny_run, tmp_path):
    def check(workdir, **changes):
        overrides = tiny(**SCORED, **changes)
        return train.check(config.load("quickstart", overrides), workdir)

    before = sorted(tiny_run.iterdir())
    assert check(tiny_run) is True
    assert check(tiny_run, train__steps=13) is False
    with pytest.raises(UserError, match="seed: 0 in the run, now 3"):
        check(tiny_run, seed=3)
    assert sorted(tiny_run.iterdir()) == before
    assert check(tmp_path / "new") is False and not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file, not a folder"):
        check(tmp_path / "file")


def test_a_finished_run_keeps_what_it_ran_with(tiny, tiny_run, tmp_path, one_device):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    (folder / "versions.json").write_text('{"jax": "as it was"}\n')
    loaded = config.load("quickstart", tiny(**SCORED))
    assert train.train(loaded, folder) == 0
    assert "as it was" in (folder / "versions.json").read_text()


def test_what_a_summary_says_is_not_said_again():
    values = {"loss": 0.5, "accuracy": 0.75, "f1": 0.5}
    assert metrics.in_words(values) == "loss 0.5000  accuracy 75.00%"
    assert metrics.in_words(values, "accuracy = 75.00%  F1 = 50.00%") == "loss 0.5000"


def test_a_run_notes_all_that_its_parts_ran_with(tmp_path, monkeypatch):
    folder, loaded = folders.Folder(tmp_path), config.load("quickstart")
    for commit in ("first", "first", "second", "third", "third"):
        monkeypatch.setattr(folders, "versions", lambda: {"commit": commit})  # noqa: B023
        folder.note_start(loaded)
    assert folder.read("versions.json") == {
        "commit": "third",
        "earlier": [{"commit": "first"}, {"commit": "second"}],
    }


def test_the_time_of_a_run_is_that_of_all_its_parts(tiny_run):
    result = json.loads((tiny_run / "result.json").read_text())
    entries = metrics.read_entries(tiny_run / "metrics.jsonl")
    assert sum(e["kind"] == "train" for e in entries) == 12
    parts = [e["seconds"] for e in entries if e["kind"] in ("train", "validation")]
    assert sum(parts) > 0
    assert result["seconds"] == pytest.approx(sum(parts), abs=0.1)


def test_more_answers_than_validation_examples_are_all_of_them(tiny, tmp_path):
    run = build(tiny(), tmp_path, sharding.local_mesh())
    params = run.init(jax.random.key(0)).params
    options = runs.decode_options(run.config)
    _, lines = run.validation.free_running(params, options, limit=999)
    assert len(lines) == 13


def test_answers_in_training_are_of_the_whole_validation_split(
    tiny, tmp_path, monkeypatch
):
    overrides = tiny(eval__answers=3, eval__samples=2)
    run = build(overrides, tmp_path, sharding.local_mesh())
    state = run.init(jax.random.key(0))
    said, echoes = [], []

    def echo(task, params, mesh, records, options, progress):
        echoes.extend(task.inference.question(record) for record in records)
        return [Reply(text=text) for text in echoes]

    monkeypatch.setattr(evaluators, "answer_all", echo)
    monkeypatch.setattr(run.log, "say", said.append)
    scoring.validate(run, run.config.eval.every, state)
    records = run.validation.records
    assert echoes == [records[i]["source"] for i in (2, 6, 10)]  # of 13
    shown = {word: [line[13:] for line in said if line.startswith(f"  {word}")]
             for word in ("source", "answer")}  # fmt: skip
    assert shown["source"] == shown["answer"] == [echoes[0], echoes[2]]


def test_the_examples_of_each_tag_are_scored_apart_too(tiny, tmp_path, monkeypatch):
    run = build(tiny(eval__samples=0), tmp_path, sharding.local_mesh())
    state = run.init(jax.random.key(0))
    pairs = [{"source": "um gato", "target": f"a cat reads book {i}"} for i in range(4)]
    parts = [Generated(lambda: pairs, "four"), Generated(lambda: pairs[:3], "three")]
    said = []

    def half_right(task, params, mesh, records, *rest):
        texts = [r["target"] if r["source"].tag == "<2en>" else "no" for r in records]
        return [Reply(text=text) for text in texts]

    monkeypatch.setattr(evaluators, "answer_all", half_right)
    monkeypatch.setattr(run.log, "say", said.append)
    run.validation.records = Concatenation(parts, tags=["<2en>", "<2de>"])
    scores, _ = run.validation.free_running(None, None)
    found = scores["groups"]
    assert found["<2en>"]["bleu"] == pytest.approx(100) and found["<2de>"]["bleu"] == 0
    assert 0 < scores["bleu"] < 100
    assert [found[tag]["examples"] for tag in ("<2de>", "<2en>")] == [3, 4]
    scoring.validate(run, run.config.eval.every, state)
    assert "  <2en>: BLEU = 100.00 " in "\n".join(said)
    run.validation.records = Concatenation(parts, tags=["<2en>", "<2en>"])
    assert "groups" not in run.validation.free_running(None, None)[0]


@pytest.mark.parametrize(
    ("count", "total", "expected"),
    [(0, 5, []), (1, 5, [2]), (2, 26, [6, 19]), (9, 3, [0, 1, 2]), (5, 5, [*range(5)])],
)
def test_numbers_are_spread_evenly(count, total, expected):
    assert evenly_spaced(count, total) == expected


@pytest.mark.parametrize(
    ("steps", "every", "warmup", "used"),
    [
        ([1000, 1100, 1200, 1300, 1400], 100, 300, [1000, 1100, 1200, 1300, 1400]),
        ([200, 300, 400, 500, 600], 100, 100, [400, 500, 600]),
        ([100, 200, 300, 400], 100, 350, [400]),  # the others are of the warm-up
        ([3, 6, 9], 3, 50, [9]),  # so is the last, but there is no other
        ([800, 900, 1000, 1100, 1200, 1300], 100, 0, [900, 1000, 1100, 1200, 1300]),
        ([20, 30, 35, 40, 45], 10, 0, [30, 40, 45]),  # it had ended at 35
    ],
)
def test_early_parameters_are_not_averaged(steps, every, warmup, used):
    chosen = config.base()
    chosen.optim.warmup_steps, chosen.checkpoint.average = warmup, 5
    chosen.checkpoint.every = every
    assert averaging.choose_steps(chosen, steps) == used


def test_a_workdir_of_another_config_is_refused_with_the_differences(
    tiny, tiny_run, one_device
):
    with pytest.raises(UserError, match=r"model.d_ff: 24 in the run, now 32"):
        train.train(config.load("quickstart", tiny(model__d_ff=32, **SCORED)), tiny_run)


@pytest.mark.system
def test_what_may_change_changes_on_resume(tiny, tmp_path, one_device):
    first = tiny(train__steps=6, log__every=4)
    assert train.train(config.load("quickstart", first), tmp_path) == 0
    entries = metrics.read_entries(tmp_path / "metrics.jsonl")
    trained = [entry["step"] for entry in entries if entry["kind"] == "train"]
    assert trained == [4, 6]  # the last steps, too
    longer = tiny(train__steps=9, checkpoint__every=9, eval__every=9)
    assert train.train(config.load("quickstart", longer), tmp_path) == 0
    assert json.loads((tmp_path / "result.json").read_text())["step"] == 9


@pytest.mark.system
def test_what_the_checkpoints_cannot_follow_changes_nothing(
    tiny, tiny_run, tmp_path, one_device
):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    before = (folder / "config.json").read_text()
    wider = config.load("quickstart", tiny(**SCORED, model__d_ff=32, train__steps=15))
    with pytest.raises(
        UserError, match=r"12 does not fit .* params/.*24.* there, but .*32"
    ):
        train.train(wider, folder, accept_changes=True)
    assert (folder / "config.json").read_text() == before
    again = config.load("quickstart", tiny(**SCORED))
    assert train.train(again, folder) == 0
    assert runs.load(folder).step == 12


@pytest.mark.system
def test_a_running_mean_may_begin_when_a_run_is_continued(tiny, tmp_path, one_device):
    first = tiny(train__steps=6, optim__ema=0.0)
    assert train.train(config.load("quickstart", first), tmp_path) == 0
    longer = config.load("quickstart", tiny(train__steps=7))
    assert train.train(longer, tmp_path, accept_changes=True) == 0
    assert folders.Folder(tmp_path).read("config.json")["optim"]["ema"] == 0.5
    mean, last = (digest(runs.load(tmp_path, w).params) for w in ("ema", "last"))
    assert mean != last


@pytest.mark.system
def test_a_number_that_is_not_finite_stops_the_run_and_is_never_saved(
    tiny, tmp_path, one_device
):
    loaded = config.load("quickstart", tiny(checkpoint__every=1))
    loaded.optim.constant = 1e38  # which `load` would refuse
    with pytest.raises(UserError, match=r"step \d+: the loss is"):
        train.train(loaded, tmp_path)
    saved = Checkpoints(tmp_path / "checkpoints")
    trained = runs.load(tmp_path, weights="last")
    for step in saved.steps():
        params = saved.restore_params(
            step, runs.abstract_params(trained.task, trained.mesh)
        )
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))


@pytest.mark.system
def test_the_last_update_may_not_leave_numbers_that_are_not_finite(
    tiny, tmp_path, one_device, monkeypatch
):
    """The loss of a step is that before its update, and so still a number."""
    known = dict(config.items(config.load("opinions")))
    small = {k: v for k, v in tiny(train__steps=2).items() if k in known}
    small |= {"checkpoint.every": "2", "eval.every": "2", "optim.warmup_steps": "1"}
    spoil = jax.jit(
        lambda tree, step: jax.tree.map(lambda x: jnp.where(step < 2, x, jnp.nan), tree)
    )
    compiled = CompiledSteps.get

    def get(self, shape):
        def update(*given):
            state, outcome = compiled(self, shape)(*given)
            return state.replace(params=spoil(state.params, state.step)), outcome

        return update

    monkeypatch.setattr(CompiledSteps, "get", get)
    monkeypatch.setattr(scoring, "validate", lambda *_: None)
    with pytest.raises(UserError, match=r"step 2: params/.* is not finite any more"):
        train.train(config.load("opinions", small), tmp_path)
    assert Checkpoints(tmp_path / "checkpoints").steps() == []


@pytest.mark.system
def test_training_stops_early_when_nothing_gets_better_and_may_go_on(
    tiny, tmp_path, one_device, capsys
):
    still = tiny(
        optim__constant=1e-12, train__patience=2, eval__every=3, checkpoint__best="bleu"
    )
    assert train.train(config.load("quickstart", still), tmp_path) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["stopped_early"] and result["step"] == 9
    assert train.train(config.load("quickstart", still), tmp_path) == 0
    assert "was already done" in capsys.readouterr().out
    patient = {**still, "train.patience": "3"}
    assert train.train(config.load("quickstart", patient), tmp_path) == 0
    out = capsys.readouterr().out
    assert "continues  the run that had ended at step 9" in out
    assert "resumed    from step 9" in out
    result = json.loads((tmp_path / "result.json").read_text())
    assert not result["stopped_early"] and result["step"] == 12


CURVES = {
    "seq2seq": "quickstart",
    "language model": "language",
    "classifier": "opinions",
}
MESHES = [
    (8, 1, 1, 1), (1, 8, 1, 1), (1, 1, 8, 1), (2, 2, 2, 1), (1, 2, 2, 2), (2, 1, 1, 4),
]  # fmt: skip
QUICK = [("seq2seq", (1, 2, 2, 2), scan) for scan in (False, True)]


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "mesh", "scan"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product(CURVES, [(1, 1, 1, 1), *MESHES], (False, True))
        if case[1:] != ((1, 1, 1, 1), False)
    ],
    ids=str,
)
def test_any_mesh_gives_the_loss_curve_of_one_device(
    kind, mesh, scan, curve, tmp_path, monkeypatch
):
    """With dropout on, and with layers scanned, too."""
    steps = 10 if (kind, mesh, scan) in QUICK else 30
    alone, _ = curve(kind, sharding.local_mesh(), False, steps, tmp_path)
    sizes = dict(zip(sharding.AXES, mesh, strict=True))
    devices = sharding.local_mesh()
    if set(mesh) != {1}:
        monkeypatch.setattr(losses, "LOGITS_BYTES", {"cpu": 4000})  # made in parts
        devices = sharding.make_mesh(sizes)
    together, params = curve(kind, devices, scan, steps, tmp_path)
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    if mesh[1] > 1:  # parameters are really split, not copied
        stack = params["decoder" if kind == "language model" else "encoder"]
        kernel = stack["layer_0"]["feed_forward"]["inner"]["kernel"]
        assert kernel.addressable_shards[0].data.size < kernel.size


@pytest.fixture(scope="module")
def curve(tiny):
    """Losses of so many steps with dropout, of words too, on a mesh."""
    done = {}

    def losses_of(kind, mesh, scan, steps, folder):
        case = kind, mesh, scan, steps
        if case not in done:
            changes = {
                "data__length_multiple": 4, "data__window": 60, "decode__max_length": 9,
                "model__num_heads": 8, "model__dropout_words": 0.1,
                "model__dropout_residual": 0.1, "model__scan_layers": scan,
                "model__encoder_layers": 2, "model__decoder_layers": 2,
            }  # fmt: skip
            run = build(tiny(**changes), folder / str(len(done)), mesh, CURVES[kind])
            found = []
            with jax.set_mesh(mesh):
                state = run.init(jax.random.key(0))
                for i in range(steps):
                    state, out = run.update(state, run.feed.place(i).arrays)
                    found.append(float(out.sums.loss / out.sums.weight))
            run.close()
            done[case] = found, state.params
        return done[case]

    return losses_of


def test_micro_batches_add_up_to_the_batch(tiny, tmp_path, one_device, monkeypatch):
    """As they are, and with the logits of each made in parts."""
    run = build(tiny(), tmp_path, sharding.local_mesh())
    params = run.init(jax.random.key(0)).params
    batch = run.feed.place(0).arrays
    counts = (np.asarray(batch["target"]) != 0).sum(1)
    assert len(set(counts)) > 1  # of unequal lengths

    def loss(params, part, key):
        return run.task.objective.loss(params, part, None)

    def compiled(micro_batches):
        gradient = losses.make_gradient(loss, micro_batches)
        fixed = functools.partial(gradient, key=jax.random.key(1))
        return jax.jit(fixed).lower(params, batch).compile()

    whole = compiled(1)
    one, four = whole(params, batch), compiled(4)(params, batch)
    rows, length = batch["target"].shape
    logits = f"f32[{rows * length},{len(params['embedding']['embedding'])}]"
    monkeypatch.setattr(losses, "LOGITS_BYTES", {"cpu": 12000})
    assert logits in whole.as_text() and logits not in compiled(1).as_text()
    sixteen = compiled(4)(params, batch)
    assert one[1].weight == four[1].weight == sixteen[1].weight == counts.sum()
    largest = max(np.abs(g).max() for g in jax.tree.leaves(one[0]))
    for others in four, sixteen:
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(others), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6 * largest)


def test_every_validation_example_counts_exactly_once(tiny, tmp_path):
    run = build(tiny(), tmp_path, sharding.local_mesh())
    params = run.init(jax.random.key(0)).params
    validation = run.validation
    got = validation.teacher_forced(params)
    every = np.arange(len(validation.store))
    columns = validation.store.take(every)
    batch = Batch(Shape(len(every), (60, 60)), every[:, None])
    sums = jax.jit(run.task.objective.loss)(
        params, run.task.data.collate(columns, batch)
    )
    assert sums.weight == columns["target"].lengths.sum()
    assert got["nll"] == pytest.approx(
        float(sums.metrics["nll"] / sums.weight), rel=1e-5
    )


def test_a_platform_that_is_not_there_stops_the_run():
    with pytest.raises(UserError, match="asks for 'tpu', but jax found 'cpu'"):
        sharding.make_mesh(dict.fromkeys(sharding.AXES, 1), "tpu")


def test_a_mesh_that_does_not_fill_the_devices_is_refused():
    with pytest.raises(UserError, match="8 devices"):
        sharding.make_mesh(dict(zip(sharding.AXES, (3, 1, 1, 1), strict=True)))


@pytest.mark.system
def test_a_run_that_went_past_its_end_has_the_average_of_one_that_did_not(
    tiny, tmp_path, one_device
):
    given = {"eval__answers": 0, "checkpoint__average": 3, "optim__warmup_steps": 2}
    for folder, ends in (("one", [15]), ("two", [11, 15])):
        for end in ends:
            changed = tiny(train__steps=end, **given)
            assert (
                train.train(config.load("quickstart", changed), tmp_path / folder) == 0
            )
    kept, found = [], []
    for folder in ("one", "two"):
        kept.append(Checkpoints(tmp_path / folder / "checkpoints").steps())
        run = runs.load(tmp_path / folder, weights="average")
        assert (run.step, run.weights) == (15, "averaged")
        found.append(jax.tree.map(np.asarray, run.params))
    assert all({9, 12, 15} <= {*steps} for steps in kept)  # and perhaps the best
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.system
def test_seeds_are_trained_in_turn_each_as_if_alone(
    tmp_path, tiny, one_device, run_main
):
    """Seeds of one process share nothing that a result depends on."""
    small = tiny(train__steps=6, optim__warmup_steps=2)
    words = ("--config=quickstart", f"--workdir={tmp_path}/both")
    for _ in range(2):  # the second start finds both done
        run_main(train, *words, "--seeds=7,8", **small)
    alone = tmp_path / "alone"
    assert train.train(config.load("quickstart", {**small, "seed": "8"}), alone) == 0
    assert end_of(tmp_path / "both" / "seed_8") == end_of(alone)
    assert end_of(tmp_path / "both" / "seed_7") != end_of(alone)
    assert not (tmp_path / "both" / "config.json").exists()


def test_a_seed_that_is_stopped_stops_the_seeds_after_it(
    tmp_path, monkeypatch, run_main
):
    begun = []

    def stopped(loaded, workdir, *_):
        begun.append(loaded.seed)
        return cli.PREEMPTED if loaded.seed == 2 else 0

    monkeypatch.setattr(train, "train", stopped)
    words = ("--config=quickstart", f"--workdir={tmp_path}", "--seeds=1,2,3")
    run_main(train, *words)
    assert begun == [1, 2]  # and not the third


@pytest.mark.parametrize(
    ("seeds", "options", "says"),
    [
        ("1,1", {}, "--seeds=1,1: give different whole numbers"),
        ("1,x", {}, "--seeds=1,x: give different whole numbers"),
        ("1,2", {"seed": "3"}, "--seeds and --config.seed: give one of them"),
    ],
)
def test_seeds_that_cannot_be_trained_are_refused(
    tmp_path, run_main, capsys, seeds, options, says
):
    words = ("--config=quickstart", f"--workdir={tmp_path}", f"--seeds={seeds}")
    with pytest.raises(SystemExit):
        run_main(train, *words, **options)
    assert says in capsys.readouterr().err


def test_seeds_are_not_put_into_a_run(tiny_run, run_main, capsys):
    with pytest.raises(SystemExit):
        run_main(train, "--config=quickstart", f"--workdir={tiny_run}", "--seeds=1,2")
    assert (
        "is a run: --seeds needs a folder for several runs" in capsys.readouterr().err
    )
