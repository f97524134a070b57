"""Canaries: drawn from a seed and planted as often as asked, only in training."""

import collections

import pytest

from transformer_jax import config
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading import canaries
from transformer_jax.data.reading.canaries import Planted, draw, list_candidates
from transformer_jax.data.reading.records import Generated
from transformer_jax.tasks.language import Stream

LINES = Generated(lambda: [{"text": f"line {i}"} for i in range(7)], "seven lines")


def test_each_number_of_times_has_a_canary_of_each_kind():
    drawn = draw((0, 5), seed=3)
    assert [c.times for c in drawn] == [0, 0, 0, 5, 5, 5]
    assert [c.kind for c in drawn[:3]] == ["name", "telephone", "address"]
    assert len({c.prompt for c in drawn}) == 6
    assert drawn == draw((0, 5), seed=3) != draw((0, 5), seed=4)
    assert all(c.secret in list_candidates(c.kind) for c in drawn)


def test_there_are_owners_for_all_allowed_canaries():
    assert len({c.prompt for c in draw((1,) * canaries.MOST, 0)}) == 3 * canaries.MOST


@pytest.mark.parametrize("kind", canaries.PROMPTS)
def test_candidates_are_many_and_differ(kind):
    found = list_candidates(kind)
    assert len(found) == len(set(found)) >= 9000


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_lines_occur_among_the_others_as_often_as_asked(seed):
    drawn = draw((0, 1, 4), seed)
    planted = Planted(LINES, drawn, seed)
    texts = [record["text"] for record in planted]
    assert texts == [planted[i]["text"] for i in range(len(planted))]
    assert [t for t in texts if t.startswith("line")] == [r["text"] for r in LINES]
    counts = collections.Counter(t for t in texts if not t.startswith("line"))
    assert counts == {c.prompt + c.secret: c.times for c in drawn if c.times}
    places = [planted.where(i) for i in range(len(planted))]
    assert len(set(places)) == len(planted) == 7 + 15
    with pytest.raises(IndexError):
        planted[22]


def test_the_fingerprint_depends_on_what_is_planted():
    found = {
        Planted(LINES, draw(times, seed), seed).fingerprint
        for times, seed in (((1,), 0), ((2,), 0), ((1,), 1))
    }
    assert len(found) == 3


def test_only_the_training_text_has_canaries():
    asked = {"data.canaries": "0,3", "data.train_size": "50"}
    source = Stream(config.load("language", asked))
    text = source.read("train").text[:]
    for canary in draw((0, 3), 0):
        assert text.count(canary.prompt + canary.secret + "\n") == canary.times
    plain = Stream(config.load("language", {"data.train_size": "50"}))
    assert source.read("test").fingerprint == plain.read("test").fingerprint
    own = [record["text"] for record in source.lines("train")]
    assert plain.read("train").text[:] == "".join(line + "\n" for line in own)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ("1,-1", "whole numbers from 0"),
        (",".join("1" * 33), "there are names for 32"),
        ("400000", "plants 1,200,000 lines"),
    ],
)
def test_impossible_canaries_are_refused(times, words):
    with pytest.raises(UserError, match=words):
        config.load("language", {"data.canaries": times})
