"""Examples that are prepared shard by shard train as those that are read from files."""

import json
import pathlib
import random

import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax import train
from transformer_jax.base.errors import UserError
from transformer_jax.data.sharded import ShardedStore
from transformer_jax.prepare import __main__ as prepare
from transformer_jax.runs.folder import Folder
from transformer_jax.training.prepare import make_plan
from transformer_jax.training.prepare import prepare as prepare_run

WORDS = {
    "de": "eins zwei drei vier fünf sechs sieben".split(),
    "en": "one two three four five six seven".split(),
}


@pytest.fixture
def corpus(tmp_path, tiny):
    """The options of a config that reads two corpora, of which one is small."""
    folder, dice = tmp_path / "corpus", random.Random(0)
    folder.mkdir()
    for name, count in (("train", 90), ("small", 14), ("valid", 9)):
        rows = [dice.choices(range(7), k=dice.randrange(5, 9)) for _ in range(count)]
        rows += rows[:3] * (name == "train")  # repeats
        for language, words in WORDS.items():
            lines = [" ".join(words[i] for i in row) for row in rows]
            (folder / f"{name}.{language}").write_text("\n".join(lines) + "\n")
    return tiny(
        data__source="text",
        data__folder=folder,
        data__train_source="train.de,small.en",
        data__train_target="train.en,small.de",
        data__train_tags="<2en>,<2de>",
        data__train_weights="(1, 2)",
        data__temperature="2",
        data__validation_source="valid.de",
        data__validation_target="valid.en",
        data__validation_tags="<2en>",
        tokenizer__vocab_size="290",
        filter__duplicates="true",
    )


@pytest.fixture
def write(run_main, tmp_path):
    """A function: the address of a store that the command has written."""

    def write(overrides, *words, shards=4, spec="quickstart", name="store"):
        address = name if "://" in name else tmp_path / name
        flags = [f"--config={spec}", f"--output={address}", f"--shards={shards}"]
        known = dict(configs.items(configs.load(spec)))
        changes = {k: v for k, v in overrides.items() if k in known}
        run_main(prepare, *flags, *words, **changes)
        return str(address)

    return write


def open_run(overrides, folder, spec="quickstart"):
    lines = []
    known = dict(configs.items(configs.load(spec)))
    changes = {k: v for k, v in overrides.items() if k in known}
    config = configs.load(spec, changes)
    prepared = prepare_run(config, Folder(folder), lines.append)
    planned = make_plan(config, prepared.task, prepared.train)
    return planned, prepared, lines


@pytest.mark.parametrize("place", ["store", "memory://{}/store"])
def test_batches_are_those_of_the_files(corpus, write, tmp_path, place):
    """On a disk, and in an object store."""
    plain, files, _ = open_run(corpus, tmp_path / "a")
    address = write(corpus, name=place.format(tmp_path.name))
    stored, shards, lines = open_run({**corpus, "data.store": address}, tmp_path / "b")
    assert f"store      {address}: 104 examples in 4 shards" in lines  # one repeats
    assert plain.corpora == stored.corpora == ((90, 4), (14, 21))
    for step in range(20):
        a, b = plain.plan.batch(step), stored.plan.batch(step)
        assert a.shape == b.shape and np.array_equal(a.real, b.real)
        found, wanted = shards.train.store.take(b.real), files.train.store.take(a.real)
        for side in ("source", "target"):
            assert np.array_equal(found[side].values, wanted[side].values)
    assert shards.ledger["train"]["records"] == files.ledger["train"]["records"]


@pytest.mark.system
def test_training_from_a_store_is_training_from_its_files(
    corpus, write, tmp_path, one_device
):
    """Bit for bit: each loss and each gradient, to the last step."""
    few = {"train.steps": "6", "optim.warmup_steps": "2"}
    address, found = write(corpus), []
    for name, more in (("a", {}), ("b", {"data.store": address})):
        config = configs.load("quickstart", {**corpus, **few, **more})
        assert train.train(config, tmp_path / name) == 0
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        found.append([(row["loss"], row.get("grad_norm")) for row in rows])
    assert found[0] == found[1] and len(found[0]) >= 6


def text_of(folder):
    """Return the options of a language model that reads a file `text`."""
    keys = {"data.source": "text", "data.folder": str(folder), "data.window": "40"}
    keys |= {"data.train_text": "text", "data.validation_text": "text"}
    return {**keys, "decode.max_length": "9"}


def test_a_text_is_cut_into_the_windows_of_each_shard(tmp_path, tiny, write):
    lines = [f"line {i} " + "x" * (i % 9) for i in range(60)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    overrides = {**tiny(), **text_of(tmp_path)}
    address = write(overrides, spec="language")
    run = {**overrides, "data.store": address}
    _, prepared, _ = open_run(run, tmp_path / "run", "language")
    tokenizer = prepared.task.data.tokenizer
    store = prepared.train.store
    whole = (tmp_path / "text").read_text()
    assert tokenizer.decode(store.column("text").tolist()) == whole
    ends = np.cumsum([shard["examples"] for shard in store.about["shards"]])
    assert len(ends) == 4
    last = [tokenizer.decode(store.row("text", end - 1).tolist()) for end in ends]
    assert all(text.endswith("\n") for text in last)


def test_tokenizers_are_learned_once_before_the_shards(corpus, write, monkeypatch):
    address = write(corpus, "--worker=plan")
    learnt = json.loads((pathlib.Path(address) / "shards.json").read_text())
    assert len(learnt["shards"]) == 4
    monkeypatch.setattr(prepare, "_Sample", None)  # another call would need it
    write(corpus, "--worker=0/2")
    with pytest.raises(UserError, match=r"has no store\.json"):
        ShardedStore(address)
    write(corpus, "--worker=1/2")
    assert len(ShardedStore(address)) == 104


def test_tokenizers_of_a_large_corpus_are_learned_from_some_of_its_files(
    corpus, write, monkeypatch, caplog
):
    monkeypatch.setattr(prepare, "LEARNED", 1500)
    with caplog.at_level("INFO"):
        write(corpus)
    assert "learning   from 1 of 2 files" in caplog.text


@pytest.mark.parametrize("options", [(), ("--workers=2",)])
def test_a_store_needs_a_number_of_shards(run_main, options):
    with pytest.raises(UserError, match="--shards is missing: the number of files"):
        run_main(prepare, "--config=quickstart", "--output=x", *options)


def test_data_that_are_no_files_of_examples_are_refused(run_main, tmp_path):
    words = [f"--output={tmp_path / 'x'}", "--shards=2"]
    with pytest.raises(UserError, match="'decisions' reads no text files that could"):
        run_main(prepare, "--config=decisions", *words)
    with pytest.raises(UserError, match="'tfds' has no files that could be cut"):
        changes = {"data.source": "tfds", "data.tfds_name": "ted/de_to_en"}
        changes |= {"data.source_column": "de", "data.target_column": "en"}
        run_main(prepare, "--config=quickstart", *words, **changes)
    with pytest.raises(UserError, match="canaries are planted into the whole text"):
        run_main(prepare, "--config=language:canaries", *words)
    assert not list(tmp_path.glob("x/*.safetensors"))


def test_a_store_of_another_config_is_refused(corpus, write, tmp_path):
    address = write(corpus)

    def refuse(match, spec="quickstart", **changes):
        overrides = {**corpus, "data.store": address, **changes}
        with pytest.raises(UserError, match=match):
            open_run(overrides, tmp_path / "run", spec)

    (tmp_path / "text").write_text("a b\n" * 20)
    text = text_of(tmp_path)
    refuse("is for the task translation, not language", "language", **text)
    refuse("tokenizer.sampling segments the text anew", **{"tokenizer.sampling": "0.1"})
    lower = {"tokenizer.lowercase": "true"}
    refuse("lowercase is True, but .* prepared with False", **lower)
    refuse("max_length is 60, but .* prepared with 64", **{"data.max_length": "60"})
    refuse("has 3 entries for 2 corpora", **{"data.train_weights": "(1, 1, 1)"})
    (tmp_path / "corpus" / "small.en").write_text("eight nine ten\n" * 14)
    open_run(corpus, tmp_path / "other")  # learns its tokenizers from this text
    with pytest.raises(UserError, match="was encoded by other tokenizers or in"):
        open_run({**corpus, "data.store": address}, tmp_path / "other")


def test_other_options_than_those_that_a_store_was_begun_with(corpus, write):
    write(corpus, "--worker=0/2")
    with pytest.raises(UserError, match="filter.max_ratio: .* there, 2.0 now"):
        write({**corpus, "filter.max_ratio": "2"})
    # These say how the examples are read, not what is written.
    write({**corpus, "data.temperature": "1", "data.batch_tokens": "600"})


def test_a_training_file_may_be_gone_once_its_store_is_there(corpus, write, tmp_path):
    address = write(corpus)
    for name in ("train.de", "train.en", "small.de", "small.en"):
        (tmp_path / "corpus" / name).unlink()
    run = {**corpus, "data.store": address}
    _, prepared, _ = open_run(run, tmp_path / "run")
    assert len(prepared.train.store) == 104
