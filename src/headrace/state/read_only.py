"""Stores that can only be read: what queries, joins with global tables and the outside get to see."""

from __future__ import annotations

from typing import Any, NoReturn

from headrace.errors import InvalidStateStoreError
from headrace.state.duplicates import WindowedDuplicates
from headrace.state.key_value import KeyValues
from headrace.state.lru import RecentlyUsed
from headrace.state.session import Sessions
from headrace.state.versioned import Versions
from headrace.state.window import WindowedValues

WRITES = {"put", "put_if_absent", "put_all", "delete", "remove"}

WINDOWED = {"fetch", "backward_fetch", "fetch_all", "backward_fetch_all", "all", "backward_all"}
KEYED = {"get", "range", "reverse_range", "prefix_scan", "all", "reverse_all", "approximate_size"}
READS: dict[type, set[str]] = {
    KeyValues: KEYED,
    RecentlyUsed: KEYED,
    WindowedValues: WINDOWED,
    WindowedDuplicates: WINDOWED,
    Sessions: {"find_sessions", "backward_find_sessions", "fetch", "backward_fetch", "fetch_session", "all"},
    Versions: {"get", "history"},
}


class ReadOnly:
    """A view of a store: its methods that read are the store's own, its methods that write refuse."""

    def __init__(self, store: Any) -> None:
        self.name: str = store.name
        self._store = store
        self._reads = READS[type(store)]

    def __getattr__(self, method: str) -> Any:
        if method in self._reads:
            # To look at a store from outside is not to use it: it must not change which key has to make room.
            return (
                self._store.peek
                if isinstance(self._store, RecentlyUsed) and method == "get"
                else getattr(self._store, method)
            )
        if method in WRITES and hasattr(self._store, method):
            return self._refuse
        raise AttributeError(
            f"store {self.name!r} has no {method!r} (to read it has: {', '.join(sorted(self._reads))})"
        )

    def __repr__(self) -> str:
        return f"<store {self.name}, read only>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidStateStoreError(
            f"store {self.name!r} can only be read here: write to it in a processor connected to it"
        )
