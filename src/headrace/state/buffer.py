"""Buffers of records that wait: unmatched records of outer joins, joins with grace, and suppressed updates.

Each buffer is a table of bytes, ordered by time, so that it survives a restart like any other state. The `place` of a
record is its key in this table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

from headrace.model.record import Headers, RecordMetadata
from headrace.serde.protocol import Serde
from headrace.state.table import Table
from headrace.state.task_state import Cell
from headrace.state.values import pack_parts, pack_record, unpack_parts, unpack_record

TIME = struct.Struct(">Q")
AT_HAND = 100_000  # entries that are also kept decoded
SIDES = b"\0", b"\1"  # right, left
SIGN = 1 << 63  # flips the sign bit, so that negative times come first
_place = itemgetter(0)


def time_bytes(timestamp: int) -> bytes:
    return TIME.pack(timestamp + SIGN)


def time_of(place: bytes) -> int:
    return TIME.unpack_from(place)[0] - SIGN


# (place, time, left side?, key, value)
Unmatched = tuple[bytes, int, bool, Any, Any]


class UnmatchedBuffer:
    """Records of an outer stream join that have found no partner yet.

    | time, sign flipped u64 | side: 0 right, 1 left | key |  →  values of that key, side and time

    New records stay in memory until the batch ends: many find a partner or are emitted before then, and need no write.
    """

    def __init__(self, table: Table, key: Serde, left: Serde, right: Serde) -> None:
        self.table, self.key, self.values = table, key, (right, left)
        self._keeps = tuple(key.immutable and value.immutable for value in self.values)
        self._encode_key, self._encode_value = key.encode, tuple(value.encode for value in self.values)
        self._new: dict[bytes, Unmatched] = {}  # place → the only value there, not in the table yet
        self._decoded: dict[bytes, tuple[bytes, Unmatched]] = {}  # place → its bytes in the table, the decoded record

    @staticmethod
    def key_of(place: bytes) -> bytes:
        """The bytes of the key of a row."""
        return place[9:]

    def place(self, timestamp: int, left_side: bool, key: Any) -> bytes:
        return TIME.pack(timestamp + SIGN) + SIDES[left_side] + self._encode_key(key)

    def add(self, timestamp: int, left_side: bool, key: Any, value: Any) -> None:
        table, place = self.table, self.place(timestamp, left_side, key)
        other = self._new.pop(place, None)
        if other is not None:
            self._write(other)
        waiting = table.recent(place, None) if table.is_beyond(place) else table.get(place)
        if waiting is None and self._keeps[left_side]:
            self._new[place] = place, timestamp, left_side, key, value
        else:
            raw = self._encode_value[left_side](value)
            table.put(place, pack_parts((raw,) if waiting is None else [*unpack_parts(waiting), raw]))

    def _write(self, new: Unmatched) -> None:
        place, _, left_side, _, value = new
        packed = pack_parts((self._encode_value[left_side](value),))
        self.table.put(place, packed)
        if len(self._decoded) >= AT_HAND:
            self._decoded.clear()
        self._decoded[place] = packed, new

    def write_new(self) -> None:
        """Writes the new records into the table, at the end of a batch."""
        for new in self._new.values():
            self._write(new)
        self._new.clear()

    def rolled_back(self) -> None:
        self._new.clear()

    def forget(self, timestamp: int, left_side: bool, key: Any) -> None:
        """Removes a record that has found a partner."""
        place = self.place(timestamp, left_side, key)
        if self._new.pop(place, None) is None and self.table.has(place):
            self._remove_written(place)

    def remove(self, place: bytes) -> None:
        if self._new.pop(place, None) is None:
            self._remove_written(place)

    def _remove_written(self, place: bytes) -> None:
        self.table.put(place, None)
        self._decoded.pop(place, None)

    def entries(self) -> Iterator[Unmatched]:
        """All records, oldest first, right side before left."""
        new = [self._new[place] for place in sorted(self._new)]
        return merge(new, self._written(), key=_place) if new else self._written()

    def _written(self) -> Iterator[Unmatched]:
        decoded = self._decoded
        for place, waiting in self.table.scan():
            known = decoded.get(place)
            if known is not None and known[0] is waiting:
                yield known[1]
                continue
            left_side, key = place[8] == 1, self.key.decode(place[9:])
            for part in unpack_parts(waiting):
                if part is not None:
                    yield place, time_of(place), left_side, key, self.values[left_side].decode(part)


class Waiting(NamedTuple):
    """A record that waits, with its timestamp, headers and metadata."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers
    metadata: RecordMetadata | None


class GraceBuffer:
    """Records of a stream that wait until the grace of their table join has passed.

    | time, sign flipped u64 | key | sequence u32 |  →  the record
    """

    def __init__(self, table: Table, sequence: Cell, key: Serde, value: Serde) -> None:
        self.table, self.sequence, self.key, self.value = table, sequence, key, value

    @staticmethod
    def key_of(place: bytes) -> bytes:
        """The bytes of the key of a row."""
        return place[8:-4]

    def add(self, timestamp: int, key: Any, value: Any, headers: Headers, metadata: RecordMetadata | None) -> None:
        self.sequence.value = (self.sequence.value + 1) & 0x7FFFFFFF
        place = time_bytes(timestamp) + self.key.encode(key) + self.sequence.value.to_bytes(4, "big")
        self.table.put(place, pack_record((self.value.encode(value),), timestamp, headers, metadata))

    def take_until(self, time: int) -> Iterator[Waiting]:
        """Removes the records up to `time` and yields them, oldest first."""
        for place, raw in self.table.scan(high=time_bytes(time + 1)):
            (value,), timestamp, headers, metadata = unpack_record(raw)
            self.table.put(place, None)
            decoded = None if value is None else self.value.decode(value)
            yield Waiting(self.key.decode(place[8:-4]), decoded, timestamp, headers, metadata)


class Suppressed(NamedTuple):
    """A held-back update; `prior` is the value from before the first update that was held back."""

    key: Any
    new: Any
    old: Any
    prior: Any
    timestamp: int
    headers: Headers
    metadata: RecordMetadata | None


class SuppressBuffer:
    """Updates that `suppress` holds back: the latest update of every key, by the time of its first held-back update.

    | 0 | key |  →  the time that the key has in the buffer
    | 1 | time, sign flipped u64 | key |  →  the update
    """

    def __init__(self, table: Table, count: Cell, size: Cell, key: Serde, value: Serde) -> None:
        self.table, self.count, self.size, self.key, self.value = table, count, size, key, value

    @staticmethod
    def key_of(place: bytes) -> bytes:
        """The bytes of the key of a row."""
        return place[1:] if place[:1] == b"\0" else place[9:]

    @staticmethod
    def measure(place: bytes, raw: bytes) -> tuple[int, int]:
        """The number of updates and of bytes that a row adds to the buffer."""
        return (0, 0) if place[:1] == b"\0" else (1, SuppressBuffer._size(place[9:], raw))

    def put(self, time: int, update: Suppressed) -> None:
        encoded = self.key.encode(update.key)
        known = self.table.get(b"\0" + encoded)
        moment = time_bytes(time) if known is None else known
        place = b"\1" + moment + encoded
        prior, before = self._bytes(update.old), None if known is None else self.table.get(place)
        if before is not None:
            prior = unpack_record(before)[0][0]
            self.size.value -= self._size(encoded, before)
        else:
            self.count.value += 1
            self.table.put(b"\0" + encoded, moment)
        parts = (prior, self._bytes(update.old), self._bytes(update.new))
        raw = pack_record(parts, update.timestamp, update.headers, update.metadata)
        self.table.put(place, raw)
        self.size.value += self._size(encoded, raw)

    def oldest(self) -> tuple[bytes, int] | None:
        """The place and the time of the oldest update."""
        for place, _ in self.table.scan(b"\1", b"\2"):
            return place, time_of(place[1:9])
        return None

    def look_at(self, place: bytes) -> Suppressed:
        (prior, old, new), timestamp, headers, metadata = unpack_record(self.table.get(place))
        values = (self._value(new), self._value(old), self._value(prior))
        return Suppressed(self.key.decode(place[9:]), *values, timestamp, headers, metadata)

    def remove(self, place: bytes) -> None:
        encoded = place[9:]
        self.count.value -= 1
        self.size.value -= self._size(encoded, self.table.get(place))
        self.table.put(place, None)
        self.table.put(b"\0" + encoded, None)

    def prior(self, key: Any) -> tuple[bool, Any]:
        """Whether the key is held back, and its value before the first held-back update."""
        encoded = self.key.encode(key)
        moment = self.table.get(b"\0" + encoded)
        if moment is None:
            return False, None
        return True, self._value(unpack_record(self.table.get(b"\1" + moment + encoded))[0][0])

    def _bytes(self, value: Any) -> bytes | None:
        return None if value is None else self.value.encode(value)

    def _value(self, raw: bytes | None) -> Any:
        return None if raw is None else self.value.decode(raw)

    @staticmethod
    def _size(encoded: bytes, raw: bytes) -> int:
        """The size as Kafka Streams counts it: time, key, values, and the record's context."""
        (prior, old, new), _, headers, metadata = unpack_record(raw)
        values = len(prior or b"") + (0 if old == prior else len(old or b"")) + len(new or b"")
        context = 20 + len(metadata.topic if metadata else "")
        return 8 + len(encoded) + values + context + sum(len(name) + len(value or b"") for name, value in headers)
