"""Read-only views of stores: of the parts that all tasks hold, or of a global store that another processor fills.

The read-only protocols in protocols.py declare the methods of a view. The view answers them from the stores of the
tasks:

    a method of one key        asks the task at the key's partition first, then the others, until one has an answer:
                               a topology may partition in its own way
    a method of many keys      merges the sorted entries of all tasks; `reverse_…` and `backward_…` sort descending
    approximate_size           adds the sizes

A view takes the task stores at each call, so that one call reads the state after one batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from heapq import merge
from itertools import chain
from typing import Any, NoReturn, cast

from headrace.errors import InvalidStateStoreError
from headrace.model.partitioner import partition_of
from headrace.model.windows import Windowed
from headrace.state import protocols
from headrace.state.key_value import RecentlyUsed
from headrace.state.rendering import render_entries
from headrace.state.spec import KeyValueKind, Kind, LruKind, SessionKind, StoreSpec, VersionedKind, WindowKind
from headrace.state.versioned import Versions

_MISSING: Any = object()


class StoreView:
    """A read-only view of a store; `reason` says in an error why the view cannot write.

    The methods that write raise an `InvalidStateStoreError`, where Kafka Streams raises an
    UnsupportedOperationException.

    >>> from headrace import Stores, serde
    >>> from headrace.state.engine import MemoryEngine
    >>> from headrace.state.task_state import TaskState
    >>> spec = Stores.key_value("rates", key=serde.STRING, value=serde.LONG)
    >>> state = TaskState.open(
    ...     {"rates": spec}, MemoryEngine(), key=serde.STRING, value=serde.STRING, dropped=lambda reason, count: None)
    >>> state.store("rates").put("EUR", 7)
    >>> view = open_view(spec, lambda: [state.store("rates")], "another processor fills it")
    >>> view.get("EUR")
    7
    >>> view.put("EUR", 8)
    Traceback (most recent call last):
    headrace.errors.InvalidStateStoreError: store 'rates' is read-only here: another processor fills it
    """

    def __init__(self, spec: StoreSpec, stores: Callable[[], Sequence[Any]], reason: str) -> None:
        self.name, self._spec, self._stores, self._reason = spec.name, spec, stores, reason

    def __repr__(self) -> str:
        return f"<store {self.name}, read only>"

    def _repr_html_(self) -> str:
        is_versioned = isinstance(self._spec.kind, VersionedKind)
        entries = self.read_all("latest" if is_versioned else "all")
        return render_entries(f"store {self.name}{', the latest versions' if is_versioned else ''}", entries)

    def __getattr__(self, method: str) -> NoReturn:
        methods = ", ".join(name for name in sorted(vars(type(self))) if not name.startswith("_"))
        name = vars(self).get("name")  # missing while `copy` or `pickle` fills a new object
        raise AttributeError(f"store {name!r} has no {method!r} (it has: {methods})")

    def read_key(self, method: str, key: Any, *arguments: Any, **options: Any) -> Any:
        """Ask the tasks in turn; return the first answer that is a value, or an iterator with entries."""
        found: Any = None
        for store in self._order_stores(key):
            # A read through a view is not a use: it must not change which key an LRU store evicts next.
            name = "peek" if method == "get" and isinstance(store, RecentlyUsed) else method
            found = getattr(store, name)(key, *arguments, **options)
            if isinstance(found, Iterator):
                entries = found = cast("Iterator[Any]", found)
                first = next(entries, _MISSING)
                if first is not _MISSING:
                    return chain([first], entries)
            elif found is not None:
                return found
        return found  # None, or an iterator that is at its end

    def read_all(self, method: str, *arguments: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
        """Merge the sorted entries of all tasks."""
        found = [getattr(store, method)(*arguments, **options) for store in self._stores()]
        if len(found) == 1:
            return found[0]
        reverse = method.startswith(("reverse_", "backward_"))
        return merge(*found, key=lambda entry: self._sort_key(entry[0]), reverse=reverse)

    def add_up(self, size: str) -> int:
        return sum(getattr(store, size) for store in self._stores())

    def refuse_write(self) -> NoReturn:
        raise InvalidStateStoreError(f"store {self.name!r} is read-only here: {self._reason}")

    def _order_stores(self, key: Any) -> Iterator[Any]:
        stores = self._stores()
        if len(stores) == 1 or key is None:
            return iter(stores)
        first = partition_of(self._encode(key), len(stores)) or 0
        return chain([stores[first]], (store for place, store in enumerate(stores) if place != first))

    def _sort_key(self, key: Any) -> Any:
        if isinstance(self._spec.kind, WindowKind | SessionKind):
            windowed: Windowed = key
            return self._encode(windowed.key), windowed.window.end, windowed.window.start
        return self._encode(key)

    def _encode(self, key: Any) -> bytes:
        return key if self._spec.key is None else self._spec.key.encode(key)


def _make_read(name: str, declared: Any) -> Any:
    """Return the method of a view for a method of a read-only protocol, with its signature and documentation."""
    if isinstance(declared, property):
        return property(lambda view: view.add_up(name), doc=declared.__doc__)

    def read_key(view: StoreView, key: Any, *arguments: Any, **options: Any) -> Any:
        return view.read_key(name, key, *arguments, **options)

    def read_all(view: StoreView, *arguments: Any, **options: Any) -> Any:
        return view.read_all(name, *arguments, **options)

    return wraps(declared)(read_key if "key" in inspect.signature(declared).parameters else read_all)


def _make_write(declared: Any) -> Any:
    @wraps(declared)
    def refuse(view: StoreView, *_: Any, **__: Any) -> NoReturn:
        view.refuse_write()

    return refuse


def _make_class(name: str, read_only: type, writable: type, **more_reads: Any) -> type[StoreView]:
    def methods(protocol: type) -> Iterator[tuple[str, Any]]:
        return (item for item in vars(protocol).items() if not item[0].startswith("_") and item[0] != "name")

    reads = {method: _make_read(method, declared) for method, declared in (*methods(read_only), *more_reads.items())}
    writes = {method: _make_write(declared) for method, declared in methods(writable)}
    return type(name, (StoreView,), {"__doc__": read_only.__doc__, **reads, **writes})


_KEY_VALUE = _make_class("KeyValueView", protocols.ReadOnlyKeyValueStore, protocols.KeyValueStore)
_CLASSES: dict[type[Kind], type[StoreView]] = {
    KeyValueKind: _KEY_VALUE,
    LruKind: _KEY_VALUE,
    WindowKind: _make_class("WindowView", protocols.ReadOnlyWindowStore, protocols.WindowStore),
    SessionKind: _make_class("SessionView", protocols.ReadOnlySessionStore, protocols.SessionStore),
    VersionedKind: _make_class(
        "VersionedView", protocols.ReadOnlyVersionedStore, protocols.VersionedStore, latest=Versions.latest
    ),
}


def open_view(spec: StoreSpec, stores: Callable[[], Sequence[Any]], reason: str) -> Any:
    """Return the view of a store of a kind that can be queried. `stores` returns the stores of the tasks, by partition.

    The view has the methods of the kind's read-only protocol.
    """
    return _CLASSES[type(spec.kind)](spec, stores, reason)
