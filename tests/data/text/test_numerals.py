"""Numbers in texts: what people write, not what Python takes for one."""

import math

import pytest

from transformer_jax.data.text.numerals import is_whole, read_number


@pytest.mark.parametrize("text", ["5", " 5.0 ", "+.5e1", "5.", "5E0", 5, 5.0])
def test_a_number_is_read(text):
    assert read_number(text) == 5


@pytest.mark.parametrize(
    "text",
    ["5_0", "٥٠", "True", True, "", "nan", "inf", "1e999", "0x5", math.inf, "5 5"],
)
def test_what_nobody_writes_for_a_number_is_refused(text):
    with pytest.raises(ValueError, match="is not"):
        read_number(text)


def test_a_whole_number_has_a_size_that_can_be_meant():
    assert is_whole("0") and is_whole("12345")
    assert not any(map(is_whole, ["", "-1", "1_0", "٥", "²", "1" * 5000, "1.0"]))
