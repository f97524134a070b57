"""The data inspection: what it says of clean text, and of text that has faults."""

import os
import re
import subprocess
import sys

import pytest

from transformer_jax import config as configs
from transformer_jax import inspect_data
from transformer_jax.base.errors import UserError
from transformer_jax.corpora.phrasebook import generate
from transformer_jax.planning import proposal

PAIRS = generate("train", 607)


def inspect(*options):
    return subprocess.run(
        [sys.executable, "-m", "transformer_jax.inspect_data", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        timeout=120,
    )


@pytest.fixture
def corpus(tmp_path):
    """A function: writes a corpus and returns the options that name it."""

    def write(train, dev=PAIRS[500:]):
        options = ["--config=quickstart", "--config.data.source=text"]
        options += ["--config.eval.splits=", "--config.tokenizer.vocab_size=600"]
        options += [f"--config.data.folder={tmp_path}"]
        for split, pairs in (("train", train), ("validation", dev)):
            for side in ("source", "target"):
                lines = [getattr(pair, side) + "\n" for pair in pairs]
                (tmp_path / f"{split}.{side}").write_text("".join(lines))
                options.append(f"--config.data.{split}_{side}={split}.{side}")
        return options

    return write


@pytest.mark.system
def test_clean_text_passes_and_is_shown_as_the_model_sees_it(corpus, tmp_path):
    picture = tmp_path / "lengths.png"
    done = inspect(*corpus(PAIRS[:500]), f"--picture={picture}", "--examples=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "result     nothing serious was found" in done.stdout
    assert re.search(
        r"source     6\d\d pieces \(unigram\), \d+ used, 0.00% un", done.stdout
    )
    assert re.search(r"buckets    \d+ steps per epoch, .* \(this config\)", done.stdout)
    assert re.search(r"packed     \d+ steps per epoch", done.stdout)
    assert f"  source   {PAIRS[0].source}\n" in done.stdout
    assert f"  target   {PAIRS[499].target}\n" in done.stdout
    assert "</s>" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.system
def test_serious_faults_are_marked_and_the_exit_code_is_1(corpus):
    shifted = [
        pair._replace(target=other.target)
        for pair, other in zip(PAIRS[:499], PAIRS[1:500], strict=True)
    ]
    done = inspect(*corpus(shifted))
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^  !! ", done.stdout, re.MULTILINE)
    assert re.search(r"result     \d+ findings? (is|are) serious", done.stdout)


@pytest.mark.system
def test_what_training_would_leave_out_is_counted_and_serious_if_much(corpus):
    done = inspect(*corpus(PAIRS[:500] * 2), "--config.filter.duplicates=true")
    assert done.returncode == 1
    line = next(x for x in done.stdout.split("\n") if x.startswith("left out"))
    assert "of 1,000 training pairs (50" in line and line.endswith("!!")


@pytest.mark.system
def test_bad_options_are_refused_at_once(corpus):
    done = inspect("--config=quickstart", "--picture=lengths.gif")
    assert done.returncode == 2 and "name a .png or .svg file" in done.stderr
    done = inspect()
    assert done.returncode == 2 and "--config is missing" in done.stderr


def test_what_is_read_in_lower_case_comes_back_in_lower_case(prepare_of, capsys):
    config, found = prepare_of("quickstart", **{"tokenizer.lowercase": "true"})
    assert not inspect_data._check_round_trip(config, found.task, found.train)
    assert not capsys.readouterr().out


def test_tags_hide_no_fault_from_the_checks(prepare_of, tmp_path):
    for side, word in (("source", "um"), ("target", "one")):
        lines = [f"{word} {i}\n" for i in range(30)]
        lines[4] = "\n" if side == "source" else lines[4]
        (tmp_path / side).write_text("".join(lines))
    keys = {"data.source": "text", "data.folder": str(tmp_path)}
    for split in ("train", "validation"):
        keys |= {f"data.{split}_{s}": s for s in ("source", "target")}
        keys[f"data.{split}_tags"] = "<2en>"
    _, found = prepare_of("quickstart", **keys, **{"tokenizer.vocab_size": "300"})
    texts = [f.text for f in inspect_data._inspect_text(found)["train"]]
    assert "1 of 30 sources (3.33 %) are empty" in texts
    assert len(found.train.store) == 29


def test_a_task_without_pairs_is_refused_in_words():
    for config in ("opinions", "language", "images"):
        with pytest.raises(UserError, match="inspect_data reads pairs of texts"):
            inspect_data.refuse_other_tasks(configs.load(config))


@pytest.mark.parametrize("form", ["classification", "translation", "language"])
@pytest.mark.system
def test_a_config_is_proposed_that_trains(
    form, tmp_path, one_device, monkeypatch, capsys
):
    """From files alone; what is held out is written beside it."""
    monkeypatch.chdir(tmp_path)
    if form == "language":
        text = "".join(pair.target + "\n" for pair in PAIRS)
        (tmp_path / "text.txt").write_text(text)
    elif form == "translation":
        rows = "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS)
        (tmp_path / "text.txt.tsv").write_text(rows)
    else:
        rows = "".join(
            f'"{p.target}",{"no" if " not " in p.target else "yes"}\n' for p in PAIRS
        )
        (tmp_path / "text.csv").write_text("sentence,label\n" + rows)
    [path] = tmp_path.iterdir()
    small = {"d_model": 16, "d_ff": 24, "num_heads": 2}
    for rows in proposal.SIZES.values():
        for _, size in rows:
            monkeypatch.setitem(size, "d_model", small["d_model"])
            monkeypatch.setitem(size, "d_ff", small["d_ff"])
            monkeypatch.setitem(size, "num_heads", small["num_heads"])
    monkeypatch.setattr(inspect_data, "TRIED", 4)
    assert inspect_data.propose_config([path.name], "mine.py", 0.5) == 0
    said = capsys.readouterr().out
    assert f"guess      {form}: " in said
    assert "--config mine.py --workdir runs/mine" in said
    found = configs.load("mine.py", {"train.steps": "4", "optim.warmup_steps": "1"})
    assert found.task == form
    kept, held = (
        len((tmp_path / "mine_data" / f"{n}.jsonl").read_text().splitlines())
        for n in ("train", "validation")
    )
    assert kept + held == len(PAIRS)
    assert held == len(PAIRS) // 20
    with pytest.raises(UserError, match="name a new file that ends in .py"):
        inspect_data.propose_config([path.name], "mine.py", 0.5)
    with pytest.raises(UserError, match="--write is missing"):
        inspect_data.propose_config([path.name], "", 0.5)


@pytest.mark.system
def test_files_are_named_without_an_option(tmp_path):
    done = inspect(str(tmp_path / "none.csv"), "--write", str(tmp_path / "a.py"))
    assert done.returncode == 2
    assert "there is no file" in done.stderr
