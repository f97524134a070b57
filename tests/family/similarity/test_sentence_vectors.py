"""Similarity: pairs teach right from wrong, vectors are found, splits are searched."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, inspect_data, losses, predict, sharding
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.base.ids import BOS, EOS
from transformer_jax.data.batches import Batch, Shape
from transformer_jax.data.store import Ragged
from transformer_jax.data.text import retrieval
from transformer_jax.family.similarity import task as similarity
from transformer_jax.runs import run as runs
from transformer_jax.tasks.protocols import AttentionMaps

LINES = ["The girl bought a car.", "A dog sleeps.", "extraordinarily ☃ unlikely"]


@pytest.fixture(scope="module")
def run(tiny_run_of):
    few = {
        "train.steps": "40", "optim.constant": "0.01", "eval.every": "40",
        "checkpoint.every": "10", "eval.splits": "test", "eval.answers": "9",
    }  # fmt: skip
    return transformer_jax.load(tiny_run_of("similarity", **few))


def batch_of(run, numbers=(0, 1, 2, 3, 4)):
    """Arrays of these records, with an empty row for each -1."""
    records = run.records("validation")
    rows = run.task.data.encode([records[i] for i in numbers if i >= 0])
    lengths = tuple(max(len(row[side]) for row in rows) + 1 for side in rows[0])
    columns = {
        side: Ragged(np.concatenate([r[side] for r in rows]), sizes)
        for side in rows[0]
        for sizes in [np.array([len(r[side]) for r in rows])]
    }
    places = np.array(numbers)
    places[places >= 0] = np.arange(len(rows))
    batch = Batch(Shape(len(numbers), lengths), places[:, None])
    return run.task.data.collate(columns, batch)


def test_the_loss_is_the_cross_entropy_of_both_directions():
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(5, 3)).astype(np.float32) for _ in range(2))
    others = ~jnp.eye(5, dtype=bool)
    found = losses.contrastive(*map(jnp.asarray, (a, b)), 0.5, others, jnp.ones(5))
    logits = a @ b.T / 0.5
    wanted = 0.0
    for scores in (logits, logits.T):
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        wanted -= np.log(np.diag(shares)).sum() / 2
    assert float(found.loss) == pytest.approx(wanted, rel=1e-5)
    assert (
        float(found.metrics["accuracy"])
        == (logits.argmax(axis=1) == np.arange(5)).sum()
    )
    assert float(found.weight) == 5


@pytest.mark.system
def test_a_row_without_a_pair_is_neither_right_nor_wrong(run):
    loss = jax.jit(run.task.objective.loss)
    whole = loss(run.params, batch_of(run))
    padded = loss(run.params, batch_of(run, (0, -1, 1, 2, -1, 3, 4, -1)))
    assert float(whole.weight) == float(padded.weight) == 5
    np.testing.assert_allclose(whole.loss, padded.loss, rtol=1e-5)
    np.testing.assert_allclose(whole.metrics["accuracy"], padded.metrics["accuracy"])
    batch = jax.tree.map(jnp.asarray, batch_of(run, (0, 1, 2, -1, -1)))
    gradient = jax.grad(lambda params: run.task.objective.loss(params, batch).loss)
    found = jax.tree.leaves(jax.jit(gradient)(run.params))
    assert all(np.isfinite(leaf).all() for leaf in found)
    nothing = loss(run.params, jax.tree.map(jnp.zeros_like, batch))
    assert float(nothing.loss) == float(nothing.weight) == 0


def test_a_text_with_the_same_meaning_is_not_a_wrong_answer(run):
    """One of three pairs repeated and one reversed: neither is a wrong answer."""
    loss = jax.jit(run.task.objective.loss)
    batch = batch_of(run, (0, 1, 2))
    length = max(a.shape[1] for a in batch.values())
    batch = {k: np.pad(a, ((0, 0), (0, length - a.shape[1]))) for k, a in batch.items()}
    source, target = batch["source"], batch["target"]
    sides = {"source": (source, source[:1], target[1:2]),
             "target": (target, target[:1], source[1:2])}  # fmt: skip
    more = loss(run.params, {k: np.concatenate(v) for k, v in sides.items()})
    found = loss(run.params, batch)
    alone = loss(run.params, {k: a[:1] for k, a in batch.items()})
    assert float(alone.loss) == pytest.approx(0, abs=1e-6)
    again = loss(run.params, {k: np.repeat(a[:1], 3, 0) for k, a in batch.items()})
    assert float(again.loss) == pytest.approx(0, abs=1e-5)
    assert float(more.weight) == 5 and float(found.weight) == 3
    back = {"source": np.stack([source[0], target[0]]),
            "target": np.stack([target[0], source[0]])}  # fmt: skip
    assert float(loss(run.params, back).loss) == pytest.approx(0, abs=1e-5)


def test_wrong_answers_are_those_of_all_devices(run):
    """Eight devices have one row each: sums and gradients are those of one device."""
    batch = batch_of(run, (*range(7), -1))
    mesh = sharding.local_mesh(8)

    def step(params, batch):
        sums = run.task.objective.loss(params, batch)
        return sums.loss, sums

    step = jax.value_and_grad(step, has_aux=True)
    (_, one), gradient = jax.jit(step)(run.params, batch)
    params = jax.device_put(jax.device_get(run.params), sharding.replicated(mesh))
    with jax.set_mesh(mesh):
        split = sharding.to_global(batch, mesh)
        (_, eight), parts = jax.jit(step)(params, split)
    assert len(split["source"].sharding.device_set) == 8
    assert float(one.loss) > 0.1
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(parts), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_batch_is_not_split_into_micro_batches():
    with pytest.raises(UserError, match="so a batch must not be split: use 1"):
        config.load("similarity", {"train.accumulation": "2"})


def test_it_learns_what_words_mean_the_same(run):
    scores = run.folder.read("result.json")["scores"]["test"]
    assert scores["recall"] >= 0.5 and scores["tfidf_recall"] > 0.5
    assert scores["mrr"] >= scores["recall"]
    assert "recall@1 = " in scores["summary"] and "TF-IDF: " in scores["summary"]


def test_vectors_have_length_1_and_do_not_depend_on_the_batch(run):
    together = run.encode(LINES)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)
    for line, vector in zip(LINES, together, strict=True):
        np.testing.assert_allclose(run.encode([line])[0], vector, atol=1e-5)
    assert run.encode([]).shape == (0, 16)


def test_two_texts_are_answered_by_their_cosine(run):
    first, second = run.encode(LINES[:2])
    [reply] = run.replies(["\t".join(LINES[:2])])
    assert reply.details["cosine"] == pytest.approx(float(first @ second), abs=1e-5)
    assert reply.text == f"{reply.details['cosine']:.4f}"
    for line, words in (
        ("one", "1 column: give two texts"),
        ("a\tb\tc", "3 columns: give two texts"),
    ):
        with pytest.raises(Refused, match=words):
            run.task.inference.parse(line)
    with pytest.raises(Refused, match="cannot begin with a given prefix"):
        run.task.inference.parse("a\tb", prefix="c")
    with pytest.raises(Refused, match="pieces are more than the 4 allowed"):
        run.task.inference.parse("a\t" + "b " * 9, 4)


def test_a_split_is_searched_for_each_target(run):
    """At any position in the split, next to TF-IDF."""
    scoring = run.task.scoring
    records = [{"source": "the cat", "target": "cats all"},
               {"source": "a  dog", "target": "dog\tsleeps"}]  # fmt: skip
    questions = [run.task.inference.question(record) for record in records]
    assert questions == ["the cat\tcats all", "a dog\tdog sleeps"]
    vectors = np.eye(2), np.eye(2)[::-1]

    def replies(pairs):
        return [
            similarity.Compared(question, "1", vectors=np.stack(pair))
            for question, pair in zip(questions, pairs, strict=True)
        ]

    references = [scoring.reference(record) for record in records]
    right = scoring.score(replies([(v, v) for v in vectors[0]]), references)
    assert (right["recall"], right["mrr"]) == (1, 1)
    wrong = scoring.score(replies([*zip(*vectors, strict=True)]), references)
    assert (wrong["recall"], wrong["mrr"]) == (0, 0.5)
    assert right["tfidf_recall"] == wrong["tfidf_recall"] == 0.5
    assert scoring.score([], [])["recall"] == 0


def test_predict_finds_the_nearest_lines_of_a_file(run, tmp_path):
    (tmp_path / "lines").write_text("\n".join([*LINES, ""]))
    answerer = predict.LineAnswerer(run, runs.decode_options(run.config), 30)
    answerer.index = retrieval.open_index(str(tmp_path / "lines"), run.encode)
    asked = [LINES[2], LINES[0], "word " * 90]
    first, second, refused = answerer.embed(asked)
    assert first == f"1.0000\t{LINES[2]}" and second == f"1.0000\t{LINES[0]}"
    assert refused == "" and answerer.refused == 1
    answerer.form, answerer.nearest = "jsonl", 2
    sink = io.BytesIO()
    chunks = iter([[LINES[1]]])
    assert answerer.answer_all(answerer.embed, chunks, sink) == 1  # of the line before
    found = json.loads(sink.getvalue())["nearest"]
    assert [len(found), found[0]["text"]] == [2, LINES[1]]
    assert found[0]["cosine"] >= found[1]["cosine"]


def test_attention_is_shown_for_one_text(run):
    maps = run.attention(LINES[0], "")
    assert isinstance(maps, AttentionMaps)
    queries, _ = maps.tokens["encoder"]
    assert queries[0] == "<s>" and queries[-1] == "</s>"
    ids = run.task.inspector.encode(LINES[0])
    assert ids[0] == BOS and ids[-1] == EOS and len(ids) == len(queries)
    with pytest.raises(Refused, match="pieces are more than the 2 allowed"):
        run.task.inspector.check_length("source", LINES[0], 2)


def test_vectors_are_not_taken_for_log_probabilities(run):
    with pytest.raises(UserError, match="the task 'similarity' has no 'read'"):
        run.score(LINES[:1], LINES[1:2])


def test_pairs_that_are_not_packed_are_described_in_buckets(prepare_of, capsys):
    inspect_data._describe(*prepare_of("similarity"))
    said = capsys.readouterr().out
    assert "buckets " in said and "packed" not in said
    assert "target     " in said and "changed by encoding" not in said


def test_seeds_are_compared_by_what_is_found():
    found = {"recall": 0.5, "mrr": 0.75, "loss": 1.0, "tfidf_mrr": 0.9}
    measures = similarity.SearchScoring().measures(found)
    assert measures == {"recall (%)": 50.0, "MRR": 0.75}
