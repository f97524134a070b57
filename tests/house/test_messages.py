"""Every error that a user can cause: its form, and whether a test knows its words."""

import ast
import functools
import pathlib
import re

import pytest

from transformer_jax import __main__ as commands
from transformer_jax import cli, scores, tasks
from transformer_jax.base.errors import UserError
from transformer_jax.config import loading
from transformer_jax.data import tfds
from transformer_jax.data.images import arrays as images
from transformer_jax.data.reading import records
from transformer_jax.data.text import vectors
from transformer_jax.models import registry
from transformer_jax.runs import run as runs
from transformer_jax.tasks import classification
from transformer_jax.visualize import explain, similarity

ROOT = pathlib.Path(__file__).parents[2]
RAISED = {"UserError", "Refused", "NoImage", "Damaged", "Unusable", "fail"}
# Words that lead on: what to do, what there is instead, or what went wrong inside.
WAY_OUT = re.compile(
    r":|;|\b(use|name|give|set|choose|restore|remove|needs?|wants?|takes|must|at most|"
    r"at least|only|not|no|but|already|than|cannot|another|of|or|unknown|nothing|Try)\b"
)
# Their words are no test's: what is said is a value, or the tests match another part.
UNNAMED = pathlib.Path(__file__).with_name("unnamed_messages.txt")


@functools.cache
def sites():
    """(file, constant parts) of each call that makes an error for a user."""
    found = []
    for path in sorted((ROOT / "transformer_jax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if isinstance(node.args[0], ast.Starred):  # sentences of other sites
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in RAISED:
                texts = [
                    one.value
                    for argument in node.args
                    for one in words_within(argument)
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                ]
                where = str(path.relative_to(ROOT / "transformer_jax"))
                found.append((f"{where}:{node.lineno}", texts))
    return found


def words_within(node):
    """The parts of an expression in their order, without the keys of subscripts."""
    yield node
    if not isinstance(node, ast.Subscript):
        for child in ast.iter_child_nodes(node):
            yield from words_within(child)


def test_every_error_is_one_line_that_leads_on():
    assert len(sites()) > 250
    for where, texts in sites():
        said = "…".join(texts)
        if len(said.split()) < 2:
            continue  # a message that another function makes
        assert "\n" not in said.replace("\\n", ""), where
        assert not said.rstrip().endswith((".", "!")) or "…" in said, where
        assert WAY_OUT.search(said), (where, said)


def words_of_tests():
    """The text of all tests, in which strings that are broken over lines are whole."""
    files = (ROOT / "tests").rglob("test_*.py")
    text = "\n".join(p.read_text(encoding="utf-8") for p in files)
    return re.sub(r'"\s*\n\s*[fr]*"', "", text.replace("\\", ""))


def test_a_test_knows_the_words_of_every_error():
    known, unnamed = words_of_tests(), set()
    for where, texts in sites():
        words = [text.split() for text in texts]
        pairs = [" ".join(w[i : i + 2]) for w in words for i in range(len(w) - 1)]
        if any(len(pair) >= 9 and pair in known for pair in pairs):
            continue
        if is_quoted(texts, known):
            continue
        if any(len(text) > 5 for text in texts):
            said = " … ".join(text.strip() for text in texts if text.strip())
            unnamed.add(f"{where.split(':')[0]}: {said[:90]}")
    listed = set(UNNAMED.read_text(encoding="utf-8").splitlines())
    assert unnamed <= listed, "write a test that gives rise to these"
    assert listed <= unnamed, "a test knows these now: take them off the list"


def is_quoted(texts, known):
    """Whether a line of a test has all that is constant in a message of short parts."""
    parts = [re.escape(t.strip(" :,.")) for t in texts if t.strip(" :,.")]
    if sum(map(len, parts)) < 10:
        return False
    return re.search(".{1,60}?".join(parts), known) is not None


def write(tmp_path, text):
    (tmp_path / "file").write_text(text, encoding="utf-8")
    return str(tmp_path / "file")


CAUSED = {
    "keys needs a config: keys quickstart": lambda t: commands.list_keys([]),
    "no config 'quikstart' is shipped. Did you mean": (
        lambda t: commands.list_configs(["quikstart"])
    ),
    "--workdir is missing: the run": lambda t: cli.require("workdir", "", "the run"),
    "--format=x: choose text | json": (
        lambda t: cli.check_choice("format", "x", ("text", "json"))
    ),
    "file.py, line 2: ZeroDivisionError": lambda t: loading._run_file(
        str(
            pathlib.Path(write(t, "def get_config():\n    1 / 0\n")).rename(
                t / "file.py"
            )
        )
    ),
    "there is no split 'dev': the digits have": lambda t: images.read_digits("dev"),
    "file, line 1 has no key 'de'. Did you": lambda t: list(
        records.JsonTable(write(t, '{"en": "a"}\n'), {"source": "de"})
    ),
    "the source ('de', data.source_column) is 1": lambda t: records.as_text(
        1, "source", "de", "here"
    ),
    "file has no questions, which are lines": lambda t: similarity.read_questions(
        write(t, ": kind\n")
    ),
    "'My corpus': use a-z, 0-9 and _, as in my_corpus": lambda t: tfds.prepare(
        "My corpus", {}, t
    ),
    "file, line 1: a field is not a number": lambda t: vectors.read(write(t, "a x\n")),
    "weights='newest': choose auto | average | best": lambda t: runs.load(t, "newest"),
    "samples=0 and seed=1 must both be": lambda t: scores.compare(
        {"a": ["x"], "b": ["y"]}, ["x"], samples=0, seed=1
    ),
    "unknown task 'translate'. Did you mean": lambda t: tasks.find("translate"),
    "unknown model 'recurent'. Did you mean": lambda t: registry.find("recurent"),
    "'x' is not a label, a space and": lambda t: classification._read_labelled("x"),
    "d_k = 0 is not the size of a vector: use 1 or more": lambda t: (
        explain.from_numbers({"scores": [[1.0]], "d_k": 0}, "n")
    ),
    "'scores' must be rows of numbers,": lambda t: explain.from_numbers(
        {"scores": [[1.0], [2.0, 3.0]]}, "n"
    ),
    "2 words for 1: give one for each": lambda t: explain._check_length(
        "n", "words", [1, 2], 1
    ),
}


@pytest.mark.parametrize("said", CAUSED)
def test_a_mistake_is_said_in_these_words(said, tmp_path):
    with pytest.raises((UserError, SystemExit)) as caught:
        CAUSED[said](tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
