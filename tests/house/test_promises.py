"""What the documents promise has a test, and the test exists."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def test_every_promise_names_a_test_that_exists():
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    rows = [x for x in text.split("\n") if x.startswith("| ") and "---" not in x]
    rows = [x for x in rows if not x.endswith("| test |")]
    assert len(rows) > 20
    for row in rows:
        [(path, name)] = re.findall(r"`(tests/\S+\.py)::(\w+)` \|$", row)
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {getattr(node, "name", "") for node in tree.body}, row
