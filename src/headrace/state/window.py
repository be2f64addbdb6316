"""The window stores; entries are visible while their start lies less than the retention behind the store's clock.

`WindowedValues` maps (key, window start) to a value; its clock is the largest start. `WindowedDuplicates`, the store of
stream joins, maps (key, time) to every value that was put, in arrival order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any

from headrace.model.record import ValueAndTimestamp, stamped
from headrace.model.windows import Window, Windowed, ends_of
from headrace.serde.protocol import Serde
from headrace.state.expiry import Dropped, ExpiredPuts, Timeline
from headrace.state.keys import (
    FIRST,
    LAST,
    decode_by_time,
    decode_duplicate,
    decode_window,
    encode_by_time,
    encode_duplicate,
    encode_window,
    escape,
    successor,
    unescape,
    windows_between,
)
from headrace.state.protocols import checked_pair, refuse_null_key
from headrace.state.rendering import render_entries
from headrace.state.spec import WindowKind
from headrace.state.table import UNKNOWN, Table
from headrace.state.values import Cell

ROWS = 50_000  # string keys whose encoded prefix is cached
AT_HAND = 250_000  # entries of a store of duplicates that stay in memory from batch to batch

Entry = tuple[int, int, Any]  # time, sequence, and what the table holds for the value
_order = itemgetter(0, 1)


class OpenWindow:
    """A window of a timestamped store that records of this batch update; the value is None while it has none.

    `is_stored` says whether the table has a value. The operator sets `cause`, the record that made the last update,
    and `turn`, which increases from record to record.
    """

    __slots__ = ("cause", "is_stored", "place", "start", "time", "turn", "value")

    def __init__(self, place: bytes, start: int, held: tuple[Any, int] | None) -> None:
        self.place, self.start, self.is_stored = place, start, held is not None
        self.value, self.time = (None, 0) if held is None else held
        self.turn, self.cause = 0, None

    value: Any
    cause: Any


_start, _turn = attrgetter("start"), attrgetter("turn")


class WindowedValues:
    """A window store.

    An operator that updates windows many times in a batch gets them as `OpenWindow`s, and changes those. The store
    writes them into its table at the end of the batch, or before anything else reads or writes the store.
    """

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
        self.name, self.table, self.retention = name, table, kind.retention
        self._times, self._clock = times, times.clock
        self._encode, self._decode, self._timestamped = key.encode, key.decode, kind.timestamped
        self._end_of = ends_of(kind.window_size)
        self._is_persistent = persistent
        self._keeps_expired = ExpiredPuts(table, times, "expired window", dropped, persistent=persistent).keeps
        # One index entry covers all windows of a key in an interval. An index entry for each window doubles the writes;
        # only reads by time need it. A short interval would double them too, so it is at least a minute, as in Kafka.
        self._grain = 1 if kind.by_time else max(60_000, kind.retention)
        self._row_of: dict[str, bytes] = {}
        self._noted: dict[bytes, int] = {}  # escaped key → an interval that has an index entry
        self.open: defaultdict[bytes, dict[int, OpenWindow]] = defaultdict(dict)  # by row and start
        self.write_open: Callable[[], None] = lambda: None  # set by the operator that uses open windows

    # --------------------------------------------------------------------------------------------- writing
    def put(self, key: Any, value: Any, start: int) -> None:
        if key is None:
            refuse_null_key(self.name, "put")
        if self._timestamped and value is not None and (type(value) is not ValueAndTimestamp or value[0] is None):
            value = checked_pair(self.name, value)
        self.write_open()
        clock = self._clock
        if start > clock.value:
            clock.value = start
        raw = self._encode(key)
        if start > clock.value - self.retention or self._keeps_expired(encode_window(raw, start), value, start):
            self._put_one(raw, value, start)

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
        self.write_open()
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

    def __repr__(self) -> str:
        return f"<store {self.name}>"

    def _repr_html_(self) -> str:
        return render_entries(f"store {self.name}", self.all())

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        return self._between(FIRST, LAST, reverse=False)

    def backward_all(self) -> Iterator[tuple[Windowed, Any]]:
        return self._between(FIRST, LAST, reverse=True)

    def key_bytes(self, key: Any, start: int) -> bytes:
        """The key of the window in the table."""
        return encode_window(self._encode(key), start)

    def _fetch(self, key: Any, first: int, last: int, *, reverse: bool) -> Iterator[tuple[int, Any]]:
        self.write_open()
        first, last = max(first, self._times.hidden + 1), min(last, LAST)
        if last < first:
            return iter(())
        entries = self.table.scan(*windows_between(self._encode(key), first, last), reverse=reverse)
        return ((self._place(place)[1], value) for place, value in entries)

    def _between(self, first: int, last: int, *, reverse: bool) -> Iterator[tuple[Windowed, Any]]:
        self.write_open()
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
    def clock(self) -> Cell:
        """The largest start of a window so far."""
        return self._clock

    @property
    def newest_before(self) -> int:
        """Windows that start after this time have no value, unless `table.recent` knows one."""
        return self._clock.saved if self.table.has_recent else LAST

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

    def open_window(self, windows: dict[int, OpenWindow], place: bytes, start: int) -> OpenWindow:
        """Adds a window to the open ones of its key, with the value that it has in the store."""
        held = self.table.recent(place, UNKNOWN)
        if held is UNKNOWN:
            held = self.table.get(place) if start <= self.newest_before else None
        opened = windows[start] = OpenWindow(place, start, held)
        return opened

    def take_open(self) -> list[OpenWindow]:
        """Writes the open windows into the table; returns those that were updated, in the order of last updates."""
        if not self.open:
            return []
        updated: list[OpenWindow] = []
        put, grain = self.table.put, self._grain
        for windows in self.open.values():
            indexed = None  # the last interval of this key that has an index entry
            for opened in sorted(windows.values(), key=_start):  # one record updates its windows by start
                if not opened.turn:
                    continue
                updated.append(opened)
                value, start = opened.value, opened.start
                held = None if value is None else stamped((value, opened.time))
                if held is not None and (opened.is_stored or indexed == start // grain):
                    put(opened.place, held)
                else:
                    self._put_live(opened.place, held, start, known=opened.is_stored)
                    indexed = start // grain if held is not None and grain > 1 else None
        self.open.clear()
        updated.sort(key=_turn)  # the windows that a record updated are of one key
        return updated

    def update(self, place: bytes, value: Any, start: int, *, known: bool) -> None:
        """Puts the value of one window at its place (`encode_window`); `known`: the window has a value already."""
        clock = self._clock
        if start > clock.value:
            clock.value = start
        if start > clock.value - self.retention or self._keeps_expired(place, value, start):
            self._put_live(place, value, start, known=known)

    def _put_live(self, place: bytes, value: Any, start: int, *, known: bool) -> None:
        """Puts the value of a window that has not expired, or is kept all the same."""
        if known and value is not None:
            self.table.put(place, value)
        elif value is not None and self._grain > 1:
            interval, row = start // self._grain, place[:-8]
            if self._noted.get(row) != interval:
                if len(self._noted) >= ROWS:
                    self._noted.clear()
                self._note(unescape(row), start)
                self._noted[row] = interval
            self.table.put(place, value)
        elif known or value is not None:
            self._put_at(place, decode_window(place)[0], value, start, known=known)

    def before(self, place: bytes) -> Any:
        """The value as of the last commit, if it was within the retention then."""
        return None if self._times.was_hidden(self._place(place)[1]) else self.table.committed(place)

    def by_time(self, first: int, last: int) -> Iterator[tuple[Windowed, Any]]:
        """The windows that start from `first` to `last`, held-back expired ones too; ordered by start, then key."""
        self.write_open()
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
        self.write_open()
        expired = self._times.take_expired(self._grain)
        if expired:
            self._noted.clear()
        for noted in expired:
            time, key = decode_by_time(noted)
            if self._grain == 1:
                self.table.put(encode_window(key, time), None)
            else:
                for place, _ in self.table.scan(*windows_between(key, time, min(time + self._grain - 1, LAST))):
                    self.table.put(place, None)
                self._forget(key)

    def _forget(self, key: bytes) -> None:
        """Forgets what is cached of a key whose windows were removed."""

    def rolled_back(self) -> None:
        """Clears the caches after a rollback."""
        self.open.clear()
        self._noted.clear()
        self._times.rolled_back()


class WindowedDuplicates(WindowedValues):
    """A window store that keeps every put.

    Joins put and fetch in turn, so the store keeps entries in memory, in a sorted list for each key. New entries go
    into the table at the end of the batch: with a short window and a backlog, most of them have expired by then and are
    never written. A store with at most `AT_HAND` entries is in memory as a whole, so that a key without a list has no
    entries; of a larger store, only the keys that were looked up are in memory.
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
        self._is_whole: bool | None = None  # whether `_rows` has every entry; None: the table has not been read yet
        self._at_hand = 0  # upper bound of the entries and keys in `_rows`
        self._unsaved: list[tuple[bytes, Entry]] = []  # put in this batch, not in the table yet
        self._unsaved_by_key: dict[bytes, list[Entry]] = {}  # the first `_indexed` entries of `_unsaved`
        self._indexed = 0
        self._keep, self._show = (None, None) if table.share else (table.encode, table.decode)

    # --------------------------------------------------------------------------------------------- writing
    def put(self, key: Any, value: Any, start: int) -> None:
        if key is None or value is None or self._timestamped:
            # As in Kafka, a null deletes none of the duplicates; it moves the clock of in-memory stores only.
            if key is None or value is not None or not self._is_persistent:
                super().put(key, value, start)
            return
        clock, raw = self._clock, self._encode(key)
        if start > clock.value:
            clock.value = start
        if start > clock.value - self.retention or self._keeps_expired(encode_window(raw, start), value, start):
            self._put_one(raw, value, start)

    def _put_one(self, key: bytes, value: Any, start: int) -> None:
        if value is None:
            return
        sequence = self._sequence.value = (self._sequence.value + 1) & 0x7FFFFFFF
        entry = (start, sequence, value if self._keep is None else self._keep(value))
        if self._is_whole is None:
            self._has_all()
        row = self._rows.get(key)
        if row is None:
            if self._is_whole:
                self._rows[key] = [entry]
        elif not row or row[-1][0] < start:
            row.append(entry)
        else:
            insort(row, entry, key=_order)
        self._unsaved.append((key, entry))

    def _write(self, expired: int) -> None:
        """Writes new entries into the table, except those at `expired` or earlier."""
        put, note = self.table.put_kept, self._note
        for key, (start, sequence, kept) in self._unsaved:
            if start > expired:
                put(encode_duplicate(key, start, sequence), kept)
                note(key, start)
        self._at_hand += len(self._unsaved)
        self._forget_unsaved()
        self._make_room()

    def _make_room(self) -> None:
        if self._at_hand <= AT_HAND:
            return
        if self._is_whole:
            gone = self._times.gone
            kept = ((key, [entry for entry in row if entry[0] > gone]) for key, row in self._rows.items())
            self._rows = {key: row for key, row in kept if row}
            self._at_hand = len(self._rows) + sum(map(len, self._rows.values()))
        if self._at_hand > AT_HAND:
            self._rows, self._at_hand, self._is_whole = {}, 0, False

    def _forget_unsaved(self) -> None:
        self._unsaved.clear()
        self._unsaved_by_key.clear()
        self._indexed = 0

    def _has_all(self) -> bool:
        """Whether `_rows` has every entry; the first call reads the table."""
        if self._is_whole is None:
            rows, keep = dict[bytes, list[Entry]](), self._keep
            entries = list(islice(self.table.scan(), AT_HAND + 1))
            for place, value in entries:
                key, start, sequence = decode_duplicate(place)
                rows.setdefault(key, []).append((start, sequence, value if keep is None else keep(value)))
            self._is_whole = len(entries) <= AT_HAND
            if self._is_whole:
                self._rows, self._at_hand = rows, len(rows) + len(entries)
        return self._is_whole

    # --------------------------------------------------------------------------------------------- reading
    def fetch(self, key: Any, first: int, last: int | None = None) -> Any:
        """The value at `first`, if the store's last put wrote it; with `last`, all pairs from `first` to `last`.

        As in Kafka, the single value is found by the sequence number of the last put, and only in a persistent store.
        """
        if key is None:
            refuse_null_key(self.name, "fetch")
        if last is not None:
            return self._fetch(key, first, last, reverse=False)
        if not self._is_persistent:
            return None  # as in Kafka: an in-memory store of duplicates has no single value for a window
        row, place = self._row(self._encode(key)), (first, self._sequence.value)
        at = bisect_left(row, place)
        if first <= self._times.hidden or at == len(row) or row[at][:2] != place:
            return None
        return row[at][2] if self._show is None else self._show(row[at][2])

    def _fetch(self, key: Any, first: int, last: int, *, reverse: bool) -> Iterator[tuple[int, Any]]:
        found = self.between(key, first, last)
        return reversed(found) if reverse else iter(found)

    def between(self, key: Any, first: int, last: int) -> Sequence[tuple[int, Any]]:
        """All (time, value) pairs of a key, which is not None, from `first` to `last`."""
        raw = self._encode(key)
        row = self._rows.get(raw)
        if row is None:
            if self._is_whole:
                return ()
            row = self._row(raw)
        if not row or row[-1][0] < first:
            return ()
        low = bisect_left(row, (max(first, self._times.hidden + 1),))
        found, show = row[low : bisect_left(row, (last + 1,), low)], self._show
        return [(time, kept if show is None else show(kept)) for time, _, kept in found]

    def _row(self, key: bytes) -> Sequence[Entry]:
        """The entries of a key, by time and arrival."""
        has_all = self._has_all()
        row = self._rows.get(key)
        if row is None:
            if has_all:
                return ()
            self._make_room()
            prefix, keep = escape(key), self._keep
            row = [
                (*decode_duplicate(place)[1:], value if keep is None else keep(value))
                for place, value in self.table.scan(prefix, successor(prefix))
            ]
            self._at_hand += 1 + len(row)
            new = self._unsaved_of(key)
            if new:
                row += new
                row.sort(key=_order)
            self._rows[key] = row
        return row

    def _unsaved_of(self, key: bytes) -> Sequence[Entry]:
        by_key = self._unsaved_by_key
        for other, entry in self._unsaved[self._indexed :]:
            by_key.setdefault(other, []).append(entry)
        self._indexed = len(self._unsaved)
        return by_key.get(key, ())

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
        row, gone = self._rows.pop(key, None), self._times.gone
        live = [entry for entry in row or () if entry[0] > gone]
        if live:
            self._rows[key] = live

    def rolled_back(self) -> None:
        self._rows, self._at_hand, self._is_whole = {}, 0, None
        self._forget_unsaved()
        super().rolled_back()
