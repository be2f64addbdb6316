"""Stores as a checkpoint describes them, back from their words; nothing is evaluated, and nothing is unpickled.

The stores that can be asked: their kinds and serdes, and the tasks that have their parts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.checkpoint.fingerprint import Fingerprint, StoreShape, differences, fingerprint_of
from headrace.config import Config
from headrace.errors import CheckpointMismatchError, UnknownStoreError, UnsuitableQueryError
from headrace.model.ids import TaskId
from headrace.model.windows import LONGEST, TimeWindows, UnlimitedWindows
from headrace.plan.subtopologies import plan
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

_SERDES = {
    serde.name: serde
    for serde in (
        primitives.STRING, primitives.BYTES, primitives.LONG, primitives.INTEGER, primitives.SHORT, primitives.DOUBLE,
        primitives.FLOAT, primitives.BOOLEAN, primitives.UUID, primitives.VOID, json.JSON, UNDECLARED,
    )
}  # fmt: skip


def spec_of(shape: StoreShape) -> StoreSpec | None:
    """The store of a description; None if it is none that can be asked, or its words do not suffice.

    How long things are kept is not described: whatever has not been removed yet is shown.
    """
    kind = kind_of(shape.kind)
    if kind is None:
        return None
    key, value = serde_named(shape.key) or primitives.BYTES, serde_named(shape.value) or primitives.BYTES
    return StoreSpec(shape.name, kind, key, value, logging=shape.logged)


def kind_of(words: str) -> Kind | None:
    """
    >>> kind_of("KeyValueKind(timestamped=True)")
    KeyValueKind(timestamped=True)
    """
    match _parsed(words):
        case ast.Call(func=ast.Name(id=name), args=[], keywords=given):
            told = {keyword.arg: _told(keyword.value) for keyword in given}
        case _:
            return None
    match name:
        case "KeyValueKind":
            return KeyValueKind(timestamped=bool(told.get("timestamped")))
        case "LruKind":
            return LruKind(LONGEST)
        case "SessionKind":
            return SessionKind(LONGEST)
        case "VersionedKind":
            return VersionedKind(LONGEST)
        case "WindowKind" if told.get("window_size") is not None:
            duplicates, timestamped = bool(told.get("retain_duplicates")), bool(told.get("timestamped"))
            return WindowKind(LONGEST, told["window_size"], duplicates, timestamped, bool(told.get("by_time")))
        case _:
            return None


def serde_named(name: str) -> Serde | None:
    """The serde of a name, if it is one of Headrace's.

    >>> serde_named("list_of(STRING)"), serde_named("json_of(Trade)"), serde_named("mine")
    (<serde list_of(STRING)>, <serde JSON>, None)
    """
    return _SERDES.get(name) or _made(_parsed(name))


def _made(words: ast.expr | None) -> Serde | None:
    match words:
        case ast.Name(id=name):
            return _SERDES.get(name)
        case ast.Call(func=ast.Name(id="json_of")):
            return json.JSON
        case ast.Call(func=ast.Name(id="list_of"), args=[inner]):
            made = _made(inner)
            return None if made is None else list_of(made)
        case ast.Call(func=ast.Name(id="session_windowed"), args=[inner]):
            made = _made(inner)
            return None if made is None else session_windowed(made)
        case ast.Call(func=ast.Name(id="windowed"), args=[inner, ast.Constant(value=int(size))]):
            made = _made(inner)
            return None if made is None else windowed(made, size)
        case _:
            return None


def _told(words: ast.expr) -> Any:
    match words:
        case ast.Constant(value=value):
            return value
        case ast.Call(func=ast.Name(id="TimeWindows"), keywords=given):
            told = {keyword.arg: _told(keyword.value) for keyword in given}
            return TimeWindows(told["size"], told["advance"], 0)
        case ast.Call(func=ast.Name(id="UnlimitedWindows"), keywords=given):
            told = {keyword.arg: _told(keyword.value) for keyword in given}
            return UnlimitedWindows(told["start"])
        case _:
            return None


def _parsed(words: str) -> ast.expr | None:
    try:
        return ast.parse(words, mode="eval").body
    except (SyntaxError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Shelf:
    """A store, and the tasks that have its parts, by partition."""

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
    def kind(self) -> str:
        """The kind in words."""
        match self.spec.kind:
            case KeyValueKind(timestamped=True):
                return "timestamped key-value"
            case KeyValueKind() | LruKind():
                return "key-value"
            case WindowKind(timestamped=timestamped):
                return "timestamped window" if timestamped else "window"
            case SessionKind():
                return "session"
            case VersionedKind():
                return "versioned"
            case BufferKind() | SubscriptionKind():
                return "internal"


class Catalog:
    """All stores by name; `caching` and `persistent` are the application's, since they decide what has expired."""

    def __init__(
        self, shelves: Iterable[Shelf], *, unread: Iterable[str], caching: bool = True, persistent: bool = True
    ) -> None:
        self.shelves: Mapping[str, Shelf] = {shelf.name: shelf for shelf in shelves}
        self._unread = set(unread)
        self._caching, self._persistent = caching, persistent

    def shelf(self, store: str) -> Shelf:
        found = self.shelves.get(store)
        if found is not None:
            return found
        if store in self._unread:
            raise UnsuitableQueryError(
                f"the store {store!r} cannot be read from outside: it is an operator's own, or it is not logged and so "
                "not in the checkpoint, or the checkpoint alone does not say enough of it: give the topology"
            )
        raise UnknownStoreError(store, self.shelves)

    def open(self, task: TaskId, engine: Engine) -> TaskState:
        """The stores of a task, over what they hold."""
        specs = {name: shelf.spec for name, shelf in self.shelves.items() if task in shelf.tasks}
        return TaskState.open(
            specs,
            engine,
            key=BYTES,
            value=BYTES,
            persistent=self._persistent,
            caching=self._caching,
            dropped=lambda reason, count: None,
        )


def described_catalog(fingerprint: Fingerprint) -> Catalog:
    """From the checkpoint alone; keys and values of serdes that are not Headrace's are bytes."""
    shapes = _shapes(fingerprint)
    specs = {name: spec_of(shape) for name, (shape, _, _) in shapes.items()}
    shelves = [
        Shelf(spec, tasks, is_global)
        for name, (_, tasks, is_global) in shapes.items()
        if (spec := specs[name]) is not None and spec.logging
    ]
    return Catalog(shelves, unread=shapes)


def catalog_of(graph: Graph, config: Config, fingerprint: Fingerprint) -> Catalog:
    """Of the topology itself, which must be the one that the checkpoint is of."""
    planned, serdes = plan(graph), serdes_of(config)
    counts = {group.number: group.tasks for group in fingerprint.groups}
    tasks = {number: counts.get(number, 0) for number in planned.stages}
    own = fingerprint_of(graph, planned, config, tasks=tasks, partitions=fingerprint.partitions)
    found = differences(fingerprint, own)
    if found:
        raise CheckpointMismatchError(
            f"the checkpoint is of another topology: {'; '.join(found)}. Give the one that wrote it", differences=found
        )
    shelves = [
        Shelf(resolved(graph.stores[name], serdes), tasks, is_global)
        for name, (_, tasks, is_global) in _shapes(fingerprint).items()
    ]
    readable = [
        shelf
        for shelf in shelves
        if shelf.spec.logging and not isinstance(shelf.spec.kind, BufferKind | SubscriptionKind)
    ]
    return Catalog(
        readable,
        unread=[shelf.name for shelf in shelves],
        caching=config.statestore_cache_max_bytes > 0,
        persistent=config.dsl_store_suppliers_class == "persistent",
    )


def _shapes(fingerprint: Fingerprint) -> dict[str, tuple[StoreShape, tuple[TaskId, ...], bool]]:
    """Every store with the tasks that have it, and whether it is a global one."""
    found = {
        shape.name: (shape, tuple(TaskId(group.number, part) for part in range(group.tasks)), False)
        for group in fingerprint.groups
        for shape in group.stores
    }
    # What fills the global stores is one task, behind those of the stages.
    everywhere = (TaskId(len(fingerprint.groups), 0),)
    return found | {shape.name: (shape, everywhere, True) for shape in fingerprint.global_stores}
