"""Score a model that ignores word order: logistic regression on the words of a text.

    python benchmarks/bag_of_words.py --config configs/opinions.py
    python benchmarks/bag_of_words.py --config configs/sst2.py --config.data.folder=PATH

This is the baseline for a run of a classification config, on the same examples.
"""

import argparse
import sys

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
    model.fit(seen, [record["label"] for record in train])
    for split in config.eval.splits:
        held_out = source.read(split)
        labels = [record["label"] for record in held_out]
        right = model.score(words.transform(r["text"] for r in held_out), labels)
        print(
            f"{split}: {right:.1%} of {len(labels):,} right, with {seen.shape[1]:,} "
            f"words of {len(train):,} examples"
        )


if __name__ == "__main__":
    sys.exit(main())
