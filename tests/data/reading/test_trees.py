"""Trees: read like NLTK, restored from any output, scored like EVALB."""

import functools
import random
import re

import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.corpora import treebank
from transformer_jax.data.reading import trees
from transformer_jax.data.reading.trees import Tree

PENN = [
    """( (S (NP-SBJ-1 (NNP Mr.) (NNP Vinken))
     (VP (VBD was)
         (VP (VBN named)
             (S (NP-SBJ (-NONE- *-1))
                (NP-PRD=2 (DT a) (NN director) (-LRB- -LRB-) (PRP$ my) (-RRB- -RRB-)))))
     (. .)) )""",
    "(TOP (FRAG (INTJ (UH Oh)) (: --) (ADVP-TMP (RB now))))",
    "(S (NP (PRP He))(VP (VBD left) (SBAR (-NONE- 0) (S (-NONE- *T*-2)))))",
]
CAT = "(S (NP XX XX )NP (VP XX )VP XX )S"


def generated(size=300):
    return [
        trees.restore(record["target"].split(), record["source"].split())[0]
        for record in treebank.generate("test", size)
    ]


def one(text):
    [tree] = trees.read(text)
    return tree


# Reading, cleaning, writing


def test_trees_are_read_as_nltk_reads_them():
    nltk = pytest.importorskip("nltk")
    read = functools.partial(nltk.Tree.fromstring, remove_empty_top_bracketing=True)
    theirs = [read(text) for text in PENN]
    for text in ("\n".join(PENN), " ".join(PENN), "\n\n".join(map(str, theirs))):
        ours = trees.read(text)
        assert list(map(str, ours)) == [tree.pformat(10**9) for tree in theirs]
        assert list(map(trees.words, ours)) == [tree.leaves() for tree in theirs]


def test_cleaning_equals_deleting_node_by_node_with_nltk():
    nltk = pytest.importorskip("nltk")
    for text in PENN:
        tree = nltk.Tree.fromstring(text, remove_empty_top_bracketing=True)
        while tree.label() in ("TOP", "ROOT"):
            [tree] = tree
        for place in reversed(tree.treepositions()):  # a phrase after its parts
            node = tree[place]
            if isinstance(node, nltk.Tree):
                if node.label() == "-NONE-" or not len(node):
                    del tree[place]
                elif node.label() not in ("-LRB-", "-RRB-"):
                    node.set_label(node.label().split("-")[0].split("=")[0])
        assert str(trees.clean(one(text))) == tree.pformat(10**9)


def test_an_empty_root_is_dropped_unless_it_holds_several_trees():
    assert str(one("( (S (X a)) )")) == "(S (X a))"
    assert str(one("((S (X a)) (. .))")) == "(TOP (S (X a)) (. .))"
    assert str(trees.clean(one("(ROOT (TOP (S (X a))))"))) == "(S (X a))"
    assert str(trees.clean(one("(TOP (X a))"))) == "(X a)"
    assert trees.clean(one("(S (NP (-NONE- *)))")) is None


def test_written_trees_can_be_read():
    for tree in generated():
        assert trees.read(str(tree)) == [tree]
    smile = Tree("S", (Tree("XX", (":(",)), Tree("XX", ("a",))))
    assert trees.words(one(str(smile))) == [":-LRB-", "a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (X a))\n(S (X a)\n", "line 2: the tree that begins here lacks 1 )"),
        ("(S\n (X a)))", "line 2: this ) closes nothing"),
        ("(S (X a))\n\nx (S (X a))", "line 3: 'x' is outside all brackets"),
        ("(S\n(NP )\n)", "line 2: (NP) is empty"),
        ("(S (X a))\n()", "line 2: () is empty"),
        (
            "(S\n(NP the (NN cat)))",
            "line 2: 'the' shares the bracket (NP with something else: each word needs "
            "one of its own, such as (NN the)",
        ),
        (
            "\n((S (X a))\n((S (X a)))",
            "line 3: a bracket inside a tree has no label: is the tree that begins "
            "in line 2 closed?",
        ),
    ],
)
def test_malformed_trees_are_refused_with_the_line_and_the_reason(text, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        trees.read(text)


# Linearised and restored


def test_a_linearised_tree_contains_no_words_or_tags():
    tree = one("(S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .))")
    assert trees.linearise(tree) == CAT
    again, problems = trees.restore(CAT.split(), trees.words(tree))
    assert str(again) == "(S (NP (XX The) (XX cat)) (VP (XX slept)) (. .))"
    assert not problems


def test_a_tree_is_linearised_with_each_word_in_its_place():
    plain, words = "(S (NP XX )NP (VP XX XX )VP )S", ["XX", "(b)", "c"]
    written = trees.with_words(plain, words)
    assert written == "(S (NP XX )NP (VP -LRB-b-RRB- c )VP )S"
    assert trees.without_words(written) == plain
    # Any words, and anything that is not a valid bracket, are kept for counting.
    assert trees.without_words("(S b ⁇ ( )S") == "(S XX XX ( )S"


def test_a_wrong_number_of_words_is_refused():
    for words in (["a"], ["a", "b", "c"]):
        with pytest.raises(
            UserError,
            match=f"has XX 2 times, but its sentence has {len(words)} words: ",
        ):
            trees.with_words("(S XX XX )S", words)


def test_restoring_a_linearised_tree_gives_that_tree():
    odd = ["(X a)", "(X (X (X a)))", "(TOP (S (X a)) (S (X b)))", "(XX (XX (XX a)))"]
    for tree in [*generated(), *map(one, PENN), *map(one, odd)]:
        tokens = trees.linearise(tree).split()
        again, problems = trees.restore(tokens, trees.words(tree))
        assert not problems
        assert _without_tags(again) == _without_tags(tree)


@pytest.mark.parametrize(
    ("tokens", "tree", "problems"),
    [
        (  # a wrong label: the open bracket is meant
            "(S (NP XX XX )VP (VP XX )VP XX )S",
            "(S (NP The cat) (VP slept) .)",
            {"brackets closed by another label": 1},
        ),
        (  # the same if a bracket with that label is also open
            "(S (VP XX (NP XX )VP XX )VP XX )S",
            "(S (VP The (NP cat) slept) .)",
            {"brackets closed by another label": 1},
        ),
        (
            "(S (NP XX XX (VP XX )VP XX )S",
            "(S (NP The cat (VP slept) .))",
            {"brackets not closed": 1},
        ),
        (
            "(S (NP XX XX )NP )NP (VP XX )VP XX )S",
            "(S (NP The cat) (VP slept) .)",
            {"brackets closed but not open": 1},
        ),
        (
            f"{CAT} )S",
            "(S (NP The cat) (VP slept) .)",
            {"brackets closed but not open": 1},
        ),
        (  # truncated: the missing words go to the end
            "(S (NP XX XX )NP (VP",
            "(S (NP The cat) slept .)",
            {
                "brackets not closed": 2,
                "brackets around nothing": 1,
                "words too few": 2,
            },
        ),
        (
            "(S (NP XX XX XX )NP (VP XX XX )VP XX )S",
            "(S (NP The cat slept) (VP .))",
            {"words too many": 2},
        ),
        (
            "(S (NP XX XX )NP )S (X XX XX )X",
            "(TOP (S (NP The cat)) (X slept .))",
            {"trees too many": 1},
        ),
        (
            "(S XX <unk> XX ( ) XX cat XX )S",
            "(S The cat slept .)",
            {"unknown tokens": 4},
        ),
        ("", "(TOP The cat slept .)", {"words too few": 4}),
        (
            ")S XX",
            "(TOP The cat slept .)",
            {"brackets closed but not open": 1, "words too few": 3},
        ),
    ],
)
def test_ill_formed_output_is_repaired_and_reported(tokens, tree, problems):
    found, said = trees.restore(tokens.split(), "The cat slept .".split())
    assert re.sub(r"\(\S+ ([^ ()]+)\)", r"\1", str(found)) == tree
    assert said == problems


def test_a_wrong_label_on_a_closing_bracket_never_changes_the_tree():
    generator = random.Random(1)
    for tree in generated(100):
        tokens = trees.linearise(tree).split()
        place = generator.choice([i for i, t in enumerate(tokens) if t[0] == ")"])
        labels = {")NP", ")VP", ")QP"} - {tokens[place]}
        tokens[place] = generator.choice(sorted(labels))
        again, problems = trees.restore(tokens, trees.words(tree))
        assert again == tree
        assert problems == {"brackets closed by another label": 1}


def test_any_output_becomes_a_tree_over_the_words():
    generator = random.Random(2)
    vocabulary = "XX XX XX (S )S (NP )NP (VP )VP ) ( )) (( x".split()
    for length in range(600):
        tokens = generator.choices(vocabulary, k=length % 61)
        words = [f"w{i}" for i in range(generator.randint(1, 23))]
        tree, problems = trees.restore(tokens, words)
        assert trees.words(tree) == words
        assert trees.read(str(tree)) == [tree]
        again = trees.restore(trees.linearise(tree).split(), words)
        assert again == (tree, {})
        assert bool(problems) == (trees.linearise(tree).split() != tokens)


def test_depth_has_no_limit_and_no_words_give_no_tree():
    deep, problems = trees.restore(["(S"] * 20_000 + ["XX"], ["a", "."])
    assert trees.linearise(deep).count("(S") == 20_000
    assert problems == {"brackets not closed": 20_000, "words too few": 1}
    assert trees.evaluate([one("(S (X a) (. .))")], [deep]).matched == 1
    assert trees.restore(["(S", "XX", ")S"], [])[0] == Tree("TOP", ())


# Scores


def test_brackets_are_counted_as_evalb_counts_them():
    """Spans of words without punctuation; * is in both.

    gold   S 0-7 *  NP 0-2 *  VP 2-7  ADVP 3-4 *  PP 4-7 *  NP 5-7 *            6
    guess  S 0-7 *  NP 0-2 *  VP 2-4  PRT 3-4 *   PP 4-7 *  NP 5-7 *  NP 5-7    7

    TOP, the FRAG around a full stop alone and the tags are not counted; PRT is ADVP;
    the second NP 5-7 has no match in the gold tree. The other sentence is right: 3.
    In total 8 match, of 10 guessed and 9 gold: 80 %, 88.9 %, F1 = 2 · 8 / 19.
    """
    golds = trees.read("""
        (TOP (S (NP-SBJ (DT The) (NN cat)) (VP (VBD sat) (ADVP (RB down))
            (PP-LOC (IN on) (NP (DT the) (NN mat)))) (NP (-NONE- *)) (. .)))
        (S (NP (PRP He)) (VP (VBD left)) (. .))
    """)
    guesses = trees.read("""
        (S (NP (XX The) (XX cat)) (VP (XX sat) (PRT (. down)))
            (PP (XX on) (NP (NP (XX the) (XX mat) (FRAG (XX .))))))
        (ROOT (S (NP (XX He)) (VP (XX left) (XX .))))
    """)
    scores = trees.evaluate(golds, guesses)
    assert scores[4:] == (8, 10, 9, 2)
    assert scores.precision == pytest.approx(80)
    assert scores.recall == pytest.approx(800 / 9)
    assert scores.f1 == pytest.approx(1600 / 19)
    assert scores.exact == 50


def test_equal_brackets_count_each_and_a_root_over_several_trees_does_not():
    golds = trees.read("((NP (NP (X a))) (. .))")
    guesses = trees.read("(ROOT (NP (NP (X a))) (X .))")
    assert [tree.label for tree in golds + guesses] == ["TOP", "ROOT"]
    assert trees.evaluate(golds, guesses) == (100, 100, 100, 100, 2, 2, 2, 1)


def test_precision_is_of_the_guesses_and_a_sentence_of_punctuation_is_skipped():
    golds = trees.read("(S (X a)) (S (NP (. .)))")
    guesses = trees.read("(S (NP (X a))) (VP (. .))")
    scores = trees.evaluate(golds, guesses)
    assert (scores.precision, scores.recall, scores.sentences) == (50, 100, 1)
    assert trees.evaluate([], []).f1 == 0


def test_a_tree_over_other_words_is_refused():
    golds = trees.read("(S (X a)) (S (X a) (X b))")
    with pytest.raises(UserError, match="sentence 2: the gold tree has 2 words.* 1"):
        trees.evaluate(golds, [golds[0], golds[0]])
    with pytest.raises(
        UserError,
        match="sentence 2: word 2 is 'b' in the gold tree, but 'c' in the guess",
    ):
        trees.evaluate(golds, trees.read("(S (X a)) (S (X a) (X c))"))
    with pytest.raises(ValueError, match="shorter"):
        trees.evaluate(golds, golds[:1])


def _without_tags(tree):
    if isinstance(tree.children[0], str):
        return Tree("XX", tree.children)
    return Tree(tree.label, tuple(map(_without_tags, tree.children)))
