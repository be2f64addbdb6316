"""Lists and windowed keys: what is refused, and what Kafka's readers let pass."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.windows import LONGEST, DailyWindows, TimeWindows, UnlimitedWindows, Window, Windowed
from headrace.serde import INTEGER, LONG, STRING, list_of, session_windowed, windowed


def test_trailing_bytes_of_a_list_are_ignored_as_in_kafka():
    assert list_of(INTEGER).decode(bytes.fromhex("00000000000000000100000007ffff")) == [7]


def test_how_a_list_was_written_is_in_its_bytes():
    assert list_of(INTEGER).decode(bytes.fromhex("01000000010000000400000007")) == [7]


def test_an_empty_string_at_the_end_of_a_list_comes_back():
    assert list_of(STRING).decode(list_of(STRING).encode(["a", ""])) == ["a", ""]


@pytest.mark.parametrize(
    "raw",
    ["", "00", "02", "0000000000", "000000000000000001000000", "0000000000ffffffff", "00ffffffff00000000",
     "01ffffffff", "0100000001", "01000000010000000500", "0100000001fffffffe", "007fffffff"],
)  # fmt: skip
def test_a_broken_list_is_refused(raw):
    with pytest.raises(ValueError, match=r"list_of\(INTEGER\) cannot read"):
        list_of(INTEGER).decode(bytes.fromhex(raw))


def test_a_list_of_strings_is_not_read_as_one_of_fixed_size():
    with pytest.raises(ValueError, match=r"list_of\(STRING\) cannot read"):
        list_of(STRING).decode(bytes.fromhex("000000000000000000"))


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": 1}, 5, {1, 2}])
def test_only_a_list_is_a_list(value):
    with pytest.raises(TypeError, match=r"list_of\(STRING\) encodes a list, not"):
        list_of(STRING).encode(value)


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)))
def test_lists_of_fixed_size_come_back(values):
    assert list_of(INTEGER).decode(list_of(INTEGER).encode(values)) == values


@given(st.lists(st.none() | st.lists(st.none() | st.text())))
def test_lists_of_lists_come_back(values):
    serde = list_of(list_of(STRING))
    assert serde.decode(serde.encode(values)) == values


def test_a_windowed_serde_without_a_size_says_what_to_do():
    with pytest.raises(ValueError, match=r"windowed\(STRING, size\), or session_windowed\(STRING\)"):
        windowed(STRING)


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_has_a_size(size):
    with pytest.raises(ValueError, match="the window size must be at least 1 ms"):
        windowed(STRING, size)


def test_the_size_may_be_a_timedelta():
    key = Windowed("a", Window(0, 1000))
    assert windowed(STRING, timedelta(seconds=1)).decode(windowed(STRING, 1).encode(key)) == key


@pytest.mark.parametrize(
    "windows", [TimeWindows.of(10, advance=5), UnlimitedWindows.of(), DailyWindows.of("Europe/Paris")]
)
def test_the_size_may_be_a_definition_of_windows(windows):
    # 28 and 29 March 2026: a day of 24 hours, and one of 23
    for at in (0, 1_774_700_000_000, 1_774_760_000_000):
        for window in windows.windows_for(at):
            serde = windowed(LONG, windows)
            assert serde.decode(serde.encode(Windowed(1, window))) == Windowed(1, window)


def test_the_end_of_a_window_is_not_past_the_end_of_time():
    serde = windowed(STRING, 100)
    assert serde.decode(serde.encode(Windowed("a", Window(LONGEST - 5, LONGEST)))) == ("a", (LONGEST - 5, LONGEST))


@pytest.mark.parametrize("serde", [windowed(STRING, 10), session_windowed(STRING)], ids=repr)
def test_no_bytes_are_no_key_and_too_few_are_an_error(serde):
    assert serde.decode(b"") is None
    with pytest.raises(ValueError, match="at least"):
        serde.decode(b"abc")


@pytest.mark.parametrize("key", ["a", 5, ("a", 5), (1, 2, 3), ("a", (2**63, 2**63)), ("a", ("b", "c"))])
@pytest.mark.parametrize("serde", [windowed(STRING, 10), session_windowed(STRING)], ids=repr)
def test_only_a_windowed_key_is_encoded(serde, key):
    with pytest.raises(TypeError, match=r"encodes Windowed\(key, Window\(start, end\)\), not"):
        serde.encode(key)


def test_windows_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="starts at -1"):
        windowed(STRING, 10).decode(b"a" + b"\xff" * 8)
    with pytest.raises(ValueError, match="from 2 to 1"):
        session_windowed(STRING).decode(bytes.fromhex("6100000000000000010000000000000002"))


@given(st.text(), st.integers(0, 2**62), st.integers(0, 2**62 - 1))
def test_sessions_come_back(key, start, length):
    windowed_key = Windowed(key, Window(start, start + length))
    serde = session_windowed(STRING)
    assert serde.decode(serde.encode(windowed_key)) == windowed_key
