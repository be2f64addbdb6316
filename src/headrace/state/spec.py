"""Store specs: the name, kind, serdes and settings of a store that is opened later. `Stores` makes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from headrace.errors import TopologyError
from headrace.hints import RenamedNames, explain_names
from headrace.model.record import ValueAndTimestamp
from headrace.model.windows import Windows, milliseconds
from headrace.serde.protocol import Serde
from headrace.state.protocols import KeyValueStore, SessionStore, VersionedStore, WindowStore

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
Store_co = TypeVar("Store_co", covariant=True, default=Any)


@dataclass(frozen=True, slots=True)
class KeyValueKind:
    """Key → value; the values of a `timestamped` store are `ValueAndTimestamp`."""

    timestamped: bool = False


@dataclass(frozen=True, slots=True)
class LruKind:
    """Key → value, for the `max_entries` keys that were used most recently."""

    max_entries: int


@dataclass(frozen=True, slots=True)
class WindowKind:
    """(Key, window start) → value; with `retain_duplicates` the store keeps every put, as stream joins need it."""

    retention: int
    window_size: int | Windows  # a window definition if its windows differ in size
    retain_duplicates: bool = False
    timestamped: bool = False
    by_time: bool = False  # the store can list windows by start time, as emit-on-close needs it


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
    """Records that wait for their time, in `suppress`, outer stream joins and joins with a grace period."""


@dataclass(frozen=True, slots=True)
class SubscriptionKind:
    """(Foreign key, primary key) → subscription, on the right side of a foreign-key join."""


Kind = KeyValueKind | LruKind | WindowKind | SessionKind | VersionedKind | BufferKind | SubscriptionKind


@explain_names(
    {
        "with_caching_enabled": "with_caching()",
        "with_caching_disabled": "a spec without with_caching()",
        "with_logging_disabled": "without_logging()",
        "with_logging_enabled": "a spec without without_logging()",
        "build": "the spec itself: add_store(spec)",
    }
)
@dataclass(frozen=True, slots=True)
class StoreSpec(Generic[Store_co]):
    """A store that is opened later. `Stores` makes specs; `StoreSpec[S]` opens a store of type `S`.

    A spec without serdes uses the default serdes of the configuration. `persistent=None` leaves the choice between disk
    and memory to the configuration. `context.store(spec)` and `driver.store(spec)` return the open store.

    >>> spec = Stores.key_value("totals").memory().without_logging()
    >>> spec.name, spec.persistent, spec.logging
    ('totals', False, False)
    """

    name: str
    kind: Kind
    key: Serde[Any] | None = None
    value: Serde[Any] | None = None
    persistent: bool | None = True
    logging: bool = True
    caching: bool = False
    by_key: bool = False  # a processor's store: each row belongs to the task of its key
    record_key: Callable[[Any], Any] | None = None  # maps a key of the store to the records' key; None: they are equal
    migrate: Callable[[Any], Any] | None = None
    migrate_from: Serde[Any] | None = None
    has_old_values: bool = False  # the checkpoint may have values of `migrate_from`: they are migrated when read

    def memory(self) -> Self:
        """The same store in memory, not on disk."""
        return replace(self, persistent=False)

    def without_logging(self) -> Self:
        """The same store outside the checkpoint: it is empty after its local copy is lost."""
        return replace(self, logging=False)

    def with_caching(self) -> Self:
        """The same store with a cache that holds its updates until a batch ends."""
        return replace(self, caching=True)

    def partitioned_by_key(self, record_key: Callable[[Any], Any] | None = None) -> Self:
        """The same store, declared to have only keys that belong to the records that its task reads.

        Then the state can be divided among another number of tasks, by the hash of the keys. `record_key` maps a key of
        the store to the key of its records; without it, the two are equal. Stores of the DSL need no declaration: their
        keys are those of the records.

        >>> Stores.key_value("totals").partitioned_by_key().by_key
        True
        >>> spec = Stores.key_value("daily-totals").partitioned_by_key(lambda key: key.partition("/")[0])
        >>> spec.record_key("ada/2026-11-17")
        'ada'
        """
        return replace(self, by_key=True, record_key=record_key)

    def migrated_from(self, serde: Serde[Any], function: Callable[[Any], Any]) -> Self:
        """The same store; values of the given serde that a checkpoint holds are migrated when they are read."""
        return replace(self, migrate=function, migrate_from=serde)


def store_name(store: str | StoreSpec[Any]) -> str:
    """The name of a store that is given by its name or by its spec.

    >>> store_name("totals"), store_name(Stores.key_value("totals"))
    ('totals', 'totals')
    """
    return store if isinstance(store, str) else store.name


NAME = re.compile(r"[a-zA-Z0-9._-]+")


def checked_name(name: str) -> str:
    """The name itself, if a store may have it."""
    if not NAME.fullmatch(name):
        raise TopologyError(f"a store cannot be called {name!r}: a name is made of letters, digits, '.', '_' and '-'")
    return name


@explain_names(
    {
        "persistent": "Stores.key_value(name)",
        "persistent_key_value_store": "Stores.key_value(name)",
        "persistent_timestamped_key_value_store": "Stores.timestamped_key_value(name)",
        "persistent_versioned_key_value_store": "Stores.versioned(name, history)",
        "persistent_window_store": "Stores.window(name, retention, window_size)",
        "persistent_timestamped_window_store": "Stores.window(name, retention, window_size)",
        "persistent_session_store": "Stores.session(name, retention)",
        "in_memory": "Stores.key_value(name).memory()",
        "in_memory_key_value_store": "Stores.key_value(name).memory()",
        "in_memory_window_store": "Stores.window(name, retention, window_size).memory()",
        "in_memory_session_store": "Stores.session(name, retention).memory()",
        "lru_map": "Stores.lru(name, max_entries)",
        "key_value_store_builder": "Stores.key_value(name, key=, value=)",
        "timestamped_key_value_store_builder": "Stores.timestamped_key_value(name, key=, value=)",
        "versioned_key_value_store_builder": "Stores.versioned(name, history, key=, value=)",
        "window_store_builder": "Stores.window(name, retention, window_size, key=, value=)",
        "timestamped_window_store_builder": "Stores.window(name, retention, window_size, key=, value=)",
        "session_store_builder": "Stores.session(name, retention, key=, value=)",
        "create": "Stores.key_value(name, key=, value=)",
    }
)
class Stores(metaclass=RenamedNames):
    """Makes specs of stores for processors; `.memory()`, `.without_logging()` and `.with_caching()` change a spec.

    `key` and `value` are serdes. Durations are milliseconds or a `timedelta`.

    >>> from datetime import timedelta
    >>> from headrace import serde
    >>> Stores.key_value("totals", key=serde.STRING, value=serde.LONG).kind
    KeyValueKind(timestamped=False)
    >>> Stores.window("visits", timedelta(hours=1), timedelta(minutes=5)).kind.retention
    3600000
    """

    @staticmethod
    def key_value(
        name: str, *, key: Serde[K] | None = None, value: Serde[V] | None = None
    ) -> StoreSpec[KeyValueStore[K, V]]:
        """Key → value.

        >>> Stores.key_value("totals").memory().persistent
        False
        """
        return StoreSpec(checked_name(name), KeyValueKind(), key, value)

    @staticmethod
    def timestamped_key_value(
        name: str, *, key: Serde[K] | None = None, value: Serde[V] | None = None
    ) -> StoreSpec[KeyValueStore[K, ValueAndTimestamp[V]]]:
        """Key → `ValueAndTimestamp`.

        >>> Stores.timestamped_key_value("totals").kind
        KeyValueKind(timestamped=True)
        """
        return StoreSpec(checked_name(name), KeyValueKind(timestamped=True), key, value)

    @staticmethod
    def lru(
        name: str, max_entries: int, *, key: Serde[K] | None = None, value: Serde[V] | None = None
    ) -> StoreSpec[KeyValueStore[K, V]]:
        """Key → value, for the `max_entries` keys that were used most recently.

        >>> Stores.lru("recent", 100).kind
        LruKind(max_entries=100)
        """
        if max_entries < 1:
            raise ValueError(f"store {name!r} must have room for at least 1 entry, not {max_entries}")
        return StoreSpec(checked_name(name), LruKind(max_entries), key, value)

    @staticmethod
    def window(
        name: str,
        retention: int | timedelta,
        window_size: int | timedelta,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        retain_duplicates: bool = False,
    ) -> StoreSpec[WindowStore[K, V]]:
        """(Key, window start) → value, for windows that started within the `retention`.

        >>> Stores.window("visits", retention=60_000, window_size=10_000).kind.window_size
        10000
        """
        kept = milliseconds(retention, f"the retention of store {name!r}")
        size = milliseconds(window_size, f"the window size of store {name!r}")
        if size > kept:
            raise ValueError(f"store {name!r} keeps windows of {size} ms for {kept} ms only: raise its retention")
        return StoreSpec(checked_name(name), WindowKind(kept, size, retain_duplicates), key, value)

    @staticmethod
    def session(
        name: str, retention: int | timedelta, *, key: Serde[K] | None = None, value: Serde[V] | None = None
    ) -> StoreSpec[SessionStore[K, V]]:
        """(Key, session start, session end) → value, for sessions that ended within the `retention`.

        >>> Stores.session("visits", retention=60_000).kind
        SessionKind(retention=60000)
        """
        kept = milliseconds(retention, f"the retention of store {name!r}")
        return StoreSpec(checked_name(name), SessionKind(kept), key, value)

    @staticmethod
    def versioned(
        name: str, history: int | timedelta, *, key: Serde[K] | None = None, value: Serde[V] | None = None
    ) -> StoreSpec[VersionedStore[K, V]]:
        """Key → values by timestamp, for a `history` of this length.

        >>> Stores.versioned("prices", history=60_000).kind
        VersionedKind(history=60000)
        """
        kept = milliseconds(history, f"the history of store {name!r}")
        return StoreSpec(checked_name(name), VersionedKind(kept), key, value)
