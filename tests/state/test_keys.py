"""Layouts of keys: their bytes are fixed, and their order is the one they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state import keys

times = st.integers(keys.FIRST, keys.LAST)
sequences = st.integers(0, 2**31 - 1)
raw_keys = st.lists(st.sampled_from([b"\x00", b"\x01", b"\xff", b"a"]), max_size=4).map(b"".join) | st.binary(
    max_size=8
)

GOLDEN = [
    (keys.encode_by_time(0, b""), "8000000000000000"),
    (keys.encode_by_time(-1, b""), "7fffffffffffffff"),
    (keys.encode_subscription(b"\x00f", b"p"), "00000002006670"),
    (keys.encode_window(b"a\x00b", 1), "6100ff6200018000000000000001"),
    (keys.encode_window(b"", keys.LAST), "0001ffffffffffffffff"),
    (keys.encode_duplicate(b"k", 2, 3), "6b0001800000000000000200000003"),
    (keys.encode_session(b"k", 1, 5), "6b000180000000000000058000000000000001"),
    (keys.encode_by_time(7, b"a\x00"), "80000000000000076100"),
    (keys.encode_by_end(b"k", 1, 5), "800000000000000580000000000000016b"),
]


@pytest.mark.parametrize("encoded, golden", GOLDEN)
def test_a_layout_does_not_change(encoded, golden):
    assert encoded.hex() == golden


@given(st.lists(st.tuples(raw_keys, times), min_size=2, max_size=6))
def test_windows_are_ordered_by_key_then_start(places):
    assert sorted(keys.encode_window(*place) for place in places) == [keys.encode_window(*p) for p in sorted(places)]
    assert [keys.decode_window(keys.encode_window(*place)) for place in places] == places


@given(st.lists(st.tuples(raw_keys, times, sequences), min_size=2, max_size=6))
def test_duplicates_are_ordered_by_key_then_start_then_arrival(places):
    encoded = [keys.encode_duplicate(*place) for place in sorted(places)]
    assert sorted(encoded) == encoded
    assert [keys.decode_duplicate(raw) for raw in encoded] == sorted(places)


@given(st.lists(st.tuples(raw_keys, times, times), min_size=2, max_size=6))
def test_sessions_are_ordered_by_key_then_end_then_start(places):
    in_order = sorted(places, key=lambda place: (place[0], place[2], place[1]))
    encoded = [keys.encode_session(*place) for place in in_order]
    assert sorted(encoded) == encoded
    assert [keys.decode_session(raw) for raw in encoded] == in_order


@given(st.lists(st.tuples(times, raw_keys), min_size=2, max_size=6))
def test_the_oldest_comes_first_by_time(places):
    encoded = [keys.encode_by_time(*place) for place in sorted(places)]
    assert sorted(encoded) == encoded
    assert [keys.decode_by_time(raw) for raw in encoded] == sorted(places)


@given(st.lists(st.tuples(raw_keys, times, times), min_size=2, max_size=6))
def test_sessions_by_end_are_ordered_by_end_then_start_then_key(places):
    in_order = sorted(places, key=lambda place: (place[2], place[1], place[0]))
    encoded = [keys.encode_by_end(*place) for place in in_order]
    assert sorted(encoded) == encoded
    assert [keys.decode_by_end(raw) for raw in encoded] == in_order


@given(raw_keys, raw_keys)
def test_no_escaped_key_is_the_beginning_of_another(one, other):
    assert one == other or not keys.escape(other).startswith(keys.escape(one))


@given(raw_keys, raw_keys, times, times, times)
def test_the_bounds_of_a_key_hold_its_windows_and_no_others(key, other, start, first, last):
    low, high = keys.windows_between(key, first, last)
    inside = low <= keys.encode_window(key, start) and (high is None or keys.encode_window(key, start) < high)
    assert inside == (first <= start <= last)
    if other != key:
        place = keys.encode_window(other, start)
        assert not (low <= place and (high is None or place < high))


@given(times, times, times, raw_keys)
def test_the_bounds_of_times_include_both_ends(time, first, last, key):
    low, high = keys.times_between(first, last)
    place = keys.encode_by_time(time, key)
    assert (low <= place and (high is None or place < high)) == (first <= time <= last)


@given(st.binary(min_size=1, max_size=5), st.binary(max_size=5))
def test_the_successor_of_a_prefix_comes_right_after_all_that_begin_with_it(prefix, other):
    end = keys.successor(prefix)
    assert (prefix <= other and (end is None or other < end)) == other.startswith(prefix)
