"""The stores that map a key to a value, ordered by the bytes of the key.

`KeyValues` is the key-value store; a timestamped one holds `ValueAndTimestamp`. `RecentlyUsed` is the LRU store.
`Subscriptions` belongs to foreign-key joins: the right side remembers in it which left rows refer to a foreign key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.model.record import ValueAndTimestamp
from headrace.serde.internal import Subscription, subscription_serde
from headrace.serde.protocol import Serde
from headrace.state.keys import encode_subscription, subscription_prefix, successor
from headrace.state.protocols import checked_pair, refuse_null_key
from headrace.state.rendering import render_entries
from headrace.state.table import Table
from headrace.state.values import Cell


class _ByKey(ABC):
    """What the key-value store and the LRU store share: scans, and the writes that consist of `get` and `put`."""

    def __init__(self, name: str, table: Table, key: Serde) -> None:
        self.name, self.table = name, table
        self.key_bytes, self._decode = key.encode, key.decode

    @abstractmethod
    def get(self, key: Any) -> Any: ...

    @abstractmethod
    def put(self, key: Any, value: Any) -> None: ...

    @abstractmethod
    def _decoded(self, entries: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[Any, Any]]:
        """The keys and values of entries of the table."""

    def range(self, low: Any = None, high: Any = None) -> Iterator[tuple[Any, Any]]:
        """From `low` to `high`, both included; None is an open end."""
        return self._range(low, high, reverse=False)

    def reverse_range(self, low: Any = None, high: Any = None) -> Iterator[tuple[Any, Any]]:
        return self._range(low, high, reverse=True)

    def prefix_scan(self, prefix: Any, serde: Serde | None = None) -> Iterator[tuple[Any, Any]]:
        """Entries whose key bytes begin with the bytes of `prefix`, which `serde` or the key serde encodes."""
        if prefix is None:
            refuse_null_key(self.name, "prefix_scan")
        low = (serde.encode if serde else self.key_bytes)(prefix)
        return self._decoded(self.table.scan(low, successor(low)))

    def __repr__(self) -> str:
        return f"<store {self.name}>"

    def _repr_html_(self) -> str:
        return render_entries(f"store {self.name}", self.all())

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._decoded(self.table.scan())

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        return self._decoded(self.table.scan(reverse=True))

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

    def _range(self, low: Any, high: Any, *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        first = b"" if low is None else self.key_bytes(low)
        last = None if high is None else self.key_bytes(high)
        if last is not None and last < first:
            return iter(())
        return self._decoded(self.table.scan(first, None if last is None else last + b"\x00", reverse=reverse))


class KeyValues(_ByKey):
    """A key-value store."""

    def __init__(self, name: str, table: Table, key: Serde, *, timestamped: bool = False) -> None:
        super().__init__(name, table, key)
        self.timestamped = timestamped
        self._get, self._put = table.get, table.put

    def get(self, key: Any) -> Any:
        if key is None:
            refuse_null_key(self.name, "get")
        return self._get(self.key_bytes(key))

    @property
    def approximate_size(self) -> int:
        """The number of keys; they are counted one by one."""
        return self.table.count()

    def put(self, key: Any, value: Any) -> None:
        if key is None:
            refuse_null_key(self.name, "put")
        if self.timestamped and value is not None and (type(value) is not ValueAndTimestamp or value[0] is None):
            value = checked_pair(self.name, value)
        self._put(self.key_bytes(key), value)

    def delete(self, key: Any) -> Any:
        """Deletes the key and returns the value that was there."""
        if key is None:
            refuse_null_key(self.name, "delete")
        place = self.key_bytes(key)
        old = self._get(place)
        if old is not None:
            self._put(place, None)
        return old

    def _decoded(self, entries: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[Any, Any]]:
        decode = self._decode
        return ((decode(key), value) for key, value in entries)


class RecentlyUsed(_ByKey):
    """An LRU store: at most `max_entries` keys; `get` and `put` count as uses, scans do not.

    The table holds (number of the last use, value) for a key.
    """

    def __init__(self, name: str, table: Table, uses: Cell, key: Serde, *, max_entries: int) -> None:
        super().__init__(name, table, key)
        self._uses, self._max_entries = uses, max_entries
        self._order: dict[bytes, None] | None = None  # least recently used first; None until it is read from the table

    def get(self, key: Any) -> Any:
        if key is None:
            refuse_null_key(self.name, "get")
        place = self.key_bytes(key)
        entry = self.table.get(place)
        if entry is None:
            return None
        self._use(place, entry[1])
        return entry[1]

    def peek(self, key: Any) -> Any:
        """Reads a value without counting it as a use."""
        if key is None:
            refuse_null_key(self.name, "get")
        entry = self.table.get(self.key_bytes(key))
        return None if entry is None else entry[1]

    @property
    def approximate_size(self) -> int:
        return len(self._used())

    def put(self, key: Any, value: Any) -> None:
        if key is None:
            refuse_null_key(self.name, "put")
        if value is None:
            self.delete(key)
            return
        order = self._used()
        self._use(self.key_bytes(key), value)
        while len(order) > self._max_entries:  # a task that was merged with others may have many more
            eldest = next(iter(order))
            del order[eldest]
            self.table.put(eldest, None)

    def delete(self, key: Any) -> Any:
        """Deletes the key and returns the value that was there."""
        if key is None:
            refuse_null_key(self.name, "delete")
        place = self.key_bytes(key)
        entry = self.table.get(place)
        if entry is None:
            return None
        self._used().pop(place, None)
        self.table.put(place, None)
        return entry[1]

    def forget(self) -> None:
        """Drops the order of use, which is then read from the table again."""
        self._order = None

    def _use(self, place: bytes, value: Any) -> None:
        order = self._used()
        order.pop(place, None)
        order[place] = None
        self._uses.value += 1
        self.table.put(place, (self._uses.value, value))

    def _used(self) -> dict[bytes, None]:
        if self._order is None:
            uses = sorted((entry[0], place) for place, entry in self.table.scan())
            self._order = {place: None for _, place in uses}
        return self._order

    def _decoded(self, entries: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[Any, Any]]:
        decode = self._decode
        return ((decode(key), entry[1]) for key, entry in entries)


class Subscriptions:
    """Subscriptions by foreign key; those of one foreign key come in the byte order of their primary keys."""

    def __init__(self, table: Table, foreign_key: Serde, primary_key: Serde) -> None:
        self.table, self.foreign_key, self.primary_key = table, foreign_key, primary_key
        self.subscription = subscription_serde(primary_key)

    def add(self, foreign_key: Any, subscription: Subscription) -> None:
        self.table.put(self._place(foreign_key, subscription.primary_key), self.subscription.encode(subscription))

    def remove(self, foreign_key: Any, primary_key: Any) -> None:
        place = self._place(foreign_key, primary_key)
        if self.table.get(place) is not None:
            self.table.put(place, None)

    def of(self, foreign_key: Any) -> Iterator[Subscription]:
        prefix = subscription_prefix(self.foreign_key.encode(foreign_key))
        return (self.subscription.decode(raw) for _, raw in self.table.scan(prefix, successor(prefix)))

    def _place(self, foreign_key: Any, primary_key: Any) -> bytes:
        return encode_subscription(self.foreign_key.encode(foreign_key), self.primary_key.encode(primary_key))
