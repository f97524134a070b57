"""MBR: chrF as sacreBLEU's, the candidate of highest mean, from samples and beams."""

import itertools

import numpy as np
import pytest
from sacrebleu import CHRF

from transformer_jax.base.errors import UserError
from transformer_jax.decoding import Options, consensus

TEXTS = [
    "Der Hund läuft über die Wiese.", "Ein Hund läuft über eine Wiese.",
    "Der Hund rennt.", "aaaaaaaa aaaa", "a", "", "Die Katze schläft",
]  # fmt: skip


def test_every_pair_has_the_chrf_of_sacrebleu():
    ours = consensus.compare_all(TEXTS)
    for i, j in itertools.product(range(len(TEXTS)), repeat=2):
        theirs = CHRF().sentence_score(TEXTS[i], [TEXTS[j]]).score
        assert ours[i, j] == pytest.approx(theirs, abs=1e-4), (TEXTS[i], TEXTS[j])


def test_ranks_by_the_mean_to_all_other_candidates():
    texts = [TEXTS[3], *TEXTS[:3], TEXTS[1]]
    (best, score), *others = consensus.rank(texts)
    score_of = {
        i: np.mean(
            [
                CHRF().sentence_score(texts[i], [texts[j]]).score
                for j in range(5)
                if j != i
            ]
        )
        for i in range(4)  # the fifth equals the third
    }
    assert best == max(score_of, key=score_of.__getitem__) == 2
    assert score == pytest.approx(score_of[2], abs=1e-4)
    expected = sorted(score_of, key=score_of.__getitem__, reverse=True)
    assert [best, *(i for i, _ in others)] == expected
    assert consensus.rank(["one"]) == [(0, 0.0)]


@pytest.mark.parametrize(
    "how", [{"sample": True, "mbr": 5}, {"beams": 4, "mbr": 4}], ids=["sample", "beam"]
)
def test_a_run_answers_by_the_candidate_most_like_the_others(run, how):
    line, further = "o gato dorme.", {"max_length": 9, "alpha": 0.0}
    chosen = run.replies(line, **how, **further, n_best=2)
    search = {k: v for k, v in how.items() if k != "mbr"}
    found = run.replies(line, **search, **further, n_best=how["mbr"])
    texts = [one.text for one in (found, *found.others)]
    assert len(set(texts)) > 1
    best = consensus.rank(texts)[:2]
    assert [one.text for one in (chosen, *chosen.others)] == [texts[i] for i, _ in best]
    scores = [one.score for one in (chosen, *chosen.others)]
    assert scores == pytest.approx([score for _, score in best])


def test_too_few_candidates_are_refused(run):
    with pytest.raises(UserError, match="decode.mbr 1 must be at least 2"):
        run.predict("a", mbr=1)
    with pytest.raises(UserError, match="decode.mbr 3 must be at least 4"):
        run.predict("a", mbr=3, n_best=4, sample=True)
    with pytest.raises(UserError, match="more than decode.beams 2: raise decode.beams"):
        run.predict("a", mbr=3, beams=2)
    assert Options(mbr=4).find_problems() == []
