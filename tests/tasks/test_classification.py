"""Classification and regression: a special token answers for a text."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, sharding
from transformer_jax.base.errors import UserError
from transformer_jax.base.ids import BOS, EOS
from transformer_jax.data.reading.records import Generated
from transformer_jax.data.text.tokenizer import Bytes
from transformer_jax.decoding import DecodeRequest, Options
from transformer_jax.runs import folder as folders
from transformer_jax.tasks import classification
from transformer_jax.tasks.classification import Scale, compose
from transformer_jax.tasks.parts import scoring
from transformer_jax.training import prepare

TEXTS = ["the soup was good .", "the film was never boring .", "the soup was bad ."]


@pytest.fixture(scope="module")
def run(quick_run_of):
    """A run of a few steps for labels, and one for numbers."""
    return {
        kind: transformer_jax.load(
            quick_run_of(f"opinions:{kind}", **{"eval.splits": "test"})
        )
        for kind in ("label", "score")
    }


@pytest.mark.parametrize(
    ("kind", "metrics"), [("label", ["accuracy (%)", "f1 (%)"]), ("score", ["r (%)"])]
)
@pytest.mark.system
def test_seeds_are_compared_in_percent(run, compare_seeds, kind, metrics):
    folder = run[kind].folder
    scores = folder.read_note("scores.json")["test"]
    found = compare_seeds(folder.path)
    assert [*found] == metrics
    for name, mean in found.items():
        assert mean == pytest.approx(100 * scores[name.split()[0]], abs=0.006)


def test_the_answer_is_the_most_likely_label_of_the_training_split(run):
    for reply in run["label"].replies(TEXTS):
        chances = reply.details["chances"]
        assert set(chances) == {"negative", "positive"}
        assert reply.text == max(chances, key=chances.get)
        assert sum(chances.values()) == pytest.approx(1)


def test_a_number_is_in_the_units_of_the_training_split(run):
    inference = run["score"].task.inference
    scale = inference.scale
    assert 0.1 < scale.deviation < 1 and abs(scale.mean) < 0.5
    assert inference.reply(DecodeRequest(), np.array([0.0])).text == f"{scale.mean:.4g}"
    moved = inference.reply(DecodeRequest(), np.array([2.0])).text
    expected = scale.mean + 2 * scale.deviation
    assert float(moved) == pytest.approx(expected, rel=1e-3)
    assert all(np.isfinite(float(text)) for text in run["score"].predict(TEXTS))


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [(100_000.0, 10.0, "100003.75"), (0.0, 3000.0, "1125"), (2.5, 0.01, "2.50375")],
)
def test_a_number_has_the_digits_that_tell_it_from_others(run, mean, deviation, text):
    of, scale = run["score"], Scale((), mean, deviation)
    inference = compose(of.config, of.task.data.tokenizer, scale).inference
    assert inference.reply(DecodeRequest(), np.array([0.375])).text == text


@pytest.mark.parametrize("kind", ["label", "score"])
def test_the_scores_are_in_the_result(run, kind):
    result = run[kind].folder.read("result.json")["scores"]["test"]
    names = {"label": ("accuracy", "f1"), "score": ("r", "rmse")}[kind]
    assert all(np.isfinite(result[name]) for name in names)


def test_a_text_alone_is_answered_as_in_a_batch(run):
    task, mesh = run["label"].task, run["label"].mesh
    items = [task.inference.parse(text * n) for n, text in enumerate(TEXTS, 1)]
    together = dict(task.inference.answers(run["label"].params, items, mesh, Options()))
    for i, item in enumerate(items):
        [(_, alone)] = task.inference.answers(
            run["label"].params, [item], mesh, Options()
        )
        for label, chance in alone.details["chances"].items():
            assert together[i].details["chances"][label] == pytest.approx(
                chance, abs=1e-5
            )


def test_a_text_longer_than_a_learned_table_is_refused_with_both_numbers():
    learned = {"model.positions": "learned", "model.max_positions": "10"}
    loaded = config.load("opinions", {"data.max_length": "8"} | learned)
    task = compose(loaded, Bytes(), Scale(("no", "yes")))
    assert len(task.inference.parse("x" * 8).source) == 10
    with pytest.raises(UserError, match="9 pieces needs 11 .*model.max_positions 10"):
        task.inference.parse("x" * 9)
    params = task.objective.init(jax.random.key(0))  # padded to 12
    [(_, answer)] = task.inference.answers(
        params, [task.inference.parse("x" * 8)], sharding.local_mesh(), Options()
    )
    assert answer.text in ("no", "yes")


def test_only_the_special_token_is_read_and_padding_never(run):
    task = run["label"].task
    params = jax.jit(task.objective.init)(jax.random.key(3))
    outputs = jax.jit(lambda p, t: task.objective.outputs(p, t).logits)
    tokens = jnp.asarray([task.inference.parse(TEXTS[1]).source])
    padded = jnp.pad(tokens, ((0, 0), (0, 5)))
    plain, longer = (outputs(params, t) for t in (tokens, padded))
    np.testing.assert_allclose(plain, longer, atol=1e-5)

    real = outputs(params, padded.at[0, -1].set(7))
    assert np.abs(real - longer).max() > 1e-3  # a token there would be read


def test_the_mean_of_all_tokens_can_be_read_instead_and_still_no_padding(run):
    changed = run["label"].config.copy_and_resolve_references()
    changed.model.pooling, special = "mean", run["label"].task
    mean = compose(changed, special.data.tokenizer, special.data.scale)
    params = jax.jit(mean.objective.init)(jax.random.key(3))
    tokens = jnp.asarray([mean.inference.parse(TEXTS[1]).source])
    padded = jnp.pad(tokens, ((0, 1), (0, 5)))  # the second row is padding alone
    outputs = jax.jit(lambda p, t: mean.objective.outputs(p, t).logits)
    plain, longer = (outputs(params, t) for t in (tokens, padded))
    np.testing.assert_allclose(plain[0], longer[0], atol=1e-5)
    assert np.isfinite(longer).all()

    x, _ = mean.objective.module.apply(
        {"params": params}, tokens, jnp.ones_like(tokens), method="encode"
    )
    head = params["head"]
    expected = x[0].mean(0) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(plain[0], expected, atol=1e-5)
    assert np.abs(expected - (x[0, 0] @ head["kernel"] + head["bias"])).max() > 1e-2


def test_words_are_dropped_in_training_only(run):
    rates = dict.fromkeys(("model.dropout_embedding", "model.dropout_residual"), "0.0")

    def of(rate):
        changed = config.load("opinions", rates | {"model.dropout_words": rate})
        own = run["label"].task.data
        return compose(changed, own.tokenizer, own.scale)

    never, task = of("0.0"), of("0.5")
    params, tokens = (
        task.objective.init(jax.random.key(3)),
        jnp.asarray([task.inference.parse(TEXTS[1]).source]),
    )

    def logits(of, key=None):
        return of.objective.outputs(params, tokens, key).logits

    plain = logits(never, jax.random.key(0))
    np.testing.assert_allclose(logits(task), plain, atol=1e-6)
    dropped = [logits(task, jax.random.key(n)) for n in range(3)]
    assert all(np.abs(other - plain).max() > 1e-3 for other in dropped)


def test_the_loss_sums_squared_errors_or_log_likelihoods(run):
    for kind in ("label", "score"):
        task, params = run[kind].task, run[kind].params
        tokens = np.zeros((3, 8), np.int32)
        tokens[0, :3], tokens[1, :4] = (2, 9, 3), (2, 8, 7, 3)  # the third: no text
        answers = np.array([1.0, 0.0, 0.0], np.float32)
        outputs = np.asarray(task.objective.outputs(params, jnp.asarray(tokens)).logits)
        batch = {"tokens": jnp.asarray(tokens), "answers": jnp.asarray(answers)}
        sums = task.objective.loss(params, batch)
        if kind == "score":
            expected = (outputs[0, 0] - 1) ** 2 + outputs[1, 0] ** 2
        else:
            chances = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
            expected = -np.log(chances[0, 1]) - np.log(chances[1, 0])
        np.testing.assert_allclose(sums.loss, expected, rtol=1e-5)
        assert sums.weight == 2


def test_f1_and_r_by_hand():
    answers, truth = ["a", "a", "b", "b", "b"], ["a", "b", "b", "b", "a"]
    found = scoring.score_labels(answers, truth)
    # a: 1 of 2 found, 1 of 2 right; b: 2 of 3 and 2 of 3.
    assert found == {"accuracy": 0.6, "f1": pytest.approx((1 / 2 + 2 / 3) / 2)}
    # An answer that is never a reference: 3 labels count, c with 0.
    stray = scoring.score_labels(["a", "b", "c"], ["a", "b", "b"])
    assert stray["f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    numbers = scoring.score_numbers([1.0, 2.0, 4.0], [2.0, 2.0, 5.0])
    assert numbers["rmse"] == pytest.approx((2 / 3) ** 0.5)
    assert numbers["r"] == pytest.approx(np.corrcoef([1, 2, 4], [2, 2, 5])[0, 1])
    assert scoring.score_numbers([1.0, 1.0], [1.0, 2.0])["r"] == 0


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        ("labels", ["yes", "yes"], r"labels \['yes'\].*two different"),
        ("labels", ["mood", *"yynn"], r"example 1: the label 'mood' occurs .*header"),
        ("numbers", ["stars", "1"], "is not a number.*if this line is a header"),
        ("labels", ["yes", " "], r"example 2: the label is empty, and each text need"),
        ("numbers", ["1", ""], "example 2: the label is empty"),
        ("numbers", ["1", "many"], "example 2: the label 'many' is not a number"),
        ("numbers", ["1", "nan"], "example 2: the label 'nan' is not a number"),
        ("numbers", ["2", "2.0"], "all 2 training numbers are 2"),
    ],
)
def test_labels_that_teach_nothing_are_refused(kind, labels, message):
    made = [{"text": "x", "label": label} for label in labels]
    with pytest.raises(UserError, match=message):
        classification._measure(kind, Generated(lambda: made, ""))


def test_a_label_that_training_never_saw_is_refused_with_those_it_saw(run):
    task = run["label"].task
    with pytest.raises(UserError, match="'neutral' is not among.*negative, positive"):
        task.data.encode([{"text": "so so", "label": "neutral"}])


def test_the_labels_travel_with_the_run(run):
    written = json.loads(
        (run["label"].folder.tokenizer / "answers.json").read_text(encoding="utf-8")
    )
    assert Scale(tuple(written["labels"])) == run["label"].task.data.scale


def test_unsupported_features_are_refused(run):
    with pytest.raises(UserError, match="no option 'beams'"):
        run["label"].predict(TEXTS, beams=2)
    with pytest.raises(UserError, match="the task 'classification' has no 'align'"):
        run["label"].align(TEXTS, TEXTS)
    weights = run["label"].attention(TEXTS[0])["encoder"]
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)


def test_other_segmentations_keep_the_special_token_and_the_text(tmp_path, tiny):
    changes = {"tokenizer.kind": "bpe", "tokenizer.sampling": "0.4"}
    known = dict(config.items(config.load("opinions")))
    changes = {k: v for k, v in tiny().items() if k in known} | changes
    loaded = config.load("opinions", changes)
    found = prepare.prepare(loaded, folders.Folder(tmp_path), lambda line: None)
    planned = prepare.make_plan(loaded, found.task, found.train)
    batch = planned.plan.batch(0)
    stored = found.train.store.take(batch.real)
    room = planned.plan.room(batch)
    drawn, _ = planned.sampler.resample(stored, batch, 0, room)
    rows = {"drawn": drawn["text"].rows(), "stored": stored["text"].rows()}
    decode = found.task.data.tokenizer.decode
    texts = {name: [decode(row) for row in own] for name, own in rows.items()}
    assert texts["drawn"] == texts["stored"]
    assert any(len(a) > len(b) for a, b in zip(*rows.values(), strict=True))
    assert all(row[0] == BOS and row[-1] == EOS for row in rows["drawn"])
    assert (drawn["answer"] == stored["answer"]).all()


def test_keys_that_it_does_not_read_do_not_exist():
    known = dict(config.items(config.base("classification")))
    assert not {"decode.beams", "model.decoder_layers", "filter.empty"} & set(known)
    with pytest.raises(UserError, match=r"checkpoint.best = 'r' is not a score"):
        config.load("opinions", {"checkpoint.best": "r"})
    assert classification.TASK.metrics == ("accuracy", "f1", "r")


def test_attention_names_the_tokens_with_both_ends(run):
    maps = run["label"].attention(TEXTS[0])
    queries, keys = maps.tokens["encoder"]
    assert queries == keys and (keys[0], keys[-1]) == ("<s>", "</s>")
    assert maps["encoder"].shape[2:] == (len(queries), len(keys))


@pytest.mark.parametrize("positions", ["none", "sinusoid"])
def test_without_positions_a_permutation_has_the_same_logits(positions):
    """For every pooling, the model reads a set between two special tokens."""
    spec = {"model.d_model": "16", "model.d_ff": "24", "model.num_heads": "2"}
    shown = jnp.array([[BOS, 9, 14, 7, 200, EOS], [BOS, 200, 9, 7, 14, EOS]])
    for pooling in ("special", "mean"):
        changed = spec | {"model.pooling": pooling}
        opened = config.load(f"sets:{positions}", changed)
        task = compose(opened, Bytes(), Scale(("a", "b", "c")))
        params = task.objective.init(jax.random.key(0))
        one, other = jax.jit(task.objective.outputs)(params, shown).logits
        same = np.allclose(one, other, atol=1e-5)
        assert same == (positions == "none")


def test_sets_are_read_as_labelled_text():
    data = config.load("sets", {"data.train_size": "5"})
    record = classification.source(data).read("train")[0]
    assert record["label"] == max(record["text"].split(), key=int)
    assert "test_permuted" in classification.source(data).splits
