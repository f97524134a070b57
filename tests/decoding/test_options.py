"""The options of decoding: one dataclass makes the config, the flags and the checks."""

import dataclasses
import functools

import jax
import pytest
from absl import flags

from transformer_jax import config, predict, tasks
from transformer_jax.base import schema
from transformer_jax.decoding import Options
from transformer_jax.models import registry

# The options that all tasks have, and those of one task each.
KINDS = [*dict.fromkeys((Options, *(tasks.find(t).search for t in tasks.names())))]
FIELDS = [*{f.name: f for kind in KINDS for f in dataclasses.fields(kind)}.values()]


@pytest.fixture
def known_flags(monkeypatch):
    """The flags of predict, apart from the flags of the process."""
    values = flags.FlagValues()
    for kind in ("string", "integer", "float", "bool", "multi_string"):
        name = f"DEFINE_{kind}"
        define = functools.partial(getattr(flags, name), flag_values=values)
        monkeypatch.setattr(flags, name, define)
    predict.define_flags()
    return values


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f.name)
def test_every_option_has_a_meaning_and_bounds(field):
    assert field.metadata["meaning"].endswith(".")
    bounded = field.metadata["least"] is not None or field.metadata["most"] is not None
    assert bounded == (type(field.default) in (int, float))


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f.name)
def test_every_option_is_a_flag_that_is_not_given(field, known_flags):
    flag = known_flags[field.name]
    assert flag.default is None and flag.help == field.metadata["meaning"]
    want = not field.default if type(field.default) is bool else field.default
    known_flags(["predict", f"--{field.name}={want}"])
    assert flag.value == want and type(flag.value) is type(field.default)
    assert schema.given_flags(known_flags, *KINDS) == {field.name: want}


@pytest.mark.parametrize(
    ("task", "model"),
    [
        (task, model)
        for task in tasks.names()
        for model in registry.names_for(
            tasks.find(task).interface, tasks.find(task).modules
        )
    ],
)
def test_a_config_has_only_keys_of_the_options(task, model):
    section = config.base(task, model).get("decode", {})
    options = tasks.find(task).search(**section)
    types = {field.name: type(field.default) for field in FIELDS}
    assert all(type(value) is types[name] for name, value in section.items())
    own = schema.defaults(type(options)).keys() - schema.defaults(Options).keys()
    assert section.keys() - schema.defaults(Options).keys() == own
    assert ("window" in section) == (task == "language")
    assert options.find_problems() == []


def test_a_translation_has_the_defaults_of_the_dataclass():
    assert Options(**config.base().decode) == Options()
    assert set(config.base().decode) == set(schema.defaults(Options))


@pytest.mark.parametrize(
    ("field", "bound"),
    [
        (field, bound)
        for field in FIELDS
        for bound in ("least", "most")
        if field.metadata[bound] is not None
    ],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_a_value_outside_a_bound_is_refused_with_both_numbers(field, bound):
    limit = field.metadata[bound]
    inside = type(field.default)(limit)
    assert free(**{field.name: inside}).find_problems() == []
    outside = inside + (-1 if bound == "least" else 1)
    # More problems may follow: a beam of 0 is also narrower than n_best.
    problem, *_ = free(**{field.name: outside}).find_problems()
    assert problem.startswith(f"decode.{field.name} = {outside}: must be ")
    assert f"at {bound} {limit}" in problem


def free(**changes):
    """Make options of the first class that has these fields."""
    kind = next(k for k in KINDS if changes.keys() <= schema.defaults(k).keys())
    needed = {"top_k": 2} if "contrast" in changes else {}
    return kind(**needed | changes)


def test_both_bounds_are_in_one_sentence():
    wanted = "decode.top_p = 2.0: must be at least 1e-09 and at most 1"
    assert Options(top_p=2.0).find_problems() == [wanted]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"beams": 2, "n_best": 3}, "decode.n_best 3 is more than decode.beams 2"),
        ({"max_length": 3, "min_length": 4}, "min_length 4 is more than decode.max"),
    ],
)
def test_options_that_exclude_each_other_are_refused(changes, says):
    (problem,) = free(**changes).find_problems()
    assert says in problem


def test_options_are_a_static_argument_of_jit():
    @functools.partial(jax.jit, static_argnums=1)
    def wide(x, options):
        return x * options.beams

    assert wide(2, Options(beams=3)) == 6
    assert hash(Options(beams=3)) == hash(Options(beams=3)) != hash(Options())


def test_a_default_that_cannot_be_a_flag_is_refused(known_flags):
    @dataclasses.dataclass
    class Several:
        several: tuple = schema.option((), "Several.")

    assert schema.defaults(Several) == {"several": ()}
    with pytest.raises(TypeError, match="several of type tuple cannot be a flag"):
        schema.define_flags(flags, Several)
    with pytest.raises(TypeError, match="option cannot be of type dict"):
        schema.option({}, "By name.")
