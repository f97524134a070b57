"""Conversation: the last turns are read, the others are forgotten and reported."""

import io

import pytest

import transformer_jax
from transformer_jax import config, predict, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.decoding import Reply
from transformer_jax.family.conversation import task as conversation
from transformer_jax.family.conversation.smalltalk import SEPARATOR
from transformer_jax.runs.session import Session


@pytest.fixture(scope="module")
def run(quick_run_of):
    few = {"data.test_size": "3", "eval.splits": "test"}
    return transformer_jax.load(quick_run_of("smalltalk", **few))


def test_examples_are_contexts_of_a_few_turns_and_their_replies():
    most, few = {}, {"data.train_size": "300", "data.test_size": "60"}
    for turns in (1, 3):
        loaded = config.load("smalltalk", {"data.turns": str(turns), **few})
        records = tasks.find("conversation").source(loaded).read("test")
        counts = [len(r["source"].split(SEPARATOR)) for r in records]
        most[turns] = max(counts)
        assert all(
            r["target"] and SEPARATOR.strip() not in r["target"] for r in records
        )
    assert most == {1: 1, 3: 3}


def test_the_mark_between_turns_is_one_piece(run):
    pieces = run.task.data.source_tokenizer.pieces(
        run.task.data.source_tokenizer.encode(f"Hi{SEPARATOR}Hello")
    )
    assert pieces.count(SEPARATOR.strip()) == 1


def test_the_last_turns_are_read_and_the_forgotten_ones_are_counted(run):
    turns = ["Hi", "Hello", "My name is Ana", "Nice to meet you", "What is my name?"]
    assert run.task.inference.context(turns[:1]) == ("Hi", 0)
    assert run.task.inference.context(turns) == (SEPARATOR.join(turns[2:]), 2)


def test_a_context_is_not_answered_in_parts(run):
    line = "I am fine. And you? " * 9
    (reply,) = run.replies([line], max_input=12, on_long="split")
    assert "more than the 12 allowed: raise --max_input" in reply.error


def test_a_session_reads_its_own_replies_and_says_what_it_forgot(
    run, monkeypatch, capsys
):
    typed = iter(["Hi", "I am Ana", "Bye"])

    def read(prompt):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    asked, numbers = [], []

    def answer(lines, first):
        asked.extend(lines)
        numbers.append(first)
        return [f"r{len(asked)}"]

    answerer = predict.LineAnswerer(run, None, 0)
    assert Session(answerer, answer).converse() == 0
    assert asked == [
        "Hi",
        SEPARATOR.join(["Hi", "r1", "I am Ana"]),
        SEPARATOR.join(["I am Ana", "r2", "Bye"]),
    ]
    assert numbers == [0, 1, 2]  # so that the draws of each line differ
    out, err = capsys.readouterr()
    assert out.split() == ["r1", "r2", "r3"]
    assert err.count("(read: the last 3 turns of 5)") == 1


def test_replies_are_scored_by_overlap_exact_match_and_variety(run):
    replies = [Reply(text=text) for text in ("I am fine", "I am here")]
    found = run.task.scoring.score(replies, ["I am fine", "You are here"])
    assert found["exact"] == 50
    assert found["distinct_2"] == pytest.approx(100 * 3 / 4)
    assert {"bleu", "chrf"} <= set(found)
    result = run.folder.read("result.json")["scores"]["test"]
    assert {"bleu", "exact", "distinct_2", "perplexity"} <= set(result)


def test_zero_turns_are_refused():
    with pytest.raises(UserError, match=r"data.turns = 0: must be at least 1"):
        config.load("smalltalk", {"data.turns": "0"})


def test_predict_answers_a_line(run):
    answerer = predict.LineAnswerer(run, predict_options(run), 0)
    sink = io.BytesIO()
    chunks = iter([["Hi how are you", ""]])
    assert answerer.answer_all(answerer.answer, chunks, sink) == 0
    assert len(sink.getvalue().split(b"\n")) == 3


def predict_options(run):
    from transformer_jax.runs import run as runs

    return runs.decode_options(run.config)


def test_attention_names_what_is_read_and_written(run):
    maps = run.attention("Hi how are you", "I am fine")
    seen, read = maps.tokens["cross"]
    assert maps["cross"].shape[2:] == (len(seen), len(read))
    assert (seen[0], read[-1], maps.written[-1]) == ("<s>", "</s>", "</s>")
    assert maps.written[:-1] == seen[1:]


def test_seeds_are_compared_by_replies_and_their_variety():
    found = {"bleu": 31.0, "chrf": 52.0, "exact": 7.0, "distinct_2": 8.0}
    assert conversation.DialogueScoring(lowercase=False).measures(found) == {
        "BLEU": 31.0, "chrF": 52.0, "exact (%)": 7.0, "distinct-2 (%)": 8.0,
    }  # fmt: skip
