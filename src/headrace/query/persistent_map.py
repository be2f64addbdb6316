"""A persistent (immutable) sorted map from bytes to bytes, for a follower's copy of the state in memory.

Applying changes returns a new map that shares most of its chunks with the old one. A reader that holds a map reads one
version from beginning to end without a lock, whatever is applied meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import NoReturn

from headrace.errors import InvalidStateStoreError
from headrace.state.engine import Changes, Version

CHUNK = 512  # entries; a change copies one chunk, which takes 2 µs
READ_ONLY = "this is a copy for reading: only the tasks of the application write"
Chunk = tuple[list[bytes], list[bytes]]  # keys and values
_key = itemgetter(0)


class ReadOnlyEngine:
    """The methods of a state engine that write, for an engine that can only be read."""

    def commit(self, changes: Changes, version: Version) -> NoReturn:
        raise InvalidStateStoreError(READ_ONLY)

    def undo(self) -> NoReturn:
        raise InvalidStateStoreError(READ_ONLY)

    def close(self) -> None:
        pass


class PersistentMap(ReadOnlyEngine):
    """A state engine that can only be read; `after` returns a map with changes applied.

    >>> first = PersistentMap().after([(b"a", b"1")], Version(1, "x"))
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
        """Count the entries from `low` (inclusive) to `high` (exclusive) without reading them."""
        first, last = self._span(low, high)
        if last < first or (high is not None and high <= low):
            return 0
        whole = sum(len(self._chunks[place][0]) for place in range(first, last + 1))
        before = bisect_left(self._chunks[first][0], low)
        keys = self._chunks[last][0]
        return whole - before - (0 if high is None else len(keys) - bisect_left(keys, high))

    def _span(self, low: bytes, high: bytes | None) -> tuple[int, int]:
        """Return the indexes of the first and the last chunk that may hold entries of a range."""
        first = max(bisect_right(self._firsts, low) - 1, 0)
        last = len(self._chunks) - 1 if high is None else bisect_left(self._firsts, high) - 1
        return first, last

    def after(self, changes: Changes, version: Version) -> PersistentMap:
        """Return the map with changes applied, which are sorted by key."""
        old, firsts = self._chunks or [([], [])], self._firsts
        new: list[Chunk] = []
        copied = at = 0
        while at < len(changes):
            place = max(bisect_right(firsts, changes[at][0]) - 1, 0)
            limit = firsts[place + 1] if place + 1 < len(firsts) else None
            end = len(changes) if limit is None else bisect_left(changes, limit, lo=at, key=_key)
            new += old[copied:place]
            _append_entries(new, *_apply_changes(old[place], changes[at:end]))
            copied, at = place + 1, end
        new += [chunk for chunk in old[copied:] if chunk[0]]
        return PersistentMap(new, version)


def _apply_changes(chunk: Chunk, changes: Changes) -> Chunk:
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


def _append_entries(chunks: list[Chunk], keys: list[bytes], values: list[bytes]) -> None:
    """Append few entries to the last chunk, and many entries as several chunks."""
    if chunks and len(keys) < CHUNK // 4 and len(chunks[-1][0]) + len(keys) <= CHUNK:
        before = chunks.pop()
        keys, values = before[0] + keys, before[1] + values
    if len(keys) <= 2 * CHUNK:
        if keys:
            chunks.append((keys, values))
        return
    starts = range(0, len(keys), CHUNK)
    chunks += [(keys[start : start + CHUNK], values[start : start + CHUNK]) for start in starts]
