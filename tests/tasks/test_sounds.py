"""Sounds: a class read off the class token, from WAV files as from samples."""

import numpy as np
import pytest

import transformer_jax
from transformer_jax import config
from transformer_jax.data import wav
from transformer_jax.data.generated import sounds
from transformer_jax.data.sound_files import open_sounds
from transformer_jax.decoding import Options
from transformer_jax.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes: a high tone and a low one, of unequal lengths."""
    place, random = tmp_path_factory.mktemp("classes"), np.random.RandomState(0)
    for name, hertz in (("high", 3000), ("low", 300)):
        (place / "train" / name).mkdir(parents=True)
        for i in range(20):
            time = np.arange(random.randint(3000, 7000)) / wav.RATE
            wave = np.sin(2 * np.pi * hertz * time) * (time > 0.1)
            noise = 0.1 * random.standard_normal(len(time))
            wav.write(place / "train" / name / f"{i}.wav", 0.5 * wave + noise)
    return place


@pytest.fixture(scope="module")
def run(quick_run_of, folder):
    keys = {
        "data.source": "folder", "data.folder": str(folder), "data.bands": "12",
        "data.validation_size": "8", "data.batch_tokens": "728", "train.steps": "30",
        "optim.constant": "0.05", "eval.splits": "validation", "data.max_length": "90",
    }  # fmt: skip
    return transformer_jax.load(quick_run_of("speech:sounds", **keys))


def test_it_learns_what_tells_two_kinds_apart(run):
    scores = run.folder.read("result.json")["scores"]["validation"]
    assert scores["accuracy"] > 0.8 and scores["examples"] == 8


def test_a_line_is_the_path_of_a_wav_file(run, folder, tmp_path):
    (tmp_path / "broken.wav").write_bytes(b"nothing")
    paths = [folder / "train/high/3.wav", tmp_path / "broken.wav"]
    high, broken = run.replies([*map(str, paths)])
    assert high.text == "high" and "cannot be read as sound" in broken.error


def test_a_sound_alone_gets_what_it_gets_in_a_batch(run):
    inference = run.task.inference
    lines = [inference.question(record) for record in run.records("validation")]
    requests = [inference.parse(line) for line in lines]
    assert len({len(request.source) for request in requests}) > 3
    ask = inference.answers
    together = dict(ask(run.params, requests, run.mesh, Options()))
    assert sorted(together) == list(range(8))
    for i in (0, 5):
        [(_, alone)] = ask(run.params, [requests[i]], run.mesh, Options())
        chances = together[i].details["chances"]
        assert alone.details["chances"] == pytest.approx(chances, abs=1e-5)


def test_a_label_that_training_never_saw_is_refused(run):
    record = {"samples": np.zeros(900), "name": "a", "label": "other"}
    with pytest.raises(UserError, match="label other is not among.*: high, low"):
        run.task.data.encode([record])


def test_generated_sounds_are_the_same_again_and_of_ten_kinds():
    made = [sounds.generate("train", i) for i in range(10)]
    assert [kind for _, kind in made] == list(sounds.KINDS)
    for i, (samples, _) in enumerate(made):
        np.testing.assert_array_equal(samples, sounds.generate("train", i)[0])
        other, kind = sounds.generate("test", i)
        assert kind == made[i][1] and not np.array_equal(other[:900], samples[:900])
    source = open_sounds(config.load("speech:sounds").data)
    assert source.classes() == tuple(sorted(sounds.KINDS))
    assert source.read("test")[13]["label"] == list(sounds.KINDS)[3]


def test_a_missing_folder_is_said_before_anything_is_read(tmp_path):
    keys = {"data.source": "folder", "data.folder": str(tmp_path)}
    with pytest.raises(UserError, match="there is no file .*train/CLASS/SOUND.wav"):
        config.load("speech:sounds", keys)
