"""Generated names, and names that users give."""

import pytest

from headrace.errors import TopologyError
from headrace.topology.naming import Names, valid_name


def test_names_are_a_prefix_and_ten_digits():
    assert Names().take("KSTREAM-FILTER-") == "KSTREAM-FILTER-0000000000"


def test_a_given_name_uses_up_a_number():
    names = Names()
    assert names.given("mine", "KSTREAM-FILTER-", "-source") == "mine-source"
    assert names.take("KSTREAM-MAP-") == "KSTREAM-MAP-0000000001"


def test_a_store_has_its_own_prefix():
    assert Names().store("KSTREAM-AGGREGATE-") == "KSTREAM-AGGREGATE-STATE-STORE-0000000000"


@pytest.mark.parametrize("name", ["a", "a_b.C-9", "x" * 249])
def test_ascii_letters_digits_dots_underscores_and_dashes_make_a_name(name):
    assert valid_name(name) == name


@pytest.mark.parametrize(
    "name, message",
    [
        ("", "a name cannot be empty"),
        (".", r"'\.' cannot be a name"),
        ("..", r"'\.\.' cannot be a name"),
        ("a b", "the name 'a b' can only have ASCII letters"),
        ("ä", "the name 'ä' can only have ASCII letters"),
        ("x" * 250, "has 250 characters, at most 249"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(TopologyError, match=message):
        valid_name(name)


def test_a_name_is_a_str():
    with pytest.raises(TypeError, match="a name is a str, not 5"):
        valid_name(5)  # pyright: ignore[reportArgumentType]


def test_a_suffix_counts_for_the_length():
    with pytest.raises(TopologyError, match="has 256 characters"):
        Names().given("x" * 249, "KSTREAM-SOURCE-", "-source")
