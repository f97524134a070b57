"""What a run keeps of its beginning: its data, and the shapes of its batches."""

import pytest

from transformer_jax import config, train
from transformer_jax.base.errors import UserError
from transformer_jax.runs import resuming
from transformer_jax.runs.folder import Folder
from transformer_jax.training import prepare as preparing


def prepare(loaded, folder):
    return preparing.prepare(loaded, Folder(folder), lambda line: None)


@pytest.mark.parametrize(
    ("given", "run", "platform", "settled"),
    [
        ("auto", None, "cpu", "auto"),
        ("auto", None, "gpu", "auto"),
        ("auto", None, "tpu", "tpu"),
        ("any", None, "tpu", "any"),
        ("tpu", None, "cpu", "tpu"),
        ("auto", {"shapes_for": "tpu"}, "cpu", "tpu"),
        ("auto", {"shapes_for": "auto"}, "tpu", "auto"),
        ("auto", {}, "tpu", "auto"),  # a run older than the key
        ("any", {"shapes_for": "tpu"}, "cpu", "any"),  # needs --accept_changes
    ],
)
def test_a_run_keeps_the_shapes_of_the_hardware_that_it_began_on(
    tmp_path, given, run, platform, settled
):
    folder = Folder(tmp_path)
    if run is not None:
        began = {"task": "translation", "model": {"name": "transformer"}, "data": run}
        folder.write("config.json", began)
    found = config.load("quickstart", {"data.shapes_for": given})
    assert (
        resuming.resolve(found, folder.stored_config, platform).data.shapes_for
        == settled
    )
    assert found.data.shapes_for == given


@pytest.mark.usefixtures("one_device")
def test_what_a_run_plans_for_is_written_into_its_config(tiny, tmp_path, monkeypatch):
    resolve = resuming.resolve
    on_tpu = lambda config, folder, _: resolve(config, folder, "tpu")  # noqa: E731
    monkeypatch.setattr(resuming, "resolve", on_tpu)
    monkeypatch.setattr(train, "prepare_together", lambda *_: pytest.fail("planned"))
    loaded = config.load("quickstart", tiny())
    with pytest.raises(pytest.fail.Exception, match="planned"):
        train.train(loaded, tmp_path)
    assert Folder(tmp_path).config().data.shapes_for == "tpu"
    assert loaded.data.shapes_for == "auto"


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_shapes_for_a_tpu_are_few_and_of_whole_tiles(tiny, tmp_path, batching):
    loaded = config.load(
        "quickstart",
        tiny(
            data__shapes=8,
            data__batching=batching,
            data__pack_length=200,
            data__batch_tokens=1600,
        ),  # fmt: skip
    )
    prepared = prepare(loaded, tmp_path)
    plan = preparing.make_plan(loaded, prepared.task, prepared.train).plan
    assert len(plan.shapes) == (8 if batching == "buckets" else 1)
    loaded.data.shapes_for = "tpu"
    plan = preparing.make_plan(loaded, prepared.task, prepared.train).plan
    assert len(plan.shapes) <= 4
    assert not any(n % 128 for shape in plan.shapes for n in shape.lengths)
    assert sum(len(batch.real) for batch in plan.epoch(0)) == len(prepared.train.store)


ENTRY = {"store": "s", "fingerprint": "f", "content": "c", "examples": 7}


@pytest.mark.parametrize(
    ("split", "change", "refused"),
    [
        ("train", {"store": "other"}, "the training data of .*use another --workdir"),
        ("train", {"content": "other"}, "the training data"),
        ("train", {"fingerprint": "of other files, filtered alike"}, ""),
        ("test", {"fingerprint": "other"}, r"the test data .*\(7 .*--accept_changes"),
        ("test", {"content": "other"}, "the test data"),
        ("test", {"store": "of another eval.context"}, ""),
    ],
)
def test_data_of_every_split_are_compared_when_a_run_continues(
    tmp_path, split, change, refused
):
    before = {"train": ENTRY, "test": ENTRY}
    after = {**before, split: {**ENTRY, **change}}
    folder = Folder(tmp_path)
    folder.adopt_data(before)
    if not refused:
        folder.adopt_data(after)
        return
    with pytest.raises(UserError, match=refused):
        folder.adopt_data(after)
    folder.adopt(config.load("quickstart"), accept_changes=True)
    if split == "train":
        with pytest.raises(UserError, match=refused):
            folder.adopt_data(after)
        return
    folder.adopt_data(after)
    assert folder.read("ledger.json") == after


def test_a_ledger_older_than_fingerprints_is_compared_by_what_it_has(tmp_path):
    folder = Folder(tmp_path)
    old = {"store": "s", "examples": 7}
    folder.adopt_data({"train": old, "validation": old})
    folder.adopt_data({"train": ENTRY, "validation": ENTRY})
    with pytest.raises(UserError, match="validation data"):
        folder.adopt_data({"validation": {**ENTRY, "fingerprint": "other"}})


def test_edited_held_out_text_has_another_fingerprint_and_its_windows_not(tmp_path):
    ledgers = []
    for text, context in (("um dois\n", 0), ("um dois\n", 9), ("one two\n", 0)):
        for name in ("train", "held"):
            (tmp_path / f"{name}.txt").write_text(text if name == "held" else "um\n")
        keys = {
            "data.source": "text", "data.folder": str(tmp_path), "eval.splits": "",
            "data.train_text": "train.txt", "data.validation_text": "held.txt",
            "tokenizer.kind": "byte", "eval.context": str(context),
        }  # fmt: skip
        loaded = config.load("language", keys)
        ledgers.append(prepare(loaded, tmp_path / "run").ledger["validation"])
    first, context, other = (entry["fingerprint"] for entry in ledgers)
    assert first == context != other
    assert ledgers[0]["store"] != ledgers[1]["store"]
