"""What a run compiles is kept, and it can be seen whether that was of use."""

import logging
import os
import subprocess
import sys

import jax
import pytest

from transformer_jax.runs import environment


def test_a_program_from_the_cache_is_noted_once(caplog):
    for _ in range(2):
        environment.use_compile_cache()
    with caplog.at_level(logging.DEBUG, "transformer_jax"):
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
        jax.monitoring.record_event("/jax/compilation_cache/tasks_using_cache")
    assert caplog.text.count("program    found in the cache") == 1


@pytest.fixture
def begins(monkeypatch, tmp_path):
    """Call `use_large_pages` in a command, and return the words that it begins with."""
    begun = []
    monkeypatch.setattr(os, "execv", lambda path, words: begun.append((path, words)))
    monkeypatch.setattr(environment, "PAGES", tmp_path / "enabled")
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # so that it is restored
    monkeypatch.delenv("GLIBC_TUNABLES")
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", "mine.py"])
    command = ["python", "-m", "transformer_jax.train", "--config", "mine.py"]
    monkeypatch.setattr(sys, "orig_argv", command)
    (tmp_path / "enabled").write_text("always [madvise] never\n")

    def call():
        environment.use_large_pages()
        return begun

    return call


def test_a_command_begins_again_in_large_pages_and_only_once(begins):
    assert begins() == [(sys.executable, sys.orig_argv)]
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert len(begins()) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda patch, pages: patch.setattr(sys, "orig_argv", ["pytest", "tests"]),
        lambda patch, pages: patch.setattr(sys, "argv", ["train.py"]),
        lambda patch, pages: patch.setenv("GLIBC_TUNABLES", ""),
        lambda patch, pages: patch.setattr(os, "confstr", lambda name: "glibc 2.31"),
        lambda patch, pages: patch.setattr(os, "confstr", lambda name: None),
        lambda patch, pages: pages.write_text("[always] madvise never\n"),
        lambda patch, pages: pages.write_text("always madvise [never]\n"),
        lambda patch, pages: pages.unlink(),
    ],
    ids="a notebook;no words;a setting;an old glibc;no glibc;always;never;mac".split(
        ";"
    ),
)
def test_nothing_begins_again_where_it_is_no_use(begins, monkeypatch, change):
    change(monkeypatch, environment.PAGES)
    assert not begins()


@pytest.mark.system
def test_a_training_begins_in_large_pages(tiny, tmp_path):
    if not environment._large_pages_on_demand():
        pytest.skip("this machine has no large pages on demand")
    words = ["--config=quickstart", f"--workdir={tmp_path / 'run'}", "--smoke", "-v"]
    words += [f"--config.{name}={value}" for name, value in tiny().items()]
    given = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.train", *words],
        capture_output=True,
        text=True,
        env={**given, "JAX_NUM_CPU_DEVICES": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("memory     begins again, in large pages") == 1
