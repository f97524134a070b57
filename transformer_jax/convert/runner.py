"""Translate lines with an exported model, greedily: a copy of this file is its run.py.

It uses jax with flatbuffers, numpy and sentencepiece, and nothing of transformer_jax.
"""

import json
import pathlib
import sys
from collections.abc import Iterable, Iterator

import jax
import numpy as np
import sentencepiece
from jax import export

PAD, UNK, BOS, EOS = range(4)


def translate(folder: pathlib.Path, lines: Iterable[str]) -> Iterator[str]:
    """Yield the translation of each line."""
    programs = [(folder / f"{name}.bin").read_bytes() for name in ("start", "extend")]
    start, extend = (jax.jit(export.deserialize(bytearray(p)).call) for p in programs)
    params = jax.device_put(dict(np.load(folder / "params.npz")))
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.model"))
        for side in ("source", "target")
    )
    pieces = json.loads((folder / "pieces.json").read_text(encoding="utf-8"))
    numbers = {piece: i for i, piece in enumerate(pieces["source"])}
    for line in lines:
        ids = [numbers.get(p, UNK) for p in source.encode(line.strip(), out_type=str)]
        room = np.zeros(len(ids) + 50, np.int32)
        state = start(params, np.array([[*ids, EOS]], np.int32), room)
        written = [BOS]
        while written[-1] != EOS and len(written) < len(room):
            token, place = np.array(written[-1:], np.int32), np.int32(len(written) - 1)
            logits, state = extend(params, token, place, state)
            scores = np.array(logits[0, : len(pieces["target"])])
            scores[[PAD, BOS]] = -np.inf
            written.append(int(scores.argmax()))
        yield target.decode([pieces["target"][i] for i in written[1:] if i != EOS])


if __name__ == "__main__":
    for answer in translate(pathlib.Path(__file__).parent, sys.stdin):
        print(answer, flush=True)
