"""What every comparison of two systems by a task's own metrics must tell."""

import random

from transformer_jax import scores


def some_wrong(truth, share, wrong, seed):
    """Replace a share of right answers by a wrong one."""
    draw = random.Random(seed)
    return [wrong if draw.random() < share else right for right in truth]


def check(scoring, truth, wrong, metrics):
    """Check that a better system is told, and that a like and an equal one are not."""
    bad = some_wrong(truth, 0.5, wrong, 1)
    good, like = (some_wrong(truth, 0.1, wrong, seed) for seed in (2, 3))
    found = scoring.compare(scoring, {"bad": bad, "good": good}, truth)
    assert {one.metric for one in found} == metrics
    for one in found:
        assert one.p < 0.05 and one.score > one.baseline_score
        assert one.baseline_interval > 0 and "good is better" in scores.verdict(one)
    for one in scoring.compare(scoring, {"good": good, "like": like}, truth):
        assert one.p > 0.05
    for one in scoring.compare(scoring, {"good": good, "same": [*good]}, truth):
        assert one.p == 1.0
