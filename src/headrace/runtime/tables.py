"""How operators read, write and look up the store of a table.

A table's store is a timestamped key-value store or a versioned one; windowed and session tables have window and session
stores. A table without a store is looked up by computing its value from its parents'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.errors import InvalidStateStoreError
from headrace.model.record import stamped
from headrace.model.windows import Windowed
from headrace.runtime.caching import Cached, Forward, at_once, cache_of
from headrace.runtime.environment import Env, Lookup
from headrace.runtime.operators.emit import Emit
from headrace.state.key_value import KeyValues
from headrace.state.session import Sessions
from headrace.state.versioned import NOT_PUT, Versions
from headrace.state.window import WindowedValues

IS_LATEST = -1


class Keyed(NamedTuple):
    """The store of a table by key: `place` encodes a key once, for all the calls that follow.

    `put` returns whether the value is now the latest, or None if the store rejected it as too old.
    """

    place: Callable[[Any], Any]
    get: Callable[[Any], tuple[Any, int] | None]  # (place)
    put: Callable[[Any, Any, int], bool | None]  # (place, value, timestamp)


def keyed(store: Any) -> Keyed:
    """The store of an unwindowed table, whichever kind it is."""
    match store:
        case KeyValues():
            return Keyed(store.key_bytes, store.table.get, timestamped_put(store))
        case Versions():
            return Keyed(itself, versioned_lookup(store).get, versioned_put(store))
        case _:
            raise InvalidStateStoreError(
                f"a table by key needs a key-value store, but {store.name!r} is a {type(store).__name__}: "
                "the table of a windowed cogroup cannot be joined with a table; "
                "aggregate without cogroup, or join its stream"
            )


def timestamped_put(store: KeyValues) -> Callable[[Any, Any, int], bool | None]:
    put = store.table.put

    def run(place: bytes, value: Any, timestamp: int) -> bool:
        put(place, None if value is None else stamped((value, timestamp)))
        return True

    return run


def itself(key: Any) -> Any:
    return key


def versioned_put(store: Versions) -> Callable[[Any, Any, int], bool | None]:
    def run(key: Any, value: Any, timestamp: int) -> bool | None:
        valid_to = store.put(key, value, timestamp)
        return None if valid_to == NOT_PUT else valid_to == IS_LATEST

    return run


def versioned_lookup(store: Versions) -> Lookup:
    def get(key: Any) -> tuple[Any, int] | None:
        found = store.get(key)
        return None if found is None else (found.value, found.timestamp)

    def as_of(key: Any, time: int) -> tuple[Any, int] | None:
        found = store.get(key, time)
        return None if found is None else (found.value, found.timestamp)

    return Lookup(get, as_of)


class CachedValues:
    """A key-value or window store, for its cache."""

    def __init__(self, store: KeyValues | WindowedValues) -> None:
        self.table, self.with_time = store.table, as_held
        self.before = store.before if isinstance(store, WindowedValues) else store.table.committed


class CachedSessions:
    """A session store, for its cache: the result of a session has the timestamp of the session's end."""

    def __init__(self, store: Sessions) -> None:
        self.table, self.before = store.table, store.before

    def with_time(self, key: Windowed, held: Any) -> tuple[Any, int]:
        return held, key.window.end


def as_held(_key: Any, held: tuple[Any, int]) -> tuple[Any, int]:
    return held


def cached(store: Any) -> Cached:
    return CachedSessions(store) if isinstance(store, Sessions) else CachedValues(store)


def is_cached(name: str, env: Env) -> bool:
    """Whether the table with this store forwards its updates once a batch."""
    return env.caching and env.state.specs[name].caching


def forwarder(name: str, env: Env, emit: Emit, *, send_old: bool) -> Forward:
    """The function that forwards updates of the table with this store."""
    if is_cached(name, env):
        return cache_of(name, cached(env.store(name)), env, emit, send_old=send_old).forward()
    return at_once(emit, send_old=send_old)


def windowed_lookup(store: WindowedValues) -> Lookup:
    def get(key: Windowed) -> tuple[Any, int] | None:
        return store.fetch(key.key, key.window.start)

    return Lookup(get)


def keyed_lookup(store: Any) -> Lookup:
    place, get_at, _ = keyed(store)

    def get(key: Any) -> tuple[Any, int] | None:
        return get_at(place(key))

    return Lookup(get)


def lookup_in(store: Any) -> Lookup:
    """The lookup of keys in the store of a table."""
    match store:
        case Versions():
            return versioned_lookup(store)
        case WindowedValues():
            return windowed_lookup(store)
        case Sessions():

            def get(key: Windowed) -> tuple[Any, int] | None:
                value = store.fetch_session(key.key, key.window.start, key.window.end)
                return None if value is None else (value, key.window.end)

            return Lookup(get)
        case _:
            return keyed_lookup(store)
