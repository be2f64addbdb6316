"""The catalog: every store of an application that can be queried, with its kind, its serdes and its tasks.

A catalog comes from the topology, or from the descriptions in the checkpoint alone. A checkpoint describes kinds and
serdes as text, such as `KeyValueKind(timestamped=True)` and `list_of(STRING)`. This module parses that text into a
syntax tree and matches the known names; it never evaluates or unpickles anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.checkpoint.fingerprint import Fingerprint, StoreShape, compute_fingerprint, find_differences
from headrace.config import Config
from headrace.errors import CheckpointMismatchError, UnknownStoreError, UnsuitableQueryError
from headrace.model.ids import TaskId
from headrace.model.windows import LONGEST, TimeWindows, UnlimitedWindows
from headrace.runtime.serdes import resolved, serdes_of
from headrace.serde import json, primitives
from headrace.serde.internal import UNDECLARED
from headrace.serde.lists import list_of
from headrace.serde.primitives import BYTES
from headrace.serde.protocol import Serde
from headrace.serde.windowed import session_windowed, windowed
from headrace.state.engine import Engine
from headrace.state.spec import (
    BufferKind,
    KeyValueKind,
    Kind,
    LruKind,
    SessionKind,
    StoreSpec,
    SubscriptionKind,
    VersionedKind,
    WindowKind,
)
from headrace.state.task_state import TaskState
from headrace.topology.graph import Graph
from headrace.topology.subtopologies import plan


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """A store, and the tasks that hold its partitions, in the order of the partitions."""

    spec: StoreSpec
    tasks: tuple[TaskId, ...]
    is_global: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def key(self) -> Serde:
        return self.spec.key or BYTES

    @property
    def value(self) -> Serde:
        return self.spec.value or BYTES

    @property
    def is_timestamped(self) -> bool:
        kind = self.spec.kind
        return isinstance(kind, KeyValueKind | WindowKind) and kind.timestamped

    @property
    def kind(self) -> str:
        """The name of the kind, as the dashboard and the command line show it."""
        match self.spec.kind:
            case KeyValueKind() | LruKind():
                name = "key-value"
            case WindowKind():
                name = "window"
            case SessionKind():
                name = "session"
            case VersionedKind():
                name = "versioned"
            case BufferKind() | SubscriptionKind():
                name = "internal"
        return f"timestamped {name}" if self.is_timestamped else name

    def summarize(self, entries: int) -> dict[str, Any]:
        """Return the description as plain data for JSON and tables."""
        return {
            "name": self.name,
            "kind": self.kind,
            "key": self.key.name,
            "value": self.value.name,
            "global": self.is_global,
            "tasks": [str(task) for task in self.tasks],
            "entries": entries,
        }


class Catalog:
    """The stores that can be queried, by name, and the names of those that cannot.

    `caching` and `persistent` are settings of the application. They decide when an entry of a window store has expired.
    """

    def __init__(
        self,
        stores: Iterable[StoreDescription],
        *,
        unreadable: Iterable[str],
        caching: bool = True,
        persistent: bool = True,
    ) -> None:
        self.stores: Mapping[str, StoreDescription] = {store.name: store for store in stores}
        self._unreadable = {*unreadable} - self.stores.keys()
        self._caching, self._persistent = caching, persistent

    def describe(self, name: str) -> StoreDescription:
        """Return the description of a store, or raise an error that says why the store cannot be queried."""
        found = self.stores.get(name)
        if found is not None:
            return found
        if name in self._unreadable:
            raise UnsuitableQueryError(
                f"the checkpoint alone does not tell how to read the store {name!r}: give the topology (--topology "
                "MODULE:APP). It is needed if the windows are days of a time zone, and while there are values in an "
                "earlier form. A store that is not logged, or an operator's own, cannot be read from outside"
            )
        raise UnknownStoreError(name, self.stores)

    def open_task(self, task: TaskId, engine: Engine) -> TaskState:
        """Open the stores of a task on an engine that holds the task's state."""
        return TaskState.open(
            {name: store.spec for name, store in self.stores.items() if task in store.tasks},
            engine,
            key=BYTES,
            value=BYTES,
            persistent=self._persistent,
            caching=self._caching,
            dropped=lambda reason, count: None,
        )


def catalog_from_checkpoint(fingerprint: Fingerprint) -> Catalog:
    """Return the catalog that the checkpoint alone describes. Keys and values of unknown serdes are bytes."""
    shapes = _list_shapes(fingerprint)
    stores = [
        StoreDescription(spec, tasks, is_global)
        for shape, tasks, is_global in shapes
        if (spec := parse_store(shape)) is not None and spec.logging and not shape.unmigrated
    ]
    return Catalog(stores, unreadable=[shape.name for shape, _, _ in shapes])


def catalog_from_topology(graph: Graph, config: Config, fingerprint: Fingerprint) -> Catalog:
    """Return the catalog of a topology, which must be the one that wrote the checkpoint."""
    planned, serdes = plan(graph), serdes_of(config)
    counts = {group.number: group.tasks for group in fingerprint.groups}
    tasks = {number: counts.get(number, 0) for number in planned.stages}
    own = compute_fingerprint(graph, planned, config, tasks=tasks, partitions=fingerprint.partitions)
    found = find_differences(fingerprint, own)
    if found:
        raise CheckpointMismatchError(
            f"the checkpoint is of another topology: {'; '.join(found)}. Give the one that wrote it", differences=found
        )
    stores = [
        StoreDescription(
            replace(resolved(graph.stores[shape.name], serdes), has_old_values=bool(shape.unmigrated)), tasks, is_global
        )
        for shape, tasks, is_global in _list_shapes(fingerprint)
    ]
    return Catalog(
        [store for store in stores if store.spec.logging and store.kind != "internal"],
        unreadable=[store.name for store in stores],
        caching=config.statestore_cache_max_bytes > 0,
        persistent=config.dsl_store_suppliers_class == "persistent",
    )


def _list_shapes(fingerprint: Fingerprint) -> list[tuple[StoreShape, tuple[TaskId, ...], bool]]:
    """List every store with the tasks that hold it, and whether it is global."""
    found = [
        (shape, tuple(TaskId(group.number, partition) for partition in range(group.tasks)), False)
        for group in fingerprint.groups
        for shape in group.stores
    ]
    # One task fills all global stores. Its number comes after those of the sub-topologies.
    global_task = (TaskId(len(fingerprint.groups), 0),)
    return found + [(shape, global_task, True) for shape in fingerprint.global_stores]


# --------------------------------------------------------------------------------------------- parsing descriptions
_SERDES = {
    serde.name: serde
    for serde in (
        primitives.STRING, primitives.BYTES, primitives.LONG, primitives.INTEGER, primitives.SHORT, primitives.DOUBLE,
        primitives.FLOAT, primitives.BOOLEAN, primitives.UUID, primitives.VOID, json.JSON, UNDECLARED,
    )
}  # fmt: skip


def parse_store(shape: StoreShape) -> StoreSpec | None:
    """Return the store that a checkpoint describes, or None if its kind is unknown or cannot be queried.

    A description has no retention, so a follower without the topology shows every entry that is not yet removed.
    """
    kind = parse_kind(shape.kind)
    if kind is None:
        return None
    key, value = parse_serde(shape.key) or BYTES, parse_serde(shape.value) or BYTES
    return StoreSpec(shape.name, kind, key, value, logging=shape.logged)


def parse_kind(text: str) -> Kind | None:
    """Return the kind of store that a text names, or None.

    >>> parse_kind("KeyValueKind(timestamped=True)")
    KeyValueKind(timestamped=True)
    """
    match _parse(text):
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            options = _read_keywords(keywords)
        case _:
            return None
    match name:
        case "KeyValueKind":
            return KeyValueKind(timestamped=bool(options.get("timestamped")))
        case "LruKind":
            return LruKind(LONGEST)
        case "SessionKind":
            return SessionKind(LONGEST)
        case "VersionedKind":
            return VersionedKind(LONGEST)
        case "WindowKind" if options.get("window_size") is not None:
            duplicates, timestamped = bool(options.get("retain_duplicates")), bool(options.get("timestamped"))
            return WindowKind(LONGEST, options["window_size"], duplicates, timestamped, bool(options.get("by_time")))
        case _:
            return None


def parse_serde(name: str) -> Serde | None:
    """Return the serde of a name, or None if it is not one of Headrace's.

    >>> parse_serde("list_of(STRING)"), parse_serde("json_of(Trade)"), parse_serde("mine")
    (<serde list_of(STRING)>, <serde JSON>, None)
    """
    return _SERDES.get(name) or _build_serde(_parse(name))


def _build_serde(tree: ast.expr | None) -> Serde | None:
    match tree:
        case ast.Name(id=name):
            return _SERDES.get(name)
        case ast.Call(func=ast.Name(id="json_of")):
            return json.JSON
        case ast.Call(func=ast.Name(id=name), args=[argument, *rest]):
            inner = _build_serde(argument)
        case _:
            return None
    if inner is None:
        return None
    match name, rest:
        case "list_of", []:
            return list_of(inner)
        case "session_windowed", []:
            return session_windowed(inner)
        case "windowed", [ast.Constant(value=int(size))]:
            return windowed(inner, size)
        case _:
            return None


def _read_keywords(keywords: list[ast.keyword]) -> dict[str | None, Any]:
    return {keyword.arg: _read_option(keyword.value) for keyword in keywords}


def _read_option(tree: ast.expr) -> Any:
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Call(func=ast.Name(id="TimeWindows"), keywords=keywords):
            options = _read_keywords(keywords)
            return TimeWindows(options["size"], options["advance"], 0)
        case ast.Call(func=ast.Name(id="UnlimitedWindows"), keywords=keywords):
            return UnlimitedWindows(_read_keywords(keywords)["start"])
        case _:
            return None


def _parse(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
