"""A run in Python: one line or many, several threads, what it shows of itself."""

import json
import logging
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from transformer_jax import load, predict
from transformer_jax.base.errors import UserError
from transformer_jax.data.text import retrieval
from transformer_jax.decoding import engine, memory
from transformer_jax.runs.run import decode_options

LINES = ["O gato dorme.", "A menina lê o livro.", "Ele corre.", "Nós vemos a casa."]


def test_a_string_gets_one_answer_and_a_list_one_a_line(run):
    answers = run.predict(LINES)
    assert isinstance(answers, list) and len(answers) == len(LINES)
    assert run.predict(LINES[0]) == answers[0]
    replies = run.replies(LINES)
    # Alone, a line is searched in a batch of another shape: sums round differently.
    one = run.replies(LINES[0])
    assert isinstance(replies, list) and one.text == replies[0].text
    assert one.score == pytest.approx(replies[0].score, rel=1e-5)
    assert run.replies(LINES[0], prefixes="The").text == (
        run.replies(LINES[:1], prefixes=["The"])[0].text
    )
    scores = run.score(LINES, answers)
    assert isinstance(scores, list) and len(scores) == len(LINES)
    assert run.score(LINES[0], answers[0]) == pytest.approx(scores[0], rel=1e-5)
    assert run.encode(LINES).shape == (len(LINES), run.config.model.d_model)
    assert run.encode(LINES[0]).shape == (run.config.model.d_model,)
    assert run.align(LINES[0], "The cat") == run.align(LINES[:1], ["The cat"])[0]
    assert run.align(LINES[0]) == run.align(LINES[:1])[0]
    maps = run.attention(LINES[:2], ["The", "A girl"])
    assert [list(one) for one in maps] == [["encoder", "decoder", "cross"]] * 2
    alone = run.attention(LINES[1], "A girl")
    assert alone.tokens == maps[1].tokens
    assert run.attention(LINES[:1])[0].written == run.attention(LINES[0]).written


def test_it_fits_a_line(run):
    text = repr(run)
    assert "\n" not in text and len(text) < 250
    assert "translation" in text and "parameters" in text and "step 12" in text


def test_several_threads_get_the_answers_that_one_gets(run):
    expected = [run.predict([line], beams=2) for line in LINES]
    with ThreadPoolExecutor(4) as threads:
        jobs = [
            threads.submit(run.predict, [line], beams=2)
            for _ in range(3)
            for line in LINES
        ]
    assert [job.result() for job in jobs] == expected * 3


def test_a_run_is_opened_by_several_threads_at_once(tiny_run):
    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(load, tiny_run) for _ in range(3)]
    opened = [job.result() for job in jobs]
    for a, b in zip(opened, opened[1:], strict=False):
        assert a is not b and a.config == b.config
        for one, other in zip(*map(jax.tree.leaves, (a.params, b.params)), strict=True):
            assert (one == other).all()


def test_a_search_that_no_memory_holds_is_refused_with_the_figure(run):
    said = r"beams 1000, .* up to 999,999 pieces, need [\d,]+ GB, but [\d,]+ are free:"
    with pytest.raises(UserError, match=said):
        run.predict("O gato dorme.", beams=1000, max_length=999_999)
    assert run.predict("O gato dorme.", beams=2, max_length=9) is not None


def test_a_search_is_judged_by_all_that_its_programs_hold(run, monkeypatch):
    """Not by its state alone: each hypothesis looks at the slots of all others."""
    seen = []

    def needs_of(program):
        seen.append(memory.needs_of(program))
        return seen[-1]

    monkeypatch.setattr(engine, "LARGE", 0)  # compile every search to know
    monkeypatch.setattr(engine, "needs_of", needs_of)
    monkeypatch.setattr(memory, "free_memory", lambda device: 1e12)
    for beams in (40, 80):
        assert run.predict("O gato dorme.", beams=beams) is not None
    assert seen[2] > 3 * seen[0]  # as the state alone would not grow
    monkeypatch.setattr(memory, "free_memory", lambda device: 0.9 * max(seen))
    fresh = run.task.inference.writer.engine(run.mesh)
    fresh._checked.clear()
    with pytest.raises(UserError, match="beams 80, .* need 0 GB, but 0 are free"):
        run.predict("O gato dorme.", beams=80)


def test_a_text_whose_attention_no_memory_holds_is_refused_by_its_line(
    run, monkeypatch, tmp_path, caplog
):
    long, free = "palavra " * 300, 1e8
    monkeypatch.setattr(memory, "free_memory", lambda device: free)
    monkeypatch.setitem(run.config.model, "attention", "einsum")
    said = r"line 2 of 1,502 pieces needs 0.2 GB for its attention, but 0.1 are free"
    with pytest.raises(UserError, match=said):
        run.encode([LINES[0], long])
    with pytest.raises(UserError, match="pair 2 of up to 1,502 pieces a side needs"):
        run.score([LINES[0], long], [LINES[0]] * 2)
    with pytest.raises(UserError, match="pieces, of which all layers are shown, needs"):
        run.attention("palavra " * 800, "The")
    first, bad, last = run.replies([LINES[0], long, LINES[0]])
    assert "a line of 1,501 pieces needs 0.2 GB" in bad.error
    assert first.text == last.text and not first.error
    (tmp_path / "lines").write_text(f"\n{LINES[0]}\n{long}\n")
    with pytest.raises(
        UserError, match="--among=.*lines: line 3 of 1,502 pieces needs"
    ):
        retrieval.open_index(str(tmp_path / "lines"), run.encode)
    tool = predict.LineAnswerer(run, decode_options(run.config), 0, "jsonl")
    entries = [json.loads(line) for line in tool.embed([LINES[0], long, LINES[1]], 5)]
    assert ["vector" in entry for entry in entries] == [True, False, True]
    assert tool.refused == 1 and "line 7: a line of 1,502 pieces needs" in caplog.text
    free = 1e12
    assert run.encode(long).shape == (run.config.model.d_model,)


def test_a_container_s_limit_counts_as_memory(monkeypatch, tmp_path):
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("3000\n")
    used.write_text("1000\n")
    monkeypatch.setattr(memory, "GROUPS", ((str(limit), str(used)),))
    [device] = jax.local_devices()[:1]
    assert memory.free_memory(device) == 2000
    limit.write_text("max\n")
    assert memory.free_memory(device) > 1e8


def test_what_is_compiled_is_said_once(tiny_run, caplog):
    fresh = load(tiny_run)
    with caplog.at_level(logging.DEBUG, "transformer_jax.decoding"):
        fresh.predict("O gato dorme.")
        fresh.predict("Ele corre.")
        said = [r.getMessage() for r in caplog.records if "compiling" in r.getMessage()]
        assert len(said) == 1 and "pieces" in said[0]
        fresh.predict(" ".join(LINES))
    assert sum("compiling" in r.getMessage() for r in caplog.records) == 2


def test_nothing_is_compiled_for_lines_that_were_answered_before(tiny_run):
    fresh = load(tiny_run)
    fresh.warm_up(LINES, beams=3)
    compiled = []

    def note(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        fresh.predict(LINES, beams=3)
        fresh.predict(LINES[1], beams=3)
        assert not compiled
        fresh.predict(["O gato dorme."], beams=4)
        assert compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def test_programs_are_kept_in_the_cache(tiny_run):
    jax.config.update("jax_compilation_cache_dir", None)
    load(tiny_run)
    assert "compiled" in jax.config.jax_compilation_cache_dir


@pytest.mark.parametrize("name", ["encode", "align", "replies"])
def test_what_is_neither_a_line_nor_a_list_is_refused(run, name):
    for lines in (b"ab", None, 3):
        with pytest.raises(TypeError, match=f"{name} takes a line or a list of lines"):
            getattr(run, name)(lines)


def test_lines_that_are_not_text_are_named(run):
    said = "line 2 is of type NoneType, but must be str"
    for call in (run.encode, run.align, lambda x: run.score(x, x)):
        with pytest.raises(UserError, match=said):
            call(["O gato.", None])
    with pytest.raises(UserError, match="score: line 1 is of type int, but must be"):
        run.score([1], [2])
    with pytest.raises(UserError, match="align: line 1 is of type NoneType"):
        run.align([None], [None])
    with pytest.raises(UserError, match="attention: there are 2 sources, but 1 target"):
        run.attention(LINES[:2], ["The"])


def test_characters_that_the_model_does_not_know_are_named_once(run, caplog):
    unknown = run.replies(["O gato 🎉.", "日 🎉", LINES[0]])
    assert [reply.unknown for reply in unknown] == [("🎉",), ("日", "🎉"), ()]
    assert not caplog.records
    run.predict(["O gato 🎉.", "🎉", "日 🎉"])
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in said] == ["line 1", "line 3"]
    assert "the model does not know 日: the answer may be invented" in said[1]


def test_a_decomposed_line_has_the_answer_of_the_composed_one(run):
    line = "A menina lê a maçã."
    apart = unicodedata.normalize("NFD", line)
    given, found = run.replies([line, apart])
    assert apart != line and found.line == apart
    assert (found.text, found.score) == (given.text, given.score) and not found.unknown
    assert (run.encode(line) == run.encode(apart)).all()
    assert run.score(line, line) == run.score(apart, apart)
    assert run.attention(line, line).tokens == run.attention(apart, apart).tokens


@pytest.mark.parametrize("line", [None, 3, b"O gato.", ["O gato."], {}, object()])
def test_a_line_that_is_not_text_loses_no_other_answer(run, line, caplog):
    first, bad, last = run.predict([LINES[0], line, LINES[0]])
    assert first == last == run.predict(LINES[0]) and bad == ""
    [said] = [r.getMessage() for r in caplog.records]
    assert said.startswith(f"line 2: {type(line).__name__} is not a line: ")


def test_half_of_a_surrogate_pair_is_refused(run):
    first, bad, last = run.replies([LINES[0], "gato \udbff", LINES[0]])
    assert bad.error == r"'\udbff' at character 6: half of a surrogate pair is not text"
    assert first.text == last.text and not first.error
    [begun] = run.replies([LINES[0]], prefixes=["\ud800"])
    assert "half of a surrogate pair" in begun.error
    for call in (run.encode, lambda x: run.score(x, x), run.align):
        with pytest.raises(UserError, match="half of a surrogate pair is not text"):
            call(["\ud800"])


def test_arguments_that_do_not_fit_together_are_named(run):
    with pytest.raises(UserError, match="there are 1 prefixes for 2 lines: give one"):
        run.replies(LINES[:2], prefixes=["The"])
    with pytest.raises(UserError, match="score: there are 2 sources, but 1 targets"):
        run.score(LINES[:2], LINES[:1])
    with pytest.raises(UserError, match=r"must be at least 0 \(any length\)"):
        run.replies(LINES, max_input=-1)
    with pytest.raises(UserError, match="decode.beams = 'a' is of type str, not int"):
        run.predict(LINES, beams="a")
