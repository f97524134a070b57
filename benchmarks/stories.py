"""How often is a sampled story consistent? A run's stories beside those of trigrams.

    python benchmarks/stories.py --workdir runs/stories

Both go on from the first sentences of stories that training does not have, at the same
temperature, up to the end of the line. The baseline draws each piece by how often it
followed the two before it in the training stories; if these two never met, by the one
before, or by none. The rules are those of `transformer_jax.corpora.stories`.
"""

import argparse
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

import transformer_jax
from transformer_jax import cli
from transformer_jax.base.errors import UserError
from transformer_jax.corpora import stories
from transformer_jax.corpora.stories import checker
from transformer_jax.data.text.tokenizer import Tokenizer

LONGEST = 160  # pieces that are added to a first sentence


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, help="a run of language:stories")
    parser.add_argument("--stories", type=int, default=200, help="how many to sample")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--show", type=int, default=0, help="stories to print of each")
    args = parser.parse_args()
    try:
        run = transformer_jax.load(args.workdir)
        if run.config.data.get("source") != "stories":
            raise UserError(
                f"{args.workdir} is not a run of configs/language.py:stories"
            )
        compare(run, args.stories, args.temperature, args.show)
    except UserError as error:
        cli.fail(*error.problems)
    return 0


def compare(run, count: int, temperature: float, shown: int) -> None:
    held_out = stories.generate("test", count)
    begun = [checker.split_sentences(story)[0] for story in held_out]
    options = {"temperature": temperature, "max_length": LONGEST, "window": 128}
    replies = run.replies(begun, sample=True, **options)
    trigrams = Trigrams(run.task.data.tokenizer, stories.generate("train", 20_000))
    found = {
        "generated": held_out,
        "model": [first_line(reply.details["text"]) for reply in replies],
        "trigrams": [
            trigrams.go_on(text, temperature, i) for i, text in enumerate(begun)
        ],
    }
    rates = {name: checker.rates(texts) for name, texts in found.items()}
    print(f"{count} stories  " + "".join(f"{name:>12}" for name in rates))
    for rule in rates["model"]:
        print(f"{rule:14}" + "".join(f"{r[rule]:12.1%}" for r in rates.values()))
    for name in ("model", "trigrams"):
        for text in found[name][:shown]:
            broken = [
                rule for rule, kept in checker.check(text).kept.items() if not kept
            ]
            print(f"\n{name} ({', '.join(broken) or 'consistent'}): {text}")


def first_line(text: str) -> str:
    """Return the text up to its first line end: the first story."""
    return text.split("\n")[0]


class Trigrams:
    """Draws each piece by how often it followed the two before it."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]):
        self.tokenizer = tokenizer
        self.end = tokenizer.encode_inside("\n")[-1]
        self.counts: defaultdict[tuple[int, ...], Counter] = defaultdict(Counter)
        for text in texts:
            pieces = [self.end, self.end, *tokenizer.encode_inside(text), self.end]
            for i in range(2, len(pieces)):
                for begin in range(i - 2, i + 1):
                    self.counts[tuple(pieces[begin:i])][pieces[i]] += 1

    def go_on(self, text: str, temperature: float, seed: int) -> str:
        """Go on with a text to the end of its line."""
        draw = random.Random(seed)
        pieces = self.tokenizer.encode_inside(text)
        for _ in range(LONGEST):
            known = [tuple(pieces[-2:]), tuple(pieces[-1:]), ()]
            counts = next(self.counts[c] for c in known if c in self.counts)
            weights = [n ** (1 / temperature) for n in counts.values()]
            pieces += draw.choices([*counts], weights)
            if pieces[-1] == self.end:
                break
        return first_line(self.tokenizer.decode(pieces))


if __name__ == "__main__":
    sys.exit(main())
