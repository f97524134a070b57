"""Damaged files of tags: read, or refused in one line."""

import pytest
from damage import DAMAGE, QUICK, SLOW, attack, parsed

from transformer_jax import config
from transformer_jax.base.errors import UserError
from transformer_jax.family.tagging import tags
from transformer_jax.family.tagging import task as tagging

TREE = b"(S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .))"
CONLL = b"The DT B-NP\ncat NN I-NP\n\n# text\n1-2\tdel\tX\n1\tde\tA\n2\tel\tB\n"
PARSERS = {
    "a.mrg": (parsed(lambda text: tags.read_trees(text, "phrases")), TREE),
    "a.conll": (parsed(tags.read_sentence), CONLL),
}


@pytest.mark.parametrize(
    ("times", "seed"), [(QUICK, 0), pytest.param(SLOW, 1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", PARSERS)
def test_damaged_bytes_are_read_or_refused_in_one_line(
    name, times, seed, tmp_path, fast_cache
):
    parse, whole = PARSERS[name]
    read, refused = attack(parse, tmp_path / name, [whole], times, seed)
    assert read + refused == times and refused


@pytest.mark.parametrize(
    "damage", [*DAMAGE.values(), b'{"tags": [3], "words": {}, "rare": "O"}',
               b'{"tags": ["O"], "words": [], "rare": "O"}', None],
)  # fmt: skip
def test_damaged_tags_are_one_line_with_the_name_of_their_file(tmp_path, damage):
    if damage is not None:
        (tmp_path / tagging.LEXICON_FILE).write_bytes(damage)
    with pytest.raises(UserError) as caught:
        tagging.open_run(config.base("tagging"), tmp_path)
    assert f"{tmp_path / 'tags.json'} is damaged: " in str(caught.value)
    assert "\n" not in str(caught.value)
