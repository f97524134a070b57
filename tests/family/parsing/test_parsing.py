"""Parsing: every sentence gets a tree over its own words; repairs are counted."""

import json

import comparing
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, inspect_data
from transformer_jax.base.errors import UserError
from transformer_jax.config import loading
from transformer_jax.corpora import treebank
from transformer_jax.data.reading import trees
from transformer_jax.data.text.tokenizer import SPACE
from transformer_jax.decoding import Reply
from transformer_jax.family.parsing.task import Options, TreeScoring, restore

SMALL = {
    "eval.splits": "test", "decode.extra_length": "30",
    "data.test_size": "3",
}  # fmt: skip
WORDS = {
    "data.leaves": "words", "tokenizer.kind": "bpe", "tokenizer.shared": "true",
    "eval.splits": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(quick_run_of):
    return transformer_jax.load(quick_run_of("parsing", **SMALL))


@pytest.fixture(scope="module")
def run_of_words(quick_run_of):
    return transformer_jax.load(quick_run_of("parsing", **SMALL | WORDS))


@pytest.mark.system
def test_seeds_are_compared_by_brackets(run, compare_seeds):
    scores = run.folder.read_note("scores.json")["test"]
    wanted = {
        "F1": scores["f1"],
        "exact (%)": scores["exact"],
        "well-formed (%)": scores["well_formed"],
    }
    assert compare_seeds(run.folder.path) == pytest.approx(wanted, abs=0.006)


@pytest.mark.parametrize(
    "leaves", ["XX", pytest.param("words", marks=pytest.mark.system)]
)
@pytest.mark.parametrize(
    "options",
    [{}, {"beams": 3}, {"sample": True}, {"well_formed": False}],
    ids=["greedy", "beam", "sample", "free"],
)
def test_every_answer_is_a_tree_over_the_words_of_its_line(leaves, options, request):
    run = request.getfixturevalue({"XX": "run", "words": "run_of_words"}[leaves])
    lines = ["the man saw a zyxgor .", "stop", "", "a ( b ) c"]
    replies = run.replies(lines, **options)
    # After so little training it does not write trees by itself.
    repaired = any(reply.details["repairs"] for reply in replies if reply.text)
    assert repaired == ("well_formed" in options)
    for line, reply in zip(lines, replies, strict=True):
        assert not reply.error
        if not line:
            assert reply.text == ""
            continue
        [tree] = trees.read(reply.text)
        words = [{"(": "-LRB-", ")": "-RRB-"}.get(w, w) for w in line.split()]
        assert trees.words(tree) == words  # also unknown ones


def test_the_reference_is_the_gold_tree_of_the_record():
    [record] = treebank.generate("test", 1)
    words = record["source"].split()
    tree, problems = trees.restore(record["target"].split(), words)
    assert not problems
    assert TreeScoring().reference(record) == str(tree)


def test_a_reference_is_never_repaired_but_refused():
    for wrong in ("(S (NP XX )NP XX", "(S (NP (NNS birds)) (VBP sing))"):
        with pytest.raises(
            UserError, match=r"not a tree of .birds sing. .*data\.source"
        ):
            TreeScoring().reference({"source": "birds sing", "target": wrong})


def test_a_sentence_is_parsed_whole_or_not_at_all(run):
    line = "the old man saw a boat . " * 9
    (reply,) = run.replies([line], max_input=20, on_long="split")
    assert "more than the 20 allowed: raise --max_input" in reply.error


def test_settings_that_leave_no_choice_of_trees_are_refused(run):
    for changes, problem in (
        ({"data.leaves": "words"}, "set tokenizer.shared=True and tokenizer.kind bpe"),
        ({**WORDS, "data.train_tags": "<x>"}, "a tag is not a word of the tree"),
        ({"tokenizer.lowercase": "true"}, "labels of trees have capitals"),
    ):
        with pytest.raises(UserError, match=problem):
            config.load("parsing", changes)
    for changes, problem in (
        ({"tokenizer.kind": "char"}, "tokenizer.kind 'char' has none: use word"),
        ({"decode.no_repeat": "2"}, "obeys neither no_repeat 2 nor min_length 0"),
    ):
        with pytest.raises(UserError, match=problem):
            config.load("parsing", changes)
        config.load("parsing", changes | {"decode.well_formed": "false"})
    [fits, too_short] = (run.task.inference.parse("a b c d e", options=o) for o in (
        Options(beams=1, max_length=n, well_formed=True) for n in (8, 7)))  # fmt: skip
    assert len(fits.constraint["outline"]) == 5 and too_short.constraint is None
    [reply] = run.replies(["a b c d e"], max_length=7)
    assert reply.text and reply.details["repairs"]
    [reply] = run.replies(["birds sing"], prefixes=["(S"])
    assert "a tree takes no prefix" in reply.error


def test_training_trees_contain_the_words_of_their_sentence(run_of_words):
    run = run_of_words
    record = {"source": "birds sing", "target": "(S (NP XX )NP XX )S"}
    [row] = run.task.data.encode([record])
    learnt = run.task.data.target_tokenizer.decode(row["target"])
    assert learnt == "(S(NP birds)NP sing)S"
    assert run.task.scoring.reference(record) == "(S (NP (XX birds)) (XX sing))"
    assert run.task.data.fingerprint.endswith("-words-compact")


def test_an_answer_can_be_read_as_a_target_again(run, run_of_words):
    linear = {"source": "birds sing", "target": "(S (NP XX )NP XX )S"}
    tree = {**linear, "target": run.task.scoring.reference(linear)}
    assert tree["target"] == "(S (NP (XX birds)) (XX sing))"
    for found in (run, run_of_words):
        prepare = found.task.data.texts.prepare
        assert prepare(tree) == prepare(linear)
        [reading] = found.task.inspector.read(
            found.params, [tuple(tree.values())], found.mesh
        )
        assert np.isfinite(reading.log_probs).all()


def test_an_unknown_piece_stays_inside_its_word(run_of_words):
    written = "(S(NP z ⁇  ⁇ a)NP sing)S"
    assert run_of_words.task.inference.form.linearise(written) == "(S (NP XX )NP XX )S"


def test_each_bracket_is_one_piece(run, run_of_words):
    for found in (run, run_of_words):
        form = found.task.inference.form
        tokenizer = form.tokenizer
        pairs = [tokenizer.pieces(pair) for pair in form.pairs]
        assert ["(NP", ")NP"] in [[p.lstrip(SPACE) for p in pair] for pair in pairs]
        text = form.write({"source": "a", "target": "(S (NP XX )NP )S"})["target"]
        ids = [i for pair in form.pairs for i in pair]
        assert sum(i in ids for i in tokenizer.encode(text)) == 4


def test_a_written_word_counts_as_the_next_word_of_the_sentence():
    written = Reply("a b", "(S (NP bird )NP sings )S", -1.0)
    good = restore(written, trees.without_words)
    assert good.text == "(S (NP (XX a)) (XX b))" and good.details["repairs"] == []
    repairs = restore(written).details["repairs"]
    assert {"unknown tokens: 2", "words too few: 2"} <= {*repairs}


def test_repairs_are_named_and_counted():
    good = restore(Reply("birds sing", "(S (NP XX )NP XX )S", -1.0))
    assert good.details["repairs"] == [] and good.score == -1.0
    bad = restore(Reply("birds sing", "(S (NP XX )NP XX", -1.0))
    assert bad.text == good.text
    assert bad.details["repairs"] == ["brackets not closed: 1"]


def test_well_formed_is_the_share_that_needed_no_repair(run):
    golds = ["(S (NP (XX birds)) (XX sing))"] * 2
    replies = [
        restore(Reply("birds sing", text, 0.0))
        for text in ("(S (NP XX )NP XX )S", "(S XX (VP XX")
    ]
    found = run.task.scoring.score(replies, golds)
    assert found["well_formed"] == 50 and found["exact"] == 50
    # 2 of 2 brackets right, then 1 (S) of 2 guessed: 3 of 4 guessed, and of 4 gold.
    assert found["f1"] == pytest.approx(75)


def test_the_scores_are_in_the_result_and_jsonl_reports_the_repairs(run):
    result = run.folder.read("result.json")["scores"]["test"]
    assert {"f1", "precision", "recall", "exact", "well_formed"} <= set(result)
    [reply] = run.replies(["the man slept ."])
    assert json.loads(json.dumps(reply.details)) == reply.details
    assert {"score", "repairs"} <= set(reply.details)


def test_the_papers_decoding_is_in_its_configs():
    for variant in ("wsj", "semi_supervised"):
        loaded = loading._run_file(f"parsing:{variant}")
        decode = loaded.decode
        assert (decode.beams, decode.alpha, decode.extra_length) == (21, 0.3, 300)
        assert not decode.well_formed
        assert loaded.model.encoder_layers == 4 and loaded.model.d_model == 1024


def test_a_search_over_trees_obeys_no_other_limits():
    assert config.base("parsing").decode.well_formed
    (problem,) = Options(no_repeat=2).find_problems()
    assert "neither no_repeat 2 nor min_length 0" in problem
    assert Options(well_formed=False, no_repeat=2).find_problems() == []


def test_trees_that_are_learnt_with_their_words_come_back(prepare_of, capsys):
    words = {"data.leaves": "words", "tokenizer.kind": "bpe"}
    words["tokenizer.shared"] = "true"
    loaded, found = prepare_of("parsing", **words)
    assert not inspect_data._check_round_trip(loaded, found.task, found.train)
    assert not capsys.readouterr().out


def test_a_parser_is_given_words_that_stand_apart(prepare_of):
    for found in inspect_data._inspect_text(prepare_of("parsing")[1]).values():
        assert not any("as if tokenised" in f.text for f in found)


def test_systems_are_compared_by_brackets():
    tree = "(S (NP (DT The) (NN cat)) (VP (VBD slept)))"
    flat = "(S (DT The) (NN cat) (VP (VBD slept)))"
    comparing.check(TreeScoring(), [tree] * 60, flat, {"F1", "exact (%)"})
