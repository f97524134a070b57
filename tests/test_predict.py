"""Prediction: as many lines out as in, in order, whatever is in them."""

import copy
import dataclasses
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

import transformer_jax
from transformer_jax import evaluate, predict, sharding, tasks
from transformer_jax.base import entry_points
from transformer_jax.base.errors import Refused, UserError
from transformer_jax.data import store as stores
from transformer_jax.data.reading import streams
from transformer_jax.data.reading.records import Generated
from transformer_jax.decoding import answering
from transformer_jax.decoding.engine import Hypothesis, pad_length
from transformer_jax.decoding.requests import one_line
from transformer_jax.runs import run as runs
from transformer_jax.runs.folder import Folder
from transformer_jax.tasks import translation
from transformer_jax.training import evaluator, prepare
from transformer_jax.training.evaluator import Evaluator


@pytest.fixture(scope="module")
def sentences(run):
    return [
        r["source"] for r in tasks.find(run.config.task).source(run.config).read("test")
    ]


def answerer(run, form="text", max_length=64):
    return predict.LineAnswerer(run, runs.decode_options(run.config), max_length, form)


def call(tiny_run, stdin: bytes, *flags):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-m", "transformer_jax.predict"]
    return subprocess.run(
        [*command, "--workdir", tiny_run, *flags],
        input=stdin,
        capture_output=True,
        env=environment,
    )


@pytest.mark.slow
def test_hundreds_of_strange_lines_come_out_as_many_in_order(run, sentences):
    order = random.Random(7)
    strange = ["", " ", "\t", "🎉🎉", "\x00\x07", "\x1b[31m", "a\u2028b", "\x85", "▁",
               "<s></s>", "x" * 50, "\ufeffO gato"]  # fmt: skip
    lines = [order.choice(strange + sentences).encode() for _ in range(298)]
    lines.insert(150, b"O gato \xff dorme.")
    lines.insert(200, b"palavra " * 5000)
    source, sink = io.BytesIO(b"\n".join(lines) + b"\n"), io.BytesIO()
    tool = answerer(run)
    chunks = streams.read_chunks(io.BufferedReader(source))
    assert tool.answer_all(tool.answer, chunks, sink) == 1
    assert tool.refused == 2
    answers = sink.getvalue().decode().split("\n")
    assert len(answers) == 301 and answers[-1] == ""
    assert answers[150] == answers[200] == ""
    for i in (0, 123, 156, 289, 297):  # each line's answer is its own
        text = lines[i].decode("utf-8", "replace")
        assert answers[i] == run.predict([text])[0]


def test_blank_lines_have_blank_answers(run):
    assert run.predict(["", "   ", "\u3000"]) == ["", "", ""]


def test_an_answer_is_one_line(run):
    assert one_line("a\nb\r\nc") == "a b  c"


def test_a_sentence_alone_and_in_any_batch_gets_the_same_answer(run, sentences):
    lines = sentences * 3
    random.Random(3).shuffle(lines)
    together = run.replies(lines, beams=3)
    for line, reply in list(zip(lines, together, strict=True))[:7]:
        (alone,) = run.replies([line], beams=3)
        assert alone.text == reply.text
        assert alone.score == pytest.approx(reply.score, rel=1e-5)


def test_a_line_that_is_too_long_is_refused_with_both_numbers(run):
    with pytest.raises(Refused, match=r"\d+ pieces are more than the 64 allowed"):
        run.task.inference.parse("palavra " * 500, 64)
    assert len(run.predict(["palavra " * 60])) == 1  # in Python there is no limit


def test_what_outgrows_a_learned_table_is_refused_before_it_is_clamped(run, tmp_path):
    task = with_learned_table(run, 20)
    with pytest.raises(Refused, match=r"model.max_positions 20"):
        task.inference.parse("A menina dorme. " * 9)
    records = Generated(lambda: [{"source": "x" * 21, "target": ""}], "")

    def encode(records):
        return [{k: [4] * len(v) for k, v in r.items()} for r in records]

    columns = task.data.columns_for(records)
    store = stores.build(tmp_path, records, columns, encode, "a")
    with pytest.raises(UserError, match="21 positions.*model.max_positions 20"):
        task.data.lengths(store)
    look_in = task.inspector
    for look in (
        lambda line: look_in.read(run.params, [("O gato", line)], run.mesh),
        lambda line: look_in.vectors(run.params, [line], run.mesh),
        lambda line: look_in.attention(run.params, line, ""),
    ):
        with pytest.raises(UserError, match="model.max_positions 20"):
            look("A menina dorme. " * 9)


def with_learned_table(run, rows, extra_length=0):
    """The run's task with learned positions instead of sinusoids."""
    config = copy.deepcopy(run.config)
    config.model.positions, config.model.max_positions = "learned", rows
    config.decode.extra_length = extra_length or config.decode.extra_length
    tokenizer = run.task.data.source_tokenizer
    return translation.compose_translation(config, tokenizer, tokenizer)


def test_a_learned_table_needs_no_row_for_padding(run):
    """Neither that of a search's sources nor that of a validation's batches."""
    records = run.records("validation")
    held_out = prepare.open_split(run.task, "validation", records)
    longest, target = run.task.data.lengths(held_out.store).max(axis=0).tolist()
    rows = max(longest + 1, target)  # an answer has at most two pieces more
    assert rows < pad_length(longest) and rows % 8
    task = with_learned_table(run, rows)
    held_out = prepare.open_split(task, "validation", records)
    evaluator = Evaluator(task, held_out, run.mesh)
    params = task.objective.init(jax.random.key(0))
    assert np.isfinite(evaluator.teacher_forced(params)["loss"])
    options = runs.decode_options(task.config)
    assert len(evaluator.free_running(params, options)[1]) == len(records)
    task = with_learned_table(run, rows, extra_length=9)
    with pytest.raises(UserError, match="longest answer needs.*decode.extra_length"):
        prepare.open_split(task, "validation", records)


@pytest.mark.system
def test_the_command_answers_stdin_and_exits_with_1_if_a_line_was_refused(tiny_run):
    text = "O gato dorme.\n\n" + "palavra " * 500 + "\nA casa.\n"
    done = call(tiny_run, text.encode(), "--format=jsonl")
    assert done.returncode == 1, done.stderr
    entries = [json.loads(x) for x in done.stdout.decode().splitlines()]
    assert [e["input"][:5] for e in entries] == ["O gat", "", "palav", "A cas"]
    assert "pieces" in entries[2]["error"] and entries[2]["output"] == ""
    assert re.fullmatch(  # and no more than that
        rb"line 3: 2501 pieces are more than the 64 allowed: .*\n"
        rb"4 lines in \d+ s \([\d.]+ per second\), 1 refused\n",
        done.stderr,
    ), done.stderr


@pytest.mark.system
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--format=xml"], b"text | jsonl"),
        (["--wrokdir=x"], b"workdir"),
        (["--input=/no/such/file"], b"/no/such/file"),
        (["--config.decode.beams=2"], b"is for training"),
        (["--on_long=split", "--alignment"], b"leave out --n_best and --alignment"),
        (["more"], b"unexpected argument 'more'"),
    ],
)
def test_a_users_mistake_exits_with_2_and_no_traceback(tiny_run, flags, says):
    done = call(tiny_run, b"", *flags)
    assert done.returncode == 2
    assert says in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.system
def test_the_file_that_is_read_is_not_written_over(tiny_run, tmp_path):
    lines, link = tmp_path / "lines", tmp_path / "link"
    lines.write_text("O gato dorme.\n")
    link.symlink_to(lines)
    done = call(tiny_run, b"", f"--input={lines}", f"--output={link}")
    assert done.returncode == 2 and b"is the file to be read" in done.stderr
    assert lines.read_text() == "O gato dorme.\n"


def test_what_is_refused_is_not_aligned_scored_or_embedded(run, caplog):
    long, short = "palavra " * 300, "O gato dorme."
    tool = answerer(run)
    tool.alignment = True
    refused, answered = tool.answer([long, short])
    assert refused == "\t" and re.fullmatch(r"[^\t]*\t(\d+-\d+ ?)*", answered)
    tool.form = "jsonl"
    pairs = [f"{long}\tNo.", f"{short}\t{long}", f"{short}\tThe cat."]
    *both, last = map(json.loads, tool.score(pairs))
    for entry in both:
        assert "more than the 64 allowed" in entry["error"] and "score" not in entry
    assert last["score"] == pytest.approx(run.score([short], ["The cat."])[0], rel=1e-5)
    first, second = map(json.loads, tool.embed([long, short]))
    assert "allowed" in first["error"] and "vector" not in first
    np.testing.assert_allclose(second["vector"], run.encode([short])[0], atol=1e-5)
    assert tool.refused == 4 and "line 2: " in caplog.text
    tool.form = "text"
    assert list(tool.embed([long]))[0] == ""


@pytest.mark.system
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
    assert re.fullmatch(
        r"BLEU = \d+\.\d\d  chrF = \d+\.\d\d  \(nrefs:1\|case:mixed\|\S+\)", first
    )
    assert second.startswith("4 examples, ") and "beam 1, alpha 0.6" in second
    assert "\ngiven the truth so far: loss " in done.stdout
    scores = json.loads((tiny_run / "scores.json").read_text())
    entry = scores[str(tmp_path / "s")]
    assert first.startswith(f"BLEU = {entry['bleu']:.2f} ") and entry["examples"] == 4
    assert "test" in scores  # what was there stays


@pytest.mark.system
def test_evaluate_prints_every_reading_of_the_scores(tiny_run, scored):
    done = scored(tiny_run)
    names = ["BLEU, lower-cased", "international tokens", "the paper's", "Moses tokens"]
    names += ["chrF", "TER, lower-cased"]
    assert all(name in done.stdout for name in names)
    signatures = re.findall(r"^ +nrefs:1\|case:\w+", done.stdout, re.MULTILINE)
    assert len(signatures) == 7
    entry = json.loads((tiny_run / "scores.json").read_text())["test"]
    for key in ("bleu_lc", "bleu_intl", "bleu_compound", "bleu_tok_lc", "ter"):
        assert f"{entry[key]:.2f}" in done.stdout
        assert "nrefs:1" in entry[f"{key}_signature"]


@pytest.mark.system
def test_training_and_evaluate_write_one_schema(tiny_run, scored):
    result = json.loads((tiny_run / "result.json").read_text())["scores"]["test"]
    scored(tiny_run)
    entry = json.loads((tiny_run / "scores.json").read_text())["test"]
    assert entry["schema"] == evaluator.SCHEMA
    assert entry.keys() == result.keys()
    timed = {"seconds", "answering_seconds"}
    for key in entry.keys() - timed:
        wanted = result[key]
        if isinstance(wanted, float):
            wanted = pytest.approx(wanted, rel=1e-5)
        assert entry[key] == wanted, key


def test_a_search_with_other_options_is_scored_beside_the_run_s(
    tiny_run, run_main, tmp_path
):
    copy = shutil.copytree(tiny_run, tmp_path / "run")
    before = json.loads((copy / "scores.json").read_text())
    answers = tmp_path / "answers"
    options = {"beams": 3, "alpha": 1.5, "max_length": 7}
    given = [f"--{name}={value}" for name, value in options.items()]
    out = run_main(
        evaluate, f"--workdir={copy}", "--split=test", f"--answers={answers}", *given
    )
    opened = transformer_jax.load(copy)
    sources = [record["source"] for record in opened.records("test")]
    assert answers.read_text().splitlines() == opened.predict(sources, **options)
    assert "beam 3, alpha 1.5, max_length 7, " in out
    found = json.loads((copy / "scores.json").read_text())
    entry = found.pop("test (beams 3) (alpha 1.5) (max_length 7)")
    assert found == before
    assert (entry["beams"], entry["alpha"]) == (3, 1.5)
    assert entry["search"] == {"max_length": 7}
    with pytest.raises(UserError, match="decode.alpha = -11.*at least -10"):
        run_main(evaluate, f"--workdir={copy}", "--split=test", "--alpha=-11")


@pytest.mark.system
def test_a_run_without_capitals_is_scored_so_and_says_so(tiny_run_of, scored):
    run = tiny_run_of(
        "quickstart", **{"tokenizer.lowercase": "true", "train.steps": "6"}
    )
    first = scored(run).stdout.split("\n")[0]
    assert first.startswith("BLEU = ") and "case:lc" in first
    entry = json.loads((run / "scores.json").read_text())["test"]
    assert "case:lc" in entry["bleu_signature"] and "case:lc" in entry["chrf_signature"]
    assert "case:lc" in entry["bleu_tok_lc_signature"]
    assert "bleu_intl" not in entry  # it says nothing of such a run


@pytest.mark.system
def test_two_runs_are_compared_by_paired_bootstrap(tiny_run, scored, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny_run, other)
    done = scored(tiny_run, f"--compare={other}")
    assert "no difference can be told" in done.stdout and "bs:1000" in done.stdout
    assert f"{other}" in done.stdout
    assert done.stdout.endswith(
        "\nThis compares the two trained models, not the two methods: to compare "
        "methods, name several seeds of each\n"
    )


@pytest.mark.system
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


@pytest.mark.system
def test_answers_are_not_searched_before_their_file_can_be_written(tiny_run, scored):
    done = scored(tiny_run, "--answers=/no/such/folder/answers", code=2)
    assert "/no/such/folder/answers: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_only_runs_of_one_task_judged_by_bleu_are_compared(run, tmp_path):
    def like(task, metrics=()):
        folder = tmp_path / task
        folder.mkdir(exist_ok=True)
        return types.SimpleNamespace(
            config=types.SimpleNamespace(task=task),
            folder=Folder(folder),
            task=types.SimpleNamespace(scoring=types.SimpleNamespace(METRICS=metrics)),
        )

    with pytest.raises(
        UserError, match="trained for the task masked, .* for translation"
    ):
        evaluate._refuse_incomparable(run, like("masked"))
    first, second = like("masked", ("filled",)), like("masked", ("filled",))
    second.folder = Folder(tmp_path)
    with pytest.raises(UserError, match="masked is judged by filled"):
        evaluate._refuse_incomparable(first, second)


def test_a_run_is_no_other_run(run):
    said = "--compare=.* is the run itself: name another one"
    with pytest.raises(UserError, match=said):
        evaluate._refuse_incomparable(run, run)


@pytest.mark.parametrize("flags", [[], ["--split=test", "--source=s", "--reference=r"]])
def test_what_is_to_be_scored_is_asked_for_once(run_main, capsys, flags):
    with pytest.raises(SystemExit):
        run_main(evaluate, "--workdir=RUN", *flags)
    said = "say what to score: --split=test, or --source=F --reference=F"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--max_input=-1", "--max_input=-1: must be at least 0 (as trained)"),
        ("--n_best=2", "--n_best needs --format=jsonl: a line of text holds one"),
        ("--embed --score", "--score and --embed are two different answers to a line"),
        ("--among=F --alignment", "--among and --alignment are two different answers"),
        ("--nearest=2 --format=jsonl", "--nearest needs --among: the file whose"),
        ("--score --beams=2", "--beams is for answers that are searched, and --score"),
        ("--embed --prefixes=F", "--prefixes is for answers that are searched"),
        ("--score --include=F", "--include is for answers that are searched"),
        ("--score --on_long=split", "--on_long is for answers that are searched"),
        ("--embed --engine=ctranslate2", "--engine is for answers that are searched"),
    ],
)
def test_flags_of_predict_are_checked_before_the_run_is_read(run_main, flag, says):
    with pytest.raises(UserError, match=re.escape(says)):
        run_main(predict, "--workdir=RUN", *flag.split())


def test_a_training_that_never_began_leaves_no_run(tiny_run, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copy(tiny_run / "config.json", tmp_path / "run")
    said = "run has no tokenizer: its training never began"
    with pytest.raises(UserError, match=said):
        transformer_jax.load(tmp_path / "run")


def test_weights_that_there_are_not_are_refused(tiny_run):
    with pytest.raises(UserError, match="averaged.*Did you mean 'average'"):
        transformer_jax.load(tiny_run, weights="averaged")


def test_a_run_is_put_on_the_mesh_that_is_given(tiny_run):
    mesh = sharding.local_mesh()
    assert transformer_jax.load(tiny_run, mesh=mesh).mesh is mesh


class Reverse:
    """An engine of another package: it answers with the line, from its end."""

    def __init__(self, run, setting):
        self.setting = setting

    def search(self, params, requests, options):
        for i, request in reversed([*enumerate(requests)]):
            yield i, [Hypothesis((*request.source[-2::-1], 3), -1.0, -1.0)]


def test_an_engine_of_another_package_answers(tiny_run, run, monkeypatch):
    listed = entry_points._own()["engines"]
    monkeypatch.setitem(listed, "backwards", f"{__name__}:Reverse")
    other = transformer_jax.load(tiny_run, engine="backwards:x")
    assert other.task.inference.writer.other.setting == "x"
    lines = ["O gato", "", "Ana dorme"]
    ids = run.task.data.source_tokenizer.encode(lines[0])
    back = run.task.data.target_tokenizer.decode(ids[::-1])
    replies = other.replies(lines)
    assert [reply.text for reply in replies][:2] == [back, ""]
    assert replies[0].score == -1.0 and run.predict(lines)[0] != back
    with pytest.raises(
        UserError, match="engine='backwars' is unknown: choose .*Did you mean"
    ):
        run.use_engine("backwars")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match="'backwards' answers in one process, not in 2"):
        run.use_engine("backwards")


def test_an_engine_is_for_tasks_that_write(run):
    class Labels:
        parse = question = answers = staticmethod(print)

    task = dataclasses.replace(run.task, inference=Labels())
    other = dataclasses.replace(run, task=task)
    with pytest.raises(UserError, match="searches texts, but the task 'translation' w"):
        other.use_engine("ctranslate2")


def test_an_option_that_the_task_does_not_have_is_refused(run):
    config = copy.deepcopy(run.config)
    with pytest.raises(UserError, match="no option 'beam'. Did you mean 'beams'"):
        runs.decode_options(config, beam=2)
    with config.unlocked():
        del config.decode.coverage  # as a language model
    with pytest.raises(UserError, match="task 'translation' has no option 'coverage'"):
        runs.decode_options(config, coverage=0.1)
    with config.unlocked():
        del config.decode  # as a classifier
    with pytest.raises(UserError, match=r"has no option 'beams'\.$"):
        runs.decode_options(config, beams=2)


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


@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_found_has_the_probability_that_reading_it_gives(run, sentences, beams):
    run.predict(["O gato."])
    asked = [run.task.inference.parse(line) for line in sentences[:7]]
    options = runs.decode_options(run.config, beams=beams)
    engine = run.task.inference.writer.engine(run.mesh)
    found = dict(engine.search(run.params, asked, options))
    pairs = [(one.source, found[i][0].tokens) for i, one in enumerate(asked)]
    scorer = run.task.inspector.scorer
    for i, log_probs, _ in scorer.pairs(run.params, pairs, run.mesh):
        assert log_probs.sum() == pytest.approx(found[i][0].log_prob, rel=1e-4)


def test_scores_are_sums_over_the_pieces_of_a_full_forward(run):
    source, target = "O gato dorme.", "The cat sleeps."
    weights = run.attention(source, target)
    (score,) = run.score([source], [target])
    (reading,) = run.task.inspector.read(run.params, [(source, target)], run.mesh)
    assert score == pytest.approx(float(reading.log_probs.sum())) and score < 0
    expected = weights["cross"][-1].mean(axis=0)
    np.testing.assert_allclose(reading.attention, expected, atol=1e-5)
    alone = run.score([source], [target])
    among = run.score([source, "Sim.", source + " " + source], [target, "Yes.", "No."])
    assert among[0] == pytest.approx(alone[0], rel=1e-5)


def test_words_are_aligned_by_what_their_pieces_attend_to(run):
    task = run.task
    pairs = [("O gato dorme aqui", "Cats sleep")]
    (reading,) = task.inspector.read(run.params, pairs, run.mesh)
    sides = [task.data.source_tokenizer.pieces(reading.source)[:-1]]
    sides.append(task.data.target_tokenizer.pieces(reading.target)[:-1])
    words = []
    for pieces in sides:
        starts = [p.startswith("▁") for p in pieces]
        words.append(np.cumsum(starts) - 1)
    assert words[0].max() == 3 and words[1].max() == 1
    attention = np.zeros(reading.attention.shape)
    target = next(i for i, w in enumerate(words[1]) if w == 1)
    source = next(i for i, w in enumerate(words[0]) if w == 2)
    attention[target, source] = 1.0
    shown = dataclasses.replace(reading, attention=attention)
    assert task.inspector.align(shown) == [(0, 0), (2, 1)]
    assert (
        task.inspector.align(dataclasses.replace(reading, target=reading.target[-1:]))
        == []
    )
    (pairs,) = run.align(["O gato dorme aqui"], ["Cats sleep"])
    assert [t for _, t in pairs] == [0, 1] and all(0 <= s < 4 for s, _ in pairs)


def test_a_sentence_has_a_vector_whatever_its_batch(run, sentences):
    together = run.encode([*sentences[:5], "O gato dorme. " * 9])
    assert together.shape == (6, run.config.model.d_model)
    for line, vector in zip(sentences[:5], together, strict=False):
        np.testing.assert_allclose(run.encode([line])[0], vector, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 1e-3


def test_a_long_line_is_split_where_sentences_end_and_joined(run):
    line = "O gato dorme. Ana lê um livro!  “Vamos?” Sim… 猫。犬！"
    parts = run.task.inference.split(line, 3)
    assert parts == [
        "O gato dorme.", "Ana lê um livro!", "“Vamos?”", "Sim…", "猫。", "犬！"
    ]  # fmt: skip
    assert run.task.inference.split(line, 500) == [line]
    (reply,) = run.replies([line], max_input=40, on_long="split")
    assert reply.text == " ".join(run.predict(parts))
    refused, fine = run.replies(["palavra " * 300, "O gato dorme."], max_input=40)
    assert "are more than the 40 allowed" in refused.error and refused.text == ""
    assert fine.text == run.predict(["O gato dorme."])[0]
    (reply,) = run.replies(["palavra " * 300], max_input=40, on_long="split")
    assert "are more than the 40 allowed" in reply.error


def test_the_parts_of_a_line_have_its_tag_and_its_prefix_once(run):
    changed = copy.deepcopy(run.config)
    changed.data.train_tags = "<2en>, <2de>"
    tokenizer = run.task.data.source_tokenizer
    task = translation.compose_translation(changed, tokenizer, tokenizer)
    parts = ["<2de> O gato dorme.", "<2de> Sim."]
    assert task.inference.split("<2de> O gato dorme. Sim.", 3) == parts
    line, how = "O gato dorme. Ana lê.", {"max_input": 10, "on_long": "split"}
    (reply,) = run.replies([line], prefixes=["The old"], **how)
    first = run.replies(["O gato dorme."], prefixes=["The old"])[0].text
    assert reply.text == f"{first} {run.predict(['Ana lê.'])[0]}"


def test_a_line_needs_a_tag_if_all_sources_of_training_had_one(run):
    def inference(tags):
        changed = copy.deepcopy(run.config)
        changed.data.train_tags = tags
        tokenizer = run.task.data.source_tokenizer
        return translation.compose_translation(changed, tokenizer, tokenizer).inference

    assert inference("<2en>, <2en>").parse("O gato.") == run.task.inference.parse(
        "<2en> O gato."
    )
    one = inference("<2en>")
    assert one.parse("<2en> O gato.") == one.parse("O gato.")
    assert one.split("O gato dorme. Sim.", 3) == ["<2en> O gato dorme.", "<2en> Sim."]
    assert one.parse(" ").source == ()
    some = inference(",<back>")
    assert some.parse("O gato.") == run.task.inference.parse("O gato.")
    assert some.split("<2fr> Sim. Sim.", 3) == ["<2fr> Sim.", "Sim."]  # no tag of it
    words = (
        "a line without any of the tags <2en>, <2de>, .*: put one before it: <2en> …"
    )
    for refuse in (inference("<2en>,<2de>").parse, inference("<2en>,<2de>").split):
        with pytest.raises(Refused, match=words):
            refuse("O gato dorme.", 3)


def test_lines_are_split_at_the_length_of_training_unless_told(run):
    line = "A menina lê. " * 40  # more than 64 pieces
    (reply,) = run.replies([line], on_long="split")
    assert reply.text == " ".join(run.predict(["A menina lê."] * 40))
    with pytest.raises(UserError, match="on_long='splt': choose refuse | split"):
        run.predict([line], on_long="splt")


def test_the_parts_of_a_line_are_drawn_by_different_seeds(run):
    parts = {}
    inference = run.task.inference

    def parse(line, max_length, prefix, number, options):
        parts.setdefault(line, []).append(number)
        return inference.parse(line, max_length, prefix, number, options)

    class Recorded:
        question, answers = inference.question, inference.answers
        split, join = inference.split, inference.join

    Recorded.parse = staticmethod(parse)
    line = "O gato dorme. O gato dorme. O gato dorme."
    options = runs.decode_options(run.config, sample=True)
    list(answering.answer_lines(Recorded(), run.params, run.mesh,
        [line, "O gato dorme."], options, max_length=12, on_long="split",
        first=4))  # fmt: skip
    numbers = [number for found in parts.values() for number in found]
    assert len(numbers) > 2 and len(set(numbers)) == len(numbers)
    assert numbers[0] == 4 and 5 in numbers  # as lines that are not split


def test_an_answer_that_must_be_longer_than_it_may_be_is_refused(run):
    first, second = run.replies(["O gato.", ""], max_length=5, min_length=5)
    assert not first.error
    long, blank = run.replies(["O gato.", ""], min_length=40, extra_length=3)
    assert "at least 40 pieces (min_length) is longer than the" in long.error
    assert not blank.error


def test_answers_begin_as_they_are_told(run):
    lines = ["O gato dorme.", "A menina lê.", "Sim."]
    prefixes = ["The old", "", "A dog is"]
    replies = run.replies(lines, prefixes=prefixes, beams=2)
    for reply, prefix in zip(replies, prefixes, strict=True):
        assert reply.text.startswith(prefix)
    assert replies[1].text == run.predict(lines[1:2], beams=2)[0]


def test_answers_include_the_words_that_they_are_told(run):
    lines, include = ["O gato dorme.", "A menina lê.", "Sim."], [["old dog"], [], ["a"]]
    replies = run.replies(lines, include=include, beams=4, extra_length=8)
    assert "old dog" in replies[0].text and "a" in replies[2].text
    assert replies[1].text == run.predict(lines[1], beams=4, extra_length=8)
    again = run.replies(lines[0], include=["old dog"], beams=4, extra_length=8)
    assert again.text == replies[0].text
    # A line alone has a batch of one row, whose sums XLA may order otherwise.
    assert again.score == pytest.approx(replies[0].score, rel=1e-5)
    [blank, long] = run.replies(
        ["", "O gato dorme. Sim. " * 9],
        include=[["dog"], ["dog"]],
        beams=4,
        on_long="split",
        max_input=12,
    )
    assert "the answer may have 0 besides its end" in blank.error
    assert "parts of a line that is split, of which it is not known" in long.error


def test_words_to_include_are_checked(run):
    lines = ["Sim.", "O gato."]
    with pytest.raises(UserError, match="for 1 of 2 lines: give a list of words"):
        run.replies(lines, include=[["a"]])
    with pytest.raises(
        UserError, match="include: line 1 has no list of texts: give one"
    ):
        run.replies(lines, include=["a", "b"])
    with pytest.raises(UserError, match="set beams to 2 or more .now 1."):
        run.replies(lines, include=[["a"], []], beams=1)
    inference = run.task.inference

    class Other:
        parse = staticmethod(inference.parse)
        question, answers = inference.question, inference.answers

    options = runs.decode_options(run.config, beams=2)
    with pytest.raises(UserError, match="this task cannot be made to include words"):
        list(
            answering.answer_lines(
                Other(), run.params, run.mesh, ["Sim."], options, include=[["a"]]
            )
        )


def test_words_to_include_are_a_file_with_a_line_per_line(
    run_main, tiny_run, run, tmp_path
):
    lines = {"in": ["O gato dorme.", "Sim."], "words": ["old\tdog", ""]}
    for name, content in lines.items():
        (tmp_path / name).write_text("\n".join(content) + "\n", encoding="utf-8")
    words = [f"--workdir={tiny_run}", f"--input={tmp_path / 'in'}", "--beams=4"]
    words.append("--extra_length=9")
    out = run_main(predict, *words, f"--include={tmp_path / 'words'}")
    include = [["old", "dog"], []]
    replies = run.replies(lines["in"], include=include, beams=4, extra_length=9)
    assert out.splitlines() == [reply.text for reply in replies]
    assert all(word in out.splitlines()[0] for word in include[0])
    (tmp_path / "words").write_text("a\n", encoding="utf-8")
    with pytest.raises(UserError, match="--include has 1 lines, but .* at least 2"):
        run_main(predict, *words, f"--include={tmp_path / 'words'}")


def test_n_best_are_the_best_of_the_beam_in_order(run):
    (reply,) = run.replies(["O gato dorme."], beams=4, n_best=3, extra_length=5)
    scores = [reply.score, *(a.score for a in reply.others)]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    entry = reply.details
    assert [o["score"] for o in entry["others"]] == scores[1:]


def test_options_that_do_not_exist_or_cannot_work_are_refused(run):
    with pytest.raises(UserError, match="no option 'beam'. Did you mean 'beams'"):
        run.predict(["x"], beam=3)
    with pytest.raises(UserError, match="n_best 5 is more than decode.beams 2"):
        run.predict(["x"], beams=2, n_best=5)
    with pytest.raises(UserError, match="top_p = 1.5: must be at least .* at most 1"):
        run.predict(["x"], sample=True, top_p=1.5)


def test_draws_belong_to_a_line_and_a_seed(run, sentences):
    options = {"sample": True, "temperature": 2.0}
    first = run.predict(sentences[:5], **options)
    assert run.predict(sentences[:5], **options) == first
    assert run.predict(sentences[:3], **options) == first[:3]
    assert run.predict(sentences[:5], **options, seed=2) != first


@pytest.mark.system
@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        (["--score"], "O gato.\tThe cat.\n", r"-\d+\.\d{6}\n"),
        (["--embed"], "O gato.\n", r"(-?[\d.e-]+ ){15}-?[\d.e-]+\n"),
        (["--alignment"], "O gato.\n", r"[^\t]*\t(\d+-\d+ ?)*\n"),
        (
            ["--format=jsonl", "--n_best=2", "--beams=2"],
            "O gato.\n",
            r'\{"input": "O gato.", "output": .*, "score": .*, "others": \[.*\]\}\n',
        ),
    ],
)
def test_the_command_has_every_way_to_look(tiny_run, options, given, expected):
    done = call(tiny_run, given.encode(), *options)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(expected, done.stdout.decode()), done.stdout


@pytest.mark.system
def test_the_command_refuses_what_does_not_fit_together(tiny_run):
    done = call(tiny_run, b"x\n", "--n_best=2")
    assert done.returncode == 2 and b"--format=jsonl" in done.stderr
    done = call(tiny_run, b"x\n", "--nearest=2")
    assert done.returncode == 2 and b"--nearest needs --format=jsonl" in done.stderr


@pytest.mark.system
def test_the_command_answers_with_the_nearest_line_of_a_file(tiny_run, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("Onde está a chave?\n\nO gato dorme.\n")
    done = call(tiny_run, b"O gato dorme.\n\n", f"--among={lines}")
    first, second = done.stdout.decode().splitlines()
    assert first == "1.0000\tO gato dorme." and second.count("\t") == 1


def test_attention_has_a_weight_for_each_pair_of_pieces(run, sentences):
    pieces = run.task.inspector.pieces(sentences[0], "The cat sleeps.")
    weights = run.attention(sentences[0], "The cat sleeps.")
    source, target = map(len, pieces)
    layers, heads = 1, run.config.model.num_heads
    assert weights["encoder"].shape == (layers, heads, source, source)
    assert weights["decoder"].shape == (layers, heads, target, target)
    assert weights["cross"].shape == (layers, heads, target, source)
    for kind in weights.values():
        assert kind.sum(-1) == pytest.approx(1.0, abs=1e-5)
