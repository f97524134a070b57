"""Score a model that ignores word order: logistic regression on the words of a text.

    python benchmarks/bag_of_words.py --config configs/opinions.py
    python benchmarks/bag_of_words.py --config configs/sst2.py --config.data.folder=PATH

This is the baseline for a run of a classification config, on the same examples. With
two classes, words are also weighted by the logarithm of how much more often one class
has them than the other (Wang and Manning, 2012: naive Bayes).
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import cli, tasks
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="of a classification")
    words, overrides = cli.split_overrides(sys.argv[1:])
    try:
        compare(configs.load(parser.parse_args(words).config, overrides))
    except UserError as error:
        cli.fail(*error.problems)
    return 0


def compare(config: ConfigDict) -> None:
    try:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise UserError("scikit-learn is missing: pip install scikit-learn") from None
    if config.task != "classification" or config.data.answers != "labels":
        raise UserError(f"{config.task} without labels: name a config of classes")
    source = tasks.find(config.task).source(config)
    train = source.read("train")
    # Whatever stands between spaces is a word: these texts are cut into tokens.
    words = CountVectorizer(token_pattern=r"\S+", binary=True)
    model = LogisticRegression(max_iter=1000)
    seen = words.fit_transform(record["text"] for record in train)
    labels = [record["label"] for record in train]
    weights = {"": 1.0}
    if len(classes := sorted({*labels})) == 2:
        weights[", in ratios of naive Bayes"] = find_ratios(seen, labels, classes)
    for kind, weight in weights.items():
        model.fit(seen.multiply(weight).tocsr(), labels)
        for split in config.eval.splits:
            held_out = source.read(split)
            found = words.transform(record["text"] for record in held_out)
            right = model.score(
                found.multiply(weight).tocsr(), [record["label"] for record in held_out]
            )
            print(
                f"{split}: {right:.1%} of {len(held_out):,} right, with "
                f"{seen.shape[1]:,} words of {len(train):,} examples{kind}"
            )


def find_ratios(seen: Any, labels: Sequence[str], classes: Sequence[str]) -> Any:
    """Return log(p/q) of each word: its shares of the words of the two classes."""
    counts = [
        1 + seen[np.flatnonzero(np.array(labels) == name)].sum(axis=0)
        for name in classes
    ]
    return np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())


if __name__ == "__main__":
    sys.exit(main())
