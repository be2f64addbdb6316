"""StoreSpec + tables → store: the only place where stores are wired."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from headrace.serde.protocol import Serde
from headrace.state import values
from headrace.state.expiry import Timeline
from headrace.state.key_value import KeyValues, RecentlyUsed
from headrace.state.session import Sessions
from headrace.state.spec import (
    BufferKind,
    KeyValueKind,
    LruKind,
    SessionKind,
    StoreSpec,
    SubscriptionKind,
    VersionedKind,
    WindowKind,
)
from headrace.state.table import Table
from headrace.state.values import Cell, Codec, Content
from headrace.state.versioned import Versions
from headrace.state.window import WindowedDuplicates, WindowedValues


class Settings(NamedTuple):
    """What a spec may leave open."""

    key: Serde
    value: Serde
    persistent: bool
    caching: bool
    dropped: Callable[[str, int], None]


def nothing() -> None:
    pass


class OpenStore(NamedTuple):
    """A store, and what it wants to do when a batch ends."""

    store: Any
    before_commit: Callable[[], None] = nothing
    after_rollback: Callable[[], None] = nothing


class TableProvider(Protocol):
    """Where a store's tables and cells come from."""

    def table(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        *,
        share: bool,
        hold: bool = False,
        logged: bool | None = None,
    ) -> Table: ...

    def cell(self, name: str, default: Content, *, logged: bool = True) -> Cell: ...


class StoreTables:
    """The tables and cells of one store."""

    def __init__(self, spec: StoreSpec, provider: TableProvider, settings: Settings) -> None:
        self._spec, self._provider, self._hold = spec, provider, settings.caching and spec.caching
        self.key = spec.key or settings.key
        self.value = spec.value or settings.value

    def table(self, codec: Codec, *, cached: bool = True) -> Table:
        spec, hold = self._spec, self._hold and cached
        return self._provider.table(
            spec.name, codec.encode, codec.decode, share=codec.share, hold=hold, logged=spec.logging
        )

    def second(self, what: str, codec: Codec) -> Table:
        name = f"{self._spec.name}/{what}"
        return self._provider.table(name, codec.encode, codec.decode, share=codec.share, logged=self._spec.logging)

    def cell(self, what: str, default: int) -> Cell:
        return self._provider.cell(f"store {self._spec.name}/{what}", default, logged=self._spec.logging)

    def timeline(self, retention: int) -> Timeline:
        table, clock = self.second("times", Codec(bytes, bytes, share=True)), self.cell("clock", -1)
        return Timeline(table, clock, retention, lingers=self._hold)


def open_store(spec: StoreSpec, provider: TableProvider, settings: Settings) -> OpenStore | None:
    """The store of a spec; None for buffers and subscriptions, which operators lay out themselves on a table."""
    tables = StoreTables(spec, provider, settings)
    persistent = settings.persistent if spec.persistent is None else spec.persistent
    match spec.kind:
        case KeyValueKind(timestamped=timestamped):
            codec = values.timestamped(tables.value) if timestamped else values.plain(tables.value)
            return OpenStore(KeyValues(spec.name, tables.table(codec), tables.key, timestamped=timestamped))
        case LruKind(max_entries=max_entries):
            table, uses = tables.table(values.used(tables.value), cached=False), tables.cell("uses", 0)
            recent = RecentlyUsed(spec.name, table, uses, tables.key, max_entries=max_entries)
            return OpenStore(recent, after_rollback=recent.forget)
        case WindowKind() as kind:
            return _windows(spec, kind, tables, persistent=persistent, dropped=settings.dropped)
        case SessionKind() as kind:
            return _sessions(spec, kind, tables, persistent=persistent, dropped=settings.dropped)
        case VersionedKind(history=history):
            latest = tables.table(values.latest(tables.value), cached=False)
            past = tables.second("past", values.past(tables.value))
            # A version that ended exactly when the history begins is still part of it: one more than the history.
            times = tables.timeline(history + 1)
            versions = Versions(spec.name, latest, past, times, tables.key, history=history, dropped=settings.dropped)
            return OpenStore(versions, versions.expire, times.rolled_back)
        case BufferKind() | SubscriptionKind():
            return None


def _windows(
    spec: StoreSpec, kind: WindowKind, tables: StoreTables, *, persistent: bool, dropped: Callable[[str, int], None]
) -> OpenStore:
    codec = values.timestamped(tables.value) if kind.timestamped else values.plain(tables.value)
    table, times = tables.table(codec, cached=not kind.retain_duplicates), tables.timeline(kind.retention)
    parts = spec.name, kind, table, times, tables.key
    if kind.retain_duplicates:
        sequence = tables.cell("sequence", 0)
        windows = WindowedDuplicates(*parts, sequence=sequence, persistent=persistent, dropped=dropped)
    else:
        windows = WindowedValues(*parts, persistent=persistent, dropped=dropped)
    return OpenStore(windows, windows.expire, windows.rolled_back)


def _sessions(
    spec: StoreSpec, kind: SessionKind, tables: StoreTables, *, persistent: bool, dropped: Callable[[str, int], None]
) -> OpenStore:
    table, times = tables.table(values.plain(tables.value)), tables.timeline(kind.retention)
    sessions = Sessions(spec.name, kind, table, times, tables.key, persistent=persistent, dropped=dropped)
    return OpenStore(sessions, sessions.expire, times.rolled_back)
