"""Sets of numbers: the largest is the label, in any order."""

from functools import cache

import pytest

from transformer_jax.corpora.sets import LARGEST, SPLITS, generate


@cache
def sample(split):
    return generate(split, 300)


def numbers(record):
    return [int(word) for word in record["text"].split()]


@pytest.mark.parametrize("split", SPLITS)
def test_a_label_is_the_largest_of_distinct_numbers(split):
    found = sample(split)
    assert found[:9] == generate(split, 9)
    for record in found:
        shown = numbers(record)
        assert int(record["label"]) == max(shown)
        assert len(shown) == len(set(shown)) in range(3, 13)
        assert (shown == sorted(shown)) or split == "test_permuted"
    if split == "train":
        assert {record["label"] for record in found} == set(map(str, LARGEST))


def test_the_permuted_sets_are_those_of_the_test():
    pairs = [*zip(sample("test"), sample("test_permuted"), strict=True)]
    assert all(set(numbers(a)) == set(numbers(b)) for a, b in pairs)
    last = sum(numbers(b)[-1] == max(numbers(b)) for _, b in pairs)
    assert 0 < last < 100  # of 300: one in six, on average


def test_no_set_of_training_is_held_out():
    sets = {split: {r["text"] for r in sample(split)} for split in SPLITS[:3]}
    assert not sets["train"] & (sets["test"] | sets["validation"])
    with pytest.raises(ValueError, match="unknown split"):
        generate("dev", 1)
