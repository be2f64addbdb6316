"""The key-value store: key → value, ordered by the bytes of the key; a timestamped store holds `ValueAndTimestamp`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.model.record import ValueAndTimestamp
from headrace.serde.protocol import Serde
from headrace.state.keys import successor
from headrace.state.protocols import checked_pair, refuse_null_key
from headrace.state.table import Table


class KeyValues:
    """A key-value store."""

    def __init__(self, name: str, table: Table, key: Serde, *, timestamped: bool = False) -> None:
        self.name, self.table, self.timestamped = name, table, timestamped
        self.key_bytes, self._decode = key.encode, key.decode
        self._get, self._put = table.get, table.put

    # --------------------------------------------------------------------------------------------- reading
    def get(self, key: Any) -> Any:
        if key is None:
            refuse_null_key(self.name, "get")
        return self._get(self.key_bytes(key))

    def committed(self, key: Any) -> Any:
        """The value as of the last commit, without the changes of this batch."""
        return self.table.committed(self.key_bytes(key))

    def range(self, low: Any = None, high: Any = None) -> Iterator[tuple[Any, Any]]:
        """From `low` to `high`, both included; None is an open end."""
        return self._range(low, high, reverse=False)

    def reverse_range(self, low: Any = None, high: Any = None) -> Iterator[tuple[Any, Any]]:
        return self._range(low, high, reverse=True)

    def prefix_scan(self, prefix: Any, serde: Serde | None = None) -> Iterator[tuple[Any, Any]]:
        """The keys whose bytes begin with those of `prefix`, which the store's key serde encodes if none is given."""
        if prefix is None:
            refuse_null_key(self.name, "prefix_scan")
        low = (serde.encode if serde else self.key_bytes)(prefix)
        return self._decoded(self.table.scan(low, successor(low)))

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._decoded(self.table.scan())

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        return self._decoded(self.table.scan(reverse=True))

    @property
    def approximate_size(self) -> int:
        """The number of keys; they are counted one by one."""
        return self.table.count()

    # --------------------------------------------------------------------------------------------- writing
    def put(self, key: Any, value: Any) -> None:
        if key is None:
            refuse_null_key(self.name, "put")
        if self.timestamped and value is not None and (type(value) is not ValueAndTimestamp or value[0] is None):
            value = checked_pair(self.name, value)
        self._put(self.key_bytes(key), value)

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Puts the value if the key has none; returns the value that was there."""
        if key is None:
            refuse_null_key(self.name, "put_if_absent")
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def put_all(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        pairs = list(pairs)
        if any(key is None for key, _ in pairs):  # before anything is put: all or none
            refuse_null_key(self.name, "put_all")
        for key, value in pairs:
            self.put(key, value)

    def delete(self, key: Any) -> Any:
        """Deletes the key and returns the value that was there."""
        if key is None:
            refuse_null_key(self.name, "delete")
        place = self.key_bytes(key)
        old = self._get(place)
        if old is not None:
            self._put(place, None)
        return old

    # --------------------------------------------------------------------------------------------------
    def _range(self, low: Any, high: Any, *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        first = b"" if low is None else self.key_bytes(low)
        last = None if high is None else self.key_bytes(high)
        if last is not None and last < first:
            return iter(())
        return self._decoded(self.table.scan(first, None if last is None else last + b"\x00", reverse=reverse))

    def _decoded(self, entries: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[Any, Any]]:
        decode = self._decode
        return ((decode(key), value) for key, value in entries)
