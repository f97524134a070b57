"""Windows of running text: unchanged over versions, for any amount of text."""

import hashlib
import json
import tracemalloc

import numpy as np
import pytest

from transformer_jax import config, tasks
from transformer_jax.data.reading import running, windows
from transformer_jax.data.reading.records import Generated
from transformer_jax.data.reading.running import RunningText
from transformer_jax.data.reading.windows import Windows
from transformer_jax.data.text.tokenizer import Bytes
from transformer_jax.tasks.language import compose
from transformer_jax.training.prepare import open_split

LINES = ["um  dois", "", "\tthree é世😀 \u2028 x", "averylongwordwithoutaspace", " "]


@pytest.fixture
def small_blocks(monkeypatch, tmp_path):
    """Blocks and parts of files so small that all tests cross them."""
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path))
    monkeypatch.setattr(running, "BLOCK", 7)
    monkeypatch.setattr(windows, "WRITTEN", 4)


def records(lines):
    return Generated(lambda: [{"text": line} for line in lines], repr(lines))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("lines", [LINES, LINES * 3, ["", " "], ["x"], ["\ud800"]])
def test_running_text_is_the_lines_joined_at_random_access(small_blocks, lines, flat):
    if flat:
        whole = " ".join(word for line in lines for word in line.split())
    else:
        whole = "".join(line + "\n" for line in lines)
    text = RunningText(records(lines), flat)
    assert len(text) == len(whole) and text[:] == whole
    for begin in range(len(whole) + 2):
        for end in (begin - 1, begin, begin + 1, begin + 6, begin + 7, begin + 20):
            assert text[begin:end] == whole[begin:end]


def cut_in_memory(text, size, stride, whole_words, context):
    """Cut windows from a string, as a simple reference for `Windows`."""

    def cut(start, length):
        end = start + length
        if end >= len(text) or not whole_words:
            return min(end, len(text))
        space = max(text.rfind(mark, start + 1, end + 1) for mark in " \n")
        if space > start or not context:
            return space if space > start else end
        found = (text.find(mark, end, start + size + 1) for mark in " \n")
        return min((place for place in found if place >= 0), default=end)

    if stride and not whole_words:
        last = max(len(text) - size, 0)
        return [(s, cut(s, size)) for s in (*range(0, last, stride), last)]
    spans, start, end = [], 0, 0
    while max(start, end) < len(text):
        end = cut(start, size - (context if spans else 0))
        spans.append((start, end))
        start = cut(start, stride) if stride else end
    return spans


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("stride, context", [(0, 0), (3, 0), (5, 0), (0, 1), (0, 4)])
def test_windows_equal_those_cut_from_a_string(
    small_blocks, stride, context, whole_words
):
    generator = np.random.default_rng(stride + context)
    for number in range(8):
        drawn = generator.choice([*"abé世\t\n", " ", " "], 150)
        lines = "".join(drawn).split("\n")
        for size in (5, 9, 40):
            found = Windows(
                records(lines), size, stride, whole_words, number % 2 > 0, context
            )
            spans = cut_in_memory(found.text[:], size, stride, whole_words, context)
            assert [tuple(span) for span in found._spans] == spans
            assert found.where(0) == f"characters 1 to {spans[0][1]:,} of the text"


@pytest.mark.parametrize(
    ("changes", "split", "count", "digest", "store"),
    [
        ({}, "train", 114, "5b1c7ce5e59c8899", "0ae9d5d986018934cde397f7"),
        ({}, "validation", 15, "77e693224c820995", "f76d76c4e5851d19b84d65e0"),
        (
            {"data.stride": "50", "eval.context": "100"},
            *("train", 290, "f55b3bc19055d4ef", "522e2391a3f85b5d597b1417"),
        ),
        (
            {"data.stride": "50", "eval.context": "100"},
            *("validation", 62, "6572cf7d0d32beb0", "3f1d922e1dd0739bfb42db9e"),
        ),
    ],
)
def test_windows_and_stores_of_old_runs_are_found_again(
    changes, split, count, digest, store
):
    small = {"data.train_size": "300", "data.validation_size": "40"}
    found = config.load("language", {"tokenizer.kind": "byte", **small, **changes})
    read = tasks.find("language").source(found).read(split)
    assert len(read) == count
    assert hashlib.sha256(json.dumps(list(read)).encode()).hexdigest()[:16] == digest
    assert open_split(compose(found, Bytes()), split, read).store.folder.name == store


def test_windows_are_cut_again_when_the_generated_text_changes(small_blocks):
    first, second = (
        Generated(lambda text=text: [{"text": text}], "one version")
        for text in ("um dois", "one two three")
    )
    assert Windows(first, 4).text[:] == "um dois\n"
    changed = Windows(second, 4)
    assert changed.text[:] == "one two three\n"
    assert [record["text"] for record in changed] == ["one", " two", " thr", "ee\n"]


@pytest.mark.parametrize("flat", [False, True])
def test_a_large_text_is_never_held_in_memory(monkeypatch, tmp_path, flat):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path))
    monkeypatch.setattr(running, "BLOCK", 1 << 12)

    class Long(Generated):
        content = "long"

        def __iter__(self):
            return ({"text": f"{i} " * 100} for i in range(2000))  # 1 MB

    found = Windows(Long(list, "long"), 100, flat=flat)
    tracemalloc.start()
    count = sum(1 for _ in found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count > 8_000 and peak < 700_000
