"""Runs as if of several seeds of two configs, with scores of their own."""

import functools
import json
import shutil

SCORES = {"a": (30.1, 31.3, 30.7), "b": (33.3, 33.0, 33.9)}


def make(tiny_run, place):
    """Copy a run for three seeds of two configs."""
    for name, scores in SCORES.items():
        for seed, bleu in enumerate(scores, start=1):
            path = place / f"{name}_{seed}"
            shutil.copytree(tiny_run, path)
            change(path, seed=seed)
            change(path, optim__warmup_steps=6 if name == "b" else 5)
            put_scores(path, bleu=bleu, chrf=bleu + 20)
    return place


def change(path, **values):
    """Change options of a run's config.json."""
    stored = json.loads((path / "config.json").read_text())
    for key, value in values.items():
        *sections, last = key.split("__")
        section = functools.reduce(dict.__getitem__, sections, stored)
        assert last in section
        section[last] = value
    (path / "config.json").write_text(json.dumps(stored))


def put_scores(path, **values):
    """Change the scores of a run's test split, also those of its end."""
    scores = json.loads((path / "scores.json").read_text())
    scores["test"].update(values)
    (path / "scores.json").write_text(json.dumps(scores))
    result = json.loads((path / "result.json").read_text())
    result["scores"]["test"].update(values)
    (path / "result.json").write_text(json.dumps(result))
