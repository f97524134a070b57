"""Masked language modelling: which words are hidden, and how they are restored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config
from transformer_jax.base.errors import UserError
from transformer_jax.data.reading.records import Generated
from transformer_jax.data.reading.windows import Windows
from transformer_jax.data.text import learning, tokenizer
from transformer_jax.decoding import Reply
from transformer_jax.tasks import masked
from transformer_jax.tasks.masked import MASK

SMALL = {"data.window": "37", "data.train_size": "211"}
VOCAB, HIDDEN = 101, 4  # pieces, and the id of the mask
hide = jax.jit(masked.hide, static_argnums=(2, 3))


@pytest.fixture(scope="module")
def run(quick_run_of):
    return transformer_jax.load(
        quick_run_of("masked", **SMALL, **{"eval.splits": "test"})
    )


def random_tokens(rows=5, length=43):
    tokens = np.random.default_rng(0).integers(5, VOCAB, (rows, length))
    tokens[:, 0], tokens[:, -1] = 2, 3
    return jnp.asarray(tokens, jnp.int32)


def seeds_of(tokens, seed=0):
    return jax.random.bits(jax.random.key(seed), (len(tokens), 1), jnp.uint32)


def test_15_percent_of_a_large_text_are_predicted_and_80_percent_of_them_masked():
    tokens = random_tokens(31, 1000)
    shown, places, weights = hide(tokens, seeds_of(tokens), HIDDEN, VOCAB)
    assert weights.sum() == 31 * 150  # of 998 that are not ends, rounded up
    truth = jnp.take_along_axis(tokens, places, 1)
    seen = jnp.take_along_axis(shown, places, 1)
    asked = weights > 0
    assert float((seen == HIDDEN)[asked].mean()) == pytest.approx(0.8, abs=0.02)
    kept = 0.1 + 0.1 / (VOCAB - 4)  # a random token may be the same
    assert float((seen == truth)[asked].mean()) == pytest.approx(kept, abs=0.02)
    others = np.asarray(seen[asked & (seen != HIDDEN) & (seen != truth)])
    assert others.min() >= 4 and others.max() < VOCAB and len(set(others)) > 80
    assert set(np.asarray(truth[asked])) <= set(range(5, VOCAB))
    elsewhere = np.ones(tokens.shape, bool)
    elsewhere[np.nonzero(asked)[0], np.asarray(places)[np.asarray(asked)]] = False
    np.testing.assert_array_equal(shown[elsewhere], tokens[elsewhere])
    assert all(len(set(row)) == len(row) for row in np.asarray(places))


def test_masking_depends_on_the_seed_but_not_on_other_rows_or_padding():
    tokens = random_tokens()
    seeds = seeds_of(tokens)
    shown, _, weights = hide(tokens, seeds, HIDDEN, VOCAB)
    padded = jnp.pad(tokens, ((0, 0), (0, 61)))
    longer, _, more = hide(padded, seeds, HIDDEN, VOCAB)
    np.testing.assert_array_equal(longer, jnp.pad(shown, ((0, 0), (0, 61))))
    assert weights.sum() == more.sum() == 5 * 7
    alone, *_ = hide(tokens[2:3], seeds[2:3], HIDDEN, VOCAB)
    np.testing.assert_array_equal(alone[0], shown[2])
    other, *_ = hide(tokens, seeds_of(tokens, 1), HIDDEN, VOCAB)
    assert (other != shown).any(axis=1).all()


def test_without_a_key_masking_depends_only_on_the_text():
    tokens = random_tokens()
    numbers = masked.of_content(tokens)
    assert len(set(np.asarray(numbers[:, 0]))) == 5
    padded = masked.of_content(jnp.pad(tokens, ((0, 0), (0, 3))))
    np.testing.assert_array_equal(numbers, padded)
    swapped = masked.of_content(tokens.at[0, 5:7].set(tokens[0, 6:4:-1]))
    assert swapped[0] != numbers[0] and swapped[1] == numbers[1]


def test_a_validation_loss_is_repeatable_and_the_sum_of_its_rows(run):
    task, params = run.task, run.params
    records = run.records("validation")
    rows = [row["text"] for row in task.data.encode([records[i] for i in range(7)])]
    tokens = np.zeros((7, max(map(len, rows))), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    loss = jax.jit(task.objective.loss)
    whole = loss(params, {"tokens": tokens})
    padded = np.pad(tokens, ((0, 0), (0, 3)))
    parts = [loss(params, {"tokens": padded[i : i + 1]}) for i in range(7)]
    assert float(whole.weight) == sum(float(p.weight) for p in parts) > 7
    total = sum(float(p.loss) for p in parts)
    assert float(whole.loss) == pytest.approx(total, rel=1e-5)
    keys = map(jax.random.key, (1, 1, 2))
    drawn = [
        float(loss(params, {"tokens": tokens}, key).metrics["nll"]) for key in keys
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_token_is_guessed_from_both_sides_and_not_from_padding(run):
    module, params = (
        run.task.objective.module,
        jax.jit(run.task.objective.init)(jax.random.key(3)),
    )
    tokens = random_tokens(2, 13)

    @jax.jit
    def guess(tokens):
        segments = (tokens != 0).astype(jnp.int32)
        places = jnp.asarray([[6], [6]])
        return module.apply({"params": params}, tokens, segments, places).logits

    plain = guess(tokens)
    assert plain.shape[:2] == (2, 1)
    for place in (1, 12):
        assert np.abs(guess(tokens.at[:, place].set(9)) - plain).max() > 1e-3
    longer = guess(jnp.pad(tokens, ((0, 0), (0, 5))))
    np.testing.assert_allclose(longer, plain, atol=1e-5)
    apply = jax.jit(module.apply)
    everywhere = apply({"params": params}, tokens, jnp.ones_like(tokens)).logits
    np.testing.assert_allclose(everywhere[:, 6:7], plain, atol=1e-5)


def test_a_mask_replaces_its_word(run):
    task = run.task
    text = "The cat sleeps."
    for word in text[:-1].split():
        ids = task.data.tokenizer.encode(word)
        line = text.replace(word, MASK * len(ids), 1)
        hidden = task.inference.parse(line).source
        plain = [2, *task.data.tokenizer.encode(text), 3]
        assert len(hidden) == len(plain)
        kept = [(a, b) for a, b in zip(hidden, plain, strict=True) if a != b]
        assert kept == [(task.inference.masks.id, token) for token in ids]


def test_a_vocabulary_of_words_sees_masks_wherever_they_are(run):
    words = learning.train(["the cat sleeps ."] * 9, "word", 99, symbols=[MASK])
    task = masked.compose(run.config, words)
    the, cat, end = (words.encode(word)[0] for word in ("the", "cat", "."))
    hidden = task.inference.masks.id
    for line, ids in (
        (f"the {MASK} .", [the, hidden, end]),
        (f"{MASK} cat{MASK}.", [hidden, cat, hidden, end]),
        (f"{MASK} {MASK} cat", [hidden, hidden, cat]),
    ):
        assert task.inference.parse(line).source == [2, *ids, 3]


def test_masks_are_filled_and_all_else_is_kept(run):
    lines = [f"The {MASK} sleeps.", f"{MASK}{MASK} é ☃ {MASK}", MASK]
    for line, reply in zip(lines, run.replies(lines), strict=True):
        assert not reply.error and MASK not in reply.text
        details = reply.details["masks"]
        assert len(details) == line.count(MASK)
        for guesses in details:
            chances = [g["chance"] for g in guesses]
            assert len(guesses) == 5 and chances == sorted(chances, reverse=True)
            assert 0 < sum(chances) <= 1 + 1e-6
            assert all(g["text"] and "<" not in g["text"] for g in guesses)
    [reply] = run.replies(lines[:1])
    assert reply.text.startswith("The") and reply.text.endswith(" sleeps.")
    best = reply.details["masks"][0][0]["text"]
    assert reply.text == f"The{best} sleeps."


def test_a_text_alone_is_filled_as_in_a_batch(run):
    lines = [f"The {MASK} sleeps.", f"{MASK} girl {MASK} it", f"a {MASK} a b c d e f"]
    together = run.replies(lines)
    for line, reply in zip(lines, together, strict=True):
        [alone] = run.replies([line])
        assert alone.text == reply.text
        assert alone.details["masks"][0][0]["chance"] == pytest.approx(
            reply.details["masks"][0][0]["chance"], rel=1e-4
        )


def test_a_text_without_masks_or_too_long_is_refused(run):
    replies = run.replies(["The cat sleeps.", f"{'x' * 50} {MASK}"])
    assert f"there is no {MASK} in the line" in replies[0].error
    assert "51 characters are more than the 37 of a window" in replies[1].error


def test_a_text_of_more_pieces_than_a_learned_table_has_is_refused(run):
    learned = {"model.positions": "learned", "model.max_positions": "39"}
    task = masked.compose(
        config.load("masked", SMALL | learned), run.task.data.tokenizer
    )
    with pytest.raises(UserError, match="model.max_positions 39"):
        task.inference.parse(f"{'日' * 30} {MASK}")  # three bytes each


def test_a_question_always_hides_the_same_words_of_a_text(run):
    task = run.task
    record = {"text": "The old man reads the red book of it"}
    question = task.inference.question(record)
    assert task.inference.question(dict(record)) == question
    words, shown = record["text"].split(), question.split()
    hidden = [(w, s) for w, s in zip(words, shown, strict=True) if w != s]
    assert len(hidden) == 2  # 15 % of 9, rounded up
    for word, masks in hidden:
        assert masks == MASK * len(task.data.tokenizer.encode(word))
    assert len(task.inference.parse(question).source) == len(
        task.data.encode([record])[0]["text"]
    )
    assert MASK in task.inference.question({"text": "☃"})  # there is no other word


def test_filled_is_the_share_of_hidden_words_that_are_restored(run):
    line = f"{MASK} {MASK}{MASK} sleeps {MASK}"
    guesses = [" The", " ca", "t", " well"]
    masks = [[{"text": text, "chance": 0.5}] for text in guesses]
    reply = Reply(line, details={"masks": masks})
    found = run.task.scoring.score([reply], ["The cat sleeps badly"])
    assert found["filled"] == pytest.approx(100 * 2 / 3)
    result = run.folder.read("result.json")["scores"]["test"]
    assert 0 <= result["filled"] <= 100 and 0 <= result["accuracy"] <= 1
    assert result["summary"].startswith("hidden words filled in right")


def test_a_lower_case_tokenizer_makes_capitals_irrelevant(run):
    texts = ["The cat sleeps ."] * 9
    lowered = learning.train(texts, "word", 99, symbols=[MASK], lowercase=True)
    task = masked.compose(run.config, lowered)
    masks = [[{"text": " the", "chance": 0.5}]]
    reply = Reply(f"{MASK} cat", details={"masks": masks})
    assert task.scoring.score([reply], ["The cat"]) == {"filled": 100}


def test_flat_windows_are_words_with_single_spaces():
    lines = ["To  be,\tor not", "", " to be:", "that is the question."]
    source = Generated(lambda: [{"text": line} for line in lines], "four lines")
    flat, plain = Windows(source, 17, flat=True), Windows(source, 17)
    found = [record["text"] for record in flat]
    assert " ".join(found) == "To be, or not to be: that is the question."
    assert max(map(len, found)) <= 17
    assert flat.fingerprint != plain.fingerprint


def test_a_vocabulary_without_the_mask_is_refused(run):
    with pytest.raises(UserError, match="<mask> must be among them"):
        config.load("masked", {"tokenizer.user_symbols": "<sep>"})
    with pytest.raises(UserError, match="has no piece <mask>"):
        masked.compose(run.config, tokenizer.Bytes())


def test_attention_names_the_mask_among_its_tokens(run):
    maps = run.attention("The <mask> sleeps.", "")
    queries, keys = maps.tokens["encoder"]
    assert queries == keys and "<mask>" in keys
    assert maps["encoder"].shape[2:] == (len(queries), len(keys))
