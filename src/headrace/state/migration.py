"""Migration of stored values from one form to another: each value when it is read, or all values at once.

A stored value does not say which form it has. So while a store has old values, a second table lists the keys whose
values are new, that is, written since the change of form: `NAME/new`, and `NAME/past new` for the past of versioned
stores. `headrace state migrate` migrates the old values, and deletes the lists.

A migration changes the value and keeps the bytes before it (see `values`):

    key-value, window    | value |, or | timestamp | value | if timestamped
    session              | value |
    LRU                  | number of the use | value |
    versioned            | timestamp | value |, and in the past | valid to | 1 | value |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from headrace.errors import SerializationError
from headrace.serde.protocol import Serde
from headrace.state.engine import Engine
from headrace.state.spec import KeyValueKind, Kind, LruKind, SessionKind, StoreSpec, VersionedKind, WindowKind
from headrace.state.values import NUMBER, NUMBER_AND_FLAG


class ValueMigration(NamedTuple):
    """The migration of a store's values. `migrate` takes the store's table ("" or "past") and the stored bytes."""

    before: str  # the name of the serde that wrote the old values
    migrate: Callable[[str, bytes], bytes]


def find_migration(spec: StoreSpec) -> ValueMigration | None:
    """Returns the migration that a spec asks for; None if it asks for none. Its serdes must be known.

    >>> from headrace import Stores, serde
    >>> spec = Stores.key_value("totals", value=serde.STRING).migrated_from(serde.LONG, str)
    >>> migration = find_migration(spec)
    >>> migration.before, migration.migrate("", serde.LONG.encode(7))
    ('LONG', b'7')
    """
    if spec.migrate is None or spec.migrate_from is None or spec.value is None:
        return None
    old, new, function = spec.migrate_from, spec.value, spec.migrate
    name, kind = spec.name, spec.kind

    def migrate(table: str, raw: bytes) -> bytes:
        start = _value_start(kind, table, raw)
        return raw if start is None else raw[:start] + _migrate(name, raw[start:], old, new, function)

    return ValueMigration(old.name, migrate)


def _migrate(store: str, raw: bytes, old: Serde[Any], new: Serde[Any], function: Callable[[Any], Any]) -> bytes:
    try:
        return new.encode(function(old.decode(raw)))
    except Exception as error:
        raise SerializationError(
            f"a value of store {store} cannot be migrated from {old.name} to {new.name}: {error}. It is not changed; "
            "mend the function in migrate="
        ) from error


def _value_start(kind: Kind, table: str, raw: bytes) -> int | None:
    """Returns where the value begins in a row of a table; None if there is none."""
    match kind, table:
        case VersionedKind(), "past":
            return NUMBER_AND_FLAG.size if NUMBER_AND_FLAG.unpack_from(raw)[1] else None
        case _, "past" | "times" | "new" | "past new":
            return None
        case KeyValueKind(timestamped=True) | WindowKind(timestamped=True) | VersionedKind() | LruKind(), _:
            return NUMBER.size
        case KeyValueKind() | WindowKind() | SessionKind(), _:
            return 0
        case _:
            return None


# -------------------------------------------------------------------------------------------------------- when read
IS_NEW = b"\x01"  # the value of a key in a list of new values


def list_of_new(table: str, store: str) -> str:
    """The name of the table that lists which values of a table are new.

    >>> list_of_new("visits", "visits"), list_of_new("visits/past", "visits")
    ('visits/new', 'visits/past new')
    """
    return f"{table}/new" if table == store else f"{table} new"


class MigratingReader:
    """Reads a table that has old values, and migrates the values that are not listed as new.

    `prefix` is the prefix of the table, `listed` the prefix of the list.
    """

    def __init__(self, engine: Engine, prefix: bytes, listed: bytes, migrate: Callable[[bytes], bytes]) -> None:
        self._engine, self._prefix, self._listed, self._migrate = engine, prefix, listed, migrate
        self.prefix = listed  # `TaskState` sorts the changes of the list by it

    def get(self, key: bytes) -> bytes | None:
        raw = self._engine.get(key)
        return raw if raw is None or self._is_new(key) else self._migrate(raw)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for key, raw in self._engine.scan(low, high, reverse=reverse):
            yield key, raw if self._is_new(key) else self._migrate(raw)

    def _is_new(self, key: bytes) -> bool:
        return self._engine.get(self._listed + key[len(self._prefix) :]) is not None

    # ------------------------------------------------------------------------------------------ changes of the list
    def list_changes(self, changes: Sequence[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
        """Returns the changes of the list for changes of the table: a written key is listed, a deleted key is not."""
        found: list[tuple[bytes, bytes | None]] = []
        for key, value in changes:
            if (value is not None) != self._is_new(key):
                found.append((self._listed + key[len(self._prefix) :], None if value is None else IS_NEW))
        return found

    def settle(self, _changes: object) -> None:
        """Nothing to do: the list is read from the engine."""
