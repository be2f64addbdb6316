"""The records of a Kafka Streams changelog topic, encode beside decode, for every kind of store.

key-value   | key |                              →  value; its timestamp in a timestamped store is the record's
window      | key | start i64 | sequence u32 |   →  value, as for key-value; the sequence tells duplicates apart
session     | key | end i64 | start i64 |        →  value
versioned   | key |                              →  value of one version, which begins at the record's timestamp

A record without a value deletes the entry. All numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from headrace.errors import SerializationError, StreamsError
from headrace.model.record import ValueAndTimestamp
from headrace.model.windows import Window, Windowed
from headrace.state.keys import decode_duplicate, decode_session, decode_window, successor
from headrace.state.spec import (
    BufferKind,
    KeyValueKind,
    LruKind,
    SessionKind,
    StoreSpec,
    SubscriptionKind,
    VersionedKind,
    WindowKind,
)
from headrace.state.task_state import PREFIX, TaskState
from headrace.state.values import NUMBER, NUMBER_AND_FLAG

Row = tuple[bytes, bytes | None, int]  # key, value, timestamp
Put = Callable[[bytes, bytes | None, int], object]
Entry = tuple[bytes, bytes]  # key without the table's prefix, value; as the engine stores them
_WINDOW = struct.Struct(">qI")
_SESSION = struct.Struct(">qq")


# ---------------------------------------------------------------------------------------------------------------- keys
def encode_window_key(key: bytes, start: int, sequence: int = 0) -> bytes:
    return key + _WINDOW.pack(start, sequence)


def decode_window_key(raw: bytes) -> tuple[bytes, int, int]:
    r"""The key, the start and the sequence.

    >>> decode_window_key(encode_window_key(b"k", 1, 2))
    (b'k', 1, 2)
    """
    return raw[: -_WINDOW.size], *_WINDOW.unpack_from(raw, len(raw) - _WINDOW.size)


def encode_session_key(key: bytes, start: int, end: int) -> bytes:
    return key + _SESSION.pack(end, start)


def decode_session_key(raw: bytes) -> tuple[bytes, int, int]:
    r"""The key, the start and the end.

    >>> decode_session_key(encode_session_key(b"k", 1, 2))
    (b'k', 1, 2)
    """
    end, start = _SESSION.unpack_from(raw, len(raw) - _SESSION.size)
    return raw[: -_SESSION.size], start, end


# ----------------------------------------------------------------------------------------------------------- to a store
def fill(state: TaskState, name: str, rows: Iterable[Row]) -> int:
    """Fills a store from the records of its changelog, in order; returns the largest timestamp, or -1."""
    spec, store = state.specs[name], state.store(name)
    put, last = _putting(spec, store), -1
    for key, value, timestamp in _latest(rows) if _has_duplicates(spec) else rows:
        last = max(last, timestamp)
        try:
            put(key, value, timestamp)
        except StreamsError:
            raise
        except Exception as error:
            raise SerializationError(
                f"a record of the changelog of store {name!r} cannot be read: {error}. Its key begins with "
                f"{key[:20]!r}; are the serdes those of the application that wrote it?"
            ) from error
    return last


def _has_duplicates(spec: StoreSpec) -> bool:
    return isinstance(spec.kind, WindowKind) and spec.kind.retain_duplicates


def _latest(rows: Iterable[Row]) -> list[Row]:
    """The last record of every key, without deletions, because a store of duplicates cannot delete."""
    found: dict[bytes, Row] = {}
    for row in rows:
        found.pop(row[0], None)
        found[row[0]] = row
    return [row for row in found.values() if row[1] is not None]


def _putting(spec: StoreSpec, store: Any) -> Put:
    key_of, value_of = _decoders(spec)
    match spec.kind:
        case KeyValueKind(timestamped=True):
            return lambda key, value, time: store.put(
                key_of(key), None if value is None else ValueAndTimestamp(value_of(value), time)
            )
        case KeyValueKind() | LruKind():
            return lambda key, value, time: store.put(key_of(key), value_of(value))
        case WindowKind() as kind:
            return _putting_windows(kind, store, key_of, value_of)
        case SessionKind(retention=retention):
            return _putting_sessions(retention, store, key_of, value_of)
        case VersionedKind(history=history):
            alive = Lifetime(history + 1)
            return lambda key, value, time: alive(time) and store.put(key_of(key), value_of(value), time)
        case BufferKind() | SubscriptionKind():
            raise unreadable(spec.name)


def _decoders(spec: StoreSpec) -> tuple[Callable[[bytes], Any], Callable[[bytes | None], Any]]:
    if spec.key is None or spec.value is None:
        raise TypeError(f"the serdes of store {spec.name!r} are not resolved")
    key, value = spec.key.decode, spec.value.decode
    return key, lambda raw: None if raw is None else value(raw)


def _putting_windows(
    kind: WindowKind, store: Any, key_of: Callable[[bytes], Any], value_of: Callable[[bytes | None], Any]
) -> Put:
    alive, timestamped = Lifetime(kind.retention), kind.timestamped

    def put(raw: bytes, value: bytes | None, timestamp: int) -> None:
        key, start, _ = decode_window_key(raw)
        if alive(start):
            found = value_of(value)
            store.put(
                key_of(key), ValueAndTimestamp(found, timestamp) if timestamped and value is not None else found, start
            )

    return put


def _putting_sessions(
    retention: int, store: Any, key_of: Callable[[bytes], Any], value_of: Callable[[bytes | None], Any]
) -> Put:
    alive = Lifetime(retention)

    def put(raw: bytes, value: bytes | None, _timestamp: int) -> None:
        key, start, end = decode_session_key(raw)
        if alive(end):
            store.put(Windowed(key_of(key), Window(start, end)), value_of(value))

    return put


class Lifetime:
    """True for a time within the retention. The caller skips expired entries; the store would count them as dropped."""

    def __init__(self, retention: int) -> None:
        self._retention, self._clock = retention, -1

    def __call__(self, time: int) -> bool:
        self._clock = max(self._clock, time)
        return time > self._clock - self._retention


def unreadable(name: str) -> StreamsError:
    return StreamsError(f"the store {name!r} has no form that Kafka Streams and Headrace share")


# --------------------------------------------------------------------------------------------------------- from a store
def rows_of(state: TaskState, name: str, clock: int) -> Iterator[Row]:
    """The entries of a store as changelog records; `clock` is the timestamp of entries that have none."""
    spec, entries = state.specs[name], entries_of(state, name)
    match spec.kind:
        case KeyValueKind(timestamped=True):
            return ((key, raw[NUMBER.size :], _number(raw)) for key, raw in entries)
        case KeyValueKind():
            return ((key, raw, clock) for key, raw in entries)
        case LruKind():  # least recently used first
            used = sorted(entries, key=lambda entry: _number(entry[1]))
            return ((key, raw[NUMBER.size :], clock) for key, raw in used)
        case WindowKind() as kind:
            return _rows_of_windows(kind, entries, state.store(name).hidden)
        case SessionKind():
            return _rows_of_sessions(entries, state.store(name).hidden)
        case VersionedKind():
            # Sorted by time: a store rejects a put that is older than its history, even of the latest value of a key.
            return iter(sorted(_rows_of_versions(entries, entries_of(state, f"{name}/past")), key=itemgetter(2)))
        case BufferKind() | SubscriptionKind():
            raise unreadable(name)


def entries_of(state: TaskState, table: str) -> Iterator[Entry]:
    """The committed entries of a table."""
    prefix = state.table(table).prefix
    return ((key[PREFIX:], raw) for key, raw in state.engine.scan(prefix, successor(prefix)))


def _number(raw: bytes) -> int:
    return NUMBER.unpack_from(raw)[0]


def _rows_of_windows(kind: WindowKind, entries: Iterator[Entry], hidden: int) -> Iterator[Row]:
    for place, raw in entries:
        key, start, sequence = decode_duplicate(place) if kind.retain_duplicates else (*decode_window(place), 0)
        value, timestamp = (raw[NUMBER.size :], _number(raw)) if kind.timestamped else (raw, start)
        if start > hidden:
            yield encode_window_key(key, start, sequence), value, timestamp


def _rows_of_sessions(entries: Iterator[Entry], hidden: int) -> Iterator[Row]:
    for place, raw in entries:
        key, start, end = decode_session(place)
        if end > hidden:
            yield encode_session_key(key, start, end), raw, end


def _rows_of_versions(latest: Iterator[Entry], past: Iterator[Entry]) -> Iterator[Row]:
    """The versions of a key, oldest first, with a deletion where a version ended without a successor."""
    found: list[tuple[bytes, int, int | None, bytes | None]] = []  # key, start, end, value
    for place, raw in past:
        end, is_value = NUMBER_AND_FLAG.unpack_from(raw)
        found.append((*decode_window(place), end, raw[NUMBER_AND_FLAG.size :] if is_value else None))
    found += [(key, _number(raw), None, raw[NUMBER.size :]) for key, raw in latest]
    found.sort(key=itemgetter(0, 1))
    for key, versions in groupby(found, key=itemgetter(0)):
        over: int | None = None  # when the previous version ended
        for _, start, end, value in versions:
            if over is not None and over != start:
                yield key, None, over
            yield key, value, start
            over = end if value is not None else None
        if over is not None:
            yield key, None, over
