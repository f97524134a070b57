"""Preparing: the same batches for any number of processes, and bad data named early."""

import hashlib
import json
import shutil

import jax
import numpy as np
import pytest

from transformer_jax import config, sharding, tasks, train
from transformer_jax.base.errors import UserError
from transformer_jax.data import store as stores
from transformer_jax.data import tfds
from transformer_jax.runs import folder as folders
from transformer_jax.training import log as metrics
from transformer_jax.training import prepare as preparing
from transformer_jax.training.steps import feed


@pytest.fixture(params=["buckets", "packed"])
def batching(request):
    return request.param


@pytest.fixture
def sampled(tiny, batching):
    """A run with BPE-dropout, in buckets and packed."""
    return config.load(
        "quickstart",
        tiny(
            tokenizer__kind="bpe",
            tokenizer__sampling=0.1,
            data__batching=batching,
            data__pack_length=66,
            eval__every=12,
        ),
    )


def prepared_in(loaded, folder, said=None):
    place = folders.Folder(folder)
    say = (lambda line: None) if said is None else said.append
    return preparing.prepare(loaded, place, say)


def rows_of_process(prepared, plan, sampler, step, process, processes):
    """What one of several processes reads of a global batch."""
    planned = plan.batch(step)
    own = np.array_split(np.arange(planned.shape.rows), processes)[process]
    part = planned.take(own)
    epoch = step // plan.steps_per_epoch
    columns = prepared.train.store.take(part.real)
    columns, _ = sampler.resample(columns, part, epoch, plan.room(part))
    return prepared.task.data.collate(columns, part)


def hash_of_batches(loaded, prepared, steps, processes):
    planned = preparing.make_plan(loaded, prepared.task, prepared.train)
    plan, sampler = planned.plan, planned.sampler
    digest = hashlib.sha256()
    for step in steps:
        parts = [
            rows_of_process(prepared, plan, sampler, step, p, processes)
            for p in range(processes)
        ]
        for name in sorted(parts[0]):
            digest.update(np.concatenate([part[name] for part in parts]).tobytes())
    return digest.hexdigest()


def test_the_global_batches_are_the_same_for_any_number_of_processes(sampled, tmp_path):
    prepared = prepared_in(sampled, tmp_path)
    one, two, eight = (
        hash_of_batches(sampled, prepared, range(40), n) for n in (1, 2, 8)
    )
    assert one == two == eight
    again = prepared_in(sampled, tmp_path / "elsewhere")
    assert hash_of_batches(sampled, again, range(40), 1) == one
    assert hash_of_batches(sampled, again, range(40, 80), 1) != one


def test_a_batch_on_eight_devices_is_the_batch_on_one(sampled, tmp_path):
    prepared = prepared_in(sampled, tmp_path)
    plan = preparing.make_plan(sampled, prepared.task, prepared.train).plan
    whole = sharding.local_mesh()
    eight = sharding.make_mesh(dict(data=8, fsdp=1, tensor=1, sequence=1))
    store = prepared.train.store
    one, _ = feed.assemble(prepared.task, store, plan.batch(0), whole)
    split, _ = feed.assemble(prepared.task, store, plan.batch(0), eight)
    for name in one:
        np.testing.assert_array_equal(one[name], split[name])
        assert len(split[name].sharding.device_set) == 8


def test_packed_and_padded_examples_have_the_same_losses(tiny, tmp_path):
    """Packing changes where an example stands, not what is computed of it."""
    sums = []
    for kind in ("buckets", "packed"):
        keys = {"data__batching": kind, "data__pack_length": 66}
        loaded = config.load("quickstart", tiny(**keys, model__dropout_attention=0.0))
        prepared = prepared_in(loaded, tmp_path)
        task = prepared.task
        plan = preparing.make_plan(loaded, task, prepared.train).plan
        params = jax.jit(task.objective.init)(jax.random.key(1))
        loss, total = jax.jit(lambda p, b, t=task: t.objective.loss(p, b, None)), []
        for batch in plan.epoch(0):
            columns = prepared.train.store.take(batch.real)
            total.append(loss(params, task.data.collate(columns, batch)))
        sums.append(jax.tree.map(lambda *leaves: float(sum(leaves)), *total))
    np.testing.assert_allclose(jax.tree.leaves(sums[0]), jax.tree.leaves(sums[1]), 2e-6)


@pytest.mark.system
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    "batching",
    [pytest.param("buckets", marks=pytest.mark.slow), "packed"],
    indirect=True,
)
def test_a_run_with_sampling_continues_to_the_same_bits(sampled, tmp_path, capsys):
    whole, halves = tmp_path / "a", tmp_path / "b"
    assert train.train(sampled, whole) == 0
    shutil.copytree(whole, halves)  # as it was after 6 steps
    (halves / "result.json").unlink()
    for step in (9, 12):
        shutil.rmtree(halves / "checkpoints" / str(step))
    assert train.train(sampled, halves) == 0
    assert "resumed    from step 6" in capsys.readouterr().out
    logged = [metrics.read_entries(f / "metrics.jsonl") for f in (whole, halves)]
    losses = [
        [
            (e["step"], e["loss"], e["samples_too_long"])
            for e in run
            if e["kind"] == "train"
        ]
        for run in logged
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 12


@pytest.mark.system
@pytest.mark.usefixtures("one_device")
def test_a_run_does_not_continue_on_other_data(tiny, tmp_path):
    for name, count in (("train", 29), ("dev", 7)):
        lines = [f"o gato número {i} dorme aqui\n" for i in range(count)]
        (tmp_path / f"{name}.pt").write_text("".join(lines))
        (tmp_path / f"{name}.en").write_text("".join(lines))
    keys = {
        "data__source": "text", "data__folder": tmp_path, "eval__splits": "",
        "data__train_source": "train.pt", "data__train_target": "train.en",
        "data__validation_source": "dev.pt", "data__validation_target": "dev.en",
        "train__steps": 6, "tokenizer__vocab_size": 300,
    }  # fmt: skip
    assert train.train(config.load("quickstart", tiny(**keys)), tmp_path / "run") == 0
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in tmp_path.glob("*.*"):
        file.rename(moved / file.name)
    keys |= {"data__folder": moved, "train__steps": 12}
    loaded = config.load("quickstart", tiny(**keys))
    (moved / "train.en").write_text("another line\n" * 29)
    with pytest.raises(UserError, match="have changed since it began .29 examples"):
        train.train(loaded, tmp_path / "run")
    (moved / "train.en").write_text((moved / "train.pt").read_text())
    assert train.train(loaded, tmp_path / "run") == 0  # the same text, elsewhere


def corpus(tmp_path, tiny, train=(b"um\n", b"one\n"), dev=(b"um\n", b"one\n"), **keys):
    for name, sides in (("train", train), ("dev", dev)):
        for side, content in zip(("a", "b"), sides, strict=True):
            (tmp_path / f"{name}.{side}").write_bytes(content)
    defaults = dict(
        data__source="text",
        data__folder=tmp_path,
        data__train_source="train.a",
        data__train_target="train.b",
        data__validation_source="dev.a",
        data__validation_target="dev.b",
        eval__splits="",
        tokenizer__vocab_size=300,
    )
    return config.load("quickstart", tiny(**{**defaults, **keys}))


LINES = b"".join(b"o gato %d dorme\n" % i for i in range(31))


def test_marks_and_carriage_returns_are_said_and_noted(tmp_path, tiny):
    said = []
    crlf = LINES.replace(b"\n", b"\r\n")
    loaded = corpus(tmp_path, tiny, (b"\xef\xbb\xbf" + LINES, crlf))
    prepared = prepared_in(loaded, tmp_path / "run", said)
    assert "train.a: line 1 begins with a byte order mark" in said[0]
    assert "train.b: 31 lines, the first of them line 1, end in CR LF" in said[1]
    assert len(prepared.ledger["train"]["notes"]) == 2
    row = prepared.train.store.row("target", 0)
    assert prepared.task.data.target_tokenizer.decode(row) == "o gato 0 dorme"


@pytest.mark.parametrize(
    ("sides", "problem"),
    [
        ((LINES, LINES + b"more\n"), r"train.a has 31 lines, but .*train.b has 32"),
        ((LINES, b""), r"train.b is empty"),
        ((LINES + b"\xff\n", LINES + b"x\n"), r"train.a, line 32: byte 0xff at col"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, tiny, sides, problem):
    loaded = corpus(tmp_path, tiny, sides)
    with pytest.raises(UserError, match=problem):
        prepared_in(loaded, tmp_path / "run")


def test_a_missing_side_is_named_before_anything_is_read(tmp_path, tiny):
    with pytest.raises(UserError, match="data.train_target: there is no file .*none"):
        corpus(tmp_path, tiny, data__train_target="none")


def test_a_line_of_a_megabyte_is_left_out_of_training_and_counted(tmp_path, tiny):
    long = LINES + b"x y " * 250_000 + b"\n"
    prepared = prepared_in(corpus(tmp_path, tiny, (long, long)), tmp_path / "run")
    left_out = prepared.ledger["train"]["left_out"]
    entry = left_out["longer than data.max_length 64 pieces"]
    assert entry["count"] == 1
    assert entry["examples"][0]["where"].endswith("train.a, line 32")
    assert entry["examples"][0]["source"].endswith("… (1,000,000 characters)")


def test_a_line_of_a_megabyte_to_be_judged_by_is_refused_by_its_line(tmp_path, tiny):
    long = LINES + b"x y " * 250_000 + b"\n"
    loaded = corpus(tmp_path, tiny, (LINES, LINES), (long, long))
    problem = (
        r"dev.a, line 32 \(validation\) has [\d,]{7,} pieces, more than eval.max_l"
    )
    with pytest.raises(UserError, match=problem):
        prepared_in(loaded, tmp_path / "run")


def test_filters_that_leave_nothing_to_train_on_are_named(tmp_path, tiny):
    loaded = config.load("quickstart", tiny(filter__source_script="greek"))
    said = "no training example is left of 80: .*80"
    with pytest.raises(UserError, match=said):
        prepared_in(loaded, tmp_path / "run")


def test_a_vocabulary_larger_than_the_text_allows_is_said(tmp_path, tiny):
    said = []
    loaded = corpus(tmp_path, tiny, (LINES, LINES), tokenizer__vocab_size=20_000)
    prepared = prepared_in(loaded, tmp_path / "run", said)
    size = prepared.task.data.source_tokenizer.vocab_size
    (note,) = [line for line in said if line.startswith("note")]
    assert f"this text gives a vocabulary of {size} pieces, not the 20,000" in note


def test_a_vocabulary_too_small_for_the_characters_is_refused(tmp_path, tiny):
    loaded = corpus(tmp_path, tiny, (LINES, LINES), tokenizer__vocab_size=200)
    with pytest.raises(
        UserError, match=r"tokenizer.vocab_size is 200, but .* \d+ pieces"
    ):
        prepared_in(loaded, tmp_path / "run")


def test_filters_are_applied_to_training_only(tmp_path, tiny):
    twice = LINES + LINES
    loaded = corpus(
        tmp_path, tiny, (twice, twice), (twice, twice), filter__duplicates=True
    )
    prepared = prepared_in(loaded, tmp_path / "run")
    assert len(prepared.train.store) == 31
    assert len(prepared.held_out["validation"].store) == 62
    left_out = stores.summary(prepared.train.store.ledger)
    assert left_out == "31 that repeat an earlier pair"


def test_a_filter_that_leaves_nothing_is_refused_with_its_reasons(tmp_path, tiny):
    loaded = corpus(tmp_path, tiny, (LINES, LINES), filter__identical=True)
    with pytest.raises(UserError, match="left of 31: 31 whose target is its source"):
        prepared_in(loaded, tmp_path / "run")


@pytest.mark.parametrize("name", ["tset", "train"])
def test_a_split_that_no_data_have_is_refused(tmp_path, tiny, name):
    loaded = corpus(tmp_path, tiny, (LINES, LINES), eval__splits=name)
    problem = f"{name!r}, .*: choose from validation, test, test_combinations."
    hint = " Did you mean 'test'?" if name == "tset" else ""
    with pytest.raises(UserError, match=problem) as error:
        prepared_in(loaded, tmp_path / "run")
    assert str(error.value).endswith(f"test_combinations.{hint}")


@pytest.mark.parametrize(
    ("splits", "missing"),
    [("test", []), ("test,validation", ["test"]), ("validation", [])],
)
def test_a_split_without_data_is_said_unless_it_is_the_default(
    tmp_path, tiny, splits, missing
):
    said = []
    loaded = corpus(tmp_path, tiny, (LINES, LINES), eval__splits=splits)
    prepared_in(loaded, tmp_path / "run", said)
    notes = [line for line in said if "eval.splits" in line]
    assert notes == [
        f"note       these data have no {name!r} of eval.splits to score"
        for name in missing
    ]


def test_the_ledger_of_a_run_counts_all_splits(tiny_run):
    ledger = json.loads((tiny_run / "ledger.json").read_text())
    assert {name: entry["examples"] for name, entry in ledger.items()} == {
        "train": 80, "validation": 13, "test": 11
    }  # fmt: skip


def test_many_directions_share_a_model(tmp_path, tiny):
    loaded = corpus(
        tmp_path,
        tiny,
        (LINES, LINES.replace(b"gato", b"cat")),
        data__train_source="train.a,train.b",
        data__train_target="train.b,train.a",
        data__train_tags="<2en>,<2pt>",
        data__validation_tags="<2en>",
        data__train_weights="1,2",
        tokenizer__vocab_size=310,
    )
    prepared = prepared_in(loaded, tmp_path / "run")
    pieces = prepared.task.data.source_tokenizer.pieces(
        prepared.train.store.row("source", 40)
    )
    assert pieces[:2] == ["▁", "<2pt>"]
    plan = preparing.make_plan(loaded, prepared.task, prepared.train).plan
    seen = np.concatenate([b.real for b in plan.epoch(0)])
    assert np.bincount(seen).tolist() == [1] * 31 + [2] * 31
    task = tasks.find("translation").open(loaded, tmp_path / "run" / "tokenizer")
    asked = task.inference.parse("<2pt> the cat").source
    assert asked[1] == task.data.source_tokenizer.encode("<2pt>")[1]


@pytest.mark.system
@pytest.mark.usefixtures("one_device")
def test_a_prepared_tfds_data_set_is_trained_on_like_the_files_it_came_from(
    tmp_path, tiny
):
    loaded = corpus(tmp_path, tiny, (LINES, LINES), (LINES, LINES))
    files = {s: (tmp_path / f"{n}.a", tmp_path / f"{n}.b") for s, n in NAMES.items()}
    paths = {split: tuple(map(str, pair)) for split, pair in files.items()}
    tfds.prepare("gatos", ("pt", "en"), paths, str(tmp_path / "sets"))
    keys = {
        "data__source": "tfds", "data__tfds_name": "gatos", "data__test_split": "",
        "data__folder": tmp_path / "sets", "tokenizer__vocab_size": 300,
        "data__source_column": "pt", "data__target_column": "en",
        "eval__splits": "", "train__steps": 6,
    }  # fmt: skip
    same = config.load("quickstart", tiny(**keys))
    ours, theirs = (
        prepared_in(loaded, tmp_path / "a"),
        prepared_in(same, tmp_path / "b"),
    )
    for name in ("train", "validation"):
        one, other = (
            p.train if name == "train" else p.held_out[name] for p in (ours, theirs)
        )
        assert list(one.records) == list(other.records)
    assert ours.task.data.fingerprint == theirs.task.data.fingerprint
    assert train.train(same, tmp_path / "b") == 0


NAMES = {"train": "train", "validation": "dev"}
