"""Speech: trained on a few spoken commands, answered from WAV files and samples."""

import copy
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import transformer_jax
from transformer_jax import config, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import EOS, PAD
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.data.store import Ragged
from transformer_jax.decoding import Options
from transformer_jax.family.speech import figure as speech_figure
from transformer_jax.family.speech import sounds as sound
from transformer_jax.family.speech import wav
from transformer_jax.losses import Predictions
from transformer_jax.models.outputs import Outputs
from transformer_jax.planning import workload
from transformer_jax.training.steps import programs

SIDES = "source", "target"
KEYS = {
    "data.train_size": "24", "data.validation_size": "5", "data.test_size": "3",
    "data.batch_tokens": "4008", "data.max_length": "500", "data.bands": "12",
    "tokenizer.vocab_size": "40", "decode.max_length": "6", "eval.splits": "test",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(quick_run_of):
    return transformer_jax.load(quick_run_of("speech", **KEYS))


def test_a_run_is_scored_by_its_word_errors(run):
    scores = run.folder.read("result.json")["scores"]["test"]
    assert scores["examples"] == 3
    wrong = scores["substitutions"] + scores["deletions"] + scores["insertions"]
    assert scores["wer"] == pytest.approx(wrong / scores["words"])
    assert scores["wer"] + scores["word_accuracy"] == pytest.approx(1)


def test_a_line_is_the_path_of_a_wav_file(run, tmp_path):
    record = run.records("validation")[2]
    wav.write(tmp_path / "said.wav", record["samples"])
    (tmp_path / "broken.wav").write_bytes(b"fLaC")
    paths = [str(tmp_path / f"{name}.wav") for name in ("said", "broken", "nowhere")]
    said, broken, nowhere = run.replies(paths)
    [samples] = run.replies([record["samples"]])
    assert said.text == samples.text and not said.error
    assert said.score == pytest.approx(samples.score, abs=1e-2)  # rounded to 16 bits
    assert "broken.wav cannot be read as sound: it is FLAC" in broken.error
    assert "there is no WAV file" in nowhere.error


def test_a_sound_alone_gets_what_it_gets_in_a_batch(run):
    records = run.records("validation")
    lines = [run.task.inference.question(record) for record in records]
    requests = [run.task.inference.parse(line) for line in lines]
    assert len({len(request.source) for request in requests}) > 1
    options = Options(max_length=5, beams=2)
    ask = run.task.inference.answers
    together = dict(ask(run.params, requests, run.mesh, options))
    for i in (0, 3):
        [(_, alone)] = ask(run.params, [requests[i]], run.mesh, options)
        assert alone.text == together[i].text
        assert alone.score == pytest.approx(together[i].score, abs=1e-4)


def test_a_transcript_may_be_begun(run):
    line = run.task.inference.question(run.records("validation")[0])
    [reply] = run.replies([line], prefixes=["turn on"])
    assert reply.text.startswith("turn on")


def test_a_sound_that_is_too_long_is_refused_with_its_length(run):
    with pytest.raises(UserError, match=r"998 frames \(10.0 s\) are more than the 500"):
        run.task.inference.parse(np.zeros(160_000, np.float32), 500)
    with pytest.raises(UserError, match=r"an array of shape \(2, 3\): give samples"):
        run.task.inference.parse(np.zeros((2, 3)))


def test_the_loss_of_a_batch_is_that_of_its_sounds(run):
    records = [run.records("validation")[i] for i in range(2)]
    rows = run.task.data.encode(records)
    frames, pieces = (max(len(row[side]) for row in rows) for side in SIDES)

    def batch_of(rows, frames, pieces):
        sources = [row["source"] for row in rows]
        column = Ragged(np.concatenate(sources), np.array([*map(len, sources)]))
        shape = Shape(len(rows), (frames, pieces))
        padded = sound.pad_frames(
            column, Batch(shape, np.arange(len(rows))[:, None]), frames
        )
        target = np.zeros((len(rows), pieces), np.int32)
        for i, row in enumerate(rows):
            target[i, : len(row["target"])] = row["target"]
        names = {"source": padded["frames"], "source_segments": padded["segments"]}
        return jax.tree.map(jnp.asarray, {**names, "target": target})

    loss = jax.jit(run.task.objective.loss)
    together = loss(run.params, batch_of(rows, frames + 7, pieces + 2))
    alone = [
        loss(run.params, batch_of([row], *(len(row[side]) for side in SIDES)))
        for row in rows
    ]
    assert together.weight == sum(one.weight for one in alone)
    total = sum(float(one.loss) for one in alone)
    np.testing.assert_allclose(together.loss, total, rtol=1e-5)


def test_attention_names_the_seconds_of_a_sound(run):
    line = run.task.inference.question(run.records("validation")[1])
    maps = run.attention(line, "open the door")
    seen, times = maps.tokens["cross"]
    assert times[:3] == ["0.00", "0.04", "0.08"]
    assert maps["cross"].shape[2:] == (len(seen), len(times))
    np.testing.assert_allclose(maps["cross"].sum(-1), 1, atol=1e-5)
    frames = run.task.inference.parse(line).source
    figure = speech_figure.spectrogram(frames, maps["cross"][0, 0], maps.written)
    above, below, *scales = figure.axes
    assert above.images[0].get_array().shape == (12, len(frames))
    assert [text.get_text() for text in below.get_yticklabels()] == maps.written


def test_masks_hide_bands_and_stretches_within_a_sound():
    settings = config.load("speech", {"data.bands": "12"}).train
    settings = settings.copy_and_resolve_references()
    settings.masks, settings.mask_bands, settings.mask_frames = 1, 3, 6
    frames, lengths = jnp.ones((40, 21, 12)), jnp.asarray([21, 9] * 20)
    hide = jax.jit(lambda *some: sound.hide(*some, jax.random.key(0), settings))
    hidden = np.asarray(hide(frames, lengths) == 0)
    bands, times = hidden.all(axis=1).sum(1), hidden.all(axis=2).sum(1)
    assert bands.max() == 3 and bands.min() == 0
    assert times[0::2].max() == 6 and times[1::2].max() == 4  # half of 9
    assert not hidden.all(axis=2)[1::2, 9:].any()
    again = hide(frames[:7], lengths[:7])
    np.testing.assert_array_equal(np.asarray(again == 0), hidden[:7])


def test_training_hides_what_an_evaluation_hears(run, monkeypatch):
    seen = []
    objective = run.task.objective

    def outputs(params, batch, key=None):
        seen.append(batch["source"])
        return Outputs(None)

    monkeypatch.setattr(objective, "outputs", outputs)
    places = jnp.zeros((1, 3), jnp.int32), jnp.zeros((1, 3))  # of which none counts
    nothing = Predictions(jnp.zeros((1, 3, 2)), lambda logits: logits, *places, 0.0, 2)
    monkeypatch.setattr(objective, "compare", lambda *_: nothing)
    monkeypatch.setattr(objective, "_align", lambda *_: (5.0, 2.0))
    batch = {
        "source": jnp.ones((1, 50, 12)),
        "source_segments": jnp.ones((1, 50), jnp.int32),
        "target": jnp.ones((1, 3), jnp.int32),
    }
    assert objective.loss(run.params, batch).loss == 0
    trained = objective.loss(run.params, batch, jax.random.key(1))
    assert trained.loss == 0.3 * 5
    assert objective.means(trained)["ctc"] == 5 / 2  # nats for each piece
    heard, hidden = seen
    assert (heard == 1).all() and (hidden == 0).any()


def test_the_second_loss_adds_up_all_ways_to_align(run):
    """Two vectors and the piece 5: it is written at the first, the second or both."""
    logits = np.random.RandomState(0).standard_normal((1, 2, 40)).astype(np.float32)
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    (first, second), blank = chances[0][:, 5], chances[0][:, PAD]
    expected = -np.log(first * blank[1] + blank[0] * second + first * second)

    class Module:
        def apply(self, variables, memory, method):
            return jnp.asarray(memory)

    objective = copy.copy(run.task.objective)
    objective.module = Module()
    padded = jnp.asarray(np.pad(logits, ((0, 0), (0, 1), (0, 0)), constant_values=3.0))
    batch = {
        "source_segments": jnp.asarray([[1] * 7 + [0] * 4]),
        "target": jnp.asarray([[5, EOS, PAD]]),
    }
    found, pieces = objective._align({}, padded, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert pieces == 1


@pytest.mark.parametrize("pieces", [[5, 6, 5], [5, 5, 5], [5, 5]])
def test_a_transcript_that_is_too_long_for_its_sound_adds_nothing(run, pieces):
    """Two vectors hold two pieces, and no blank between equal ones."""

    class Module:
        def apply(self, variables, memory, method):
            return jnp.asarray(memory)

    objective = copy.copy(run.task.objective)
    objective.module = Module()
    targets = np.array([[5, 6, EOS, PAD], [*pieces, EOS, PAD, PAD][:4]])
    batch = {
        "source_segments": jnp.ones((2, 8), jnp.int32),
        "target": jnp.asarray(targets),
    }

    def loss(memory):
        return objective._align({}, memory, batch)

    memory = jnp.asarray(np.random.RandomState(0).standard_normal((2, 2, 40)))
    both, counted = loss(memory)
    assert 0 < both < 20 and counted == 2
    slope = jax.grad(lambda m: loss(m)[0])(memory)
    assert np.isfinite(slope).all() and (slope[0] != 0).any() and (slope[1] == 0).all()


def test_preparation_leaves_out_what_cannot_be_aligned_and_says_why(run):
    data = copy.copy(run.task.data)
    why_not = data.make_filter()
    row = {"source": np.zeros((9, 12)), "target": [5, 6, 7, EOS]}  # three vectors
    assert why_not({}, row) is None
    row["target"] = [5, 6, 6, EOS]
    assert "too long for its sound" in why_not({}, row)
    data.aligns = False
    assert why_not({}, row) is None


def test_the_loss_of_the_alignment_is_logged_apart(run):
    lines = (run.folder.path / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert all(e["ctc"] > 0 for e in entries if e["kind"] == "train")
    assert not any("ctc" in e for e in entries if e["kind"] != "train")


@pytest.mark.parametrize("spec", ["speech", "speech:sounds"])
def test_bands_that_would_be_empty_are_refused_with_both_numbers(spec):
    words = "data.bands = 200: 10 of them would hold nothing, .*: use 126 at most"
    with pytest.raises(UserError, match=words):
        config.load(spec, {"data.bands": "200"})
    assert config.load(spec, {"data.bands": "126"}).data.bands == 126


def test_bands_of_whisper_are_those_of_its_filters():
    options = {"data.features": "whisper", "data.bands": "200"}
    words = "data.bands = 200: .* would hold nothing, as a frame has 201 frequencies"
    with pytest.raises(UserError, match=words):
        config.load("speech", options)
    assert config.load("speech", options | {"data.bands": "128"})


def test_a_learned_table_is_for_transcripts_alone():
    options = {"model.positions": "learned"}
    with pytest.raises(UserError, match="is a table for transcripts alone: choose"):
        config.load("speech", options)
    options |= {"model.sound_positions": "sinusoid", "model.max_positions": "39"}
    with pytest.raises(UserError, match=r"39 < 40, the positions .*decode.max_l"):
        config.load("speech", options)
    assert config.load("speech", options | {"decode.max_length": "39"})


def test_a_transcript_beyond_the_table_is_left_out_or_refused(run):
    changed = copy.deepcopy(run.config)
    with changed.unlocked():
        changed.model.positions, changed.model.max_positions = "learned", 5
    data = type(run.task.data)(changed, run.task.data.tokenizer)
    why_not, row = data.make_filter(), {"source": np.zeros((400, 12))}
    assert why_not({}, row | {"target": [4, 5, 6, 7, EOS]}) is None
    said = why_not({}, row | {"target": [4, 5, 6, 7, 4, EOS]})
    assert said == "a transcript beyond model.max_positions 5"
    assert data.filter_fingerprint != run.task.data.filter_fingerprint
    store = types.SimpleNamespace(lengths=lambda side: np.array([4, 6]))
    with pytest.raises(UserError, match="a transcript needs 6 positions, but there"):
        data.lengths(store)


def test_a_mesh_that_would_split_frames_is_refused():
    with pytest.raises(UserError, match="mesh.sequence 2: frames are not split"):
        config.load("speech", {"mesh.sequence": "2", "data.length_multiple": "2"})


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (np.full(4000, np.nan), "samples that are not finite, or beyond 1e+30"),
        (np.full(4000, 1e300), "samples that are not finite, or beyond 1e+30"),
        (np.array(["a"] * 4000), "give samples [N], 16,000 a second"),
        (np.zeros((2, 4000)), "give samples [N], 16,000 a second"),
        ([[1.0], [2.0, 3.0]], "list is not a line: setting an array element"),
        (None, "give samples [N], 16,000 a second"),
    ],
)
def test_numbers_that_are_not_a_sound_are_refused(run, samples, said):
    good = run.records("validation")[0]["samples"]
    first, bad, last = run.replies([good, samples, good])
    assert said in bad.error and first.text == last.text and not first.error


def test_what_only_training_computes_counts_too():
    counts = []
    for share in ("0.0", "0.3"):
        changes = {"train.ctc": share, "model.encoder_layers": "1"}
        loaded = config.load("speech", changes, data=False)
        load = workload.without_data(loaded, 4, 64, 50)
        task, mesh = load.task, sharding.local_mesh()
        params = jax.eval_shape(task.objective.init, jax.random.key(0))
        batch = load.abstract(load.largest, mesh)
        counts.append(programs.count_step(task.objective, params, batch))
        rows, frames, _ = batch["source"].shape
    projection = 3 * 2 * rows * frames / 4 * params["ctc_projection"]["kernel"].size
    more = counts[1] - counts[0]  # optax looks pieces up by a small product, too
    assert projection <= more < 1.5 * projection


def test_recordings_of_your_own_are_planned_without_them():
    load = workload.without_data(config.load("speech:folder", data=False))
    assert (load.largest.rows, *load.largest.lengths) == (56, 1701, 250)
    params = jax.eval_shape(load.task.objective.init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(params)) == 26_037_248
    assert load.abstract(load.largest, sharding.local_mesh())


def test_a_spectrogram_says_what_its_halves_and_colours_are():
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.ones(5), size=3)
    words = ["The", "girl", "is"]
    figure = speech_figure.spectrogram(random.normal(size=(20, 8)), weights, words)
    FigureCanvasAgg(figure).draw()
    above, below, bar = figure.axes
    assert [above.get_ylabel(), below.get_ylabel()] == ["mel band", "piece written"]
    assert below.get_xlabel() == "seconds" and bar.get_ylabel() == "weight"
    np.testing.assert_array_equal(below.images[0].get_array(), weights)
    frames = above.get_window_extent(), below.get_window_extent()
    assert frames[0].x0 == frames[1].x0 and frames[0].x1 == frames[1].x1


def test_a_run_that_hears_nothing_has_no_spectrogram(tiny_run):
    args = types.SimpleNamespace(
        workdir=tiny_run, weights="auto", text="O gato dorme.", target="x", head=-1
    )
    with pytest.raises(UserError, match="a spectrogram is of sound"):
        speech_figure.draw_spectrogram(args)
