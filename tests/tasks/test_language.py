"""Language modelling: windows, bits per character, texts that go on."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax
from transformer_jax import config, evaluate, train
from transformer_jax.base.errors import UserError
from transformer_jax.data import store as stores
from transformer_jax.data.reading.records import Generated
from transformer_jax.data.reading.windows import Windows
from transformer_jax.data.text import learning
from transformer_jax.data.text.tokenizer import Bytes
from transformer_jax.decoding import neural_cache
from transformer_jax.decoding.neural_cache import NeuralCache
from transformer_jax.report import groups
from transformer_jax.runs import folder as folders
from transformer_jax.runs import run as runs
from transformer_jax.tasks.language import (
    LanguageObjective,
    Prompts,
    Stream,
    TextScoring,
    compose,
)
from transformer_jax.training.evaluator import Evaluator, evenly_spaced, remembered
from transformer_jax.training.prepare import open_split

PHRASES = ["The cat sleeps on the old bed.", "A girl has read it."]
LINES = ["To be, or not", "", "to be: that is", "the question.", "Whether"]


def windows(size, stride=0, whole_words=True, context=0):
    lines = Generated(lambda: [{"text": line} for line in LINES], "five lines")
    return Windows(lines, size, stride, whole_words, context=context)


@pytest.fixture(scope="module")
def run(quick_run_of):
    small = {"data.window": "32", "decode.max_length": "20", "eval.splits": "test"}
    return transformer_jax.load(quick_run_of("language", **small))


def cost_of(task, params):
    """Return a function: the cost of a text alone, in one shape and compiled once."""
    judge = jax.jit(task.objective.loss)

    def cost(text):
        tokens = np.zeros((1, 32), int)
        pieces = task.data.tokenizer.encode_inside(text)
        tokens[0, : len(pieces)] = pieces
        return float(judge(params, {"tokens": tokens}).metrics["nll"]) if text else 0.0

    return cost


@pytest.mark.parametrize("size", [2, 7, 16, 1000])
@pytest.mark.parametrize("whole_words", [True, False])
def test_contiguous_windows_make_up_the_text(size, whole_words):
    found = [record["text"] for record in windows(size, 0, whole_words)]
    assert "".join(found) == "".join(line + "\n" for line in LINES)
    assert max(map(len, found)) <= size
    if not whole_words:
        assert {len(text) for text in found[:-1]} <= {size}


def test_text_of_several_files_is_read_from_its_folder(tmp_path):
    for name, text in (("1.txt", "to be\nor"), ("2.txt", "not")):
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "held.txt").write_text("to be\n")
    given = {"data.source": "text", "data.folder": str(tmp_path), "data.window": "32"}
    given |= {"data.train_text": "?.txt", "data.validation_text": "held.txt"}
    given |= {"data.test_text": "held.txt", "decode.max_length": "20"}
    [window] = Stream(config.load("language", given)).read("train")
    assert window["text"] == "to be\nor\nnot\n"


def test_a_window_of_whole_words_ends_before_a_space():
    found = [record["text"] for record in windows(10)]
    assert found[:3] == ["To be, or", " not\n\nto", " be: that"]


def test_training_windows_may_overlap_and_reach_the_end():
    text = windows(9).text[:]
    found = [record["text"] for record in windows(9, 4, whole_words=False)]
    for i, window in enumerate(found[:-1]):
        assert window == text[4 * i : 4 * i + 9]
    assert text.endswith(found[-1]) and len(found[-1]) == 9
    assert windows(9, 4).fingerprint != windows(9, 3).fingerprint


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("stride", [10, 13, 16])
def test_training_windows_of_words_begin_at_a_space_and_lose_none(stride, flat):
    lines = Generated(lambda: [{"text": line} for line in LINES], "five lines")
    found = Windows(lines, 16, stride, flat=flat)
    text, last = found.text[:], 0
    for start, end in found._spans:
        assert start == 0 or text[start] in " \n"
        assert start <= last <= end <= start + 16
        last = end
    assert last == len(text) and len(found) < len(text) / (stride - 9)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("size", [10, 16])
def test_the_pieces_of_windows_make_up_the_text(kind, size):
    found = windows(size)
    learned = learning.train([r["text"] for r in found] * 9, kind, 320)
    ids = [i for r in found for i in learned.encode_inside(r["text"])]
    assert "".join(learned.pieces(ids)).replace("▁", " ") == found.text[:]


def test_the_words_of_windows_make_up_the_text():
    spaced = " \n ".join([*LINES, ""])  # as in WikiText
    lines = [{"text": line} for line in spaced.split("\n")]
    found = Windows(Generated(lambda: lines, "spaced lines"), 16)
    learned = learning.train([r["text"] for r in found] * 9, "word", 320)
    ids = [i for r in found for i in learned.encode_inside(r["text"])]
    spelled = "".join(learned.pieces(ids)).replace("▁", " ")
    assert spelled.split() == found.text[:].split()


def test_bits_per_character_count_every_character_of_the_text_once(run):
    records, cost, total = run.records("test"), cost_of(run.task, run.params), 0.0
    for record in records:
        pieces = run.task.data.tokenizer.encode_inside(record["text"])
        assert len(pieces) == len(record["text"])  # characters
        total += cost(record["text"])
    bits = total / len(records.text) / math.log(2)
    reported = run.folder.read("result.json")["scores"]["test"]
    assert reported["bits_per_character"] == pytest.approx(bits, rel=1e-4)
    assert "(windows of 32 characters, each read alone)" in reported["summary"]


@pytest.mark.parametrize("whole_words", [True, False])
@pytest.mark.parametrize("context", [1, 7, 14, 15])
def test_windows_with_a_context_cover_the_text_once_and_read_as_much_as_fits(
    whole_words, context
):
    found = windows(16, 0, whole_words, context)
    assert "".join(record["text"] for record in found) == found.text[:]
    assert found[0]["before"] == ""
    end = 0
    for record in found:
        end += len(record["text"])
        read = record["before"] + record["text"]
        assert found.text[:end].endswith(read) and len(read) <= 16
        if not whole_words:
            assert len(read) == min(end, 16)
        elif record["before"]:
            assert record["text"][0] in " \n" and (read[0] in " \n" or len(read) == end)
            more = found.text[max(end - 16, 0) : end - len(read)]
            assert not set(more) & set(" \n")
    assert len({windows(16, 0, True, c).fingerprint for c in (0, 1, 7)}) == 3


def test_a_context_is_read_but_not_scored(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path))
    changed = run.config.copy_and_resolve_references()
    changed.eval.context = 20
    task = compose(changed, run.task.data.tokenizer)
    lines = Generated(lambda: [{"text": p} for p in PHRASES], "phrases")
    records = Windows(lines, 32, 0, whole_words=False, context=20)
    assert len(records) == 1 + -(-(len(records.text) - 32) // 12)
    assert (
        task.scoring.count_answered(records)
        == -(-len(records.text) // 32)
        < len(records)
    )
    cost = cost_of(task, run.params)
    total = sum(cost(r["before"] + r["text"]) - cost(r["before"]) for r in records)
    evaluator = Evaluator(task, open_split(task, "test", records), run.mesh)
    found = evaluator.teacher_forced(run.params)
    bits = total / len(records.text) / math.log(2)
    assert found["bits_per_character"] == pytest.approx(bits, rel=1e-4)
    assert found["context"] == 20
    assert evaluator.choose(0) == evenly_spaced(
        task.scoring.count_answered(records), len(records)
    )
    alone = windows(9)  # of complete words: more than the length of the text suggests
    assert task.scoring.count_answered(alone) == len(alone) > -(-len(alone.text) // 9)
    for record in records:  # the continuation is that of everything that is read
        whole = task.inference.question(record) + task.scoring.reference(record)
        assert whole == record["before"] + record["text"]
    said = task.scoring.summary({**found, "distinct_2": 1.0})
    assert "(windows of 32 characters, 20 of them only read)" in said


@pytest.mark.parametrize("context", [0, 20])
def test_a_cache_is_kept_from_window_to_window(run, context, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path))
    changed = run.config.copy_and_resolve_references()
    changed.eval.cache = 30
    task = compose(changed, run.task.data.tokenizer)
    lines = Generated(lambda: [{"text": p} for p in PHRASES * 4], "phrases")
    records = Windows(lines, 32, 0, whole_words=False, context=context)
    evaluator = Evaluator(task, open_split(task, "test", records), run.mesh)
    found = evaluator.evaluate(run.params, runs.decode_options(changed), 1).scores
    cache, total = NeuralCache(30), 0.0
    for record in records:  # one after the other
        before, text = (
            task.data.tokenizer.encode_inside(record.get(name, ""))
            for name in ("before", "text")
        )
        tokens = np.array([before + text])
        read = task.objective.read(run.params, {"tokens": jnp.asarray(tokens)})
        hidden, targets, nll = (np.asarray(x)[0, len(before) :] for x in read[:3])
        assert targets.tolist() == text
        total += cache.read(hidden, targets, nll).sum()
    bits = total / len(records.text) / math.log(2)
    assert found["cached_bits_per_character"] == pytest.approx(bits, rel=1e-4)
    most = math.log2(len(neural_cache.PAIRS) + 1) / len(records.text)
    assert bits != found["bits_per_character"] > bits - most
    said = task.scoring.summary(found)
    assert f"with a cache bits per character = {bits:.3f}" in said
    assert not {"word_perplexity", "cached_word_perplexity"} & {*found}  # characters


def test_a_text_is_read_with_a_cache_by_one_process(run, monkeypatch):
    opened = transformer_jax.load(run.folder.path)
    evaluate.change_evaluation(opened.config, {"cache": 7})
    assert remembered(opened.task) == 7 and remembered(run.task) == 0
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert remembered(run.task) == 0
    with pytest.raises(UserError, match="eval.cache = 7: .* one process, not 2: leave"):
        remembered(opened.task)


def test_the_perplexity_of_words_counts_line_ends(run):
    loaded = config.load("language:stories")
    objective = LanguageObjective(loaded, None, 9)
    lines = Generated(lambda: [{"text": line} for line in LINES], "five lines")
    records = Windows(lines, 16)
    assert len(records) > 1
    words = "To be, or not / / to be: that is / the question. / Whether /".split()
    found = objective.cached_means(len(words) * math.log(8), records)
    assert found["cached_word_perplexity"] == pytest.approx(8)
    prompts = Prompts(loaded, run.task.data.tokenizer)
    said = TextScoring(loaded, prompts).summary(
        {"distinct_2": 1.0, "bits_per_character": 1.5, "word_perplexity": 31.26}
    )
    assert said.startswith("bits per character = 1.5000, perplexity per word = 31.3 (")


@pytest.mark.system
def test_a_run_goes_on_with_another_context(tiny, tmp_path, one_device):
    known = dict(config.items(config.load("language")))
    small = {k: v for k, v in tiny().items() if k in known}
    small |= {"data.window": "32", "decode.max_length": "20", "eval.splits": "test"}
    small |= {"data.test_size": "3", "eval.answers": "1", "eval.batch_rows": "8"}
    for steps, context in (("6", "0"), ("9", "8")):
        changes = {"train.steps": steps, "eval.context": context}
        loaded = config.load("language", small | changes)
        assert train.train(loaded, tmp_path) == 0
        [scores] = folders.Folder(tmp_path).read("result.json")["scores"].values()
        assert scores["context"] == int(context)


def test_only_a_language_model_is_evaluated_with_another_context(run):
    opened = transformer_jax.load(run.folder.path)
    evaluate.change_evaluation(opened.config, {"context": 8})
    read = opened.records("test")
    assert read[1]["before"] == read[0]["text"][-8:]
    other = config.load("quickstart")
    train_windows = opened.records("train")
    assert "before" not in train_windows[1] and train_windows.context == 0
    for name, value, says in (
        ("context", 32, "must be 0 to 31"),
        ("context", -1, "must be at least 0"),
        ("cache", -1, "must be at least 0 and at most 100000"),
        ("cache", 100_001, "must be at least 0 and at most 100000"),
    ):
        with pytest.raises(UserError, match=f"--{name} = {value}: {says}"):
            evaluate.change_evaluation(opened.config, {name: value})
    with pytest.raises(UserError, match="--context is for .* language, .* translation"):
        evaluate.change_evaluation(other, {"context": 8})


def test_seeds_are_compared_by_bits_per_character(run, compare_seeds):
    scores = run.folder.read_note("scores.json")["test"]
    wanted = {"bits per character": scores["bits_per_character"]}
    assert compare_seeds(run.folder.path) == pytest.approx(wanted, abs=6e-5)


def test_scores_with_another_context_are_neither_reused_nor_compared(run):
    member = groups.Member(run.folder, transformer_jax.load(run.folder.path).config)
    options = runs.decode_options(member.config)
    found = groups.find_scores(member, "test", "test", "", options)
    assert found["context"] == found["cache"] == 0
    member.config.eval.context = 8
    assert groups.find_scores(member, "test", "test", "", options) is None
    older = {k: v for k, v in found.items() if k != "cache"}  # from before the option
    groups.refuse_other_signatures([(member, found), (member, older)])
    said = "context is 0 of .* and 8 of .*: score both by the same rules"
    with pytest.raises(UserError, match=said):
        groups.refuse_other_signatures([(member, found), (member, {"context": 8})])


def test_a_context_as_large_as_the_window_is_refused():
    with pytest.raises(UserError, match="eval.context = 128.* 0 to 127"):
        config.load("language", {"eval.context": "128"})


def test_a_token_is_predicted_only_from_those_before_it(run):
    tokens = jnp.asarray([run.task.data.tokenizer.encode_inside("the cat sleeps")])
    inside = run.task.objective.module.apply(
        {"params": run.params}, tokens, jnp.ones_like(tokens)
    ).logits
    changed = tokens.at[0, -1].set(5)
    other = run.task.objective.module.apply(
        {"params": run.params}, changed, jnp.ones_like(tokens)
    ).logits
    np.testing.assert_allclose(inside[:, :-1], other[:, :-1], atol=1e-5)
    assert not np.allclose(inside[:, -1], other[:, -1])


def test_a_text_continues_the_given_beginning_as_far_as_asked(run):
    for given in ("The cat", "a", ""):
        [reply] = run.replies([given], max_length=9)
        assert reply.text.startswith(given)
        text = reply.details["text"]
        more = len(run.task.data.tokenizer.encode_inside(text)) - len(given)
        assert 0 <= more <= 9


def test_greedy_takes_the_likeliest_of_a_full_forward(run):
    [reply] = run.replies(["The"], sample=False, max_length=4)
    ids = [2, *run.task.data.tokenizer.encode_inside("The")]
    for _ in range(3):  # the last is the end, which is forced
        tokens = jnp.asarray([ids + [4] * (8 - len(ids))])  # of one shape
        logits = run.task.objective.module.apply(
            {"params": run.params}, tokens, jnp.ones_like(tokens)
        ).logits[0, len(ids) - 1]
        best = int(jnp.argmax(logits.at[jnp.array([0, 2])].set(-jnp.inf)))
        if best == 3:
            break
        ids.append(best)
    assert reply.details["text"] == run.task.data.tokenizer.decode(ids)


def test_a_text_longer_than_the_trained_window_is_refused_with_both_numbers(run):
    [reply] = run.replies(["x" * 30], max_length=9)
    assert "30 pieces and 9 to follow are more than the 32" in reply.error
    with pytest.raises(UserError, match="must be 1 to 24 pieces"):
        config.load("language", {"data.window": "32", "decode.max_length": "25"})


def test_a_window_fits_however_many_bytes_a_character_has():
    small = {"data.window": "32", "decode.max_length": "24", "tokenizer.kind": "byte"}
    task = compose(config.load("language", small), Bytes())
    for text, given in (("今日は晴れです。" * 4, "今日"), ("abcd" * 8, "abcdabcd")):
        assert task.inference.question({"text": text}) == given
        assert given + task.scoring.reference({"text": text}) == text
        assert len(task.inference.parse(given).prefix) <= 8


def test_a_window_of_more_pieces_than_a_learned_table_has_is_refused(tmp_path):
    learned = {"model.positions": "learned", "model.max_positions": "32"}
    small = {"data.window": "32", "decode.max_length": "20"}
    task = compose(config.load("language", learned | small), Bytes())
    columns = task.data.columns_for(Windows(Generated(list, ""), 32))
    texts = Generated(lambda: [{"text": "x" * n} for n in (32, 33)], "")
    store = stores.build(tmp_path, texts, columns, task.data.encode, "a")
    with pytest.raises(UserError, match="33 positions.*model.max_positions 32"):
        task.data.lengths(store)
    assert len(task.inference.parse("é" * 6).prefix) == 12
    with pytest.raises(UserError, match="14 pieces and 20"):
        task.inference.parse("é" * 7)
    with pytest.raises(UserError, match="model.max_positions 32"):
        task.inspector.attention({}, "é" * 16, "")


def test_draws_differ_by_line_and_repeat_by_seed(run):
    lines = ["The", "The"]
    first, second = run.predict(lines, temperature=5.0, max_length=20)
    assert first != second
    assert run.predict(lines, temperature=5.0, max_length=20) == [first, second]
    assert run.predict(lines, temperature=5.0, max_length=20, seed=1)[0] != first


def test_attention_names_what_was_read(run):
    maps = run.attention("The cat", "")
    queries, keys = maps.tokens["decoder"]
    assert queries == keys and queries[0] == "<s>"
    assert maps["decoder"].shape[2:] == (len(queries), len(keys))
