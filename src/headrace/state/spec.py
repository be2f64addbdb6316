"""What a store is to be: its name, its kind, its serdes and its settings.

`Stores`: how users say which store they want.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self

from headrace.errors import TopologyError
from headrace.model.windows import Windows, milliseconds
from headrace.serde.protocol import Serde


@dataclass(frozen=True, slots=True)
class KeyValueKind:
    """Key → value; `timestamped`: the values are `ValueAndTimestamp`."""

    timestamped: bool = False


@dataclass(frozen=True, slots=True)
class LruKind:
    """Key → value, for the `max_entries` keys that were used last."""

    max_entries: int


@dataclass(frozen=True, slots=True)
class WindowKind:
    """(Key, window start) → value; `retain_duplicates`: every put is kept, as stream joins need it."""

    retention: int
    window_size: int | Windows  # a definition, if its windows differ in size
    retain_duplicates: bool = False
    timestamped: bool = False
    by_time: bool = False  # windows are asked for in the order of time, as results on close are


@dataclass(frozen=True, slots=True)
class SessionKind:
    """(Key, session start, session end) → value."""

    retention: int


@dataclass(frozen=True, slots=True)
class VersionedKind:
    """Key → values by timestamp, `history` milliseconds back."""

    history: int


@dataclass(frozen=True, slots=True)
class BufferKind:
    """Records that wait for their time: what `suppress`, outer stream joins and joins with grace hold back."""


@dataclass(frozen=True, slots=True)
class SubscriptionKind:
    """(Foreign key, primary key) → subscription: the right side's memory in a foreign-key join."""


Kind = KeyValueKind | LruKind | WindowKind | SessionKind | VersionedKind | BufferKind | SubscriptionKind


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store to be opened; without serdes the defaults of the configuration are used.

    `persistent` None leaves the choice to the configuration.
    """

    name: str
    kind: Kind
    key: Serde | None = None
    value: Serde | None = None
    persistent: bool | None = True
    logging: bool = True
    caching: bool = False

    def memory(self) -> Self:
        return replace(self, persistent=False)

    def without_logging(self) -> Self:
        return replace(self, logging=False)

    def with_caching(self) -> Self:
        return replace(self, caching=True)


NAME = re.compile(r"[a-zA-Z0-9._-]+")


def checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise TopologyError(f"a store cannot be called {name!r}: a name is made of letters, digits, '.', '_' and '-'")
    return name


class Stores:
    """Specs of stores; `.memory()`, `.without_logging()` and `.with_caching()` of a spec change its settings."""

    @staticmethod
    def key_value(name: str, *, key: Serde | None = None, value: Serde | None = None) -> StoreSpec:
        """Key → value.

        >>> Stores.key_value("totals").memory().persistent
        False
        """
        return StoreSpec(checked_name(name), KeyValueKind(), key, value)

    @staticmethod
    def timestamped_key_value(name: str, *, key: Serde | None = None, value: Serde | None = None) -> StoreSpec:
        """Key → `ValueAndTimestamp`."""
        return StoreSpec(checked_name(name), KeyValueKind(timestamped=True), key, value)

    @staticmethod
    def lru(name: str, max_entries: int, *, key: Serde | None = None, value: Serde | None = None) -> StoreSpec:
        """Key → value, for the `max_entries` keys that were used last."""
        if max_entries < 1:
            raise ValueError(f"store {name!r} must have room for at least 1 entry, not {max_entries}")
        return StoreSpec(checked_name(name), LruKind(max_entries), key, value)

    @staticmethod
    def window(
        name: str,
        retention: int | timedelta,
        window_size: int | timedelta,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        retain_duplicates: bool = False,
    ) -> StoreSpec:
        """(Key, window start) → value."""
        kept = milliseconds(retention, f"the retention of store {name!r}")
        size = milliseconds(window_size, f"the window size of store {name!r}")
        if size > kept:
            raise ValueError(f"store {name!r} keeps windows of {size} ms for {kept} ms only: raise its retention")
        return StoreSpec(checked_name(name), WindowKind(kept, size, retain_duplicates), key, value)

    @staticmethod
    def session(
        name: str, retention: int | timedelta, *, key: Serde | None = None, value: Serde | None = None
    ) -> StoreSpec:
        """(Key, session start, session end) → value."""
        kept = milliseconds(retention, f"the retention of store {name!r}")
        return StoreSpec(checked_name(name), SessionKind(kept), key, value)

    @staticmethod
    def versioned(
        name: str, history: int | timedelta, *, key: Serde | None = None, value: Serde | None = None
    ) -> StoreSpec:
        """Key → values by timestamp."""
        kept = milliseconds(history, f"the history of store {name!r}")
        return StoreSpec(checked_name(name), VersionedKind(kept), key, value)
