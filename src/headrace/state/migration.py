"""Migration of stored values from one form to another, under the layouts of `values`.

key-value, window    | value |  or  | timestamp | value |        versioned   | timestamp | value |, in the past
session              | value |                                               | valid to | 1 | value |
LRU                  | number of the use | value |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.errors import SerializationError
from headrace.serde.protocol import Serde
from headrace.state.spec import KeyValueKind, Kind, LruKind, SessionKind, StoreSpec, VersionedKind, WindowKind
from headrace.state.values import NUMBER, NUMBER_AND_FLAG


class ValueMigration(NamedTuple):
    """How the values of a store get another form. `migrate` gets the store's table ("" or "past") and stored bytes."""

    before: str  # the name of the serde that wrote them
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
            f"a value of store {store} cannot be migrated from {old.name} to {new.name}: {error}. Nothing was changed; "
            "mend the function in migrate="
        ) from error


def _value_start(kind: Kind, table: str, raw: bytes) -> int | None:
    """Returns where the value begins in a row of a table; None if there is none."""
    match kind, table:
        case VersionedKind(), "past":
            return NUMBER_AND_FLAG.size if NUMBER_AND_FLAG.unpack_from(raw)[1] else None
        case _, "past" | "times":
            return None
        case KeyValueKind(timestamped=True) | WindowKind(timestamped=True) | VersionedKind() | LruKind(), _:
            return NUMBER.size
        case KeyValueKind() | WindowKind() | SessionKind(), _:
            return 0
        case _:
            return None
