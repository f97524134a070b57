"""The baseline and the ceilings of configs/drawings.py: what its scores stand beside.

    python benchmarks/drawings.py [--config configs/drawings.py] [--examples N]

nearest    the picture of the training caption that has the most words in common, word
           by word in their places: a look-up, which draws nothing new
codebook   the test picture itself, as its codes give it back
original   the test picture itself, which the judge should find right

It also counts the distinct captions of a split, their pairs of figures, and examples
whose caption occurs in training.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np

from transformer_jax import config, tasks
from transformer_jax.family.drawings import regions
from transformer_jax.family.drawings import task as drawings
from transformer_jax.family.drawings.codebook import Codebook

SPLITS = ("test", "test_combinations")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="drawings")
    parser.add_argument("--examples", type=int, default=0, help="of a split; 0: all")
    args = parser.parse_args()
    loaded = config.load(args.config)
    source = tasks.find(loaded.task).source(loaded)
    with tempfile.TemporaryDirectory() as folder:
        drawings.learn(loaded, source, pathlib.Path(folder), print)
        book = Codebook.load(pathlib.Path(folder, drawings.CODEBOOK_FILE))
    train = source.read("train")
    captions = np.array([as_words(record["source"]) for record in train])
    known = {record["source"] for record in train}
    for split in SPLITS:
        records = source.read(split)
        count = min(args.examples or len(records), len(records))
        asked = [records[i]["source"] for i in range(count)]
        found = {"nearest": [], "codebook": [], "original": []}
        for record in (records[i] for i in range(count)):
            words = np.array(as_words(record["source"]))
            nearest = int((captions == words).sum(axis=1).argmax())
            back = book.decode(book.encode(record["picture"]), drawings.SIZE)
            for name, picture in (
                ("nearest", train[nearest]["picture"]),
                ("codebook", back),
                ("original", record["picture"]),
            ):
                found[name].append(regions.judge(picture, record["source"]).right)
        shares = {name: round(float(np.mean(of)), 4) for name, of in found.items()}
        counts = {
            "examples": count,
            "distinct": len(set(asked)),
            "pairs": len({pair for pair in map(pair_of, asked) if len(pair) > 1}),
            "caption_in_training": sum(caption in known for caption in asked),
        }
        print(json.dumps({"split": split, **counts, **shares}))


def pair_of(caption: str) -> frozenset:
    """The figures of a caption, in no order."""
    scene = regions.parse_caption(caption)
    assert scene is not None
    return frozenset(scene.figures)


def as_words(caption: str) -> list[str]:
    """The words of a caption in their places, "" where there are none."""
    scene = regions.parse_caption(caption)
    assert scene is not None
    figures = [word for figure in scene.figures for word in figure]
    return [*figures, *[""] * (4 - len(figures)), scene.relation]


if __name__ == "__main__":
    main()
