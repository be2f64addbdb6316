"""A view of a store that can read and not write: what a processor gets for a global store that another one fills."""

from __future__ import annotations

from typing import Any, NoReturn

from headrace.errors import InvalidStateStoreError
from headrace.state.key_value import KeyValues, RecentlyUsed
from headrace.state.protocols import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
)
from headrace.state.session import Sessions
from headrace.state.versioned import Versions
from headrace.state.window import WindowedDuplicates, WindowedValues

WRITES = {"put", "put_if_absent", "put_all", "delete", "remove"}

PROTOCOLS: dict[type, type] = {
    KeyValues: ReadOnlyKeyValueStore,
    RecentlyUsed: ReadOnlyKeyValueStore,
    WindowedValues: ReadOnlyWindowStore,
    WindowedDuplicates: ReadOnlyWindowStore,
    Sessions: ReadOnlySessionStore,
    Versions: ReadOnlyVersionedStore,
}
READS = {
    store: {name for name in vars(protocol) if not name.startswith("_")} - {"name"}
    for store, protocol in PROTOCOLS.items()
}


class ReadOnly:
    """A read-only view of a store; `reason` says in an error why the view cannot write.

    The methods that read are the store's own. The methods that write raise an `InvalidStateStoreError`, where Kafka
    Streams raises an UnsupportedOperationException.

    >>> from headrace import Stores, serde
    >>> from headrace.state.engine import MemoryEngine
    >>> from headrace.state.task_state import TaskState
    >>> spec = Stores.key_value("rates", key=serde.STRING, value=serde.LONG)
    >>> state = TaskState.open(
    ...     {"rates": spec}, MemoryEngine(), key=serde.STRING, value=serde.STRING, dropped=lambda reason, count: None)
    >>> state.store("rates").put("EUR", 7)
    >>> view = ReadOnly(state.store("rates"), "another processor fills it")
    >>> view.get("EUR")
    7
    >>> view.put("EUR", 8)
    Traceback (most recent call last):
    headrace.errors.InvalidStateStoreError: store 'rates' is read-only here: another processor fills it
    """

    def __init__(self, store: Any, reason: str) -> None:
        self.name: str = store.name
        self._store, self._reason = store, reason
        self._reads = READS[type(store)]

    def __getattr__(self, method: str) -> Any:
        if method in ("_store", "_reads", "_reason"):  # a copy that is not filled yet
            raise AttributeError(method)
        if method in self._reads:
            # A read through a view is not a use: it must not change which key an LRU store evicts next.
            peeks = isinstance(self._store, RecentlyUsed) and method == "get"
            found = self._store.peek if peeks else getattr(self._store, method)
        elif method in WRITES and hasattr(self._store, method):
            found = self._refuse
        else:
            reads = ", ".join(sorted(self._reads))
            raise AttributeError(f"store {self.name!r} has no {method!r} (to read it has: {reads})")
        if method != "approximate_size":  # a property of the store, read again each time
            setattr(self, method, found)
        return found

    def __repr__(self) -> str:
        return f"<store {self.name}, read only>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidStateStoreError(f"store {self.name!r} is read-only here: {self._reason}")
