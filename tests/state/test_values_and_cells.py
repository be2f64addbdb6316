"""Layouts of values, and cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StateCorruptedError
from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.serde import STRING
from headrace.state import values
from headrace.state.values import decode_cell, encode_cell

GOLDEN = [
    (values.plain, "v", "76"),
    (values.timestamped, ValueAndTimestamp("v", 258), "000000000000010276"),
    (values.timestamped, ValueAndTimestamp("", -1), "ffffffffffffffff"),
    (values.latest, VersionedRecord("v", 1), "000000000000000176"),
    (values.past, (5, "v"), "00000000000000050176"),
    (values.past, (5, ""), "000000000000000501"),
    (values.past, (5, None), "000000000000000500"),
    (values.used, (7, "v"), "000000000000000776"),
]


@pytest.mark.parametrize("layout, value, golden", GOLDEN)
def test_a_layout_does_not_change(layout, value, golden):
    codec = layout(STRING)
    assert codec.encode(value).hex() == golden
    decoded = codec.decode(bytes.fromhex(golden))
    assert decoded == value
    assert type(decoded) is type(value)


@given(st.none() | st.binary() | st.integers())
def test_a_cell_gets_back_what_was_put_in(content):
    decoded = decode_cell(encode_cell(content))
    assert decoded == content
    assert type(decoded) is type(content)


def test_a_cell_of_unknown_bytes_is_refused():
    with pytest.raises(StateCorruptedError, match="a cell cannot be"):
        decode_cell(b"\x09")
