"""Sounds: a class read off the class token, from WAV files as from samples."""

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.decoding import Options
from transformer_jax.family.speech import classification as sounds_task
from transformer_jax.family.speech import generated as sounds
from transformer_jax.family.speech import wav
from transformer_jax.family.speech.sound_files import open_sounds


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


KEYS = {
    "data.source": "folder", "data.bands": "12", "data.validation_size": "8",
    "data.batch_tokens": "728", "data.max_length": "90",
}  # fmt: skip


@pytest.fixture(scope="module")
def task(tiny, folder):
    """The task, and parameters that nothing has trained."""
    known = dict(config.items(config.load("speech:sounds")))
    small = {k: v for k, v in tiny().items() if k in known} | KEYS
    small["data.folder"] = str(folder)
    made = sounds_task.compose(config.load("speech:sounds", small), ("high", "low"))
    return made, jax.jit(made.objective.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def ask(task):
    def answer(requests):
        made, params = task
        mesh = sharding.local_mesh()
        return dict(made.inference.answers(params, requests, mesh, Options()))

    return answer


@pytest.mark.system
def test_it_learns_what_tells_two_kinds_apart(quick_run_of, folder):
    keys = KEYS | {
        "data.folder": str(folder), "train.steps": "40", "optim.constant": "0.05",
        "eval.splits": "validation",
    }  # fmt: skip
    run = transformer_jax.load(quick_run_of("speech:sounds", **keys))
    scores = run.folder.read("result.json")["scores"]["validation"]
    assert scores["accuracy"] > 0.8 and scores["examples"] == 8
    [high] = run.replies([str(folder / "train/high/3.wav")])
    assert high.text == "high"


def test_a_line_is_the_path_of_a_wav_file(task, folder, tmp_path):
    parse, path = task[0].inference.parse, folder / "train/high/3.wav"
    source = parse(str(path)).source
    np.testing.assert_array_equal(source, parse(wav.read(path)).source)
    (tmp_path / "broken.wav").write_bytes(b"nothing")
    with pytest.raises(UserError, match="broken.wav cannot be read as sound"):
        parse(str(tmp_path / "broken.wav"))
    with pytest.raises(UserError, match=r"an array of shape \(2, 3\): give samples"):
        parse(np.zeros((2, 3)))
    with pytest.raises(UserError, match="cannot begin with a given prefix"):
        parse(str(path), prefix="h")


def test_a_sound_alone_gets_what_it_gets_in_a_batch(task, ask, folder):
    data = config.load("speech:sounds", KEYS | {"data.folder": str(folder)}).data
    records = open_sounds(data).read("validation")
    inference = task[0].inference
    requests = [inference.parse(inference.question(record)) for record in records]
    assert len({len(request.source) for request in requests}) > 3
    together = ask(requests)
    assert sorted(together) == list(range(8))
    for i in (0, 5):
        alone = ask([requests[i]])[0].details["chances"]
        assert alone == pytest.approx(together[i].details["chances"], abs=1e-5)


def test_a_label_that_training_never_saw_is_refused(task):
    record = {"samples": np.zeros(900), "name": "a", "label": "other"}
    with pytest.raises(UserError, match="label .other. is not among.*: high, low"):
        task[0].data.encode([record])


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


def test_sounds_of_one_class_are_refused_before_training(folder, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "high").symlink_to(folder / "train" / "high")
    loaded = config.load("speech:sounds", KEYS | {"data.folder": str(tmp_path)})
    source = sounds_task.open_sounds(loaded.data)
    said = "all training sounds have the label high: there must be at least two classes"
    with pytest.raises(UserError, match=said):
        sounds_task.learn(loaded, source, tmp_path, print)
