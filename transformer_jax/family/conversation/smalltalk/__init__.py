"""Small talk: dialogues of two speakers in which the second has one right answer.

The first tells something and asks about it, so that the second's reply follows from
the last three turns, and often not from fewer: `My name is Ana`, `Nice to meet you,
Ana`, `What is my name?`, `Your name is Ana`. Only the turns of the second speaker are
replies to learn. With many topics there are lines from outside the grammar, too
(`off_topic`), which are answered by one of two `FALLBACKS`: `test` has none of them,
`test_off_topic` nothing else.
"""

from collections.abc import Iterator
from random import Random

from transformer_jax.data.draws import check_split, split_of
from transformer_jax.family.conversation.smalltalk.lexicon import (
    COMMON,
    FIXED,
    SEPARATOR,
    Exchange,
)
from transformer_jax.family.conversation.smalltalk.off_topic import FALLBACKS
from transformer_jax.family.conversation.smalltalk.talker import Talker
from transformer_jax.family.conversation.smalltalk.wide import WideTalker

VERSION = 1  # part of the data fingerprint: raise when the generated text changes
SPLITS = ("train", "validation", "test")
WIDE_SPLITS = (*SPLITS, "test_off_topic")  # whose replies are all fallbacks
TOPICS = ("few", "many")
_PATIENCE = 50_000  # dialogues in a row that bring nothing new before giving up


def generate(
    split: str, size: int, turns: int = 3, topics: str = "few"
) -> list[dict[str, str]]:
    """Return the first `size` replies of a split, each with the `turns` before it.

    With fewer than three turns some contexts have several replies. All are from the
    split's own dialogues, and no context is in two splits.
    """
    if turns < 1:
        raise ValueError(f"turns is {turns}: keep at least 1, as context")
    examples: dict[Exchange, None] = {}
    idle = 0
    for dialogue in _draw(split, topics):
        if idle == _PATIENCE or len(examples) >= size:
            break
        idle += 1
        for i in range(1, len(dialogue), 2):
            context = SEPARATOR.join(dialogue[max(0, i - turns) : i])
            example = context, dialogue[i]
            if _belongs(context, dialogue[i], split) and example not in examples:
                examples[example] = None
                idle = 0
    if len(examples) < size:
        raise ValueError(
            f"{split!r} has about {len(examples)} replies: {size} were asked for"
        )
    return [{"context": c, "reply": r} for c, r in [*examples][:size]]


def _draw(split: str, topics: str) -> Iterator[tuple[str, ...]]:
    """Draw the dialogues of a split for ever; `train` starts with the fixed one."""
    check_split(split, WIDE_SPLITS if topics == "many" else SPLITS)
    if split == "train":
        yield FIXED
    kind = split.partition("_")[0]
    draws = Random(kind)
    talker = WideTalker(draws, kind) if topics == "many" else Talker(draws)
    while True:
        dialogue = talker.dialogue()
        if _split_of(SEPARATOR.join(dialogue)) == kind:
            yield dialogue


def _belongs(context: str, reply: str, split: str) -> bool:
    """Return whether an example is of a split; the two tests share the dialogues."""
    if split.startswith("test") and (reply in FALLBACKS) != (split != "test"):
        return False
    return _split_of(context) == split.partition("_")[0]


def _split_of(text: str) -> str:
    if text in COMMON:
        return "train"
    return split_of(text)
