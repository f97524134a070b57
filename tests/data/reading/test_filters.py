"""Filters: each drops the pairs that it names, and none when it is off."""

import pytest

from transformer_jax import config
from transformer_jax.data.reading import filters


def reason(source, target, sizes=(3, 3), **keys):
    settings = config.base().filter
    with settings.unlocked():
        settings.update(empty=False, **keys) if "empty" not in keys else (
            settings.update(**keys)
        )
    columns = {"source": [0] * sizes[0], "target": [0] * sizes[1]}
    record = {"source": source, "target": target}
    return filters.make(settings, max_length=11)(record, columns)


@pytest.mark.parametrize(
    ("keys", "pair", "sizes", "why"),
    [
        ({"empty": True}, ("um", " \t"), (3, 3), "with an empty side"),
        ({"max_ratio": 3.0}, ("um", "one"), (8, 3), "beyond filter.max_ratio 3"),
        ({"identical": True}, ("um ", "um"), (3, 3), "whose target is its source"),
        ({"source_script": "latin"}, ("Дом a", "x"), (3, 3), "source is not in latin"),
        ({"target_script": "han"}, ("x", "ein 家"), (3, 3), "target is not in han"),
    ],
)
def test_each_filter_names_its_reason_and_is_silent_when_off(keys, pair, sizes, why):
    assert why in reason(*pair, sizes, **keys)
    assert reason(*pair, sizes) is None


@pytest.mark.parametrize(
    ("keys", "pair", "sizes"),
    [
        ({"max_ratio": 3.0}, ("um", "one"), (7, 3)),  # 6 pieces against 2
        ({"identical": True}, ("um", "one"), (3, 3)),
        ({"source_script": "Latin"}, ("Дом house 12", "x"), (3, 3)),  # mostly latin
        ({"source_script": "latin"}, ("12 + 34 !", "x"), (3, 3)),  # no letters at all
        ({"target_script": "han"}, ("x", "家、犬。"), (3, 3)),
        ({"target_script": "han"}, ("x", "これはペンです。"), (3, 3)),
        ({"target_script": "Katakana"}, ("x", "東京のコーヒー"), (3, 3)),
    ],
)
def test_pairs_within_bounds_are_kept(keys, pair, sizes):
    assert reason(*pair, sizes, **keys) is None


def test_the_longer_side_is_measured_in_pieces_without_its_end():
    assert reason("um", "one", (12, 3)) is None
    assert reason("um", "one", (3, 13)) == "longer than data.max_length 11 pieces"


def test_only_a_repeated_pair_is_a_duplicate():
    settings = config.base().filter
    with settings.unlocked():
        settings.duplicates = True
    columns = {"source": [0], "target": [0]}
    why_not = filters.make(settings, 11)
    pairs = [("a", "bc"), ("ab", "c"), ("a", "bd"), ("a", "bc")]
    found = [why_not({"source": s, "target": t}, columns) for s, t in pairs]
    assert found == [None, None, None, "that repeat an earlier pair"]
    fresh = filters.make(settings, 11)
    assert fresh({"source": "a", "target": "bc"}, columns) is None


def test_a_pair_that_is_nearly_an_earlier_one_is_left_out():
    settings = config.base().filter
    with settings.unlocked():
        settings.near_duplicates = 0.8
    why_not = filters.make(settings, 11)
    long = "Der alte Mann liest jeden Morgen die Zeitung im Park"
    pairs = [
        (long, "The old man reads the paper"),
        (f"{long}!", "the old man reads the paper."),
        ("Die junge Frau schreibt einen Brief", "The young woman writes a letter"),
        ("The old man reads the paper", long),
    ]
    columns = {"source": [0], "target": [0]}
    found = [why_not({"source": s, "target": t}, columns) for s, t in pairs]
    assert found == [None, "that nearly repeat an earlier pair", None, None]


def test_a_pair_that_is_left_out_for_another_reason_still_counts_as_an_earlier_one():
    settings = config.base().filter
    with settings.unlocked():
        settings.update(duplicates=True, near_duplicates=0.8)
    why_not = filters.make(settings, 11)
    columns = {"source": [0], "target": [0]}
    pair = {"source": "Ein Satz wie jeder andere", "target": "A sentence like others"}
    twin = {**pair, "target": "A sentence like others!"}
    reasons = [why_not(r, columns) for r in (pair, twin, twin)]
    nearly, exactly = (
        "that nearly repeat an earlier pair",
        "that repeat an earlier pair",
    )
    assert reasons == [None, nearly, exactly]
