"""How near the test inputs of a config are to its training inputs.

    python benchmarks/overlap.py --config smalltalk
    python benchmarks/overlap.py --config parsing --split test

same       inputs that occur in training
one_word   inputs that occur there, or become one by a word changed, added or left out
nearest    the answer of such a training input is the right one (tasks with answers)
last_turn  conversations: the answer that the last turn has most often in training is
           right, and what the best such table, fitted on the test itself, would get
"""

import argparse
import collections
import json
from collections.abc import Iterator, Sequence
from typing import Any

from transformer_jax import config, tasks
from transformer_jax.family.conversation.task import END_OF_TURN

INPUTS = ("source", "text", "words", "first")  # the fields of records, by task
ANSWERS = ("target", "label", "tags")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True)
    parser.add_argument("--split", default="test")
    args = parser.parse_args()
    loaded = config.load(args.config, data=False)
    source: Any = tasks.find(loaded.task).source(loaded)
    read = getattr(source, "lines", source.read)
    train, held_out = ([*read(split)] for split in ("train", args.split))
    field = next(name for name in INPUTS if name in train[0])
    answer = next((name for name in ANSWERS if name in train[0]), "")
    known = {tuple(as_words(one[field])) for one in train}
    near: dict[Any, Any] = {}
    for one in train:
        for key in variants(as_words(one[field])):
            near.setdefault(key, one)
    same = one_word = right = 0
    for one in held_out:
        words = as_words(one[field])
        same += tuple(words) in known
        hit = next((near[k] for k in variants(words, True) if k in near), None)
        one_word += hit is not None
        right += hit is not None and bool(answer) and hit[answer] == one[answer]
    found = {"config": args.config, "train": len(train), args.split: len(held_out)}
    for name, count in (("same", same), ("one_word", one_word), ("nearest", right)):
        if name != "nearest" or answer:
            found[name] = round(count / len(held_out), 3)
    if any(END_OF_TURN in str(one[field]) for one in held_out):
        for name, fitted in (("last_turn", train), ("last_turn_oracle", held_out)):
            found[name] = round(score_table(fitted, held_out, field, answer), 3)
    print(json.dumps(found))


def as_words(text: Any) -> list[str]:
    """The words of a text, or of a list of them."""
    return (text if isinstance(text, str) else " ".join(text)).split()


def variants(words: Sequence[str], asks: bool = False) -> Iterator[tuple]:
    """Yield what two texts share if and only if they are at most one word apart.

    One of both is the one that asks, because two texts that lack a word each may be two
    words apart.
    """
    yield ("whole", *words)
    if asks:
        yield ("shorter", *words)
    for i in range(len(words)):
        without = words[:i], words[i + 1 :]
        yield (i, *without[0], None, *without[1])  # another word in its place
        yield ("whole" if asks else "shorter", *without[0], *without[1])


def score_table(
    fitted: Sequence[Any], held_out: Sequence[Any], field: str, answer: str
) -> float:
    """The share of answers that the commonest answer to their last turn gets right."""
    counts: dict[str, collections.Counter] = collections.defaultdict(
        collections.Counter
    )
    for one in fitted:
        counts[last_turn(one[field])][one[answer]] += 1
    table = {turn: count.most_common(1)[0][0] for turn, count in counts.items()}
    right = sum(table.get(last_turn(o[field])) == o[answer] for o in held_out)
    return right / len(held_out)


def last_turn(text: str) -> str:
    return str(text).rpartition(END_OF_TURN)[2].strip()


if __name__ == "__main__":
    main()
