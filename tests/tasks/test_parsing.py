"""Parsing: every sentence gets a tree over its own words; repairs are counted."""

import json

import pytest

import transformer_jax
from transformer_jax import answering, config
from transformer_jax.data import treebank, trees
from transformer_jax.errors import UserError
from transformer_jax.tasks import parsing
from transformer_jax.tasks.translation import Answer


@pytest.fixture(scope="module")
def run(tiny_run_of):
    return transformer_jax.load(tiny_run_of("parsing", **{"eval.splits": "test"}))


def test_every_answer_is_a_tree_over_the_words_of_its_line(run):
    lines = ["the man saw a zyxgor .", "stop", "", "a ( b ) c"]
    for line, reply in zip(lines, run.replies(lines), strict=True):
        assert not reply.error
        if not line:
            assert reply.text == ""
            continue
        [tree] = trees.read(reply.text)
        words = [{"(": "-LRB-", ")": "-RRB-"}.get(w, w) for w in line.split()]
        assert trees.words(tree) == words  # unknown ones too


def test_the_reference_is_the_gold_tree_of_the_record():
    [record] = treebank.generate("test", 1)
    words = record["source"].split()
    tree, problems = trees.restore(record["target"].split(), words)
    assert not problems
    task = parsing.Task.__new__(parsing.Task)
    assert task.reference(record) == str(tree)


def test_a_reference_is_never_repaired_but_refused():
    task = parsing.Task.__new__(parsing.Task)
    for wrong in ("(S (NP XX )NP XX", "(S (NP (NNS birds)) (VBP sing))"):
        with pytest.raises(UserError, match=r"no tree of 'birds sing' .*data\.source"):
            task.reference({"source": "birds sing", "target": wrong})


def test_a_sentence_is_parsed_whole_or_not_at_all(run):
    line = "the old man saw a boat . " * 9
    (reply,) = run.replies([line], max_input=20, on_long="split")
    assert "more than the 20 allowed: raise --max_input" in reply.error


def test_words_in_the_trees_that_are_learnt_are_those_of_the_sentence(tiny_run_of):
    changes = {"data.leaves": "words", "tokenizer.kind": "bpe", "eval.splits": "test"}
    run = transformer_jax.load(tiny_run_of("parsing", **changes))
    record = {"source": "birds sing", "target": "(S (NP XX )NP XX )S"}
    [row] = run.task.encode([record])
    learnt = run.task.target_tokenizer.decode(row["target"])
    assert learnt == "(S (NP birds )NP sing )S"
    assert run.task.reference(record) == "(S (NP (XX birds)) (XX sing))"
    [reply] = run.replies(["the zyxgor slept ."])
    assert trees.words(trees.read(reply.text)[0]) == "the zyxgor slept .".split()
    assert run.task.fingerprint.endswith("-words")


def test_a_word_that_is_written_stands_for_the_next_of_the_sentence():
    good = parsing._restore(Answer("(S (NP bird )NP sings )S", -1.0), "a b", "words")
    assert good.text == "(S (NP (XX a)) (XX b))" and good.repairs == ()
    bad = parsing._restore(Answer("(S (NP bird )NP sings )S", -1.0), "a b")
    assert {"tokens that are none: 2", "words too few: 2"} <= {*bad.repairs}


def test_repairs_are_named_and_counted():
    good = parsing._restore(Answer("(S (NP XX )NP XX )S", -1.0), "birds sing")
    assert good.repairs == () and good.score == -1.0
    bad = parsing._restore(Answer("(S (NP XX )NP XX", -1.0), "birds sing")
    assert bad.text == good.text and bad.repairs == ("brackets not closed: 1",)


def test_well_formed_is_the_share_that_needed_no_repair(run):
    golds = ["(S (NP (XX birds)) (XX sing))"] * 2
    replies = [
        answering.Reply("birds sing", a.text, a)
        for a in (
            parsing._restore(Answer(text, 0.0), "birds sing")
            for text in ("(S (NP XX )NP XX )S", "(S XX (VP XX")
        )
    ]
    found = run.task.judge(replies, golds)
    assert found["well_formed"] == 50 and found["exact"] == 50
    # 2 of 2 brackets right, then 1 (S) of 2 guessed: 3 of 4, of 4 there are.
    assert found["f1"] == pytest.approx(75)


def test_the_scores_are_in_the_result_and_jsonl_tells_the_repairs(run):
    result = run.folder.read("result.json")["scores"]["test"]
    assert {"f1", "precision", "recall", "exact", "well_formed"} <= set(result)
    [reply] = run.replies(["the man slept ."])
    details = json.loads(json.dumps(run.task.details(reply.answer)))
    assert details["repairs"] == list(reply.answer.repairs)


def test_the_papers_decoding_is_in_its_configs():
    for variant in ("wsj", "semi_supervised"):
        loaded = config._run_file(f"parsing:{variant}")
        decode = loaded.decode
        assert (decode.beams, decode.alpha, decode.extra_length) == (21, 0.3, 300)
        assert loaded.model.encoder_layers == 4 and loaded.model.d_model == 1024
