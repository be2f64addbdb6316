"""Ordered bytes → bytes that never change: what is applied to them makes new ones, which share most of the old.

Whoever holds some reads one version from beginning to end, without a lock, whatever is applied meanwhile.

Where a follower has its copy of what the tasks hold: in memory, or on a disk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import NoReturn, Protocol

from headrace.checkpoint.delta_files import read_delta
from headrace.checkpoint.ledger import Ledger, TaskHead
from headrace.checkpoint.storage import Storage
from headrace.errors import InvalidStateStoreError
from headrace.model.ids import TaskId
from headrace.state.engine import Changes, Engine, Version

CHUNK = 512  # entries; a change copies one chunk: 2 µs
Chunk = tuple[list[bytes], list[bytes]]  # keys and values
_key = itemgetter(0)


class Entries:
    """An engine that can only be read.

    >>> first = Entries().after([(b"a", b"1")], Version(1, "x"))
    >>> second = first.after([(b"a", None), (b"b", b"2")], Version(2, "y"))
    >>> list(first.scan(b"", None)), list(second.scan(b"", None))
    ([(b'a', b'1')], [(b'b', b'2')])
    """

    def __init__(self, chunks: list[Chunk] | None = None, version: Version | None = None) -> None:
        self.version = version
        self._chunks = chunks or []
        self._firsts = [keys[0] for keys, _ in self._chunks]

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._chunks)

    # --------------------------------------------------------------------------------------------------- reading
    def get(self, key: bytes) -> bytes | None:
        place = bisect_right(self._firsts, key) - 1
        if place < 0:
            return None
        keys, values = self._chunks[place]
        at = bisect_left(keys, key)
        return values[at] if at < len(keys) and keys[at] == key else None

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        first, last = self._span(low, high)
        for place in range(last, first - 1, -1) if reverse else range(first, last + 1):
            keys, values = self._chunks[place]
            start = bisect_left(keys, low) if place == first else 0
            end = bisect_left(keys, high) if place == last and high is not None else len(keys)
            found = zip(keys[start:end], values[start:end], strict=True)
            yield from reversed(list(found)) if reverse else found

    def count(self, low: bytes, high: bytes | None) -> int:
        """How many there are from `low` up to but without `high`."""
        first, last = self._span(low, high)
        if last < first or (high is not None and high <= low):
            return 0
        whole = sum(len(self._chunks[place][0]) for place in range(first, last + 1))
        before = bisect_left(self._chunks[first][0], low)
        keys = self._chunks[last][0]
        return whole - before - (0 if high is None else len(keys) - bisect_left(keys, high))

    def _span(self, low: bytes, high: bytes | None) -> tuple[int, int]:
        """The first and the last chunk that may hold some of it."""
        first = max(bisect_right(self._firsts, low) - 1, 0)
        last = len(self._chunks) - 1 if high is None else bisect_left(self._firsts, high) - 1
        return first, last

    # ------------------------------------------------------------------------------------------------- going on
    def after(self, changes: Changes, version: Version) -> Entries:
        """What there is once changes, sorted by key, were applied."""
        old, firsts = self._chunks or [([], [])], self._firsts
        new: list[Chunk] = []
        copied = at = 0
        while at < len(changes):
            place = max(bisect_right(firsts, changes[at][0]) - 1, 0)
            limit = firsts[place + 1] if place + 1 < len(firsts) else None
            end = len(changes) if limit is None else bisect_left(changes, limit, lo=at, key=_key)
            new += old[copied:place]
            _put(new, *_changed(old[place], changes[at:end]))
            copied, at = place + 1, end
        new += [chunk for chunk in old[copied:] if chunk[0]]
        return Entries(new, version)

    def commit(self, changes: Changes, version: Version) -> NoReturn:
        raise InvalidStateStoreError("this is a copy for reading: only the tasks of the application write")

    def undo(self) -> NoReturn:
        raise InvalidStateStoreError("this is a copy for reading: only the tasks of the application write")

    def close(self) -> None:
        pass


def _changed(chunk: Chunk, changes: Changes) -> Chunk:
    if len(changes) > CHUNK:
        entries: dict[bytes, bytes | None] = dict(zip(*chunk, strict=True))
        entries.update(changes)
        left = sorted((key, value) for key, value in entries.items() if value is not None)
        return [key for key, _ in left], [value for _, value in left]
    keys, values = chunk[0].copy(), chunk[1].copy()
    for key, value in changes:
        at = bisect_left(keys, key)
        known = at < len(keys) and keys[at] == key
        if value is None:
            if known:
                del keys[at], values[at]
        elif known:
            values[at] = value
        else:
            keys.insert(at, key)
            values.insert(at, value)
    return keys, values


def _put(chunks: list[Chunk], keys: list[bytes], values: list[bytes]) -> None:
    """Adds entries: to the last chunk if there are few of them, as several chunks if there are many."""
    if chunks and len(keys) < CHUNK // 4 and len(chunks[-1][0]) + len(keys) <= CHUNK:
        before = chunks.pop()
        keys, values = before[0] + keys, before[1] + values
    if len(keys) <= 2 * CHUNK:
        if keys:
            chunks.append((keys, values))
        return
    starts = range(0, len(keys), CHUNK)
    chunks += [(keys[start : start + CHUNK], values[start : start + CHUNK]) for start in starts]


class TaskCopy(Engine, Protocol):
    """What one task holds, as of one version: an engine that can only be read, by any number of threads."""

    def count(self, low: bytes, high: bytes | None) -> int:
        """How many entries there are from `low` up to but without `high`."""
        ...


TaskCopies = Mapping[TaskId, TaskCopy]


class Copies(Protocol):
    """Brings what the tasks hold from one batch to another."""

    def take(self, storage: Storage, ledger: Ledger, before: TaskCopies) -> TaskCopies:
        """What all tasks hold after the ledger's last batch; `before` is what they held, and stays as it is."""
        ...

    def close(self) -> None: ...


class MemoryCopies:
    """Nothing but what is handed out: versions share what did not change."""

    def take(self, storage: Storage, ledger: Ledger, before: TaskCopies) -> TaskCopies:
        return {task: _advanced(storage, before.get(task), task, at) for task, at in ledger.tasks.items()}

    def close(self) -> None:
        pass


def _advanced(storage: Storage, before: TaskCopy | None, task: TaskId, standing: TaskHead) -> TaskCopy:
    """What a task has, from what it had; from nothing if that is not on the way."""
    entries = before if isinstance(before, Entries) else Entries()
    if entries.version == standing.version:
        return entries
    chain = standing.chain
    place = next((at + 1 for at, link in enumerate(chain) if link.version == entries.version), None)
    if place is None:
        entries, place = Entries(), 0
    for link in chain[place:]:
        delta = read_delta(storage, task, link)
        entries = entries.after(delta.changes, delta.version)
    return entries
