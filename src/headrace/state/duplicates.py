"""The window store of stream joins: (key, time) → every value that was put within the retention, in arrival order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from headrace.model.windows import Windowed
from headrace.serde.protocol import Serde
from headrace.state.keys import FIRST, decode_duplicate, encode_duplicate, escape, successor
from headrace.state.protocols import refuse_null_key
from headrace.state.spec import WindowKind
from headrace.state.table import Table
from headrace.state.timeline import Timeline
from headrace.state.values import Cell
from headrace.state.window import Dropped, WindowedValues

AT_HAND = 250_000  # entries that are kept decoded from batch to batch

Entry = tuple[int, int, Any]  # time, sequence, and what the table holds for the value
_order = itemgetter(0, 1)


class WindowedDuplicates(WindowedValues):
    """A window store that keeps every put.

    Joins put and fetch in turn. The entries of a key are therefore kept decoded in a list, in order, and new entries
    go into the table at the end of the batch: with a short window and a backlog most of them have expired by then and
    are never written.
    """

    def __init__(
        self,
        name: str,
        kind: WindowKind,
        table: Table,
        times: Timeline,
        key: Serde,
        *,
        sequence: Cell,
        persistent: bool,
        dropped: Dropped,
    ) -> None:
        super().__init__(name, kind, table, times, key, persistent=persistent, dropped=dropped)
        self._sequence = sequence
        self._rows: dict[bytes, list[Entry]] = {}
        self._new: dict[bytes, list[Entry]] = {}
        self._at_hand = 0  # entries in rows, at most
        self._keep, self._show = (None, None) if table.share else (table.encode, table.decode)

    # --------------------------------------------------------------------------------------------- writing
    def put(self, key: Any, value: Any, start: int) -> None:
        if value is None and key is not None and self._segment is not None:
            return  # as in Kafka, a null deletes none of the duplicates; only in-memory stores move their clock
        super().put(key, value, start)

    def _put_one(self, key: bytes, value: Any, start: int) -> None:
        if value is None:
            return
        sequence = self._sequence.value = (self._sequence.value + 1) & 0x7FFFFFFF
        entry = (start, sequence, value if self._keep is None else self._keep(value))
        new = self._new.get(key)
        if new is None:
            self._new[key] = [entry]
        else:
            new.append(entry)
        row = self._rows.get(key)
        if row is not None:
            if not row or row[-1][0] < start:
                row.append(entry)
            else:
                insort(row, entry, key=_order)

    def _write(self, expired: int) -> None:
        """Writes new entries into the table, except those at this time or earlier."""
        put, note = self.table.put_kept, self._note
        for key, entries in self._new.items():
            for start, sequence, kept in entries:
                if start > expired:
                    put(encode_duplicate(key, start, sequence), kept)
                    note(key, start)
            self._at_hand += len(entries)
        self._new.clear()
        self._make_room()

    def _make_room(self) -> None:
        if self._at_hand > AT_HAND:
            self._rows, self._at_hand = {}, 0

    # --------------------------------------------------------------------------------------------- reading
    def fetch(self, key: Any, first: int, last: int | None = None) -> Any:
        """The last value put at `first`; with `last`, all (time, value) pairs from `first` to `last`."""
        if key is None:
            refuse_null_key(self.name, "fetch")
        if last is not None:
            return self._fetch(key, first, last, reverse=False)
        if self._segment is None:
            return None  # as in Kafka: an in-memory store of duplicates has no single value for a window
        row, place = self._row(self._encode(key)), (first, self._sequence.value)
        at = bisect_left(row, place)
        if first <= self._times.hidden or at == len(row) or row[at][:2] != place:
            return None
        return row[at][2] if self._show is None else self._show(row[at][2])

    def _fetch(self, key: Any, first: int, last: int, *, reverse: bool) -> Iterator[tuple[int, Any]]:
        row = self._row(self._encode(key))
        if not row or row[-1][0] < first:
            return iter(())
        low = bisect_left(row, (max(first, self._times.hidden + 1),))
        found = row[low : bisect_left(row, (last + 1,), low)]
        if reverse:
            found.reverse()
        show = self._show
        return iter([(time, kept if show is None else show(kept)) for time, _, kept in found])

    def _row(self, key: bytes) -> list[Entry]:
        row = self._rows.get(key)
        if row is None:
            self._make_room()
            prefix, keep = escape(key), self._keep
            row = [
                (*decode_duplicate(place)[1:], value if keep is None else keep(value))
                for place, value in self.table.scan(prefix, successor(prefix))
            ]
            self._at_hand += len(row)
            new = self._new.get(key)
            if new:
                row += new
                row.sort(key=_order)
            self._rows[key] = row
        return row

    def _between(self, first: int, last: int, *, reverse: bool) -> Iterator[tuple[Windowed, Any]]:
        self._write(FIRST)
        return super()._between(first, last, reverse=reverse)

    def by_time(self, first: int, last: int) -> Iterator[tuple[Windowed, Any]]:
        self._write(FIRST)
        return super().by_time(first, last)

    def _place(self, place: bytes) -> tuple[bytes, int]:
        return decode_duplicate(place)[:2]

    # ------------------------------------------------------------------------------------ the end of a batch
    def expire(self) -> None:
        self._write(self._times.gone)
        super().expire()

    def _forget(self, key: bytes) -> None:
        self._rows.pop(key, None)

    def rolled_back(self) -> None:
        self._rows, self._new, self._at_hand = {}, {}, 0
        super().rolled_back()
