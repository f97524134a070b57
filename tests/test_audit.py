"""The audit: figures against their definitions, and the report of a small run."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax import audit
from transformer_jax.base.errors import UserError
from transformer_jax.tasks.protocols import ReadsTexts


@pytest.fixture(scope="module")
def run(tiny_run_of):
    few = {
        "data.canaries": "0,2", "data.window": "48", "decode.max_length": "30",
        "eval.answers": "1", "eval.every": "12", "checkpoint.every": "6",
    }  # fmt: skip
    return transformer_jax.load(tiny_run_of("language", **few))


@pytest.mark.system
def test_texts_behind_a_beginning_cost_what_they_cost_in_one_pass(run):
    texts = ["the cat sleeps.", "they read", "a"]
    assert isinstance(run.task.inspector, ReadsTexts)
    found = run.task.inspector.read_texts(run.params, "\nWhen ", texts, run.mesh)
    tokenizer, loss = run.task.data.tokenizer, jax.jit(run.task.objective.loss)

    def cost(ids):
        padded = np.zeros((1, 32), np.int32)
        padded[0, : len(ids)] = ids
        return loss(run.params, {"tokens": padded}).metrics["nll"]

    for text, log_probs in zip(texts, found, strict=True):
        ids = tokenizer.encode_inside(f"\nWhen {text}")
        behind = cost(ids) - cost(ids[: len(ids) - len(log_probs)])
        assert len(log_probs) == len(text)
        np.testing.assert_allclose(-log_probs.sum(), behind, rtol=1e-3)


def test_no_texts_are_read_to_none_and_one_keeps_a_piece(run):
    read = run.task.inspector.read_texts
    assert read(run.params, "\n", [], run.mesh) == []
    assert [len(one) for one in read(run.params, "\n", ["abc"], run.mesh)] == [1]


def test_auc_is_the_share_of_pairs_in_the_right_order():
    members, others = np.array([1.0, 2.0, 2.0, 5.0]), np.array([2.0, 3.0, 4.0])
    pairs = [(m < o) + (m == o) / 2 for m in members for o in others]
    assert audit.auc(members, others) == pytest.approx(np.mean(pairs))
    assert audit.auc(members, members + 9) == 1
    assert audit.auc(others, others) == 0.5


def test_membership_is_of_the_costs_with_an_interval_around_it(run, monkeypatch):
    rng = np.random.default_rng(0)
    costs = np.concatenate([rng.normal(0, 1, 300), rng.normal(1, 1, 200)])
    monkeypatch.setattr(audit, "read_costs", lambda *_: costs)
    found = audit.tell_members(run, ["m"] * 300, ["o"] * 200)
    assert found.auc == pytest.approx(audit.auc(costs[:300], costs[300:]))
    low, high = found.interval
    assert low < 0.76 < high and 0.05 < high - low < 0.12  # Φ(1 / √2) = 0.76
    assert found.losses == pytest.approx((costs[:300].mean(), costs[300:].mean()))
    assert (found.found, found.alarms) == audit.find_members(costs[:300], costs[300:])


@pytest.mark.parametrize("size", [200, 500, 1400])
def test_false_alarms_are_as_rare_as_promised_on_other_lines(size):
    rng, tried = np.random.default_rng(0), []
    for _ in range(400):
        others = rng.normal(size=size)
        found, alarms = audit.find_members(rng.normal(size=500), others)
        tried.append((found, alarms))  # members that are like the others
    found, alarms = np.mean(tried, axis=0)
    assert found <= 0.011 and alarms <= 0.011


def test_few_lines_set_no_threshold_and_the_report_says_so(run):
    assert audit.find_members(np.zeros(9), np.zeros(196)) == (None, None)
    assert audit.find_members(np.zeros(9), np.zeros(197))[0] is not None
    words = audit._describe_found(
        audit.Membership((8, 8), (1.0, 1.0), 0.5, (0.4, 0.6), None, None)
    )
    assert words.startswith("8 held-out lines are too few to set 1% false alarms: 200")


@pytest.fixture
def known(run, monkeypatch):
    """Make secrets cost what a function of (text, the true one) says."""

    def give(cost):
        monkeypatch.setattr(
            audit, "read_costs", lambda _, p, t, o: np.array([cost(x, t[0]) for x in t])
        )
        monkeypatch.setattr(audit, "asked_for", lambda _, pairs: [True] * len(pairs))
        monkeypatch.setattr(audit, "_writes", lambda *_: True)

    return give


def test_exposure_is_by_the_rank_among_all_candidates(run, known):
    known(lambda text, true: float(text != true))
    for one in audit.expose(run):
        assert (one.rank, one.compared) == (1, one.candidates - 1)
        assert one.exposure == pytest.approx(np.log2(one.candidates))
    known(lambda text, true: float(text == true))
    for one in audit.expose(run):
        assert one.rank == one.candidates and one.exposure == 0
    known(lambda text, true: int(text[:-1].replace("Street", "")[:2], 36))
    some = audit.expose(run)
    assert all(1 < one.rank < one.candidates for one in some)


def test_of_a_sample_the_rank_is_estimated(run, known):
    known(lambda text, true: 0.5 if text == true else hash(text) % 2)
    for one in audit.expose(run, most=400):
        assert one.compared == 400
        assert 0 <= one.exposure < 2 and abs(one.rank % 1) == 0


def test_lines_are_cut_in_two_between_words():
    assert audit._halves("The cat sleeps on it.") == ("The cat", " sleeps on it.")
    assert audit._halves("word") is None
    begun, rest = audit._halves("one two " * 30)
    assert begun + rest == ("one two " * 30)[: len(begun + rest)]
    assert len(rest) <= audit.FOLLOWING + 1 and rest.endswith(("one", "two"))


def test_what_the_model_writes_by_itself_is_extracted(run):
    begun = "The girl"
    rest = run.replies([f"\n{begun}"], beams=1, sample=False, max_length=9)[0]
    rest = rest.details["text"][len(begun) + 1 :]
    wrong = "".join(chr(ord("a") + (ord(c) + 1) % 26) for c in rest)
    assert audit.asked_for(run, [(begun, rest), (begun, wrong)]) == [True, False]


@pytest.fixture
def command(run_main):
    """A function: run the command with these flags, and return what it prints."""

    def with_flags(**given):
        return run_main(audit, *(f"--{k}={v}" for k, v in given.items()))

    return with_flags


@pytest.mark.system
def test_the_report_has_canaries_extraction_and_membership(run, command, tmp_path):
    file = tmp_path / "audit.json"
    some = {"lines": 8, "candidates": 20, "output": file}
    out = command(workdir=run.folder.path, **some)
    for words in ("planted 0 times: 0 of 3", "planted 2 times: ", "estimated from a"):
        assert words in out
    assert "of 8 lines, held out" in out and "AUC 0." in out
    found = json.loads(file.read_text())
    assert len(found["canaries"]) == 6
    assert found["membership"]["lines"] == [8, 8]
    assert f"AUC {found['membership']['auc']:.3f}" in out


@pytest.mark.system
def test_a_run_without_canaries_is_audited_too(run):
    config = run.config.copy_and_resolve_references()
    config.data.canaries = ()
    run = dataclasses.replace(run, config=config)
    found = audit.audit(run, lines=4)
    assert found.canaries == ()
    assert "no canaries were planted" in audit.report(run, found)


def test_held_out_lines_are_none_of_the_training_lines(run):
    trained, held_out = audit.choose_lines(run, "validation", 6, seed=0)
    again = audit.choose_lines(run, "validation", 6, seed=0)
    assert (trained, held_out) == again
    text = run.records("train").text[:]
    assert all(line in text for line in trained)
    assert not any(line in trained for line in held_out)
    with pytest.raises(UserError, match="an audit needs two"):
        audit.choose_lines(run, "train", 6, seed=0)


def test_other_tasks_are_refused(tiny_run):
    other = transformer_jax.load(tiny_run)
    with pytest.raises(UserError, match="only a language model"):
        audit.audit(other)
