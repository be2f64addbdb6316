"""A view of a store that can read and not write: what a processor gets for a global store that another one fills."""

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
    """A read-only view of a store; `reason` says why it cannot write.

    The methods that read are the store's own. The methods that write raise an InvalidStateStoreError, where Kafka
    Streams raises UnsupportedOperationException.

    >>> from headrace import Stores, serde
    >>> from headrace.state.engine import MemoryEngine
    >>> from headrace.state.task_state import open_alone
    """

    def __init__(self, store: Any, reason: str) -> None:
        self.name: str = store.name
        self._store, self._reason = store, reason
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
        raise InvalidStateStoreError(f"store {self.name!r} is read-only here: {self._reason}")
