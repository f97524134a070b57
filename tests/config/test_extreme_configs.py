"""Extreme configs: refused before a device is touched, or a training that ends well.

A translator gets one to three numbers at a bound, just beyond it, or far beyond what
anybody means. Sizes and counts of updates go to their lower bound only, as their upper
one is what a large machine can do. Then every number that only another task has gets
each of these values alone.
"""

import contextlib
import random

import pytest

from transformer_jax import config, train
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError

FAR = ("nan", "inf", "-inf", "-1", "1e308", "100000000000000000000", "0", "1e-300", "")
# An end that the test would wait for, or one that ends the process.
LEFT_OUT = ("timeout.", "mesh.", "train.steps")


def extremes(field):
    """Values of a number at its bounds, beyond them, and far away, as text."""
    kind, about = type(field.default), field.metadata
    found = list(FAR)
    for name in ("least", "above", "below"):
        if (limit := about[name]) is not None:
            step = 1 if kind is int else 1e-6
            found += [repr(kind(limit)), repr(kind(limit - step))]
            found += [repr(kind(limit + step))] if name != "below" else []
    if about["most"] is not None:
        found.append(repr(kind(about["most"] + 1)))
        if kind is float or about["most"] == schema.SEEDS:
            found.append(repr(kind(about["most"])))
    return found


def draw(number, known):
    chosen = random.Random(f"extreme {number}")
    names = chosen.sample(sorted(known), chosen.randint(1, 3))
    return {name: chosen.choice(extremes(known[name])) for name in names}


def numbers():
    return {
        name: field
        for name, field in config.declared("translation", "transformer").items()
        if type(field.default) in (int, float) and not name.startswith(LEFT_OUT)
    }


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_an_extreme_config_is_refused_or_trains(part, tiny, tmp_path, one_device):
    tally = {"refused": 0, "trained": 0, "stopped in one line": 0}
    base = tiny(
        train__steps=4, eval__every=4, checkpoint__every=2, optim__warmup_steps=2
    )
    for number in range(50 * part, 50 * part + 50):
        changed = draw(number, numbers())
        try:
            loaded = config.load("quickstart", base | changed)
        except UserError as error:
            tally["refused"] += 1
            assert all("\n" not in problem for problem in error.problems), changed
            continue
        try:
            assert train.train(loaded, tmp_path / str(number)) == 0, changed
            tally["trained"] += 1
        except UserError as error:
            tally["stopped in one line"] += 1
            assert all("\n" not in problem for problem in error.problems), changed
        except BaseException as error:
            error.add_note(f"config {number}: {changed}")
            raise
    print(f"part {part}: {tally}")


def test_most_extremes_are_refused_when_the_config_is_read(tiny):
    refused = 0
    for number in range(100):
        changed = draw(number, numbers())
        try:
            config.load("quickstart", tiny() | changed)
        except UserError as error:
            refused += 1
            assert all("\n" not in problem for problem in error.problems), changed
    assert refused > 70


def own_numbers(loaded):
    """Return the fields of the numbers that a config has and a translator lacks."""
    usual = config.declared("translation", "transformer")
    return {
        name: field
        for name, field in config.declared(loaded.task, loaded.model.name).items()
        if name not in usual and type(field.default) in (int, float)
    }


def others():
    """List a shipped config of generated data for each task and model with numbers."""
    found = {}
    for name in config.shipped():
        for variant in ("", *config.variants(name)):
            spec = f"{name}:{variant}" if variant else name
            with contextlib.suppress(UserError):  # its data are not here
                loaded = config.load(spec)
                if own_numbers(loaded):
                    found.setdefault((loaded.task, loaded.model.name), spec)
    return found.values()


OTHERS = others()


def extremes_of(spec):
    """List (key, value, the config or the error) for the numbers that only it has."""
    found = []
    for name, field in own_numbers(config.load(spec)).items():
        for value in dict.fromkeys(extremes(field)):
            try:
                found.append((name, value, config.load(spec, {name: value}, True)))
            except UserError as error:
                found.append((name, value, error))
    return found


@pytest.mark.parametrize("spec", OTHERS)
def test_the_extremes_of_another_task_are_refused_or_read(spec):
    found = extremes_of(spec)
    errors = [error for _, _, error in found if isinstance(error, UserError)]
    assert len(found) > len(errors) > len(found) / 2
    for name, value, error in found:
        if isinstance(error, UserError):
            assert all("\n" not in one for one in error.problems), (name, value)
            assert name in str(error), (name, value)


@pytest.mark.slow
@pytest.mark.parametrize("spec", OTHERS)
def test_the_extremes_of_another_task_train(spec, tmp_path, one_device):
    tally = {"refused": 0, "trained": 0, "stopped in one line": 0}
    for name, value, loaded in extremes_of(spec):
        if isinstance(loaded, UserError):
            tally["refused"] += 1
            continue
        try:
            assert train.train(loaded, tmp_path / f"{name}={value}") == 0, (name, value)
            tally["trained"] += 1
        except UserError as error:
            tally["stopped in one line"] += 1
            assert all("\n" not in problem for problem in error.problems)
            print(f"{spec} {name}={value}: {error}")
        except BaseException as error:
            error.add_note(f"{spec} with {name}={value}")
            raise
    print(f"{spec}: {tally}")
