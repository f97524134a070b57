"""What process 0 decides holds for all (a fake channel carries it)."""

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from transformer_jax import hosts
from transformer_jax.base.errors import UserError
from transformer_jax.hosts import agreement


@pytest.fixture
def in_process(monkeypatch):
    """A function: calls `act` as process 0 and then as process 1 of two."""

    def both(act):
        sent = []
        monkeypatch.setattr(jax, "process_count", lambda: 2)

        def send(value):
            sent.append(np.asarray(value))
            return sent[-1]

        def receive(value):
            assert np.shape(value) == sent[0].shape
            return sent.pop(0)

        found = []
        for index, channel in enumerate([send, receive]):
            monkeypatch.setattr(jax, "process_index", lambda index=index: index)
            monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", channel)
            found.append(act(index))
        assert not sent
        return found

    return both


@pytest.mark.parametrize("answer", [True, None, [[30, 0], [20, 1]], {"größe": 1.5}, ""])
def test_all_processes_have_the_answer_of_the_first(in_process, answer):
    given = [answer, "what another disk shows"]
    assert in_process(lambda i: hosts.broadcast_from_first(given[i])) == [answer] * 2


def test_one_process_alone_keeps_its_answer():
    kept = object()
    assert hosts.broadcast_from_first(kept) is kept
    assert hosts.decide_in_first(lambda: kept) is kept
    assert hosts.gather("a") == ["a"]


def test_only_the_first_decides(in_process):
    asked = []
    decide = lambda i: lambda: asked.append(i) or i  # noqa: E731
    assert in_process(lambda i: hosts.decide_in_first(decide(i))) == [0, 0]
    assert asked == [0]


def test_a_mistake_that_the_first_finds_is_everyones(in_process):
    def refuse():
        raise UserError("the config differs", "a second line")

    def act(_):
        with pytest.raises(UserError) as caught:
            hosts.decide_in_first(refuse)
        return caught.value.problems

    assert in_process(act) == [("the config differs", "a second line")] * 2


def test_processes_that_were_started_differently_are_refused(monkeypatch):
    settings = [
        {"optim.constant": 1.0, "eval.splits": ("test",), "jax": "0.12"},
        {"optim.constant": 2.0, "eval.splits": ("test",), "jax": "0.12"},
        {"optim.constant": 1.0, "eval.splits": ("test",), "jax": "0.10", "x": None},
    ]
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(
        agreement, "gather", lambda own: [agreement.json.dumps(s) for s in settings]
    )
    with pytest.raises(UserError) as caught:
        hosts.refuse_differences(settings[0], "process {}".format)
    assert caught.value.problems == (
        "process 1 was started with optim.constant = 2.0, but process 0 with 1.0: "
        "start all processes with the same command and code",
        "process 2 was started with jax = '0.10', but process 0 with '0.12': start all "
        "processes with the same command and code",
        "process 2 was started with x = None, but process 0 with 'nothing': start all "
        "processes with the same command and code",
    )
    settings[1:] = settings[:1] * 2
    hosts.refuse_differences(settings[0], "process {}".format)
