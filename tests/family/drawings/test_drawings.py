"""Drawings: captions in, codes or files out, judged by what the pictures show."""

import types

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import transformer_jax
from transformer_jax import config
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.data.text.tokenizer import SPECIAL
from transformer_jax.decoding import Reply
from transformer_jax.family.drawings import figure as sheets
from transformer_jax.family.drawings import regions
from transformer_jax.family.drawings import task as drawings
from transformer_jax.planning import workload
from transformer_jax.visualize import commands

OTHER = config.base("translation")
CAPTION = "a red circle left of a blue square"


@pytest.fixture(scope="module")
def run(quick_run_of):
    few = {
        "tokenizer.vocab_size": "100", "data.batch_tokens": "1040",
        "data.train_size": "200", "eval.splits": "test",
        "decode.max_length": "65", "model.dropout_attention": "0.0",
        "data.test_size": "10",
        "train.steps": "6", "eval.every": "6", "checkpoint.every": "3",
    }  # fmt: skip
    return transformer_jax.load(quick_run_of("drawings", **few))


@pytest.fixture
def book(run):
    return run.task.scoring.book


def test_an_example_is_read_as_its_words_and_written_as_the_codes_of_its_picture(
    run, book
):
    record = run.records("test")[3]
    [row] = run.task.data.encode([record])
    data = run.task.data
    assert data.source_tokenizer.decode(row["source"]) == record["source"]
    assert len(row["source"]) == len(record["source"].split()) + 1
    codes = data.target_tokenizer.decode(row["target"])
    assert len(codes.split()) == 64 and len(row["target"]) == 65
    picture = drawings.as_picture(book, codes)
    assert regions.judge(picture, record["source"]).right
    [given] = data.encode([{"source": record["source"], "target": codes}])
    assert given == row


def test_training_leaves_no_picture_out(run):
    record = run.records("train")[0]
    assert run.task.data.make_filter()(record, {"target": [0] * 99}) is None


def test_the_answer_is_a_line_of_codes_and_drawn_anew_for_each_line(run, book):
    first, second, again = run.predict([CAPTION, CAPTION, " "])
    codes = [int(word) for word in first.split()]
    assert len(codes) <= 64 and all(code < len(book.patches) for code in codes)
    assert first != second and again.strip() == ""
    assert run.predict([CAPTION]) == [first]


def test_an_option_writes_the_pictures_to_files(run, book, tmp_path):
    folder = tmp_path / "made" / "here"
    first, second = run.replies([CAPTION, CAPTION], pictures=str(folder))
    assert [first.text, second.text] == [f"{folder}/00000{i}.png" for i in (1, 2)]
    assert first.details["codes"] == run.predict([CAPTION])[0]
    with Image.open(first.text) as image:
        found = np.asarray(image)[::8, ::8]
    wanted = drawings.as_picture(book, first.details["codes"])
    np.testing.assert_array_equal(found, wanted)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="name another folder"):
        run.replies([CAPTION], pictures=str(tmp_path / "file" / "x"))


def test_a_word_that_no_caption_has_is_refused(run):
    with pytest.raises(Refused, match="no caption of .* has the word 'pink'"):
        run.task.inference.parse("a pink circle")


def test_pictures_are_judged_by_their_captions(run, book):
    records = [run.records("test")[i] for i in range(10)]
    texts = [drawings.as_codes(book, record)["target"] for record in records]
    captions = [run.task.scoring.reference(record) for record in records]
    assert captions == [record["source"] for record in records]
    scores = run.task.scoring.score([Reply("", t) for t in texts], captions)
    assert scores == {"right": 1, "figures": 1, "relation": 1}
    blank = [Reply("", t) for t in [*texts[:9], ""]]
    scores = run.task.scoring.score(blank, captions)
    assert scores["right"] == 0.9
    assert run.task.scoring.summary(scores) == "right 90.0%, figures 90.0%"
    assert run.task.scoring.measures(scores) == {"right (%)": 90}
    systems = {"a": [t.text for t in blank], "b": texts}
    [found] = run.task.scoring.compare(run.task.scoring, systems, captions)
    assert (found.baseline_score, found.score) == (90, 100)


def test_the_result_has_the_scores_of_the_test_pictures(run):
    scores = run.folder.read("result.json")["scores"]["test"]
    assert 0 <= scores["right"] <= scores["figures"] <= 1 and scores["answered"] == 10


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tokenizer.patch": "5"}, "tokenizer.patch = 5 does not divide 32"),
        ({"tokenizer.patch": "2"}, "a picture has 256 patches of tokenizer.patch 2"),
        ({"decode.max_length": "9"}, "decode.max_length = 9: set it to 65"),
    ],
)
def test_sizes_that_do_not_fit_a_picture_are_refused(keys, words):
    with pytest.raises(UserError, match=words):
        config.load("drawings", keys)


def test_other_splits_are_refused():
    source = drawings.Source(config.load("drawings").data)
    with pytest.raises(UserError, match="no split 'dev': this run's data has train"):
        source.read("dev")


def test_a_sheet_has_a_row_for_each_caption_and_marks_what_is_wrong(run):
    captions = sheets.choose(run, "test", 3)
    assert captions == [run.records("test")[i]["source"] for i in range(3)]
    pictures, right = sheets.sample(run, captions, 2)
    assert pictures.shape == (3, 2, 32, 32, 3) and right.shape == (3, 2)
    right[1, 0] = True
    figure = sheets.drawings(captions, pictures, right)
    FigureCanvasAgg(figure).draw()
    panels = np.reshape(figure.axes, (3, 2))
    np.testing.assert_array_equal(panels[2, 1].images[0].get_array(), pictures[2, 1])
    assert panels[0, 0].get_ylabel().replace("\n", " ") == captions[0]
    width = [axes.spines["top"].get_linewidth() for axes in panels[1]]
    assert width[0] < width[1]
    with pytest.raises(UserError, match="--text=a pink circle cannot be drawn: no"):
        sheets.sample(run, ["a pink circle"], 1)
    with pytest.raises(UserError, match="name a run of configs/drawings.py"):
        sheets.check(types.SimpleNamespace(config=OTHER, folder=run.folder))


def test_the_command_draws_one_caption_or_some_of_a_split(run, monkeypatch):
    monkeypatch.setattr(commands, "open_run", lambda args: run)
    monkeypatch.setattr(sheets, "SAMPLES", 2)
    for text, rows in ((CAPTION, 1), ("", 3)):
        args = types.SimpleNamespace(text=text, split="test", count=3)
        assert len(sheets.draw_drawings(args).axes) == 2 * rows


def test_before_there_is_data_a_codebook_of_the_configs_size_is_planned_with():
    settings = config.load("drawings")
    load = workload.without_data(settings)
    texts = load.task.data.texts.tokenizers
    assert texts["target"].vocab_size == SPECIAL + settings.tokenizer.codes


def test_the_size_of_a_codebook_is_not_compared_with_that_of_the_words(prepare_of):
    few = {"data.train_size": "20", "data.validation_size": "5", "data.test_size": "5"}
    said = []
    _, found = prepare_of("drawings", said.append, **few)
    words, codes = (t.vocab_size for t in found.task.data.texts.tokenizers.values())
    assert words != codes
    (note,) = [line for line in said if line.startswith("note")]
    assert f"this text gives a vocabulary of {words} pieces" in note
