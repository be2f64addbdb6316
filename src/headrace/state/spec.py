"""What a store is to be: its name, its kind, its serdes and its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from headrace.model.windows import Windows
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
