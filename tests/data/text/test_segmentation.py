"""Random segmentations: valid, with the right probabilities, in every process."""

import collections
import itertools
import math
import random
import subprocess
import sys

import pytest

from transformer_jax.data.text import learning

TEXTS = [f"O gato número {i} dorme na casa amarela da Maria." for i in range(200)]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request):
    return learning.train(TEXTS, request.param, 420, symbols=["<2pt>"])


@pytest.mark.parametrize(
    "text",
    ["O gato", "", "  two  spaces ", "漢 🎉 gato漢字", "<2pt> O gato<2pt>", "a\tb\n"],
)
def test_every_draw_spells_its_text(trained, text):
    found = {tuple(trained.sample(text, 0.4, seed)) for seed in range(31)}
    assert {trained.decode(ids) for ids in found} == {text}


def test_without_randomness_the_draw_is_the_best_segmentation(trained):
    strength = 0.0 if trained._segmenter.kind == 2 else 200.0
    for text in ["漢 gato", "dorme  na", "<2pt> da Maria", *TEXTS[::17]]:
        assert trained.sample(text, strength, 3) == trained.encode(text)


def test_unigram_segmentations_are_drawn_by_their_probabilities():
    """Compared with an enumeration of all segmentations of a word."""
    model = learning.train(["aab ab abab b aa bab"] * 50, "unigram", 280)
    drawn, word, strength = model._segmenter, "▁abab", 0.7
    scores = {}
    for cuts in itertools.product((False, True), repeat=len(word) - 1):
        pieces, begin = [], 0
        for end in [i + 1 for i, cut in enumerate(cuts) if cut] + [len(word)]:
            pieces.append(word[begin:end])
            begin = end
        if all(p in drawn._scores for p in pieces):
            total = sum(drawn._scores[p] for p in pieces)
            scores[tuple(pieces)] = math.exp(strength * total)
    assert len(scores) > 3
    generator, draws = random.Random(1), 40_000
    counts = collections.Counter(
        tuple(drawn._draw_unigram(word, strength, generator)) for _ in range(draws)
    )
    for pieces, weight in scores.items():
        share = weight / sum(scores.values())
        error = 4 * math.sqrt(share * (1 - share) / draws) + 1e-9
        assert counts[pieces] / draws == pytest.approx(share, abs=error)


def test_bpe_dropout_skips_each_merge_with_its_probability():
    """abcd is made by ab, cd, abcd: all three, or what is left when one is skipped."""
    model = learning.train(["ab cd abcd"] * 40, "bpe", 280)
    drawn, p, draws = model._segmenter, 0.3, 40_000
    whole, merges = drawn._merge("▁abcd", lambda: False)
    assert len(whole) <= 2 and merges >= 3
    generator = random.Random(1)
    counts = collections.Counter(
        tuple(drawn._draw_bpe("▁abcd", p, generator)) for _ in range(draws)
    )
    slow = collections.Counter(
        tuple(drawn._merge("▁abcd", lambda: generator.random() < p)[0])
        for _ in range(draws)
    )
    # The shortcut by the first skipped merge changes no probability.
    assert counts.keys() == slow.keys()
    for pieces, count in slow.items():
        error = 5 * math.sqrt(max(count, 5) * 2)
        assert counts[pieces] == pytest.approx(count, abs=error)
    share = (1 - p) ** merges
    error = 4 * math.sqrt(share * (1 - share) / draws)
    assert counts[tuple(whole)] / draws >= share - error


def test_draws_have_the_lengths_that_sentencepiece_draws(trained):
    total = {"ours": 0, "theirs": 0}
    for seed, text in enumerate(TEXTS[::9] * 60):
        total["ours"] += len(trained.sample(text, 0.2, seed))
        total["theirs"] += len(
            trained._processor.encode(
                text, enable_sampling=True, alpha=0.2, nbest_size=-1
            )
        )
    assert total["ours"] == pytest.approx(total["theirs"], rel=0.02)


@pytest.mark.system
def test_another_process_draws_the_same(trained, tmp_path):
    trained.save(tmp_path / "a.model")
    code = f"""
from pathlib import Path
from transformer_jax.data.text.tokenizer import Tokenizer
model = Tokenizer.load(Path({str(tmp_path / "a.model")!r}))
print([model.sample("O gato dorme na casa", 0.3, seed) for seed in range(7)])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    here = [trained.sample("O gato dorme na casa", 0.3, seed) for seed in range(7)]
    assert done.stdout.strip() == str(here)


def test_without_bytes_unknown_characters_in_a_row_are_one_unknown():
    plain = learning.train(TEXTS, "bpe", 100, byte_fallback=False)
    text = "O 漢字 gato"
    assert plain.sample(text, 0.0, 1) == plain.encode(text)
