"""Print a tour of the phrasebook: pairs, sizes, a word-for-word baseline, trees."""

import sacrebleu

from transformer_jax.corpora.phrasebook import SPLITS, generate, word_for_word


def main() -> None:
    """Print the tour."""
    train = generate("train", 20_000)
    for pair in train[:12]:
        print(f"{pair.source}\n    {pair.target}")
    for side in ("source_words", "target_words"):
        sentences = [[w.lower() for w in getattr(pair, side)] for pair in train]
        forms = {w for words in sentences for w in words if w[0].isalpha()}
        length = sum(map(len, sentences)) / len(sentences)
        print(f"{side}: {len(forms)} forms, {length:.2f} words in a sentence")
    for split in SPLITS[2:]:
        held = generate(split, 500)
        guesses = word_for_word(train, [pair.source for pair in held])
        metric = sacrebleu.BLEU()
        score = metric.corpus_score(guesses, [[pair.target for pair in held]])
        print(f"word for word on {split}: {score.score:.1f} BLEU")
        print(f"    {metric.get_signature()}")
    pair = train[0]
    print(pair.source_tree, pair.target_tree, pair.alignment, sep="\n")


if __name__ == "__main__":
    main()
