"""Answer lines with a model in ONNX: a copy of this file is its folder's run.py.

It uses onnxruntime, numpy and sentencepiece, and nothing of transformer_jax or JAX.
It reads a few lines at a time and searches greedily; a classifier answers with the
likeliest label.
"""

import importlib
import itertools
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import sentencepiece

PAD, UNK, BOS, EOS = range(4)
ROWS = 32  # lines that are answered together; a step for one takes nearly as long


def answers(folder: pathlib.Path, lines: Iterable[str]) -> Iterator[str]:
    """Yield the answer to each line."""
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    programs = open_programs(folder)
    reads, writes = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.model"))
        for side in ("source", "target")
    )
    numbers = {piece: i for i, piece in enumerate(about["source_pieces"])}
    pieces, lines = about["target_pieces"], iter(lines)
    while batch := list(itertools.islice(lines, ROWS)):
        read = (reads.encode(line, out_type=str) for line in batch)
        sources = [[numbers.get(piece, UNK) for piece in text] for text in read]
        if about["task"] == "classification":
            yield from classify(programs["classify"], about, sources)
            continue
        for ids in write(programs, about, sources):
            yield writes.decode([pieces[i] for i in ids])


def write(
    programs: dict[str, Any], about: dict[str, Any], sources: Sequence[list[int]]
) -> list[list[int]]:
    """Return the pieces of translations, or of texts with what continues them."""
    longest = about["max_length"]
    if about["task"] == "language":
        prompts = [[BOS, *ids] for ids in sources]
        most = longest or about["extra_length"]
        limits = [min(most, about["window"] - len(ids)) for ids in sources]
    else:
        prompts = [[BOS] for _ in sources]
        limits = [longest or len(ids) + about["extra_length"] for ids in sources]
        limits = [
            limit if ids else 1 for limit, ids in zip(limits, sources, strict=True)
        ]
    written = search(
        programs,
        [[*ids, EOS] for ids in sources],
        prompts,
        limits,
        len(about["target_pieces"]),
    )
    return [[i for i in row if i not in (BOS, EOS)] for row in written]


def search(
    programs: dict[str, Any],
    sources: Sequence[list[int]],
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    vocabulary: int,
) -> list[list[int]]:
    """Return each prompt with the likeliest piece after it, the next, and so on.

    A limit counts the end of an answer, so there are fewer pieces than that.
    """
    texts = [list(prompt) for prompt in prompts]
    ends = [len(p) + limit - 1 for p, limit in zip(prompts, limits, strict=True)]
    room = np.zeros(max(*ends, 2), np.int32)
    state = call(programs["start"], {"source": pad(sources), "room": room})
    for place in range(max(ends) - 1):
        token = np.array([t[place] if place < len(t) else PAD for t in texts], np.int32)
        logits, state = extend_by(programs["extend"], token, place, state)
        logits[:, [PAD, BOS]] = -np.inf
        likeliest = logits[:, :vocabulary].argmax(1).tolist()
        for text, end, best in zip(texts, ends, likeliest, strict=True):
            # A longer text is a prompt that goes on, a shorter one has ended.
            if place + 1 == len(text) < end and text[-1] != EOS:
                text.append(best)
        if all(
            text[-1] == EOS or len(text) >= end
            for text, end in zip(texts, ends, strict=True)
        ):
            break
    return texts


def classify(
    program: Any, about: dict[str, Any], sources: Sequence[list[int]]
) -> Iterator[str]:
    """Yield the likeliest label of each text, or its number."""
    tokens = pad([[BOS, *ids, EOS] for ids in sources])
    for logits in call(program, {"tokens": tokens})["logits"]:
        if about["labels"]:
            yield about["labels"][int(logits.argmax())]
        else:
            yield f"{float(logits[0]) * about['deviation'] + about['mean']:.4g}"


def pad(rows: Sequence[list[int]]) -> np.ndarray:
    """Return rows as one array, padded at their ends."""
    padded = np.full((len(rows), max(map(len, rows))), PAD, np.int32)
    for array, row in zip(padded, rows, strict=True):
        array[: len(row)] = row
    return padded


def open_programs(folder: pathlib.Path) -> dict[str, Any]:
    """Open a folder's programs on the CPU, by their names; no warnings are shown."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return {
        path.stem: onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        for path in folder.glob("*.onnx")
    }


def extend_by(
    program: Any, token: np.ndarray, place: int, state: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read a token [b] at its place; return the logits [b, V], and the next state."""
    given = state | {"token": token, "position": np.array(place, np.int32)}
    made = call(program, given)
    return made.pop("logits"), state | made


def call(program: Any, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a program; return its outputs by their names.

    What comes out as `next_3` is the `state_3` of the next step.
    """
    names = [output.name.replace("next_", "state_") for output in program.get_outputs()]
    return dict(zip(names, program.run(None, given), strict=True))


if __name__ == "__main__":
    given = (line.rstrip("\r\n") for line in sys.stdin)
    for answer in answers(pathlib.Path(__file__).parent, given):
        print(" ".join(answer.splitlines()), flush=True)
