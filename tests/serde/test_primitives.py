"""What the primitive serdes refuse, and how they say it."""

import math
import pickle
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import serde
from headrace.model.windows import Window, Windowed
from headrace.serde import BOOLEAN, BYTES, DOUBLE, FLOAT, INTEGER, JSON, LONG, SHORT, STRING, UUID, VOID, Serde


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize("serde, value", [(SHORT, 2**15), (INTEGER, 2**31), (LONG, 2**63), (LONG, -(2**63) - 1)])
def test_a_number_out_of_range_is_refused(serde, value):
    with pytest.raises(ValueError, match=f"{serde.name} holds -.* not {value}"):
        serde.encode(value)


@pytest.mark.parametrize(
    "serde, value",
    [
        (STRING, b"bytes"), (STRING, 1), (BYTES, "text"), (BYTES, 5), (LONG, "1"), (LONG, 1.0), (LONG, True),
        (INTEGER, False), (SHORT, None), (DOUBLE, "1.0"), (DOUBLE, True), (FLOAT, b"1"), (BOOLEAN, 1),
        (BOOLEAN, "true"), (UUID, "123e4567-e89b-12d3-a456-426614174000"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(serde, value):
    with pytest.raises(TypeError, match=rf"{serde.name} encodes an? .*, not |BYTES encodes bytes, not "):
        serde.encode(value)


@pytest.mark.parametrize("serde, length", [(SHORT, 2), (INTEGER, 4), (LONG, 8), (FLOAT, 4), (DOUBLE, 8)])
@pytest.mark.parametrize("raw", [b"", b"1", b"123", b"123456789", bytes(100)])
def test_bytes_of_another_length_are_refused(serde, length, raw):
    with pytest.raises(ValueError, match=f"{serde.name} is {length} bytes, not the {len(raw)} of"):
        serde.decode(raw)


@pytest.mark.parametrize("raw", [b"", b"\x02", b"\x00\x00", b"true"])
def test_a_boolean_is_one_byte_of_two(raw):
    with pytest.raises(ValueError, match="BOOLEAN is one byte"):
        BOOLEAN.decode(raw)


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("1-2-3-4-5", "00000001-0002-0003-0004-000000000005"),
        ("123E4567-E89B-12D3-A456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
        ("123456789-1-1-1-1", "23456789-0001-0001-0001-000000000001"),
        ("1-12345-1-1-1234567890123", "00000001-2345-0001-0001-234567890123"),
    ],
)
def test_a_uuid_is_read_as_java_reads_it(text, canonical):
    assert str(UUID.decode(text.encode())) == canonical


@pytest.mark.parametrize(
    "text",
    ["", "1-2-3-4", "1-2-3-4-5-6", "1-2-3-4-", "-1-2-3-4-5", "123e4567e89b12d3a456426614174000",
     "{123e4567-e89b-12d3-a456-426614174000}", "0123e4567-e89b-12d3-a456-426614174000"],
)  # fmt: skip
def test_what_java_does_not_read_as_a_uuid_is_refused(text):
    with pytest.raises(ValueError, match="UUID is five groups"):
        UUID.decode(text.encode())


def test_void_takes_nothing():
    void: Serde[Any] = VOID
    for refuse in (void.encode, void.decode):
        with pytest.raises(ValueError, match="VOID takes no value but None"):
            refuse(b"")


def test_a_float_too_large_for_four_bytes_is_refused():
    with pytest.raises(ValueError, match="use DOUBLE"):
        FLOAT.encode(1e300)
    with pytest.raises(ValueError, match="DOUBLE cannot hold an int of"):
        DOUBLE.encode(10**400)


def test_what_counts_as_an_int_or_a_float_is_welcome():
    assert LONG.decode(LONG.encode(Level.HIGH)) == 3
    assert DOUBLE.decode(DOUBLE.encode(2)) == 2.0
    raw: Serde[Any] = BYTES
    assert raw.encode(bytearray(b"ab")) == raw.encode(memoryview(b"ab")) == b"ab"


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_come_back(value):
    assert LONG.decode(LONG.encode(value)) == value


@given(st.floats())
def test_doubles_come_back(value):
    back = DOUBLE.decode(DOUBLE.encode(value))
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.text())
def test_strings_without_surrogates_come_back(value):
    assert STRING.decode(STRING.encode(value)) == value


@given(st.binary())
def test_any_bytes_decode_to_a_string_that_can_be_encoded(raw):
    STRING.encode(STRING.decode(raw))


PRIMITIVES = [STRING, BYTES, LONG, INTEGER, SHORT, DOUBLE, FLOAT, BOOLEAN, UUID, VOID, JSON]


@pytest.mark.parametrize("serde", PRIMITIVES, ids=repr)
def test_a_primitive_serde_is_the_same_in_another_process(serde):
    assert pickle.loads(pickle.dumps(serde)) == serde


@pytest.mark.parametrize(
    "make, value",
    [
        (lambda: serde.list_of(STRING), ["a", None]),
        (lambda: serde.windowed(LONG, 10), Windowed(1, Window(0, 10))),
        (lambda: serde.session_windowed(STRING), Windowed("a", Window(1, 2))),
        (lambda: serde.json_of(dict[str, int]), {"a": 1}),
    ],
)
def test_a_composed_serde_works_in_another_process(make, value):
    sent = pickle.loads(pickle.dumps(make()))
    assert sent.decode(sent.encode(value)) == value
