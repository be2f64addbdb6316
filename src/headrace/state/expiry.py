"""The expiry of window, session and versioned stores.

`Timeline` is an index of a store by time; it finds expired entries without scanning the rest. `ExpiredPuts` decides
what happens to a put whose time has expired already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from headrace.state.keys import FIRST, LAST, times_between
from headrace.state.table import Table
from headrace.state.values import Cell

Dropped = Callable[[str, int], None]  # (reason, count)

# A jump of stream time can expire everything at once. Expired entries are invisible, so their removal may take several
# batches: each batch removes at most this many entries, plus two for each entry that it adds.
AT_MOST = 10_000

# With caching, Kafka Streams shows expired entries while they are in its cache. Headrace shows this many of the entries
# that expired last, so that a restart makes no difference.
LINGERING = 10_000


class Timeline:
    """An index whose entries begin with a time; the store's clock is the largest time that was put.

    With `lingers`, the entries that expired last are still shown.
    """

    def __init__(self, table: Table, clock: Cell, retention: int, *, lingers: bool = False) -> None:
        self.table, self.clock, self.retention = table, clock, retention
        self._held = LAST
        self._settled = FIRST  # entries up to this time have been removed, or are in `_lingering`
        self.lingers = lingers
        self._lingering: deque[bytes] | None = deque() if lingers else None
        self.has = table.has

    @property
    def hidden(self) -> int:
        """Entries at this time or earlier are not shown."""
        return FIRST if self.lingers else self.expired

    @property
    def expired(self) -> int:
        """Entries at this time or earlier have expired, shown or not."""
        return self.clock.value - self.retention

    @property
    def gone(self) -> int:
        """Entries at this time or earlier may be removed."""
        return FIRST if self._lingering is not None else self._last_over

    @property
    def _last_over(self) -> int:
        """The last time that has expired and is not held back."""
        return min(self.expired, self._held - 1)

    def was_hidden(self, time: int) -> bool:
        """Whether entries at this time had expired when the last batch was committed."""
        return time <= self.clock.saved - self.retention

    def add(self, place: bytes, time: int) -> None:
        self.table.put(place, b"")
        if time <= self._settled:
            self._settled = FIRST

    def remove(self, place: bytes) -> None:
        self.table.put(place, None)

    def between(self, first: int, last: int) -> Iterator[bytes]:
        first, last = max(first, FIRST), min(last, LAST)
        if last < first:
            return iter(())
        return (place for place, _ in self.table.scan(*times_between(first, last)))

    def hold_back(self, time: int) -> None:
        """Keeps entries at this time or later, expired or not, because an operator still waits for them."""
        self._held = time

    def rolled_back(self) -> None:
        """Resets the index after a rollback, which brings removed entries back.

        If an operator holds entries back, the index keeps everything until the operator calls `hold_back` again.
        """
        self._settled = FIRST
        if self._lingering is not None:
            self._lingering.clear()
        if self._held != LAST:
            self._held = FIRST

    def take_expired(self, span: int = 1) -> list[bytes]:
        """Removes entries whose whole span of time has expired; an entry covers `span` from its own time."""
        last = self._last_over - span + 1
        limit = AT_MOST + 2 * self.table.touched
        lingering = self._lingering
        places = self._oldest(last, limit) if lingering is None else self._too_many(lingering, last, limit)
        for place in places:
            self.remove(place)
        return places

    def _oldest(self, last: int, limit: int) -> list[bytes]:
        if last <= self._settled:
            return []
        places = list(islice(self.between(FIRST, last), limit))
        if len(places) < limit:
            self._settled = last
        return places

    def _too_many(self, lingering: deque[bytes], last: int, limit: int) -> list[bytes]:
        if self._settled == FIRST:
            lingering.clear()  # the scan finds all of them again
        if last > self._settled:
            lingering.extend(self.between(self._settled + 1, last))
            self._settled = last
        return [lingering.popleft() for _ in range(min(limit, len(lingering) - LINGERING))]


class ExpiredPuts:
    """Decides whether a window or session store keeps an expired put, as Kafka's store of the same kind does.

    Kafka's persistent stores expire whole segments, and accept an expired put while its segment exists.
    """

    def __init__(self, table: Table, times: Timeline, reason: str, dropped: Dropped, *, persistent: bool) -> None:
        self._table, self._times, self._reason, self._dropped = table, times, reason, dropped
        self._segment = max(times.retention // 2, 60_000) if persistent else None

    def keeps(self, place: bytes, value: Any, time: int) -> bool:
        """Counts an expired entry as dropped if it is too old; returns whether the table keeps it.

        As in Kafka Streams, a cache keeps the entries that its store drops. The cache forwards an entry once a batch,
        and forwards no removal of an entry that the store does not have, so further puts and removals do not count.
        """
        segment = self._segment
        if segment is not None and time // segment >= self._times.expired // segment:
            return True
        if not self._times.lingers:
            self._dropped(self._reason, 1)
            return False
        if value is not None and self._table.recent(place, None) is None:
            self._dropped(self._reason, 1)
        return True
