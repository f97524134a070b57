"""Prediction: as many lines out as in, in order, whatever is in them."""

import copy
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading

import pytest

import transformer_jax
from transformer_jax import predict
from transformer_jax import run as runs
from transformer_jax.data import store as stores
from transformer_jax.data.records import Generated
from transformer_jax.data.sources import Source
from transformer_jax.errors import UserError
from transformer_jax.tasks import Refused
from transformer_jax.tasks.translation import Answer


@pytest.fixture(scope="module")
def run(tiny_run):
    return transformer_jax.load(tiny_run)


@pytest.fixture(scope="module")
def sentences(run):
    return [r["source"] for r in Source(run.config.data).read("test")]


def shell(run, form="text", max_length=64):
    return predict.Shell(run, runs.decode_options(run.config), max_length, form)


def call(tiny_run, stdin: bytes, *flags):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-m", "transformer_jax.predict"]
    return subprocess.run(
        [*command, "--workdir", tiny_run, *flags],
        input=stdin,
        capture_output=True,
        env=environment,
    )


def test_a_thousand_strange_lines_come_out_as_a_thousand_in_order(run, sentences):
    order = random.Random(7)
    strange = ["", " ", "\t", "🎉🎉", "\x00\x07", "\x1b[31m", "a\u2028b", "\x85", "▁",
               "<s></s>", "x" * 50, "\ufeffO gato"]  # fmt: skip
    lines = [order.choice(strange + sentences).encode() for _ in range(998)]
    lines.insert(500, b"O gato \xff dorme.")
    lines.insert(700, b"palavra " * 5000)
    source, sink = io.BytesIO(b"\n".join(lines) + b"\n"), io.BytesIO()
    tool = shell(run)
    assert tool.answer_all(io.BufferedReader(source), sink) == 1
    assert tool.refused == 1
    answers = sink.getvalue().decode().split("\n")
    assert len(answers) == 1001 and answers[-1] == ""
    assert answers[700] == ""
    for i in (0, 123, 456, 789, 997):  # each line's answer is its own
        text = lines[i].decode("utf-8", "replace")
        assert answers[i] == run.predict([text])[0]


def test_blank_lines_have_blank_answers(run):
    assert run.predict(["", "   ", "\u3000"]) == ["", "", ""]


def test_an_answer_is_one_line(run):
    assert run.task.render(Answer("a\nb\r\nc", 0.0)) == "a b  c"


def test_a_sentence_alone_and_in_any_batch_gets_the_same_answer(run, sentences):
    options = runs.decode_options(run.config, beams=3)
    items = [run.task.parse(s) for s in sentences * 3]
    random.Random(3).shuffle(items)
    together = run.task.answer(run.params, items, run.mesh, options)
    for item, answer in list(zip(items, together, strict=True))[:7]:
        (alone,) = run.task.answer(run.params, [item], run.mesh, options)
        assert alone.text == answer.text
        assert alone.score == pytest.approx(answer.score, rel=1e-5)


def test_a_line_that_is_too_long_is_refused_with_both_numbers(run):
    with pytest.raises(Refused, match=r"\d+ pieces are more than the 64 allowed"):
        run.task.parse("palavra " * 500, 64)
    assert len(run.predict(["palavra " * 60])) == 1  # in Python there is no limit


def test_what_outgrows_a_learned_table_is_refused_before_it_is_clamped(run, tmp_path):
    changed = copy.deepcopy(run.config)
    changed.model.positions, changed.model.max_positions = "learned", 20
    tokenizer = run.task.source_tokenizer
    task = type(run.task)(changed, tokenizer, tokenizer)
    with pytest.raises(Refused, match=r"model.max_positions 20"):
        task.parse("A menina dorme. " * 9)
    records = Generated(lambda: [{"source": "x" * 21, "target": ""}], "")

    def encode(records):
        return [{k: [4] * len(v) for k, v in r.items()} for r in records]

    store = stores.build(tmp_path, records, task.columns, encode, "a")
    with pytest.raises(UserError, match="21 pieces.*model.max_positions 20"):
        task.lengths(store)


def test_chunks_end_at_newlines_only_and_bad_bytes_are_marked():
    source = io.BufferedReader(io.BytesIO(b"a\r\nb\xff\x0bc\n\nlast"))
    assert list(predict.read_chunks(source)) == [["a", "b\ufffd\x0bc", "", "last"]]


def test_a_slow_pipe_is_answered_line_by_line():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", 0) as pipe:
        chunks = predict.read_chunks(source)
        pipe.write(b"one\n")
        assert next(chunks) == ["one"]
        threading.Timer(0.2, lambda: pipe.write(b"two\nthree\n")).start()
        assert next(chunks) == ["two", "three"]
        pipe.write(b"rest")
        pipe.close()
        assert list(chunks) == [["rest"]]


def test_the_command_answers_stdin_and_exits_with_1_if_a_line_was_refused(tiny_run):
    text = "O gato dorme.\n\n" + "palavra " * 500 + "\nA casa.\n"
    done = call(tiny_run, text.encode(), "--format=jsonl")
    assert done.returncode == 1, done.stderr
    entries = [json.loads(x) for x in done.stdout.decode().splitlines()]
    assert [e["input"][:5] for e in entries] == ["O gat", "", "palav", "A cas"]
    assert "pieces" in entries[2]["error"] and entries[2]["output"] == ""
    assert b"line 3: " in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--format=xml"], b"text | jsonl"),
        (["--wrokdir=x"], b"workdir"),
        (["--input=/no/such/file"], b"/no/such/file"),
        (["--config.decode.beams=2"], b"is for training"),
        (["more"], b"unexpected argument 'more'"),
    ],
)
def test_a_users_mistake_exits_with_2_and_no_traceback(tiny_run, flags, says):
    done = call(tiny_run, b"", *flags)
    assert done.returncode == 2
    assert says in done.stderr and b"Traceback" not in done.stderr


def test_evaluate_prints_the_score_and_its_signature_first(
    tiny_run, sentences, tmp_path
):
    (tmp_path / "s").write_text("\n".join(sentences[:4]) + "\n")
    (tmp_path / "r").write_text("The cat sleeps.\n" * 4)
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.evaluate", "--workdir", tiny_run,
         "--source", tmp_path / "s", "--reference", tmp_path / "r"],
        capture_output=True, text=True, env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n")[:2]
    assert re.fullmatch(r"BLEU = \d+\.\d\d", first)
    assert second.startswith("nrefs:1|case:mixed|")
    scores = json.loads((tiny_run / "scores.json").read_text())
    entry = scores[str(tmp_path / "s")]
    assert f"BLEU = {entry['bleu']:.2f}" == first and entry["examples"] == 4
    assert "test" in scores  # what was there stays


def test_evaluate_prints_every_reading_of_the_scores(tiny_run, scored):
    done = scored(tiny_run)
    names = ["BLEU, lower-cased", "international tokens", "the paper's", "Moses tokens"]
    assert all(name in done.stdout for name in names)
    signatures = re.findall(r"^ +nrefs:1\|case:\w+", done.stdout, re.MULTILINE)
    assert len(signatures) == 6
    entry = json.loads((tiny_run / "scores.json").read_text())["test"]
    for key in ("bleu_lc", "bleu_intl", "bleu_compound", "bleu_tok_lc"):
        assert f"{entry[key]:.2f}" in done.stdout
        assert "nrefs:1" in entry[f"{key}_signature"]


def test_two_runs_are_compared_by_paired_bootstrap(tiny_run, scored, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny_run, other)
    done = scored(tiny_run, f"--compare={other}")
    assert "no difference can be told" in done.stdout and "bs:1000" in done.stdout
    assert f"{other}" in done.stdout


def test_a_run_is_not_compared_with_itself(tiny_run, scored):
    done = scored(tiny_run, f"--compare={tiny_run}/", code=2)
    assert "is the run itself" in done.stderr


@pytest.fixture
def scored():
    """A function: `evaluate` on the test split of a run."""

    def call(run, *options, code=0):
        command = [sys.executable, "-m", "transformer_jax.evaluate", "--split=test"]
        done = subprocess.run(
            [*command, f"--workdir={run}", *options],
            capture_output=True,
            text=True,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return call


def test_a_directory_that_is_no_run_says_how_to_make_one(tmp_path):
    with pytest.raises(UserError, match="holds no run.*transformer_jax.train"):
        transformer_jax.load(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        transformer_jax.load(tmp_path / "none")


def test_the_weights_can_be_chosen(tiny_run):
    assert transformer_jax.load(tiny_run).weights == "averaged"
    assert transformer_jax.load(tiny_run, "last").weights == "last"
    best = transformer_jax.load(tiny_run, "best")
    assert best.weights == "best" and best.step in (6, 12)


def test_attention_has_a_weight_for_each_pair_of_pieces(run, sentences):
    pieces = run.task.pieces(sentences[0], "The cat sleeps.")
    weights = run.attention(sentences[0], "The cat sleeps.")
    source, target = map(len, pieces)
    layers, heads = 1, run.config.model.num_heads
    assert weights["encoder"].shape == (layers, heads, source, source)
    assert weights["decoder"].shape == (layers, heads, target, target)
    assert weights["cross"].shape == (layers, heads, target, source)
    for kind in weights.values():
        assert kind.sum(-1) == pytest.approx(1.0, abs=1e-5)
