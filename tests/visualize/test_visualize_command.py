"""The commands that draw: every name writes its picture, mistakes exit with 2."""

import os
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
from absl import flags

from transformer_jax.base import entry_points
from transformer_jax.base.errors import UserError
from transformer_jax.visualize import __main__, aligning, commands, explain
from transformer_jax.visualize import flags as command
from transformer_jax.visualize.__main__ import COMMANDS
from transformer_jax.visualize.figures import beams
from transformer_jax.visualize.figures.training import drawn, read_groups

TEXT = "O gato dorme."


@pytest.fixture
def draw(monkeypatch, run):
    """A function: the figure of a name and its flags, of one opened run."""
    values = flags.FlagValues()
    for kind in ("string", "integer", "float", "bool", "multi_string"):
        define = getattr(flags, f"DEFINE_{kind}")
        monkeypatch.setattr(
            flags, f"DEFINE_{kind}",
            lambda *a, _define=define, **k: _define(*a, flag_values=values, **k),
        )  # fmt: skip
    command.define_flags()
    monkeypatch.setattr(commands.runs, "load", lambda *_: run)

    def make(name, *given):
        values(["command", *given])
        return entry_points.require("figures", name)(values)

    return make


OF_RUN = ["attention", "heads", "arcs", "words", "entropy", "rollout", "masking",
          "padding", "beam"]  # fmt: skip
ALONE = ["positions", "slices", "waves", "distances", "mask", "schedule", "smoothing",
         "shapes"]  # fmt: skip


@pytest.mark.parametrize("name", OF_RUN)
def test_figures_of_a_run_read_the_text_and_the_target(draw, name):
    given = [f"--text={TEXT}", "--target=The cat sleeps.", "--workdir=RUN"]
    assert draw(name, *given, "--beams=2" if name == "beam" else "--head=1").axes


@pytest.mark.parametrize("name", ALONE)
def test_figures_of_no_run_need_no_flags(draw, name):
    assert draw(name, "--length=9").axes


def test_the_words_of_both_sides_are_on_the_axes(draw, run):
    figure = draw("attention", "--workdir=RUN", "--example=test:0", "--target=x")
    record = run.records("test")[0]
    axes = figure.axes[0]
    keys = [label.get_text() for label in axis_labels(axes.xaxis)]
    text = "".join(keys).replace("·", "").replace("␣", "")
    assert text == record["source"].replace(" ", "") + "</s>"
    rows = [label.get_text().split(" → ") for label in axis_labels(axes.yaxis)]
    assert rows[0][0] == "<s>" and rows[-1][1] == "</s>"
    # A row is named by the piece that is read and by the one that is written then.
    assert [written for _, written in rows[:-1]] == [read for read, _ in rows[1:]]


def test_a_word_of_several_pieces_has_arcs_of_its_own(draw, run):
    pieces = run.task.data.source_tokenizer.encode("gato")
    assert len(pieces) > 2  # two pieces and the end
    asked = ["--workdir=RUN", "--kind=encoder", "--word=gato"]
    figure = draw("arcs", f"--text={TEXT}", "--target=x", *asked)
    labels = [label.get_text() for label in axis_labels(figure.axes[0].xaxis)]
    assert labels == ["O", "gato", "dorme", ".", "</s>"]
    assert figure.axes[0].get_title() == "Where “gato” looks"


def axis_labels(axis):
    return axis.get_ticklabels()


def test_every_figure_is_named_here():
    elsewhere = {"patches", "alignment", "similarity", "curves", "neighbours", "reach"}
    found = {
        n: entry_points.require("figures", n) for n in entry_points.names("figures")
    }
    of_core = {n for n, draw in found.items() if draw.__module__ == commands.__name__}
    assert {*OF_RUN, *ALONE, *elsewhere} == of_core
    assert {*found, "explain"} <= set(COMMANDS)


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--workdir", "r", "--help"]])
def test_help_needs_no_name_of_a_figure(words, capsys):
    __main__.main(["visualize", *words])
    said = capsys.readouterr().out
    assert "attention   Draw all heads" in said and "NAME --help lists" in said


def test_an_option_in_place_of_a_name_is_explained(capsys):
    with pytest.raises(SystemExit, match="2"):
        __main__.main(["visualize", "--workdir=runs/q"])
    assert "name what to draw first, as in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("attention", [], "--text is missing"),
        ("attention", ["--example=test:99"], "test has 11 examples"),
        ("arcs", [f"--text={TEXT}", "--target=x", "--word=casa"], "choose one of"),
        ("attention", [f"--text={TEXT}", "--target=x", "--kind=corss"], "mean 'cross'"),
        (
            "heads",
            [f"--text={TEXT}", "--target=x", "--kind=x"],
            r"--kind=x: choose cross \| encoder \| decoder",
        ),
        ("patches", [f"--text={TEXT}", "--target=x"], "only images have patches"),
        ("similarity", [], "only a run with model.positions = 'learned'"),
        ("slices", ["--d_model=8"], "has depths up to 7"),
        ("slices", ["--depths=1,x"], "give numbers separated by commas"),
        ("curves", [], "name run directories"),
        ("neighbours", ["--words=xyzzyx"], "not a single piece"),
    ],
)
def test_what_cannot_be_drawn_says_why(draw, name, given, says):
    with pytest.raises(UserError, match=says):
        draw(name, "--workdir=" + ("" if name == "curves" else "RUN"), *given)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--columns=0", "--columns=0: at least 1"),
        ("--output=mask.doc", "--output=mask.doc: name a .png, .svg, .pdf file"),
        ("--output=none/mask.png", "--output=none/mask.png: there is no folder none"),
    ],
)
def test_a_figure_that_cannot_be_written_is_refused(run_main, flag, says):
    with pytest.raises(UserError, match=says):
        run_main(command.Drawing("mask"), flag)


def test_a_run_that_has_logged_nothing_has_no_curves(tiny_run, tmp_path):
    shutil.copy(tiny_run / "config.json", tmp_path)
    said = f"{tmp_path} has logged nothing yet .no metrics.jsonl"
    with pytest.raises(UserError, match=said):
        read_groups([tmp_path])


def test_neighbours_and_alignment_of_a_run(draw, run, capsys):
    figure = draw("alignment", "--workdir=RUN", "--sentences=3")
    assert figure.axes[0].images[0].get_array().shape == (1, 2)
    assert "layer 0, head" in capsys.readouterr().out
    assert draw("neighbours", "--workdir=RUN", "--count=2").axes[0].texts


def test_gold_alignment_has_a_row_for_each_word_of_both_sides(run):
    weights, links = next(aligning.examples(run, "test", 1))
    from_run = run.records("test")[0]
    words = from_run["target"].split(), from_run["source"].split()
    assert weights.shape[0:2] == (1, 2)
    assert weights.shape[2] >= len(words[0]) and weights.shape[3] >= len(words[1])
    assert (weights.sum(-1) <= 1 + 1e-5).all()
    assert links and all(
        s < weights.shape[3] and t < weights.shape[2] for s, t in links
    )


def test_a_traced_search_ends_in_what_predict_answers(run):
    found = beams.search(run, TEXT, beams=3, max_length=6)
    [reply] = run.replies([TEXT], beams=3, max_length=6)
    (best,) = [b for b in found if b.kind == "best" and b.score is not None]
    assert best.score == pytest.approx(reply.score, abs=1e-5)
    known = {b.tokens for b in found}
    assert all(len(b.tokens) == 1 or b.tokens[:-1] in known for b in found)
    assert {b.kind for b in found} >= {"best", "discarded"}


def test_padding_without_its_mask_changes_the_weights_and_with_it_does_not(run):
    rows = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found = explain.compute(*rows)
    alone, masked, unmasked = commands.with_padding(found, 2)
    np.testing.assert_allclose(masked[:3, :3], alone, atol=1e-6)
    np.testing.assert_array_equal(masked[:, 3:], 0)
    assert (unmasked[:3, 3:] > 0).all()
    assert (unmasked[:3, :3] < alone).all()


def test_a_training_writes_its_curves_if_asked(tiny_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    with drawn(folder):
        assert not (folder / "curves.png").exists()
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def call(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "transformer_jax.visualize", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        timeout=120,
    )


@pytest.mark.system
def test_the_command_writes_what_it_is_named(tiny_run, tmp_path):
    done = call("curves", tiny_run, tiny_run, "--output=c.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")
    assert done.stderr == "wrote c.svg\n"


@pytest.mark.system
def test_a_mistake_exits_with_2_and_no_traceback(tmp_path):
    done = call("atention", cwd=tmp_path)
    assert done.returncode == 2
    assert "attention | heads" in done.stderr and "mean 'attention'" in done.stderr
    done = call("positions", "--output=p.gif", cwd=tmp_path)
    assert done.returncode == 2 and "name a .png, .svg" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(UserError, match="--workdir is missing.*greeting, look-ahead"):
        command.follow(types.SimpleNamespace(workdir=""))
