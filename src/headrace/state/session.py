"""The session store: (key, start, end) → value within the retention; the store's clock is the largest end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from headrace.model.windows import Window, Windowed
from headrace.serde.protocol import Serde
from headrace.state.expiry import Dropped, ExpiredPuts, Timeline
from headrace.state.keys import (
    LAST,
    decode_by_end,
    decode_session,
    encode_by_end,
    encode_session,
    windows_between,
)
from headrace.state.protocols import refuse_null_key
from headrace.state.rendering import render_entries
from headrace.state.spec import SessionKind
from headrace.state.table import Table


class Sessions:
    """A session store; sessions are visible while their end lies less than the retention behind the clock."""

    def __init__(
        self,
        name: str,
        kind: SessionKind,
        table: Table,
        times: Timeline,
        key: Serde,
        *,
        persistent: bool,
        dropped: Dropped,
    ) -> None:
        self.name, self.table, self._retention = name, table, kind.retention
        self._times, self._clock = times, times.clock
        self._encode, self._decode = key.encode, key.decode
        self.is_persistent = persistent
        self._keeps_expired = ExpiredPuts(table, times, "expired session", dropped, persistent=persistent).keeps

    # --------------------------------------------------------------------------------------------- writing
    def put(self, session: Windowed, value: Any) -> None:
        if session.key is None:
            refuse_null_key(self.name, "put")
        start, end = session.window
        clock = self._clock
        if end > clock.value:
            clock.value = end
        key = self._encode(session.key)
        place = encode_session(key, start, end)
        if end <= clock.value - self._retention and not self._keeps_expired(place, value, end):
            return
        if value is None:
            self._delete(key, start, end)
        else:
            if not self.table.has(place):
                self._times.add(encode_by_end(key, start, end), end)
            self.table.put(place, value)

    def remove(self, session: Windowed) -> None:
        if session.key is None:
            refuse_null_key(self.name, "remove")
        start, end = session.window
        if self.is_persistent and end > self._clock.value:
            self._clock.value = end  # as in Kafka: a removal moves the clock of persistent stores only
        self._delete(self._encode(session.key), start, end)

    def _delete(self, key: bytes, start: int, end: int) -> None:
        place = encode_session(key, start, end)
        if self.table.has(place):
            self.table.put(place, None)
            self._times.remove(encode_by_end(key, start, end))

    # --------------------------------------------------------------------------------------------- reading
    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        if key is None:
            refuse_null_key(self.name, "fetch_session")
        if end <= self._times.hidden:
            return None
        return self.table.get(encode_session(self._encode(key), start, end))

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed, Any]]:
        """The sessions of a key that end at `earliest_end` or later and start at `latest_start` or earlier, by end."""
        return self._find("find_sessions", key, earliest_end, latest_start)

    def backward_find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed, Any]]:
        return self._find("backward_find_sessions", key, earliest_end, latest_start, reverse=True)

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        """All sessions of a key, by end."""
        return self._find("fetch", key, 0, LAST)

    def backward_fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        return self._find("backward_fetch", key, 0, LAST, reverse=True)

    def __repr__(self) -> str:
        return f"<store {self.name}>"

    def _repr_html_(self) -> str:
        return render_entries(f"store {self.name}", self.all())

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        """All sessions, by key, then end, then start."""
        return self._visible(self.table.scan(), LAST)

    def key_bytes(self, session: Windowed) -> bytes:
        """The key of the session in the table."""
        return encode_session(self._encode(session.key), session.window.start, session.window.end)

    def _find(
        self, method: str, key: Any, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> Iterator[tuple[Windowed, Any]]:
        if key is None:
            refuse_null_key(self.name, method)
        first = max(earliest_end, self._times.hidden + 1)
        if first > LAST:
            return iter(())
        low, high = windows_between(self._encode(key), first, LAST)
        found = self._visible(self.table.scan(low, high, reverse=reverse), latest_start)
        return found if self.is_persistent else _ties_turned(found)

    def _visible(self, entries: Iterator[tuple[bytes, Any]], latest_start: int) -> Iterator[tuple[Windowed, Any]]:
        hidden = self._times.hidden
        found = ((*decode_session(place), value) for place, value in entries)
        return (
            (self._windowed(key, start, end), value)
            for key, start, end, value in found
            if end > hidden and start <= latest_start
        )

    def _windowed(self, key: bytes, start: int, end: int) -> Windowed:
        return Windowed(self._decode(key), Window(start, end))

    # ----------------------------------------------------------------------------------- for operators
    @property
    def hidden(self) -> int:
        """Sessions that end at this time or earlier are not shown."""
        return self._times.hidden

    def before(self, place: bytes) -> Any:
        """The value as of the last commit, if it was within the retention then."""
        return None if self._times.was_hidden(decode_session(place)[2]) else self.table.committed(place)

    def by_end(self, first: int, last: int) -> Iterator[tuple[Windowed, Any]]:
        """The sessions that end from `first` to `last`, held-back expired ones too; ordered by end, start and key."""
        noted = (decode_by_end(place) for place in self._times.between(first, last))
        found = ((key, start, end, self.table.get(encode_session(key, start, end))) for key, start, end in noted)
        return ((self._windowed(key, start, end), value) for key, start, end, value in found if value is not None)

    def hold_back(self, time: int) -> None:
        """Keeps sessions that end at this time or later, expired or not, until `by_end` has returned them."""
        self._times.hold_back(time)

    def expire(self) -> None:
        """Removes expired sessions."""
        for noted in self._times.take_expired():
            self.table.put(encode_session(*decode_by_end(noted)), None)


def _ties_turned(found: Iterator[tuple[Windowed, Any]]) -> Iterator[tuple[Windowed, Any]]:
    """Orders sessions with the same end as Kafka's in-memory stores do: the one that starts last comes first."""
    for _, same_end in groupby(found, key=lambda entry: entry[0].window.end):
        yield from reversed(list(same_end))
