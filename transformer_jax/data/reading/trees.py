"""Read constituency trees, linearise them for a parser, and score them.

    (S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .))         a tree
    (S (NP XX XX )NP (VP XX )VP XX )S                         linearised
    (S (NP The cat )NP (VP slept )VP . )S                     with its words
    (S(NP The cat)NP(VP slept)VP .)S                          compact

A closing bracket repeats its label, and XX stands for a word and its tag, so the words
are put back by counting ("Grammar as a Foreign Language", section 3.1). Nothing here is
recursive, because a model may write more brackets than Python's stack allows.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from transformer_jax.base.errors import UserError

WORD = "XX"  # a word in a linearised tree, and the tag of untagged words
TOP = "TOP"
TOPS = (TOP, "ROOT", "")  # labels of an empty root, which is not scored
TRACE = "-NONE-"
PUNCTUATION = (",", ":", "``", "''", ".")  # tags that EVALB's COLLINS.prm leaves out
TAGS = {"?": ".", "!": ".", ";": ":", "--": ":", "-": ":", "...": ":", "`": "``"}
TAGS |= {tag: tag for tag in PUNCTUATION}  # of words with only one tag
SAME = {"PRT": "ADVP"}  # labels that EVALB treats as equal
ESCAPES = str.maketrans({"(": "-LRB-", ")": "-RRB-"})


class Tree(NamedTuple):
    """A phrase with its parts, or a tag with its word."""

    label: str
    children: "tuple[Tree | str, ...]"

    def __str__(self) -> str:
        """Return the tree in brackets on one line: (NP (DT the) (NN dog))."""
        text = ""
        for step, node in walk(self):
            text += ")" if step == ")" else f" ({node.label}"
            if step == WORD:
                text += f" {str(node.children[0]).translate(ESCAPES)})"
        return text[1:]


class Counts(NamedTuple):
    """The numbers of matched, guessed and gold brackets of one sentence."""

    matched: int
    guessed: int
    gold: int


class Scores(NamedTuple):
    """Percentages, and the counts of brackets that they are made from."""

    precision: float
    recall: float
    f1: float
    exact: float
    matched: int
    guessed: int
    gold: int
    sentences: int


# Reading and writing


def read(text: str) -> list[Tree]:
    """Read the trees of a bracketed text; a tree may take several lines.

    The Penn Treebank's outermost bracket without a label is dropped, or called TOP if
    it holds several trees.
    """
    trees: list[Tree] = []
    stack: list[tuple[str, list[Tree | str], int]] = []
    for line, token, follower in _tokens(text):
        if token == "(":
            if stack and not follower:
                raise _bad(line, "a bracket inside a tree has no label", stack)
            stack.append((follower, [], line))
        elif token != ")":
            if not stack:
                raise _bad(line, f"{token!r} is outside all brackets")
            stack[-1][1].append(token)
        elif not stack:
            raise _bad(line, "this ) closes nothing")
        else:
            tree = _checked(*stack.pop())
            if stack:
                stack[-1][1].append(tree)
            else:
                trees.append(tree)
    if stack:
        raise _bad(stack[0][2], f"the tree that begins here lacks {len(stack)} )")
    return trees


def clean(tree: Tree) -> Tree | None:
    """Reduce a treebank's tree to the form used in training; None without words.

    Drop traces, the phrases that they leave empty, and an empty root; keep only the
    category of a label: NP-SBJ-1 becomes NP, but -LRB- stays.
    """
    stack: list[list[Tree]] = [[]]
    for step, node in walk(tree):
        label = _category(node.label)
        if step == "(":
            stack.append([])
        elif step == WORD and node.label != TRACE:
            stack[-1].append(Tree(label, node.children))
        elif step == ")" and (children := stack.pop()):
            empty = label in TOPS and len(children) == 1
            stack[-1].append(children[0] if empty else Tree(label, tuple(children)))
    return stack[0][0] if stack[0] else None


def words(tree: Tree) -> list[str]:
    """List the words of a tree."""
    return [str(node.children[0]) for step, node in walk(tree) if step == WORD]


def tags(tree: Tree) -> list[str]:
    """List the tags of a tree's words."""
    return [node.label for step, node in walk(tree) if step == WORD]


def linearise(tree: Tree) -> str:
    """Write a tree as `(S (NP XX )NP (VP XX )VP )S`, with XX for each word."""
    return " ".join(
        WORD if step == WORD else step + node.label for step, node in walk(tree)
    )


def with_words(linearised: str, words: Sequence[str]) -> str:
    """Replace each XX by its word: `(S (NP birds )NP sing )S`."""
    tokens = linearised.split()
    if tokens.count(WORD) != len(words):
        raise UserError(
            f"{linearised[:80]!r} has {WORD} {tokens.count(WORD)} times, but its "
            f"sentence has {len(words)} words: {' '.join(words)[:80]!r}"
        )
    remaining = iter(words)
    return " ".join(
        next(remaining).translate(ESCAPES) if token == WORD else token
        for token in tokens
    )


def without_words(linearised: str) -> str:
    """Replace each word, right or wrong, by XX: words are restored by counting."""
    tokens = linearised.split()
    return " ".join(token if token[0] in "()" else WORD for token in tokens)


def compact(linearised: str) -> str:
    """Remove the spaces before brackets, each of which is one piece."""
    return re.sub(r"\s+(?=[()])", "", linearised)


def spaced(written: str) -> str:
    """Restore the spaces that `compact` removed."""
    return " ".join(re.findall(r"[()][^\s()]*|[^\s()]+", written))


def _category(label: str) -> str:
    return label if label[:1] in ("-", "=") else re.split("[-=]", label)[0]


def _tokens(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, token, label): a word, `)` or `(` with its label."""
    opened = 0  # the line of an opening bracket whose label has not been read
    for line, row in enumerate(text.split("\n"), 1):
        for token in re.findall(r"[()]|[^\s()]+", row):
            if opened:
                named = token not in "()"
                yield opened, "(", token if named else ""
                opened = 0
                if named:
                    continue
            if token == "(":
                opened = line
            else:
                yield line, token, ""
    if opened:
        yield opened, "(", ""


def _checked(label: str, children: list[Tree | str], line: int) -> Tree:
    """Return the tree with these children; raise for a malformed bracket.

    A bracket without a label around a single tree is dropped; any other bracket without
    a label gets `TOP`. The error names `line`.
    """
    words = sum(isinstance(child, str) for child in children)
    if not children:
        raise _bad(line, f"({label}) is empty")
    if words and len(children) > 1:
        word = next(child for child in children if isinstance(child, str))
        raise _bad(
            line,
            f"{word!r} shares the bracket ({label} with something else: each word "
            f"needs one of its own, such as (NN {word})",
        )
    if not label and len(children) == 1 and isinstance(children[0], Tree):
        return children[0]
    return Tree(label or TOP, tuple(children))


def _bad(
    line: int, what: str, stack: Sequence[tuple[str, list, int]] = ()
) -> UserError:
    hint = f": is the tree that begins in line {stack[0][2]} closed?" if stack else ""
    return UserError(f"line {line}: {what}{hint}")


def walk(tree: Tree) -> Iterator[tuple[str, Tree]]:
    """Yield ("(", phrase) as it opens, (")", phrase) as it closes, and (XX, tag)."""
    waiting = [("(", tree)]
    while waiting:
        step, node = waiting.pop()
        if _is_word(node):
            yield WORD, node
            continue
        yield step, node
        if step == "(":
            waiting.append((")", node))
            parts = [child for child in node.children if isinstance(child, Tree)]
            waiting += [("(", child) for child in reversed(parts)]


def _is_word(node: Tree) -> bool:
    return len(node.children) == 1 and isinstance(node.children[0], str)


# From a model's output to a tree


def restore(tokens: Sequence[str], words: Sequence[str]) -> tuple[Tree, Counter[str]]:
    """Make a tree over exactly these words; count the necessary repairs by kind.

    Words get the tag XX, punctuation its own tag. If a bracket does not close the open
    one, the numbers of opening and closing brackets decide whether one is superfluous,
    one is missing, or a label is wrong.
    """
    return _Repair(tokens, words).tree()


class _Repair:
    """The open brackets while a tree is restored, and the repairs so far."""

    def __init__(self, tokens: Sequence[str], words: Sequence[str]):
        self.problems: Counter[str] = Counter()
        self.words = [Tree(TAGS.get(word, WORD), (word,)) for word in words]
        self.used = 0
        self.open: list[tuple[str, list[Tree]]] = [(TOP, [])]
        self.tokens = [re.fullmatch(r"([()])([^\s()]+)|XX", token) for token in tokens]
        kinds = Counter(token[1] for token in self.tokens if token)
        self.surplus = kinds[")"] - kinds["("]

    def tree(self) -> tuple[Tree, Counter[str]]:
        for token in self.tokens:
            if token is None:
                self.problems["unknown tokens"] += 1
            elif token[1] == "(":
                self.open.append((token[2], []))
            elif token[1] == ")":
                self.close(token[2])
            elif self.used < len(self.words):
                self.open[-1][1].append(self.words[self.used])
                self.used += 1
            else:
                self.problems["words too many"] += 1
        while len(self.open) > 1:
            self.close_missing()
        return self.root(), self.problems

    def close(self, label: str) -> None:
        labels = [opened for opened, _ in self.open[:0:-1]]  # the innermost first
        if labels and labels[0] == label:
            return self.end()
        depth = labels.index(label) if label in labels else 0
        if not labels or self.surplus > 0:
            self.surplus -= 1
            self.problems["brackets closed but not open"] += 1
        elif 0 < depth <= -self.surplus:
            for _ in range(depth):
                self.close_missing()
            self.end()
        else:
            self.problems["brackets closed by another label"] += 1
            self.end()

    def close_missing(self) -> None:
        self.surplus += 1
        self.problems["brackets not closed"] += 1
        self.end()

    def end(self) -> None:
        label, children = self.open.pop()
        if children:
            self.open[-1][1].append(Tree(label, tuple(children)))
        else:
            self.problems["brackets around nothing"] += 1

    def root(self) -> Tree:
        """Join the trees; words that are left over go to the end."""
        [(_, roots)] = self.open
        left = self.words[self.used :]
        if len(roots) > 1:
            self.problems["trees too many"] += len(roots) - 1
        if left:
            self.problems["words too few"] += len(left)
        if len(roots) == 1 and not (left and _is_word(roots[0])):
            return roots[0]._replace(children=(*roots[0].children, *left))
        parts = roots + left
        return parts[0] if len(parts) == 1 else Tree(TOP, tuple(parts))


# Scores


def evaluate(golds: Iterable[Tree], guesses: Iterable[Tree]) -> Scores:
    """Score labelled brackets by the rules of EVALB's COLLINS.prm."""
    return add_up(count(golds, guesses))


def count(golds: Iterable[Tree], guesses: Iterable[Tree]) -> list[Counts | None]:
    """Count the labelled brackets of each sentence; None if it is only punctuation.

    Tags, an empty root and punctuation do not count. The gold tags alone decide which
    words are punctuation, because a restored guess has no others.
    """
    counts: list[Counts | None] = []
    for number, pair in enumerate(zip(golds, guesses, strict=True), 1):
        cleaned = [clean(tree) for tree in pair]
        _compare(number, *[words(tree) if tree else [] for tree in cleaned])
        kinds = tags(cleaned[0]) if cleaned[0] else []
        counted = [tag not in PUNCTUATION for tag in kinds]
        if not any(counted):
            counts.append(None)
            continue
        gold, guess = [_brackets(tree, counted) for tree in cleaned]
        counts.append(Counts((gold & guess).total(), guess.total(), gold.total()))
    return counts


def add_up(counts: Iterable[Counts | None]) -> Scores:
    """Return the scores over all sentences that are not only punctuation."""
    scored = [one for one in counts if one]
    matched, guessed, gold = map(sum, zip(*scored, strict=True)) if scored else (0,) * 3
    exact = sum(one.matched == one.guessed == one.gold for one in scored)
    return Scores(
        _percent(matched, guessed),
        _percent(matched, gold),
        _percent(2 * matched, guessed + gold),
        _percent(exact, len(scored)),
        *(matched, guessed, gold, len(scored)),
    )


def _compare(number: int, gold: list[str], guess: list[str]) -> None:
    if len(gold) != len(guess):
        raise UserError(
            f"sentence {number}: the gold tree has {len(gold)} words, "
            f"but the guess has {len(guess)}"
        )
    for i, pair in enumerate(zip(gold, guess, strict=True), 1):
        if pair[0] != pair[1]:
            raise UserError(
                f"sentence {number}: word {i} is {pair[0]!r} in the gold tree, "
                f"but {pair[1]!r} in the guess"
            )


def _brackets(
    tree: Tree | None, counted: Sequence[bool]
) -> Counter[tuple[str, int, int]]:
    """Count the (label, start, end) of phrases, in positions among counted words."""
    brackets: Counter[tuple[str, int, int]] = Counter()
    word = position = 0
    starts: list[int] = []
    for step, node in walk(tree) if tree else ():
        if step == WORD:
            position += counted[word]
            word += 1
        elif step == "(":
            starts.append(position)
        elif (start := starts.pop()) < position and node.label not in TOPS:
            brackets[SAME.get(node.label, node.label), start, position] += 1
    return brackets


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
