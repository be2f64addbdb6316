"""The versioned store: key → the value that was valid at any time within the history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.model.record import VersionedRecord
from headrace.serde.protocol import Serde
from headrace.state.expiry import Dropped, Timeline
from headrace.state.keys import (
    FIRST,
    LAST,
    decode_by_time,
    decode_window,
    encode_by_time,
    encode_window,
    windows_between,
)
from headrace.state.protocols import refuse_null_key
from headrace.state.rendering import render_entries
from headrace.state.table import Table

LATEST = -1  # what `put` returns for a version that has no end yet
NOT_PUT = FIRST  # what `put` returns for a version older than the history
EXPIRED = "expired version"


def segment_interval(history: int) -> int:
    """Kafka removes old versions by segments of this length."""
    for up_to, parts, shortest in ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000)):
        if history <= up_to:
            return max(history // parts, shortest)
    return max(history // 24, 300_000)


class Past(NamedTuple):
    """A version that has ended, or a deletion (the value is None); `start == end`: a deletion without a successor."""

    start: int
    end: int
    value: Any


class Versions:
    """A versioned store.

    The latest value of a key lies in one table and never expires. Versions that have ended lie in another, by key and
    start; they never overlap, and in a gap the key had no value. As in Kafka, a deletion at the very time of
    the latest value leaves no trace if the key had no value before.
    """

    def __init__(
        self, name: str, table: Table, past: Table, times: Timeline, key: Serde, *, history: int, dropped: Dropped
    ) -> None:
        self.name, self.table, self._past, self._times, self._clock = name, table, past, times, times.clock
        self._encode, self._decode = key.encode, key.decode
        self._history, self._segment, self._dropped = history, segment_interval(history), dropped

    # --------------------------------------------------------------------------------------------- writing
    def put(self, key: Any, value: Any, timestamp: int) -> int:
        """Puts a version; returns the end of its validity, `LATEST`, or `NOT_PUT` if it is older than the history."""
        if key is None:
            refuse_null_key(self.name, "put")
        if self._too_old(timestamp):
            return NOT_PUT
        return self._put(self._encode(key), value, timestamp)

    def delete(self, key: Any, timestamp: int) -> VersionedRecord | None:
        """Deletes as of the timestamp, and returns the version that was valid then."""
        if key is None:
            refuse_null_key(self.name, "delete")
        if self._too_old(timestamp):
            return None
        old = self.get(key, timestamp)
        self._put(self._encode(key), None, timestamp)
        return old

    def _too_old(self, timestamp: int) -> bool:
        if timestamp >= self._clock.value - self._history:
            self._clock.value = max(self._clock.value, timestamp)
            return False
        self._dropped(EXPIRED, 1)
        return True

    def _put(self, key: bytes, value: Any, timestamp: int) -> int:
        latest: VersionedRecord | None = self.table.get(key)
        if latest is not None and timestamp >= latest.timestamp:
            if timestamp > latest.timestamp:
                self._put_past(key, Past(latest.timestamp, timestamp, latest.value))
            self.table.put(key, None if value is None else VersionedRecord(value, timestamp))
            return LATEST
        before = next(self._versions(key, FIRST, timestamp, reverse=True), None)
        if before is not None and timestamp < before.end:
            return self._put_within(key, before, value, timestamp)
        after = next(self._versions(key, timestamp + 1, LAST), None)
        if after is not None or latest is not None:
            end = after.start if after is not None else latest.timestamp if latest is not None else LATEST
            self._put_past(key, Past(timestamp, end, value))
            return end
        if value is not None:
            self.table.put(key, VersionedRecord(value, timestamp))
        elif before is None or before.end != timestamp:
            self._put_past(key, Past(timestamp, timestamp, None))
        return LATEST

    def _put_within(self, key: bytes, version: Past, value: Any, timestamp: int) -> int:
        """Puts a version at a time when an older version is valid; the older version then ends at that time."""
        if version.start < timestamp:
            self._put_past(key, version._replace(end=timestamp))
        self._put_past(key, Past(timestamp, version.end, value))
        return version.end

    def _put_past(self, key: bytes, version: Past) -> None:
        self._past.put(encode_window(key, version.start), (version.end, version.value))
        time = version.end // self._segment * self._segment
        noted = encode_by_time(time, key)
        if not self._times.has(noted):
            self._times.add(noted, time)

    # --------------------------------------------------------------------------------------------- reading
    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        """The latest version, or the one that was valid at `as_of`."""
        if key is None:
            refuse_null_key(self.name, "get")
        place = self._encode(key)
        latest: VersionedRecord | None = self.table.get(place)
        if as_of is None or (latest is not None and latest.timestamp <= as_of):
            return latest
        if as_of < self._clock.value - self._history:
            return None
        version = next(self._versions(place, FIRST, as_of, reverse=True), None)
        if version is None or as_of >= version.end or version.value is None:
            return None
        return VersionedRecord(version.value, version.start)

    def history(self, key: Any, first: int, last: int) -> Iterator[VersionedRecord]:
        """The versions valid at some time from `first` to `last`, oldest first; the latest has no `valid_to`."""
        if key is None:
            refuse_null_key(self.name, "history")
        place = self._encode(key)
        found: list[VersionedRecord] = []
        if last >= self._clock.value - self._history:
            oldest = (self._clock.value - self._history) // self._segment
            found += [
                VersionedRecord(version.value, version.start, version.end)
                for version in self._versions(place, FIRST, last)
                if version.value is not None and version.end > first and version.end // self._segment >= oldest
            ]
        latest: VersionedRecord | None = self.table.get(place)
        if latest is not None and latest.timestamp <= last:
            found.append(latest)
        return iter(found)

    def __repr__(self) -> str:
        return f"<store {self.name}>"

    def _repr_html_(self) -> str:
        return render_entries(f"store {self.name}, the latest versions", self.latest())

    def latest(self) -> Iterator[tuple[Any, VersionedRecord]]:
        """Every key that has a value now, with its latest version."""
        return ((self._decode(place), record) for place, record in self.table.scan())

    def _versions(self, key: bytes, first: int, last: int, *, reverse: bool = False) -> Iterator[Past]:
        """The ended versions that started from `first` to `last`."""
        entries = self._past.scan(*windows_between(key, first, last), reverse=reverse)
        return (Past(decode_window(place)[1], end, value) for place, (end, value) in entries)

    # -------------------------------------------------------------------------------------------------
    def expire(self) -> None:
        """Removes versions that ended before the history begins."""
        oldest = (self._clock.value - self._history) // self._segment
        for noted in self._times.take_expired(self._segment):
            _, key = decode_by_time(noted)
            for version in self._versions(key, FIRST, LAST):
                if version.end // self._segment >= oldest:
                    break
                self._past.put(encode_window(key, version.start), None)
