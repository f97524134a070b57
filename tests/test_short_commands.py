"""Short names of commands, their help, and the lists of configs and keys."""

import subprocess
import sys

import pytest

from transformer_jax import __main__ as commands
from transformer_jax import config
from transformer_jax.base.errors import UserError
from transformer_jax.config import smoke
from transformer_jax.config.loading import _run_file


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["transformer-jax", *words])
    try:
        code = commands.main()
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_without_a_command_all_are_listed_with_what_they_do(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys)
    assert code == 0
    for name in (*commands.MODULES, "configs", "keys"):
        (line,) = [x for x in out.split("\n") if x.startswith(f"  {name} ")]
        assert len(line.split(maxsplit=1)[1]) > 10


def test_a_command_that_does_not_exist_is_refused_with_the_nearest(monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "trian")
    assert code == 2
    assert "no command 'trian'. Did you mean 'train'?" in err and err[-1] == "\n"


def test_configs_are_listed_and_shown(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "configs")
    assert code == 0
    assert [x.split()[0] for x in out.splitlines()] == list(config.shipped())
    code, out, _ = run(monkeypatch, capsys, "configs", "multi30k")
    assert code == 0 and "Variants en_de" in out
    code, _, err = run(monkeypatch, capsys, "configs", "multi")
    assert code == 2 and "Did you mean 'multi30k'?" in err


def test_keys_have_values_meanings_and_defaults(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "keys", "quickstart", "optim")
    assert code == 0
    lines = out.splitlines()
    assert all(x.startswith("optim.") for x in lines)
    (warmup,) = [x for x in lines if x.startswith("optim.warmup_steps")]
    assert "= 300 " in warmup and warmup.endswith(
        "Updates of linear warmup. (default: 4000)"
    )
    (name,) = [x for x in lines if x.startswith("optim.name")]
    assert "default" not in name
    code, out, _ = run(monkeypatch, capsys, "keys", "quickstart")
    assert len(out.splitlines()) == len(list(config.items(config.load("quickstart"))))
    code, out, _ = run(monkeypatch, capsys, "keys", "sst2", "data")  # without its files
    assert code == 0 and "data.train_files" in out
    code, _, err = run(monkeypatch, capsys, "keys", "quickstart", "optimiser")
    assert code == 2 and "Did you mean 'optim'?" in err


@pytest.mark.system
@pytest.mark.parametrize("command", ["train", "predict"])
def test_help_has_every_option_and_the_way_to_set_an_option(command):
    done = subprocess.run(
        [sys.executable, "-m", f"transformer_jax.{command}", "--help"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr
    assert "python -m transformer_jax" in done.stdout
    assert "--workdir=" in done.stdout and "--verbose" in done.stdout
    assert "Set an option" in done.stdout or command != "train"
    assert "--beams=" in done.stdout or command != "predict"
    assert "logtostderr" not in done.stdout  # absl's own


@pytest.mark.parametrize("name", config.shipped())
def test_every_config_is_valid_when_it_is_shrunk(name):
    shrunk = _run_file(name)
    smoke.shrink(shrunk)
    try:
        found = config.load(name, smoke=True)
    except UserError as error:
        assert all("there is no file" in problem for problem in error.problems)
        return
    assert found.train.steps == 20 and found.train.smoke
    assert found.eval.every == 20 and found.eval.splits == ()
    assert found.model == shrunk.model
    assert found.data.batch_tokens <= _run_file(name).data.batch_tokens


def test_a_model_that_takes_over_parameters_keeps_its_depth_when_it_is_shrunk():
    def change(given):
        given.train.initial = "runs/other"

    found = config.load("quickstart", smoke=True, change=change)
    assert found.model.encoder_layers == config.load("quickstart").model.encoder_layers
    assert found.train.steps == 20
    assert config.load("quickstart", smoke=True).model.encoder_layers == 1


def test_a_key_on_the_command_line_wins_over_the_shrinking():
    assert (
        config.load("quickstart", {"train.steps": "31"}, smoke=True).train.steps == 31
    )
