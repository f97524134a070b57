"""The embedded small talk: one right reply, which follows from the turns before it."""

import pathlib
import re
import runpy
from collections import Counter, defaultdict
from functools import cache
from random import Random

import pytest

from transformer_jax.family.conversation import smalltalk
from transformer_jax.family.conversation.smalltalk import (
    FALLBACKS,
    FIXED,
    SEPARATOR,
    SPLITS,
    WIDE_SPLITS,
    generate,
)
from transformer_jax.family.conversation.smalltalk.lexicon import AGAIN, MORE_CURIOUS
from transformer_jax.family.conversation.smalltalk.off_topic import OffTopic

ROOT = pathlib.Path(__file__).resolve().parents[3]


@cache
def sample(split="train", turns=3):
    return generate(split, 8000 if split == "train" else 300, turns)


@cache
def talks(split="train"):
    """The first dialogues of a split, each once."""
    found, size = {}, 3000 if split == "train" else 300
    for dialogue in smalltalk._draw(split, "few"):
        found[dialogue] = None
        if len(found) == size:
            return [*found]


def replies(turns):
    """The replies that follow each context, in all the dialogues of train."""
    found = defaultdict(Counter)
    for talk in talks():
        for i in range(1, len(talk), 2):
            found[SEPARATOR.join(talk[max(0, i - turns) : i])][talk[i]] += 1
    return found


def accuracy(found):
    """How often the commonest reply to each context is right."""
    right = sum(max(counts.values()) for counts in found.values())
    return right / sum(sum(counts.values()) for counts in found.values())


def test_the_text_is_the_same_each_time_and_smaller_sizes_are_a_prefix():
    assert generate("train", 50) == sample()[:50]


def test_no_context_and_no_dialogue_is_in_two_splits_or_twice_in_one():
    contexts = [example["context"] for split in SPLITS for example in sample(split)]
    assert len(contexts) == len(set(contexts)) == 8600
    whole = [talk for split in SPLITS for talk in talks(split)]
    assert len(whole) == len(set(whole)) == 3600


@pytest.mark.parametrize("turns", [1, 3])
def test_how_are_you_has_its_answer(turns):
    first = {"context": "Hi how are you", "reply": "I am fine"}
    assert sample(turns=turns)[0] == first
    assert replies(turns)[FIXED[0]].keys() == {"I am fine"}
    held = [e["context"] for split in SPLITS[1:] for e in sample(split)]
    assert FIXED[0] not in held


def test_a_name_is_remembered():
    told = [
        (re.search(r"(\w+)$", talk[i])[1], talk[i + 3])
        for talk in talks()
        for i in range(0, len(talk) - 3, 2)
        if talk[i + 1].startswith("Nice to meet you, ")
        and talk[i + 2] == "What is my name?"
    ]
    assert len({name for name, _ in told}) > 10
    assert all(answer == f"Your name is {name}" for name, answer in told)


def test_a_name_never_told_is_not_known():
    unknown = "You have not told me your name"
    assert replies(3)["What is my name?"].keys() == {unknown}
    for talk in talks():
        if unknown in talk:
            assert "our name is" not in " ".join(talk[: talk.index(unknown)])


@pytest.mark.parametrize(
    ("context", "reply"),
    [
        (r"I am (\w+) and my (\w+) is (\w+)__.*__Who is \3\?", r"\3 is your \2"),
        (r"I am (\w+) and my (\w+) is (\w+)__.*__Who is \1\?", r"You are \1"),
        (r"I (?:like|love|enjoy) (\w+)__.* (\w+) too\?__Yes", r"So you like \1 and \2"),
        (r"I hate (\w+)__.* like (\w+)\?__No", r"So you like neither \1 nor \2"),
        (r"I have (\w+) (\w+)__.*__How many \2 .*", r"You have \1 \2"),
        (r"My (\w+) lives in (\w+)__.*__Who lives .*", r"Your \1 lives in \2"),
        (r".* to (.*) on (\w+)__.*__What will I do\?", r"You will \1"),
        (r".* to (.*) on (\w+)__.*__When will .*", r"That will be on \2"),
        (r"It is (\w+) in (\w+)__.*__Why\?", r"Because it is \1 in \2"),
        (r".*__Nice to meet you, (\w+)__Thank.*", r"You are welcome, \1"),
        (r".*__(.*)__Pardon\?", r"\1"),
    ],
)
def test_replies_agree_with_what_was_said(context, reply):
    checked = 0
    for example in sample():
        said = example["context"].replace(SEPARATOR, "__")
        if match := re.fullmatch(context, said):
            assert example["reply"] == match.expand(reply), said
            checked += 1
    assert checked


def test_three_turns_decide_the_reply_and_one_does_not():
    assert accuracy(replies(3)) == 1
    assert accuracy(replies(1)) < 0.85


def test_the_context_is_the_last_turns_of_a_dialogue():
    known = {talk[:i] for talk in talks() for i in range(1, len(talk), 2)}
    lengths = Counter()
    for example in generate("train", 500, turns=5):
        turns = tuple(example["context"].split(SEPARATOR))
        lengths[len(turns)] += 1
        assert any(turn[-len(turns) :] == turns for turn in known)
    assert lengths.keys() == {1, 3, 5}


def test_the_corpus_is_rich_and_dialogues_have_two_to_eight_turns():
    assert {len(talk) for talk in talks()} == {2, 4, 6, 8}
    lines = " ".join(line for talk in talks() for line in talk)
    assert len(set(re.findall(r"[a-z]+", lines.lower()))) >= 300
    assert "{" not in lines and "  " not in lines


@cache
def wide(split="train"):
    return generate(split, 5000 if split == "train" else 80, topics="many")


def test_lines_from_outside_the_grammar_get_a_fallback():
    lines = {e["context"].split(SEPARATOR)[-1]: e["reply"] for e in wide()}
    strange = {line: reply for line, reply in lines.items() if reply in FALLBACKS}
    strange = {line: reply for line, reply in strange.items() if line not in AGAIN}
    assert 0.1 < len(strange) / len(lines) < 0.5
    assert set(strange.values()) == set(FALLBACKS)
    assert not strange.keys() & {line for line, _ in MORE_CURIOUS}


def test_many_topics_hold_few_ones_and_more():
    lines = {e["context"].split(SEPARATOR)[-1] for e in wide()}
    assert {line for line, _ in MORE_CURIOUS} <= lines
    assert {"What is my name?", "What time did I say?", "Where am I going?"} <= lines


def test_more_topics_have_one_right_reply_each():
    found = defaultdict(Counter)
    for example in wide():
        found[example["context"]][example["reply"]] += 1
    assert accuracy(found) == 1


def test_of_the_two_tests_one_has_all_the_fallbacks_and_the_other_none():
    assert not {e["reply"] for e in wide("test")} & set(FALLBACKS)
    assert {e["reply"] for e in wide("test_off_topic")} == set(FALLBACKS)
    assert any(e["reply"] in FALLBACKS for e in wide("validation"))
    contexts = [e["context"] for split in WIDE_SPLITS for e in wide(split)]
    assert len(set(contexts)) == len(contexts)
    with pytest.raises(ValueError, match="unknown split 'test_off_topic'"):
        generate("test_off_topic", 5)


def test_nouns_and_made_up_words_of_a_held_out_split_are_not_in_training():
    drawn = {split: OffTopic(Random(split), split) for split in SPLITS}
    train, validation, test = (set(source.nouns) for source in drawn.values())
    assert not train & validation and not train & test and not validation & test
    assert min(map(len, (train, validation, test))) > 20
    made = {s: {d._made_up() for _ in range(200)} for s, d in drawn.items()}
    assert not made["train"] & (made["validation"] | made["test"])


def test_the_questions_of_the_benchmark_are_in_no_training_text():
    contexts = SEPARATOR.join(e["context"] for e in wide()).lower()
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "off_grammar.py"))
    asked = [question.lower() for question in benchmark["QUESTIONS"]]
    assert len(set(asked)) == 40
    assert not [question for question in asked if question in contexts]


def test_unknown_splits_and_impossible_sizes_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="dev.*train, validation, test"):
        generate("dev", 5)
    with pytest.raises(ValueError, match="turns is 0"):
        generate("train", 5, turns=0)
    monkeypatch.setattr("transformer_jax.family.conversation.smalltalk._PATIENCE", 3)
    monkeypatch.setattr(
        "transformer_jax.family.conversation.smalltalk.Talker.dialogue",
        lambda self: FIXED,
    )
    with pytest.raises(ValueError, match="'train' has about 1 replies: 5 were"):
        generate("train", 5)
