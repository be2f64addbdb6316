"""All state of one task: stores, tables and cells; a commit turns the changes of a batch into one version.

`open_store` makes the store of a spec from tables and cells of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Self, TypeVar

from headrace.errors import InvalidStateStoreError, SerializationError, StreamsError, TopologyError
from headrace.serde.protocol import Serde
from headrace.state import delta as deltas
from headrace.state import values
from headrace.state.delta import Delta
from headrace.state.engine import Engine, Version
from headrace.state.expiry import Timeline
from headrace.state.key_value import KeyValues, RecentlyUsed
from headrace.state.migration import MigratingReader, find_migration, list_of_new
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
from headrace.state.values import Cell, Cells, Codec, Content
from headrace.state.versioned import Versions
from headrace.state.window import WindowedDuplicates, WindowedValues

T = TypeVar("T")
Observe = Callable[[str, Literal["read", "write"], bytes, Any], None]  # (table, what, key, value)


class Settings(NamedTuple):
    """Defaults for what a spec leaves open, and the callbacks of the stores."""

    key: Serde
    value: Serde
    persistent: bool
    caching: bool
    dropped: Callable[[str, int], None]
    observe: Observe | None = None


def nothing() -> None:
    pass


class OpenStore(NamedTuple):
    """A store, and the functions that `TaskState` calls before a commit and after a rollback."""

    store: Any
    before_commit: Callable[[], None] = nothing
    after_rollback: Callable[[], None] = nothing


PREFIX = 4  # bytes of the table's prefix, with which every key begins
LOGGED, UNLOGGED = "(cells)", "(unlogged cells)"  # no store can have such a name
_SECOND_TABLES = ("times", "past", "new", "past new")  # from `StoreTables.second` and `list_of_new`


def table_prefix(name: str) -> bytes:
    """The bytes with which every key of a table begins."""
    return blake2b(name.encode(), digest_size=PREFIX).digest()


def tables_of_store(store: str) -> list[str]:
    """The names of the tables that a store may have, whatever its kind.

    >>> tables_of_store("visits")
    ['visits', 'visits/times', 'visits/past', 'visits/new', 'visits/past new']
    """
    return [store, *(f"{store}/{what}" for what in _SECOND_TABLES)]


class TaskState:
    """The state of a task, opened over an engine and used batch after batch."""

    def __init__(self, specs: Mapping[str, StoreSpec], engine: Engine, settings: Settings) -> None:
        self.specs, self.engine = specs, engine
        self._settings = settings
        self._at = engine.version
        self._owners: dict[bytes, str] = {}  # prefix -> name of the table
        self._tables: dict[str, Table] = {}
        self._unlogged: set[str] = set()
        self._migrating: dict[str, tuple[str, MigratingReader]] = {}  # table -> list of its new values
        self._cells = Cells(self._prefix(LOGGED), engine.get)
        self._unlogged_cells = Cells(self._prefix(UNLOGGED), engine.get)
        self._unlogged.add(UNLOGGED)
        opened = {name: open_store(spec, self, settings) for name, spec in specs.items()}
        self.stores: Mapping[str, Any] = {name: part.store for name, part in opened.items() if part is not None}
        self._parts = [part for part in opened.values() if part is not None]

    @classmethod
    def open(
        cls,
        specs: Mapping[str, StoreSpec],
        engine: Engine,
        *,
        key: Serde,
        value: Serde,
        persistent: bool = True,
        caching: bool = False,
        dropped: Callable[[str, int], None],
        observe: Observe | None = None,
    ) -> Self:
        """`key`, `value` and `persistent` are defaults for the specs; `dropped` is called with (reason, count).

        `observe` is called with (table, "read" or "write", key, value) at every access.
        """
        return cls(specs, engine, Settings(key, value, persistent, caching, dropped, observe))

    # ------------------------------------------------------------------------------------------- its parts
    def store(self, name: str) -> Any:
        found = self.stores.get(name)
        if found is None:
            names = ", ".join(sorted(self.stores)) or "none"
            raise InvalidStateStoreError(f"there is no store {name!r} in this task (it has: {names})")
        return found

    def table(
        self,
        name: str,
        encode: Callable[[Any], bytes] = bytes,
        decode: Callable[[bytes], Any] = bytes,
        *,
        share: bool = True,
        hold: bool = False,
        encode_all: Callable[[Sequence[Any]], list[bytes]] | None = None,
        logged: bool | None = None,
        of: StoreSpec | None = None,
    ) -> Table:
        """Returns an ordered table, made at the first call; by default it holds bytes.

        Without `logged`, the spec of this name decides whether the table is logged. `of` is the spec of the store whose
        values the table holds: old values are migrated when they are read.
        """
        table = self._tables.get(name)
        if table is None:
            spec = self.specs.get(name)
            if not (spec is None or spec.logging if logged is None else logged):
                self._unlogged.add(name)
            prefix = self._prefix(name)
            reader = self.engine if of is None or not of.has_old_values else self._migrating_reader(name, prefix, of)
            table = Table(prefix, reader, encode, decode, share=share, hold=hold, encode_all=encode_all)
            self._tables[name] = table
            if self._settings.observe is not None:
                table.observe(partial(self._settings.observe, name))
        return table

    def _migrating_reader(self, table: str, prefix: bytes, spec: StoreSpec) -> MigratingReader:
        found = find_migration(spec)
        if found is None:
            raise InvalidStateStoreError(
                f"store {spec.name} has values in an earlier form, and nothing says how they become new: give the "
                "topology with migrate= and migrate_from=, or run `headrace state migrate` with it first"
            )
        part, listed = table.removeprefix(spec.name).removeprefix("/"), list_of_new(table, spec.name)
        reader = MigratingReader(self.engine, prefix, self._prefix(listed), partial(found.migrate, part))
        self._migrating[table] = (listed, reader)
        return reader

    def attach(self, name: str, write: Callable[[], None], after_rollback: Callable[[], None]) -> None:
        """Registers a buffer that keeps changes of its own: `write` puts them into its tables before a commit."""
        self._parts.append(OpenStore(None, lambda: _encoded(name, write), after_rollback))

    def cell(self, name: str, default: Content, *, logged: bool = True) -> Cell:
        """A cell; `commit` saves its value if it changed."""
        return (self._cells if logged else self._unlogged_cells).cell(name, default)

    def _prefix(self, name: str) -> bytes:
        prefix = table_prefix(name)
        owner = self._owners.setdefault(prefix, name)
        if owner != name:
            raise TopologyError(
                f"the tables {owner!r} and {name!r} would share the prefix {prefix.hex()}: rename one store"
            )
        return prefix

    # ------------------------------------------------------------------------------------------ its batches
    @property
    def version(self) -> Version | None:
        """The version of this state; the engine may be ahead if another process runs the task too."""
        return self._at

    @property
    def has_changes(self) -> bool:
        """True if a table has changes that are not committed."""
        return any(table.touched for table in self._tables.values())

    def commit(self, version: Version) -> Delta:
        """Commits the changes of this batch as a version, and returns the delta of everything that is logged."""
        if self.engine.version != self._at:
            raise InvalidStateStoreError(
                f"the engine is at {self.engine.version}, this state at {self._at}: call refresh()"
            )
        for part in self._parts:
            part.before_commit()
        holders = self._holders()
        changes = [(name, holder, _encoded(name, holder.changes)) for name, holder in holders]
        if self._migrating:
            changes = self._with_lists(changes)
        self.engine.commit([change for _, _, some in changes for change in some], version)
        self._at = version
        for _, holder, some in changes:
            holder.settle(some)
        logged = (change for name, _, some in changes if name not in self._unlogged for change in some)
        return Delta(version, tuple(logged))

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """The changes that are not committed, as the engine would get them."""
        return [change for _, holder in self._holders() for change in holder.changes()]

    def _with_lists(
        self, changes: list[tuple[str, Table | Cells, list[tuple[bytes, bytes | None]]]]
    ) -> list[tuple[str, Any, list[tuple[bytes, bytes | None]]]]:
        """Adds the changes of the lists that say which values are new."""
        own = {name: some for name, _, some in changes}
        lists = [
            (listed, reader, reader.list_changes(own[table])) for table, (listed, reader) in self._migrating.items()
        ]
        return sorted([*changes, *lists], key=lambda change: change[1].prefix)

    def everything(self) -> Delta:
        """All logged state as of the last commit, as a delta from nothing."""
        if self._at is None:
            raise InvalidStateStoreError("nothing was ever committed here")
        unlogged = tuple(holder.prefix for name, holder in self._holders() if name in self._unlogged)
        entries = self.engine.scan(b"", None)
        return Delta(self._at, tuple((key, value) for key, value in entries if not key.startswith(unlogged)))

    def rollback(self) -> None:
        """Discards the changes of this batch."""
        for _, holder in self._holders():
            holder.rollback()
        for part in self._parts:
            part.after_rollback()

    def undo(self) -> None:
        """Goes back to the version before the last commit, and discards the changes of this batch."""
        self.engine.undo()
        self.refresh()

    def apply(self, delta: Delta) -> None:
        """Applies the delta of another attempt, and discards the changes of this batch."""
        deltas.apply(delta, self.engine)
        self.refresh()

    def refresh(self) -> None:
        """Reads everything again, because the engine was changed underneath."""
        for _, holder in self._holders():
            holder.forget()
        for part in self._parts:
            part.after_rollback()
        self._at = self.engine.version

    def close(self) -> None:
        self.engine.close()

    def _holders(self) -> list[tuple[str, Table | Cells]]:
        """All tables and cells by prefix, which is the order of the engine."""
        cells = [(LOGGED, self._cells), (UNLOGGED, self._unlogged_cells)]
        return sorted([*self._tables.items(), *cells], key=lambda item: item[1].prefix)


def _encoded(name: str, encode: Callable[[], T]) -> T:
    try:
        return encode()
    except StreamsError:
        raise
    except Exception as error:
        raise SerializationError(f"a value that was put into {name!r} cannot be encoded: {error}") from error


# ------------------------------------------------------------------------------------------------ opening of stores
class StoreTables:
    """The tables and cells of one store."""

    def __init__(self, spec: StoreSpec, state: TaskState, settings: Settings) -> None:
        self._spec, self._state, self._hold = spec, state, settings.caching and spec.caching
        self.key = spec.key or settings.key
        self.value = spec.value or settings.value

    def table(self, codec: Codec, *, cached: bool = True) -> Table:
        spec, hold = self._spec, self._hold and cached
        return self._state.table(
            spec.name, codec.encode, codec.decode, share=codec.share, hold=hold, encode_all=codec.encode_all,
            logged=spec.logging, of=spec,
        )  # fmt: skip

    def second(self, what: str, codec: Codec) -> Table:
        spec, name = self._spec, f"{self._spec.name}/{what}"
        of = spec if what == "past" else None  # the other tables have no values of the user
        return self._state.table(name, codec.encode, codec.decode, share=codec.share, logged=spec.logging, of=of)

    def cell(self, what: str, default: int) -> Cell:
        return self._state.cell(f"store {self._spec.name}/{what}", default, logged=self._spec.logging)

    def timeline(self, retention: int) -> Timeline:
        table, clock = self.second("times", Codec(bytes, bytes, share=True)), self.cell("clock", -1)
        return Timeline(table, clock, retention, lingers=self._hold)


def open_store(spec: StoreSpec, state: TaskState, settings: Settings) -> OpenStore | None:
    """The store of a spec; None for buffers and subscriptions, which operators lay out themselves on a table."""
    tables = StoreTables(spec, state, settings)
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
            # A version that ended exactly when the history begins is still part of it, hence + 1.
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
