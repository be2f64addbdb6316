"""The engine of a task's state: an ordered map of bytes to bytes at one committed version.

`OrderedKeys` types the few methods of `sortedcontainers` that are used, because that library has no type hints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from sortedcontainers import SortedList  # pyright: ignore[reportMissingTypeStubs]

from headrace.errors import InvalidStateStoreError


class OrderedKeys(Protocol):
    """Keys in the order of their bytes."""

    def __len__(self) -> int: ...

    def add(self, value: bytes) -> None: ...

    def remove(self, value: bytes) -> None: ...

    def update(self, iterable: Iterable[bytes]) -> None: ...

    def clear(self) -> None: ...

    def irange(
        self, minimum: bytes | None, maximum: bytes | None, inclusive: tuple[bool, bool], reverse: bool
    ) -> Iterator[bytes]: ...


def ordered_keys(keys: Iterable[bytes] = ()) -> OrderedKeys:
    """
    >>> list(ordered_keys([b"b", b"a"]).irange(b"a", b"b", (True, False), False))
    [b'a']
    """
    found: Any = SortedList(keys)
    return found


Changes = Sequence[tuple[bytes, bytes | None]]  # sorted by key; None deletes


class Version(NamedTuple):
    """The number of a batch and the id of its attempt. The attempts of a batch may differ; one of them is accepted."""

    number: int
    attempt: str


class Engine(Protocol):
    """The committed state of one task. Keys are not empty. Scans are stable: only `commit` and `undo` change state."""

    @property
    def version(self) -> Version | None:
        """The version of the last commit; None if there was none."""
        ...

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries from `low` up to but without `high`, by key."""
        ...

    def commit(self, changes: Changes, version: Version) -> None:
        """Applies all changes or none, and keeps what is needed to undo this commit."""
        ...

    def undo(self) -> None:
        """Goes back to the version before the last commit."""
        ...

    def close(self) -> None: ...


def nothing_to_undo(version: Version | None) -> InvalidStateStoreError:
    return InvalidStateStoreError(
        f"nothing to undo at version {version}: only the last commit can be undone, once; restore from the checkpoint"
    )


class MemoryEngine:
    """State in memory: for tests, and for applications that run without a disk.

    >>> engine = MemoryEngine()
    >>> engine.commit([(b"a", b"1")], Version(1, "x"))
    >>> engine.get(b"a"), engine.version
    (b'1', Version(number=1, attempt='x'))
    """

    def __init__(self) -> None:
        self.version: Version | None = None
        self._entries: dict[bytes, bytes] = {}
        self._keys = ordered_keys()
        self._before: tuple[Version | None, list[tuple[bytes, bytes | None]]] | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        entries = self._entries
        return ((key, entries[key]) for key in self._keys.irange(low, high, (True, False), reverse))

    def commit(self, changes: Changes, version: Version) -> None:
        entries = self._entries
        self._before = (self.version, [(key, entries.get(key)) for key, _ in changes])
        self._write(changes)
        self.version = version

    def undo(self) -> None:
        if self._before is None:
            raise nothing_to_undo(self.version)
        self.version, changes = self._before
        self._before = None
        self._write(changes)

    def clear(self) -> None:
        """Removes everything. What is open on the engine stays open on it."""
        self.version, self._before = None, None
        self._entries.clear()
        self._keys.clear()

    def close(self) -> None:
        pass

    def _write(self, changes: Changes) -> None:
        entries = self._entries
        self._keys.update([key for key, value in changes if value is not None and key not in entries])
        for key, value in changes:
            if value is not None:
                entries[key] = value
            elif entries.pop(key, None) is not None:
                self._keys.remove(key)
