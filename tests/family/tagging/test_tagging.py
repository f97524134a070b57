"""Tagging: one tag per word, learned and read at its first piece."""

import comparing
import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, evaluate, plan
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS
from transformer_jax.data.text import learning
from transformer_jax.decoding import Reply
from transformer_jax.family.tagging import task as tagging
from transformer_jax.family.tagging.tags import Lexicon
from transformer_jax.visualize.figures import beams

LINES = ["The girl sleeps .", "extraordinarily ☃ unlikely", "", "  two   words "]


@pytest.fixture(scope="module")
def run(quick_run_of):
    return transformer_jax.load(quick_run_of("tagging", **{"eval.splits": "test"}))


@pytest.mark.system
def test_seeds_are_compared_by_accuracy_and_f1(run, compare_seeds):
    scores = run.folder.read_note("scores.json")["test"]
    wanted = {f"{name} (%)": 100 * scores[name] for name in ("accuracy", "f1")}
    assert compare_seeds(run.folder.path) == pytest.approx(wanted, abs=0.006)


def test_a_task_without_pairs_of_texts_is_scored_by_its_split(run, run_main, capsys):
    with pytest.raises(SystemExit):
        run_main(
            evaluate, f"--workdir={run.folder.path}", "--source=a", "--reference=b"
        )
    assert (
        "--source and --reference are two texts, line by line, but the task tagging "
        "has other examples: use --split"
    ) in capsys.readouterr().err


def test_tags_are_not_written_step_by_step(run):
    with pytest.raises(UserError, match="task 'tagging' writes nothing step by step"):
        beams.search(run, LINES[0])


def test_there_are_as_many_tags_as_words(run):
    for line, reply in zip(LINES, run.replies(LINES), strict=True):
        names = reply.text.split()
        assert not reply.error and len(names) == len(line.split())
        assert set(names) <= set(run.task.inference.names)
        shown = reply.details["words"]
        assert [w["word"] for w in shown] == line.split()
        assert [w["tag"] for w in shown] == names
        assert all(0 < w["chance"] <= 1 for w in shown)


def test_a_line_alone_is_answered_as_in_a_batch(run):
    for line, reply in zip(LINES, run.replies(LINES), strict=True):
        [alone] = run.replies([line])
        assert alone.text == reply.text
        chances = [[w["chance"] for w in r.details["words"]] for r in (alone, reply)]
        np.testing.assert_allclose(*chances, rtol=1e-4)


def test_the_tag_of_a_word_is_at_its_first_piece(run):
    data = run.task.data
    record = {"text": "The extraordinarily ☃ .", "tags": "B-NP I-NP new O"}
    [row] = data.encode([record])
    ids, numbers = row["text"], row["tags"]
    pieces = [data.tokenizer.encode(word) for word in record["text"].split()]
    assert ids == [BOS, *sum(pieces, []), EOS] and len(ids) > 4 + 2
    begins = 1 + np.cumsum([0, *map(len, pieces)])[:-1]
    assert set(np.flatnonzero(numbers)) == {*begins[:2], begins[3]}  # one is unknown
    assert numbers[begins[1]] == 1 + run.task.inference.names.index("I-NP")


def test_a_word_that_a_tokenizer_drops_is_still_tagged(run):
    words = tagging.Words(run.task.data.tokenizer)
    words._pieces = lambda word: [] if word == "x" else [9, 9]
    assert words.encode(["a", "x", "b"]) == ([BOS, 9, 9, 1, 9, 9, EOS], [1, 3, 4])


def test_a_loss_counts_words_and_is_the_sum_of_its_rows(run):
    task = run.task
    records = [run.records("validation")[i] for i in range(5)]
    rows = task.data.encode(records)
    length = max(len(row["text"]) for row in rows)

    def batch(rows, length):
        tokens, numbers = np.zeros((2, len(rows), length), np.int32)
        for i, row in enumerate(rows):
            tokens[i, : len(row["text"])] = row["text"]
            numbers[i, : len(row["tags"])] = row["tags"]
        return {"tokens": tokens, "tags": numbers}

    loss = jax.jit(task.objective.loss)
    whole = loss(run.params, batch(rows, length))
    assert float(whole.weight) == sum(len(r["text"].split()) for r in records)
    parts = [loss(run.params, batch([row], length + 3)) for row in rows]
    total = sum(float(part.loss) for part in parts)
    assert float(whole.loss) == pytest.approx(total, rel=1e-5)


def test_the_scores_are_shown_next_to_those_of_the_most_frequent_tags(run):
    result = run.folder.read("result.json")["scores"]["test"]
    for name in ("accuracy", "f1", "baseline_accuracy", "baseline_f1"):
        assert 0 <= result[name] <= 1
    assert result["baseline_accuracy"] > 0.5
    assert "each word's most frequent tag" in result["summary"]
    lexicon = Lexicon(("B-X", "O"), {"a": "B-X"}, "O")
    replies = [Reply("a b a", "B-X O O"), Reply("b", error="too long")]
    found = tagging.TagScoring(lexicon).score(replies, ["B-X O B-X", "B-X"])
    assert found["accuracy"] == pytest.approx(2 / 4)
    assert found["f1"] == pytest.approx(2 / 4)
    assert found["baseline_accuracy"] == pytest.approx(3 / 4)
    assert found["baseline_f1"] == pytest.approx(4 / 5)
    assert found["unseen"] == 0 == result["unseen"]


def test_words_whose_tag_training_lacks_are_counted_and_said():
    scoring = tagging.TagScoring(Lexicon(("B-X", "O"), {"a": "B-X"}, "O"))
    found = scoring.score([Reply("a b", "B-X O")], ["B-Y I-Y"])
    assert found["unseen"] == 2 and found["accuracy"] == 0
    assert scoring.summary(found).endswith("words whose tag training lacks: 2")


def test_a_run_opens_with_what_it_has_learned(run):
    folder = run.folder.tokenizer
    opened = tagging.open_run(run.config, folder)
    assert opened.inference.names == run.task.inference.names
    assert opened.scoring.lexicon.words["The"] == "B-NP"
    assert opened.data.fingerprint == run.task.data.fingerprint


def test_a_line_that_is_too_long_or_has_a_prefix_is_refused(run):
    [reply] = run.replies(["a " * 50], max_input=20)
    assert "50 pieces are more than the 20 allowed" in reply.error
    [reply] = run.replies(["a"], prefixes=["O"])
    assert "cannot begin with a given prefix" in reply.error


def test_impossible_settings_are_reported_before_anything_is_read(tmp_path):
    (tmp_path / "f").write_text("a O\n")
    files = {f"data.{s}_files": str(tmp_path / "f") for s in ("train", "validation")}
    conll = files | {"data.source": "conll"}
    config.load("tagging", conll | {"data.tags_column": "2"})
    with pytest.raises(UserError, match="data.tags_column = 'x': must be the number"):
        config.load("tagging", conll | {"data.tags_column": "x"})
    with pytest.raises(UserError, match="tokenizer.kind"):
        config.load("tagging", {"tokenizer.kind": "byte"})


def test_characters_and_words_can_be_pieces(run):
    lexicon = Lexicon(("X", "Y"))
    for kind in ("char", "word"):
        found = learning.train(["the cat sleeps ."] * 9, kind, 299)
        task = tagging.compose(run.config, found, lexicon)
        ids = task.inference.parse("the cat").source
        assert ids == [BOS, *found.encode("the cat"), EOS]


def test_attention_is_shown_for_the_pieces_that_are_read(run):
    maps = run.attention("The girl sleeps .", "")
    queries, _ = maps.tokens["encoder"]
    assert queries[0] == "<s>" and queries[-1] == "</s>"


@pytest.mark.system
def test_a_training_is_planned_without_data(run_main):
    few = ["--no_data", "--rows=8", "--length=16"]
    shown = run_main(plan, "--config=tagging", "--target=cpu-8", *few)
    assert "compiled   8 × 16" in shown and "compiled   decoding" in shown
    assert "sent " in shown  # over a mesh, here of eight devices


def test_systems_are_compared_by_tags_and_spans():
    truth = ["B-NP I-NP", "O B-NP"] * 50
    scoring = tagging.TagScoring(Lexicon(("O",)))
    comparing.check(scoring, truth, "O O", {"accuracy (%)", "f1 (%)"})
