"""State goes to Kafka Streams' changelogs and comes back, and nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SerializationError, StreamsError
from headrace.model.record import ValueAndTimestamp
from headrace.model.windows import Window, Windowed
from headrace.serde import LONG, STRING
from headrace.state.changelog_records import decode_session_key, decode_window_key, fill, rows_of
from headrace.state.engine import MemoryEngine, Version
from headrace.state.spec import (
    BufferKind,
    KeyValueKind,
    Kind,
    LruKind,
    SessionKind,
    StoreSpec,
    VersionedKind,
    WindowKind,
)
from headrace.state.task_state import TaskState
from tests.profiles import examples
from tests.state.harness import few_keys, opened_state, texts

RETENTION, CLOCK = 100_000, 7
times = st.integers(0, 3 * RETENTION)
puts = st.lists(st.tuples(few_keys, st.one_of(st.none(), texts), times, st.integers(0, 1000)), max_size=20)


def opened(kind: Kind) -> TaskState:
    def dropped(reason: str, count: int) -> None:
        drops.append((reason, count))

    drops: list[tuple[str, int]] = []
    state = opened_state(StoreSpec("s", kind, STRING, STRING), MemoryEngine(), dropped=dropped)
    state.__dict__["drops"] = drops
    return state


def copied(state: TaskState) -> tuple[Any, Any]:
    """A store, and the one that its changelog leads to; nothing is counted as dropped on the way."""
    state.commit(Version(0, "a"))
    other = opened(state.specs["s"].kind)
    fill(other, "s", rows_of(state, "s", CLOCK))
    other.commit(Version(0, "b"))
    assert other.__dict__["drops"] == []
    return state.store("s"), other.store("s")


@settings(max_examples=examples(50), deadline=None)
@given(puts, st.booleans())
def test_a_key_value_store_comes_back(given_puts: list[Any], timestamped: bool):
    state = opened(KeyValueKind(timestamped))
    for key, value, time, _ in given_puts:
        state.store("s").put(key, ValueAndTimestamp(value, time) if timestamped and value is not None else value)
    store, other = copied(state)
    assert list(other.all()) == list(store.all())


@settings(max_examples=examples(50), deadline=None)
@given(puts, st.booleans(), st.booleans())
def test_a_window_store_comes_back(given_puts: list[Any], timestamped: bool, duplicates: bool):
    state = opened(WindowKind(RETENTION, 10, retain_duplicates=duplicates, timestamped=timestamped))
    for key, value, start, later in given_puts:
        pair = ValueAndTimestamp(value, start + later)
        state.store("s").put(key, pair if timestamped and value is not None else value, start)
    store, other = copied(state)
    assert list(other.all()) == list(store.all())


@settings(max_examples=examples(50), deadline=None)
@given(puts)
def test_a_session_store_comes_back(given_puts: list[Any]):
    state = opened(SessionKind(RETENTION))
    for key, value, start, length in given_puts:
        state.store("s").put(Windowed(key, Window(start, start + length)), value)
    store, other = copied(state)
    assert list(other.all()) == list(store.all())


@settings(max_examples=examples(50), deadline=None)
@given(puts)
def test_a_versioned_store_comes_back(given_puts: list[Any]):
    state = opened(VersionedKind(RETENTION))
    for key, value, time, _ in given_puts:
        state.store("s").put(key, value, time)
    store, other = copied(state)
    clock = max([time for _, _, time, _ in given_puts], default=0)
    for key in {key for key, _, _, _ in given_puts}:
        assert other.get(key) == store.get(key)
        for moment in {time + more for _, _, time, _ in given_puts for more in (-1, 0, 1)}:
            if moment >= clock - RETENTION:
                assert other.get(key, moment) == store.get(key, moment)


def test_of_recently_used_keys_the_order_comes_back():
    state = opened(LruKind(2))
    for key in ("a", "b", "a"):
        state.store("s").put(key, "x")
    _, other = copied(state)
    other.put("c", "x")
    assert [key for key, _ in other.all()] == ["a", "c"]


def test_keys_are_those_of_kafka_streams():
    state = opened(WindowKind(RETENTION, 10, timestamped=True))
    state.store("s").put("k", ValueAndTimestamp("v", 12), 10)
    state.commit(Version(0, "a"))
    assert list(rows_of(state, "s", CLOCK)) == [(b"k" + bytes(7) + b"\x0a" + bytes(4), b"v", 12)]
    state = opened(SessionKind(RETENTION))
    state.store("s").put(Windowed("k", Window(10, 12)), "v")
    state.commit(Version(0, "a"))
    assert list(rows_of(state, "s", CLOCK)) == [(b"k" + bytes(7) + b"\x0c" + bytes(7) + b"\x0a", b"v", 12)]


def test_a_key_may_be_empty():
    assert decode_window_key(bytes(12)) == (b"", 0, 0)
    assert decode_session_key(bytes(16)) == (b"", 0, 0)


def test_what_has_expired_is_left_behind_and_not_counted_as_dropped():
    state = opened(WindowKind(RETENTION, 10))
    newest = b"k" + (9 * RETENTION).to_bytes(8, "big") + bytes(4)
    assert fill(state, "s", [(newest, b"new", 5), (b"k" + bytes(12), b"old", 6)]) == 6
    assert [value for _, value in state.store("s").all()] == ["new"]
    assert state.__dict__["drops"] == []


def test_a_record_of_another_serde_is_an_error_that_names_the_store():
    state = opened_state(StoreSpec("counts", KeyValueKind(), STRING, LONG), MemoryEngine())
    with pytest.raises(SerializationError, match="changelog of store 'counts' cannot be read"):
        fill(state, "counts", [(b"k", b"no long", 1)])


def test_what_operators_hold_back_has_no_changelog_that_both_know():
    state = opened(BufferKind())
    state.commit(Version(0, "a"))
    with pytest.raises(StreamsError, match="no form that Kafka Streams and Headrace share"):
        rows_of(state, "s", CLOCK)
