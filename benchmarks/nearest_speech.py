"""A baseline for speech: answer with the transcript of the nearest training sound.

    python benchmarks/nearest_speech.py --config configs/speech.py

No model is trained. A sound is cut into 16 equal stretches, and their mean frames are
compared with those of all training sounds. Among the 20 nearest, dynamic time warping
chooses one, and its transcript is the answer. A constant answer is scored as well.
"""

import argparse
import collections
import sys
import time

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import cli, tasks
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError
from transformer_jax.decoding import Reply
from transformer_jax.family.speech.log_mel import log_mel
from transformer_jax.family.speech.word_errors import WordErrorScoring

STRETCHES = 16
WARPED = 20  # training sounds that are compared frame by frame
STEP = 2  # frames that are averaged before they are warped


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="of the task speech")
    parser.add_argument("--split", default="test", help="which is answered")
    words, overrides = cli.split_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    try:
        compare(configs.load(args.config, overrides), args.split)
    except UserError as error:
        cli.fail(*error.problems)
    return 0


def compare(config: ConfigDict, split: str) -> None:
    if config.task != "speech":
        raise UserError(f"the task is {config.task}: name a config of speech")
    began = time.process_time()
    source = tasks.find(config.task).source(config)
    heard, texts = read(source, "train", config.data.bands)
    asked, references = read(source, split, config.data.bands)
    means = np.stack([summarise(frames) for frames in heard])
    short = [thin(frames) for frames in heard]
    answers = {"nearest by means": [], "nearest by warping": []}
    for frames in asked:
        far = np.square(means - summarise(frames)).sum(axis=1)
        near = np.argsort(far)[:WARPED]
        answers["nearest by means"].append(texts[near[0]])
        costs = [warp(thin(frames), short[i]) for i in near]
        answers["nearest by warping"].append(texts[near[np.argmin(costs)]])
    often = collections.Counter(text for words in texts for text in [words.split()[0]])
    common = " ".join(["the", often.most_common(1)[0][0]])
    answers[f"always {common!r}"] = [common] * len(asked)
    scoring = WordErrorScoring()
    for name, found in answers.items():
        scores = scoring.score([Reply(text=text) for text in found], references)
        print(f"{name}: {scoring.summary(scores)}")
    print(
        f"{len(asked)} sounds of {split}, {time.process_time() - began:.0f} s of a CPU"
    )


def read(source, split: str, bands: int) -> tuple[list[np.ndarray], list[str]]:
    """Return the frames and the transcripts of a split."""
    records = source.read(split)
    found = [(log_mel(r["samples"], bands), r["text"]) for r in records]
    frames, texts = zip(*found, strict=True)
    return [np.asarray(f, np.float32) for f in frames], list(texts)


def summarise(frames: np.ndarray) -> np.ndarray:
    """Return the mean frames of equal stretches, one after another."""
    parts = np.array_split(frames, STRETCHES)
    return np.concatenate([part.mean(axis=0) for part in parts])


def thin(frames: np.ndarray) -> np.ndarray:
    """Average neighbouring frames."""
    even = frames[: len(frames) // STEP * STEP]
    return even.reshape(-1, STEP, frames.shape[1]).mean(axis=1)


def warp(a: np.ndarray, b: np.ndarray) -> float:
    """Return the least mean distance of two sounds along a path through both."""
    distances = np.sqrt(
        np.maximum(np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T, 0)
    )
    # By diagonals: the cells of one depend on the two before it.
    rows, columns = distances.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0.0
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        before = np.minimum(total[i - 1, j], total[i, j - 1])
        before = np.minimum(before, total[i - 1, j - 1])
        total[i, j] = before + distances[i - 1, j - 1]
    return total[rows, columns] / (rows + columns)


if __name__ == "__main__":
    sys.exit(main())
