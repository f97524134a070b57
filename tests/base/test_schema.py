"""Keys as fields of a dataclass: what is declared is what is checked."""

import dataclasses
import math

import pytest

from transformer_jax.base import schema
from transformer_jax.base.schema import derived, option

TABLE = {"plain": 1}


@dataclasses.dataclass(frozen=True)
class Sizes:
    rows: int = derived(7, "Rows of a table.")
    width: int = option(3, "Width.", least=1)
    rate: float = option(0.1, "Share dropped.", least=0, below=1)
    top: float = option(1.0, "Share kept.", least=0.5, most=1)
    part: float = option(0.1, "Share used.", above=0, most=1)
    scale: float = option(2.0, "Factor.", least=0)
    kind: str = option("plain", "Kind.", choices=lambda: (*TABLE, "none"))
    order: str = option("post", "Order.", choices=("post", "pre"))
    deep: bool = option(False, "Deep.")
    names: tuple = option((), "Names.")


def test_a_section_has_the_keys_in_order_without_what_is_derived():
    assert list(schema.defaults(Sizes)) == [
        "width", "rate", "top", "part", "scale", "kind", "order", "deep", "names",
    ]  # fmt: skip
    assert Sizes().rows == 7
    assert schema.find_problems("model", Sizes()) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"width": 0}, "model.width = 0: must be at least 1"),
        ({"rate": 1.0}, "model.rate = 1.0: a share, at least 0 and less than 1"),
        ({"rate": -0.5}, "model.rate = -0.5: a share, at least 0 and less than 1"),
        ({"top": 2.0}, "model.top = 2.0: must be at least 0.5 and at most 1"),
        ({"part": 0.0}, "model.part = 0.0: must be more than 0 and at most 1"),
        (
            {"width": 10**20},
            f"model.width = {10**20}: must be at least 1 and at most 1000000",
        ),
        (
            {"scale": math.nan},
            "model.scale = nan: must be at least 0 and at most 1000000",
        ),
        (
            {"scale": math.inf},
            "model.scale = inf: must be at least 0 and at most 1000000",
        ),
        (
            {"order": "pst"},
            "model.order = 'pst': choose post | pre. Did you mean 'post'?",
        ),
        ({"kind": "zz"}, "model.kind = 'zz': choose plain | none."),
        ({"width": True}, "model.width = True is of type bool, not int (default: 3)"),
        ({"deep": 1}, "model.deep = 1 is of type int, not bool (default: False)"),
        ({"names": "a"}, "model.names = 'a' is of type str, not tuple (default: ())"),
    ],
)
def test_a_problem_names_the_key_the_value_and_what_may_be(changes, problem):
    assert schema.find_problems("model", Sizes(**changes)) == [problem]
    assert schema.find_problems("model", changes, Sizes) == [problem]  # of a section


def test_an_int_passes_for_a_float_and_a_bound_for_inside():
    assert schema.find_problems("model", {"rate": 0, "width": 1, "top": 1}, Sizes) == []


def test_all_problems_are_found_at_once():
    found = schema.find_problems("model", Sizes(width=0, rate=2.0, order="x"))
    assert [p.split(" = ")[0] for p in found] == [
        "model.width", "model.rate", "model.order",
    ]  # fmt: skip
    found = schema.find_problems("model", Sizes(width="wide", order="x"))
    assert [p.split(" = ")[0] for p in found] == ["model.width", "model.order"]


def test_choices_follow_a_table_that_grows(monkeypatch):
    found = {field.name: schema.choices(field) for field in schema.fields(Sizes)}
    assert found.pop("kind") == ("plain", "none")
    assert found.pop("order") == ("post", "pre")
    assert not any(found.values())
    monkeypatch.setitem(TABLE, "fine", 2)
    assert schema.find_problems("model", Sizes(kind="fine")) == []


def test_keys_whose_names_are_found_make_a_class_like_any_other():
    made = schema.collect(
        "Columns", {"text_column": option("", "Text."), "size": option(3, "")}
    )
    assert schema.defaults(made) == {"text_column": "", "size": 3}
    (problem,) = schema.find_problems("data", {"size": "x", "text_column": "a"}, made)
    assert problem == "data.size = 'x' is of type str, not int (default: 3)"


def test_a_key_is_narrowed_and_keeps_its_meaning_and_bounds():
    kind, width, *_ = (
        schema.narrow(field, default, allowed)
        for field, default, allowed in (
            (schema.fields(Sizes)[5], "none", ("none",)),
            (schema.fields(Sizes)[0], 5, None),
        )
    )
    assert (kind.default, schema.choices(kind)) == ("none", ("none",))
    assert (width.default, width.metadata["least"]) == (5, 1)
    assert width.metadata["meaning"] == "Width."
