"""The window store: (key, start) → value within the retention; the store's clock is the largest start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from headrace.model.record import ValueAndTimestamp
from headrace.model.windows import Window, Windowed, ends_of
from headrace.serde.protocol import Serde
from headrace.state.keys import (
    FIRST,
    LAST,
    decode_by_time,
    decode_window,
    encode_by_time,
    encode_window,
    escape,
    windows_between,
)
from headrace.state.protocols import checked_pair, refuse_null_key
from headrace.state.spec import WindowKind
from headrace.state.table import Table
from headrace.state.timeline import Timeline

Dropped = Callable[[str, int], None]  # (reason, count)
EXPIRED = "expired window"
ROWS = 50_000  # string keys whose encoded prefix is cached


def segment_interval(retention: int) -> int:
    """Kafka's persistent stores expire by segments of this length, and take what falls into a live one."""
    return max(retention // 2, 60_000)


class WindowedValues:
    """A window store: entries are visible while their start lies less than the retention behind the clock."""

    def __init__(
        self,
        name: str,
        kind: WindowKind,
        table: Table,
        times: Timeline,
        key: Serde,
        *,
        persistent: bool,
        dropped: Dropped,
    ) -> None:
        self.name, self.table, self._kind, self._retention = name, table, kind, kind.retention
        self._times, self._clock, self._dropped = times, times.clock, dropped
        self._encode, self._decode, self._timestamped = key.encode, key.decode, kind.timestamped
        self._end_of = ends_of(kind.window_size)
        self._segment = segment_interval(kind.retention) if persistent else None
        # One index entry covers all windows of a key in an interval; an index entry for each window, which reads by
        # time need, doubles the writes. A short interval would do so too: it is at least Kafka's minute.
        self._grain = 1 if kind.by_time else max(60_000, kind.retention)
        self._row_of: dict[str, bytes] = {}

    # --------------------------------------------------------------------------------------------- writing
    def put(self, key: Any, value: Any, start: int) -> None:
        if key is None:
            refuse_null_key(self.name, "put")
        if self._timestamped and value is not None and (type(value) is not ValueAndTimestamp or value[0] is None):
            value = checked_pair(self.name, value)
        clock = self._clock
        if start > clock.value:
            clock.value = start
        raw = self._encode(key)
        if start > clock.value - self._retention or self._keeps_expired(encode_window(raw, start), value, start):
            self._put_one(raw, value, start)

    def _keeps_expired(self, place: bytes, value: Any, start: int) -> bool:
        """Counts an expired entry as dropped if it is too old; returns whether the table keeps it.

        As in Kafka Streams, a cache keeps what its store drops. It forwards an entry once a batch, and it does
        not forward the removal of an entry that the store does not have, so that neither is counted again.
        """
        if not self._too_old(start):
            return True
        if not self._times.lingers:
            self._dropped(EXPIRED, 1)
            return False
        if value is not None and self.table.recent(place, None) is None:
            self._dropped(EXPIRED, 1)
        return True

    def _too_old(self, start: int) -> bool:
        """Whether Kafka's store drops an expired entry, too."""
        segment = self._segment
        return segment is None or start // segment < (self._clock.value - self._retention) // segment

    def _put_one(self, key: bytes, value: Any, start: int) -> None:
        place = encode_window(key, start)
        known = self.table.has(place)
        if known or value is not None:
            self._put_at(place, key, value, start, known=known)

    def _put_at(self, place: bytes, key: bytes, value: Any, start: int, *, known: bool) -> None:
        if not known:
            self._note(key, start)
        elif value is None and self._grain == 1:
            self._times.remove(encode_by_time(start, key))
        self.table.put(place, value)

    def _note(self, key: bytes, start: int) -> None:
        time = start // self._grain * self._grain
        noted = encode_by_time(time, key)
        if self._grain == 1 or not self._times.has(noted):
            self._times.add(noted, time)

    # --------------------------------------------------------------------------------------------- reading
    def fetch(self, key: Any, first: int, last: int | None = None) -> Any:
        """The value of the window that starts at `first`; with `last`, (start, value) of all from `first` to `last`."""
        if key is None:
            refuse_null_key(self.name, "fetch")
        if last is not None:
            return self._fetch(key, first, last, reverse=False)
        return None if first <= self._times.hidden else self.table.get(self.key_bytes(key, first))

    def backward_fetch(self, key: Any, first: int, last: int) -> Iterator[tuple[int, Any]]:
        if key is None:
            refuse_null_key(self.name, "backward_fetch")
        return self._fetch(key, first, last, reverse=True)

    def fetch_all(self, first: int, last: int) -> Iterator[tuple[Windowed, Any]]:
        """The windows of all keys that start from `first` to `last`, by key, then start."""
        return self._between(first, last, reverse=False)

    def backward_fetch_all(self, first: int, last: int) -> Iterator[tuple[Windowed, Any]]:
        return self._between(first, last, reverse=True)

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        return self._between(FIRST, LAST, reverse=False)

    def backward_all(self) -> Iterator[tuple[Windowed, Any]]:
        return self._between(FIRST, LAST, reverse=True)

    def key_bytes(self, key: Any, start: int) -> bytes:
        """The key of the window in the table."""
        return encode_window(self._encode(key), start)

    def committed(self, key: Any, start: int) -> Any:
        """The value as of the last commit, without the changes of this batch."""
        return self.table.committed(self.key_bytes(key, start))

    def _fetch(self, key: Any, first: int, last: int, *, reverse: bool) -> Iterator[tuple[int, Any]]:
        first, last = max(first, self._times.hidden + 1), min(last, LAST)
        if last < first:
            return iter(())
        entries = self.table.scan(*windows_between(self._encode(key), first, last), reverse=reverse)
        return ((self._place(place)[1], value) for place, value in entries)

    def _between(self, first: int, last: int, *, reverse: bool) -> Iterator[tuple[Windowed, Any]]:
        first = max(first, self._times.hidden + 1)
        entries = ((*self._place(place), value) for place, value in self.table.scan(reverse=reverse))
        return ((self._windowed(key, start), value) for key, start, value in entries if first <= start <= last)

    def _place(self, place: bytes) -> tuple[bytes, int]:
        return decode_window(place)

    def _windowed(self, key: bytes, start: int) -> Windowed:
        return Windowed(self._decode(key), Window(start, self._end_of(start)))

    # ----------------------------------------------------------------------------------- for operators
    @property
    def hidden(self) -> int:
        """Windows that start at this time or earlier are not shown."""
        return self._times.hidden

    @property
    def expired(self) -> int:
        """Windows that start at this time or earlier have expired, shown or not."""
        return self._times.expired

    def row(self, key: Any) -> bytes:
        """The common prefix of the places of a key's windows: a record in five windows encodes its key once."""
        if type(key) is not str:  # 1 and 1.0 are equal, but their bytes differ
            return escape(self._encode(key))
        row = self._row_of.get(key)
        if row is None:
            if len(self._row_of) >= ROWS:
                self._row_of.clear()
            row = self._row_of[key] = escape(self._encode(key))
        return row

    def update(self, place: bytes, value: Any, start: int, *, known: bool) -> None:
        """Puts the value of one window at its place (row and `encode_time(start)`); `known`: it has a value already."""
        clock = self._clock
        if start > clock.value:
            clock.value = start
        if start <= clock.value - self._retention and not self._keeps_expired(place, value, start):
            return
        if known and value is not None:
            self.table.put(place, value)
        elif known or value is not None:
            self._put_at(place, decode_window(place)[0], value, start, known=known)

    def before(self, place: bytes) -> Any:
        """The value as of the last commit, if it was within the retention then."""
        return None if self._times.was_hidden(self._place(place)[1]) else self.table.committed(place)

    def by_time(self, first: int, last: int) -> Iterator[tuple[Windowed, Any]]:
        """The windows that start from `first` to `last`, by start, then key, and expired ones that are held back."""
        noted = (decode_by_time(place) for place in self._times.between(first // self._grain * self._grain, last))
        if self._grain > 1:
            return self._sorted_by_time(noted, first, last)
        found = ((key, start, self.table.get(encode_window(key, start))) for start, key in noted)
        return ((self._windowed(key, start), value) for key, start, value in found if value is not None)

    def _sorted_by_time(
        self, noted: Iterator[tuple[int, bytes]], first: int, last: int
    ) -> Iterator[tuple[Windowed, Any]]:
        found: list[tuple[int, bytes, Any]] = []
        for time, key in noted:
            bounds = windows_between(key, max(first, time), min(last, time + self._grain - 1))
            found += [(self._place(place)[1], key, value) for place, value in self.table.scan(*bounds)]
        found.sort(key=itemgetter(0, 1))  # stable: what arrived first stays first
        return ((self._windowed(key, start), value) for start, key, value in found)

    def hold_back(self, time: int) -> None:
        """Keeps windows that start at this time or later, expired or not, until `by_time` has returned them."""
        self._times.hold_back(time)

    def expire(self) -> None:
        """Removes expired windows."""
        for noted in self._times.take_expired(self._grain):
            time, key = decode_by_time(noted)
            if self._grain == 1:
                self.table.put(encode_window(key, time), None)
            else:
                for place, _ in self.table.scan(*windows_between(key, time, min(time + self._grain - 1, LAST))):
                    self.table.put(place, None)
                self._forget(key)

    def _forget(self, key: bytes) -> None:
        """Forgets the cached prefix of a key whose windows were removed."""

    def rolled_back(self) -> None:
        """Clears the caches after a rollback."""
        self._times.rolled_back()
