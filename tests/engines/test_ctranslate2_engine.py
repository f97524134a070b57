"""Answers by CTranslate2 are those of this package's own engine, or are refused."""

import copy
import dataclasses
import json
import logging
import os
import re
import shutil
import sys

import jax
import pytest

import transformer_jax
from transformer_jax import predict, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.convert import ctranslate2 as convert
from transformer_jax.corpora.phrasebook import generate
from transformer_jax.data import cache
from transformer_jax.engines import ctranslate2 as engine
from transformer_jax.runs import bundle as bundles
from transformer_jax.runs import run as runs

try:
    import ctranslate2
except ImportError:
    assert not os.environ.get("REQUIRE_PEERS"), "ctranslate2 is to be installed here"
    pytest.skip("CTranslate2 is not installed", allow_module_level=True)

pytestmark = pytest.mark.system

LINES = [pair.source for pair in generate("test", 17)]
NAME = "ctranslate2"


@pytest.fixture
def folder(tiny_run, tmp_path):
    """A copy of a run, to which an export may be added."""
    return shutil.copytree(tiny_run, tmp_path / "run")


@pytest.fixture(scope="module")
def fast(tiny_run, tmp_path_factory):
    folder = shutil.copytree(tiny_run, tmp_path_factory.mktemp("fast") / "run")
    return transformer_jax.load(folder, engine=NAME)


def same(ours, theirs, least=1.0):
    """Whether texts and scores of the replies are equal, also of those next best."""
    assert len(ours) == len(theirs)
    equal = 0
    for a, b in zip(ours, theirs, strict=True):
        assert (a.line, a.error, a.unknown) == (b.line, b.error, b.unknown)
        texts = [[one.text for one in (x, *x.others)] for x in (a, b)]
        equal += texts[0] == texts[1]
        if a.text == b.text and not a.error:
            assert a.score == pytest.approx(b.score, abs=2e-4)
    return equal >= least * len(ours)


@pytest.mark.parametrize(
    "options",
    [
        {"beams": 1},
        {"beams": 4},
        {"beams": 4, "alpha": 0.0},
        {"beams": 1, "max_length": 5},
        {"beams": 1, "min_length": 13, "no_repeat": 1, "alpha": 0.0},
        pytest.param({"beams": 1, "extra_length": 0}, marks=pytest.mark.slow),
        pytest.param({"sample": True, "top_k": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_answers_and_scores_are_those_of_the_own_engine(run, fast, options):
    ours, theirs = (one.replies(LINES, **options) for one in (run, fast))
    assert same(ours, theirs, 0.9)


def test_the_next_best_answers_are_those_of_the_own_engine(run, fast):
    ours, theirs = (r.replies(LINES, beams=4, n_best=2) for r in (run, fast))
    assert all(len(reply.others) == 1 for reply in theirs)
    assert same(ours, theirs, 0.9)
    assert theirs[0].score >= theirs[0].others[0].score


@pytest.mark.parametrize("options", [{"beams": 4}, {"min_length": 9}], ids=str)
def test_answers_begin_with_their_prefixes(run, fast, options):
    lines, prefixes = LINES[:5], ["The", "", "She is not", "A cat", "I"]
    given = {"beams": 1, **options, "prefixes": prefixes}
    ours, theirs = (one.replies(lines, **given) for one in (run, fast))
    assert same(ours, theirs)
    assert theirs[2].text.startswith("She is not")


def test_words_are_included_by_the_own_engine(run, fast):
    given = {"include": [["dog"], [], ["old"], [], []], "beams": 2}
    ours, theirs = (one.replies(LINES[:5], **given) for one in (run, fast))
    assert same(ours, theirs)
    assert "dog" in theirs[0].text and "old" in theirs[2].text


def test_lines_that_are_blank_or_too_long_or_strange_are_treated_alike(run, fast):
    lines = ["", LINES[0], " ", "palavra " * 300, "漢字 " + LINES[1], "a\udcffb"]
    ours, theirs = (one.replies(lines, max_input=64) for one in (run, fast))
    assert same(ours, theirs)
    assert theirs[0].text == "" and theirs[3].error and theirs[5].error
    # CTranslate2 would read only the first 1,024 pieces.
    long = ["palavra " * 700]
    assert same(*(one.replies(long, beams=1, max_length=9) for one in (run, fast)))


def test_a_beam_that_reaches_its_limit_is_searched_here(run, fast, caplog):
    caplog.set_level(logging.INFO)
    ours, theirs = (r.replies(LINES, beams=2, max_length=3) for r in (run, fast))
    assert same(ours, theirs)
    assert re.search(r"\d+ of 17 lines searched by JAX: they reach", caplog.text)


def test_what_is_longer_than_the_table_of_positions_is_searched_here(run, fast, caplog):
    caplog.set_level(logging.INFO)
    given = {"beams": 1, "max_length": convert.POSITIONS + 1}
    assert same(*(one.replies(LINES[:1], **given) for one in (run, fast)))
    assert "1 of 1 lines searched by JAX" in caplog.text


def test_parameters_that_were_not_exported_are_searched_here(run, fast):
    params = jax.tree.map(lambda p: p * 1.5, run.params)
    ours, theirs = (
        dataclasses.replace(one, params=params).replies(LINES[:7], beams=1)
        for one in (run, fast)
    )
    assert same(ours, theirs)


def test_the_command_says_what_answers(folder, tmp_path, run_main, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "in").write_text("\n".join([*LINES[:5], ""]))
    found = {}
    for name in ("", f"{NAME}:float32"):
        given = [f"--workdir={folder}", f"--input={tmp_path / 'in'}", "--beams=1"]
        out = tmp_path / f"out{name}"
        run_main(
            predict, *given, f"--output={out}", "--format=jsonl", f"--engine={name}"
        )
        found[name] = [json.loads(line) for line in out.read_text().splitlines()]
    ours, theirs = found.values()
    assert [one["output"] for one in ours] == [one["output"] for one in theirs]
    version = ctranslate2.__version__
    assert re.search(f"CTranslate2 {version} answers: float32 on cpu, ", caplog.text)
    assert "of 13 lines of validation have the same answer as by JAX" in caplog.text


def said_by(caplog, folder, lines=LINES[:3], name=NAME):
    """What is said while a run that is opened again answers."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    transformer_jax.load(folder, engine=name).predict(lines, beams=1)
    return caplog.text


def exports(place):
    return [p for p in place.glob(f"{NAME}/*") if p.is_dir() and p.name[0] != "."]


def test_an_export_is_made_and_checked_once(folder, caplog):
    assert "converting" in said_by(caplog, folder)
    (made,) = exports(folder)
    compared, before = [], (made / "model.bin").stat().st_mtime_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.Engine, "_compare", lambda *_: compared.append(1))
        said = said_by(caplog, folder)
    assert "converting" not in said and "checked    13 of 13" in said
    assert not compared and (made / "model.bin").stat().st_mtime_ns == before
    (made / "checked-float32.json").write_text('{"lines": "x"}')
    assert "checked    13 of 13" in said_by(caplog, folder)
    assert json.loads((made / "checked-float32.json").read_text())["equal"] == 13


def test_a_damaged_export_is_made_again(folder, caplog, monkeypatch):
    said_by(caplog, folder)
    (made,) = exports(folder)
    content = bytearray((made / "model.bin").read_bytes())
    content[-9] ^= 1
    (made / "model.bin").write_bytes(content)
    monkeypatch.setattr(cache, "_sound", {})  # as in another process
    said = said_by(caplog, folder)
    assert "is rebuilt: model.bin does not hold the bytes" in said
    assert "checked    13 of 13" in said and exports(folder) == [made]


def test_a_bundle_and_a_run_that_cannot_be_written_use_the_cache(
    run, folder, tmp_path, monkeypatch, caplog
):
    own_cache = tmp_path / "cache"
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(own_cache))
    bundle = tmp_path / "bundle"
    bundles.export(run, bundle)
    said_by(caplog, bundle)
    assert not (bundle / NAME).exists() and len(exports(own_cache)) == 1
    shutil.rmtree(own_cache / NAME)
    (folder / NAME).write_text("a file where the folder would be")
    said_by(caplog, folder)
    assert len(exports(own_cache)) == 1


def test_lines_of_the_input_are_compared_where_no_others_can_be_read(
    folder, caplog, monkeypatch
):
    def read(self, split):
        raise UserError("the files are not here")

    monkeypatch.setattr(runs.Run, "records", read)
    assert "3 of 3 lines of the input have the same" in said_by(caplog, folder)
    assert "17 of 17 lines of the input" in said_by(caplog, folder, LINES)
    assert "17 of 17 lines of the input" in said_by(caplog, folder)


def test_an_export_that_answers_otherwise_is_refused(folder, caplog, monkeypatch):
    export = convert.export

    def damage(run, place, kind=""):
        params = jax.tree.map(lambda p: -p, run.params)
        export(dataclasses.replace(run, params=params), place, kind)

    monkeypatch.setattr(convert, "export", damage)
    said = "CTranslate2 with float32 answers in another way: only 0 of 13 lines of vali"
    for _ in range(2):  # also when it has been kept
        with pytest.raises(UserError, match=said):
            said_by(caplog, folder)
    assert caplog.text.count("by CTranslate2, ") <= engine.SHOWN


def test_matrices_of_8_bits_are_checked_apart(folder, caplog):
    said = said_by(caplog, folder, name=f"{NAME}:int8")
    assert "answers: int8 on cpu" in said
    assert re.search(r"checked    \d+ of 13", said)
    said_by(caplog, folder)
    names = {path.name for path in exports(folder)[0].glob("checked*")}
    assert names == {"checked-int8.json", "checked-float32.json"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"coverage": 0.2}, "coverage=0.2 does not work with CTranslate2, as its pen"),
        ({"sample": True, "min_p": 0.1}, "min_p=0.1 .* as it has no such filter; or"),
        ({"sample": True, "seed": 3}, "seed=3 .* it draws for all lines together; or"),
        (
            {"min_length": 5, "beams": 2},
            "min_length=5 .* a beam ranks otherwise: use beams=1; or",
        ),
        (
            {"no_repeat": 2, "beams": 2},
            "no_repeat=2 .* leave out no_repeat, or the engine",
        ),
    ],
)
def test_options_of_another_meaning_are_refused(fast, options, says):
    with pytest.raises(UserError, match=says):
        fast.predict(LINES[:2], **options)


def test_a_type_that_the_machine_does_not_have_is_refused(tiny_run):
    with pytest.raises(
        UserError, match="computes with .* on this cpu, not with 'int9'"
    ):
        transformer_jax.load(tiny_run, engine=f"{NAME}:int9")


def test_a_variant_that_is_not_exported_is_refused_at_once(run):
    other = copy.copy(run)
    other.config = copy.deepcopy(run.config)
    other.config.model.qk_norm = True
    with pytest.raises(UserError, match="not exported"):
        engine.open_engine(other)


def test_the_missing_package_is_named(tiny_run, monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, None)
    with pytest.raises(UserError, match="is missing: pip install ctranslate2"):
        transformer_jax.load(tiny_run, engine=NAME)


@pytest.fixture(scope="module")
def texts(tiny_run_of):
    """A language model, opened with each engine."""
    few = {"data.window": "32", "decode.max_length": "20", "eval.every": "12"}
    folder = tiny_run_of("language", **few, **{"eval.answers": "1"})
    return transformer_jax.load(folder), transformer_jax.load(folder, engine=NAME)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 7},
        {"min_length": 19},
        {"no_repeat": 3},
        {"max_length": 60, "window": 24},
        {"sample": True, "top_k": 1, "n_best": 2},
    ],
    ids=str,
)
def test_a_language_model_continues_alike(texts, options):
    lines = ["O ga", "", "Ele vê", "A men", "Ana"]
    given = {"sample": False, "beams": 1, **options}
    assert same(*(run.replies(lines, **given) for run in texts))


def test_what_a_language_model_draws_is_scored_as_here(texts):
    run, fast = texts
    found = fast.replies(["O ga"] * 5, sample=True, top_k=7, top_p=0.9, n_best=3)
    assert len({reply.text for reply in found}) > 1
    for reply in found:
        each = [reply.score, *(other.score for other in reply.others)]
        assert len(each) == 3 and each == sorted(each, reverse=True)


def test_a_beam_of_a_language_model_is_refused(texts):
    with pytest.raises(UserError, match="beams=2 .* cut at their limit otherwise"):
        texts[1].predict("O ga", beams=2, sample=False)


def test_the_prompts_of_a_language_model_are_of_its_window(texts):
    fast = texts[1].task.inference.writer.other
    options = tasks.language.Options(beams=1, max_length=30)
    found = fast._held_out(options)
    assert 0 < len(found) <= engine.SAMPLE and all(one.prefix for one in found)
