"""What a store holds, by time: so that what has expired is found without a look at the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from headrace.state.keys import FIRST, LAST, times_between
from headrace.state.table import Table
from headrace.state.values import Cell

# A jump of stream time can expire everything at once. What is expired is invisible, so its removal may take several
# batches: each removes this many entries, and twice as many as it adds.
AT_MOST = 10_000

# With caching, Kafka Streams shows what has expired as long as it is in its cache. Here that is as long as it is among
# this many entries, so that a restart makes no difference.
LINGERING = 10_000


class Timeline:
    """An index whose entries begin with a time; the store's clock is the largest time that was put.

    `lingers`: the last ones to expire are still shown.
    """

    def __init__(self, table: Table, clock: Cell, retention: int, *, lingers: bool = False) -> None:
        self.table, self.clock, self._retention = table, clock, retention
        self._held = LAST
        self._settled = FIRST  # up to here nothing is left to remove
        self.lingers = lingers
        self._lingering: deque[bytes] | None = deque() if lingers else None
        self.has = table.has

    @property
    def hidden(self) -> int:
        """What has this time or an earlier one is not shown."""
        return FIRST if self.lingers else self.expired

    @property
    def expired(self) -> int:
        """What has this time or an earlier one has expired, shown or not."""
        return self.clock.value - self._retention

    @property
    def gone(self) -> int:
        """What has this time or an earlier one may be removed."""
        return FIRST if self._lingering is not None else self._last_over

    @property
    def _last_over(self) -> int:
        """The last time that has expired and is not held back."""
        return min(self.expired, self._held - 1)

    def was_hidden(self, time: int) -> bool:
        """Whether what has this time had expired when the last batch was committed."""
        return time <= self.clock.saved - self._retention

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
        """Nothing of this time or later is removed, expired or not: somebody still waits for it."""
        self._held = time

    def rolled_back(self) -> None:
        """What was removed is there again, and what was waited for is still: hold all back until it is said anew."""
        self._settled = FIRST
        if self._lingering is not None:
            self._lingering.clear()
        if self._held != LAST:
            self._held = FIRST

    def take_expired(self, span: int = 1) -> list[bytes]:
        """Takes out entries all of whose times, `span` from the one they begin with, have expired."""
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
            lingering.clear()  # all of them are found anew
        if last > self._settled:
            lingering.extend(self.between(self._settled + 1, last))
            self._settled = last
        return [lingering.popleft() for _ in range(min(limit, len(lingering) - LINGERING))]
