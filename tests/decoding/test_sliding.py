"""Texts longer than a model reads at once: written in turns, from their last tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from transformer_jax import config, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import EOS
from transformer_jax.data.text.tokenizer import Bytes
from transformer_jax.decoding import sliding
from transformer_jax.decoding.answering import answer_lines
from transformer_jax.decoding.engine import Engine
from transformer_jax.decoding.requests import DecodeRequest
from transformer_jax.tasks.language import Options, compose

WINDOW = 16
LONG = Options(beams=1, sample=False, max_length=29, min_length=29)


class Run:
    """A model of bytes with rotary positions and fresh, large parameters."""

    def __init__(self):
        sizes = {"d_model": 16, "d_ff": 16, "num_heads": 2, "decoder_layers": 1}
        small = {f"model.{name}": str(size) for name, size in sizes.items()}
        small |= {"data.window": str(WINDOW), "decode.max_length": "12"}
        small |= {"tokenizer.kind": "byte", "model.positions": "rotary"}
        small |= {"model.tie": "none"}
        self.task = compose(config.load("language", small), Bytes())
        drawn = self.task.objective.init(jax.random.key(7))
        self.params = jax.tree.map(lambda a: 3 * a, drawn)
        self.mesh = sharding.local_mesh()

    def replies(self, lines, **options):
        options = Options(beams=1, **options)
        inference = self.task.inference
        return [*answer_lines(inference, self.params, self.mesh, lines, options)]


@pytest.fixture(scope="module")
def run():
    return Run()


def forward(run):
    """Return a function: the logits after tokens, by a full forward pass."""
    module, params = run.task.objective.module, {"params": run.params}
    apply = jax.jit(lambda tokens: module.apply(params, tokens).logits)

    def after(tokens):
        row = (
            jnp.zeros((1, WINDOW + 1), int)
            .at[0, : len(tokens) + 1]
            .set(jnp.array([2, *tokens]))
        )
        return apply(row)[0, len(tokens)]

    return after


@pytest.mark.parametrize("given", ["", "The cat", "The old cat sleeps on the bed"])
def test_greedy_text_is_what_a_forward_pass_over_its_last_tokens_says(run, given):
    [answer] = run.replies([given], sample=False, max_length=29, min_length=29)
    encode, logits = run.task.data.tokenizer.encode_inside, forward(run)
    text, turn = list(encode(given)), WINDOW // 4
    for step in range(28):  # the last is the end, which is forced
        begin = max(len(text) - step % turn - (WINDOW - turn), 0)
        scores = logits(text[begin:]).at[jnp.array([0, 2, EOS])].set(-jnp.inf)
        text.append(int(jnp.argmax(scores)))
    assert answer.details["text"] == run.task.data.tokenizer.decode(text)


def test_the_score_is_the_probability_of_what_was_written(run):
    [[number, [found]]] = sliding.search(
        run.task.inference.writer.engine(run.mesh),
        run.params,
        [DecodeRequest((), tuple(run.task.data.tokenizer.encode_inside("The")))],
        LONG,
        WINDOW,
    )
    logits, total, turn = forward(run), 0.0, WINDOW // 4
    text = list(run.task.data.tokenizer.encode_inside("The"))
    for step, token in enumerate(found.tokens):
        begin = max(len(text) - step % turn - (WINDOW - turn), 0)
        scores = logits(text[begin:]).at[jnp.array([0, 2])].set(-jnp.inf)
        total += float(jax.nn.log_softmax(scores)[token])
        text.append(token)
    assert number == 0 and len(found.tokens) == 29
    assert found.log_prob == pytest.approx(total, abs=1e-3)


def test_long_and_short_texts_are_drawn_as_if_alone(run):
    lines = ["The cat", "The", "A girl has seen the old house"]
    options = {"sample": True, "max_length": 40, "min_length": 33, "temperature": 3.0}
    together = [answer.text for answer in run.replies(lines, **options)]
    for number, line in enumerate(lines):
        alone = run.replies(["", "", ""][:number] + [line], **options)[-1]
        assert alone.text == together[number]
        assert alone.text.startswith(line) and len(alone.details["text"]) > WINDOW


def test_several_drawn_texts_go_on_from_themselves(run):
    options = {"sample": True, "max_length": 30, "min_length": 30, "temperature": 3.0}
    [answer] = run.replies(["The"], n_best=3, **options)
    texts = [answer.text, *(other.text for other in answer.others)]
    assert len(set(texts)) == 3
    scores = [answer.score, *(other.score for other in answer.others)]
    assert scores == sorted(scores, reverse=True)


def test_a_text_that_ends_early_is_not_gone_on_with(run):
    class Stops(Engine):
        def __init__(self):
            pass

        def search(self, params, requests, options):
            assert not requests or options.max_length == WINDOW // 4
            for i, request in enumerate(requests):
                asked.append(request)
                last = EOS if len(asked) == 2 else 7
                yield i, [sliding.Hypothesis((5, 6, 7, last), -1.0, -1.0)]

    asked = []
    [(_, [found])] = sliding.search(
        Stops(), run.params, [DecodeRequest((), (9,) * 20)], LONG, WINDOW
    )
    assert found.tokens == (5, 6, 7, 7, 5, 6, 7, EOS) and found.log_prob == -2
    assert [len(request.prefix) for request in asked] == [12, 12]
    assert asked[1].prefix[-4:] == (5, 6, 7, 7)
    assert asked[0].seed != asked[1].seed  # another turn draws otherwise


def test_positions_that_are_no_distances_need_a_window_that_is_asked_for():
    small = {"data.window": "32", "decode.max_length": "20", "tokenizer.kind": "byte"}

    def task(**changes):
        return compose(config.load("language", small | changes), Bytes())

    long = dataclasses.replace(LONG, max_length=300)
    for kind in ("rotary", "relative", "alibi", "none"):
        assert task(**{"model.positions": kind}).inference.parse("a", options=long)
    for kind in ("sinusoid", "learned"):
        inference = task(**{"model.positions": kind}).inference
        with pytest.raises(UserError, match="more than the 32 .*--window=32"):
            inference.parse("a", options=long)
        assert inference.parse("a", options=dataclasses.replace(long, window=24))
    with pytest.raises(UserError, match="a beam cannot go beyond.*--beams=1"):
        task(**{"model.positions": "rotary"}).inference.parse(
            "a", options=dataclasses.replace(long, beams=4)
        )
    learned = {"model.positions": "learned", "model.max_positions": "32"}
    with pytest.raises(UserError, match="a window of 40 pieces needs 40 positions"):
        task(**learned).inference.parse(
            "a", options=dataclasses.replace(long, window=40)
        )


def test_a_config_may_ask_for_texts_longer_than_the_window():
    asked = {"data.window": "32", "decode.max_length": "90"}
    with pytest.raises(UserError, match=r"1 to 24 pieces.*decode\.window"):
        config.load("language", asked)
    assert config.load("language", asked | {"decode.window": "32"})
    assert config.load("language", asked | {"model.positions": "rotary"})
