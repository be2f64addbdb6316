"""The options of the DSL that are objects: `Materialized`, `Suppressed`, `Buffer`, `EmitStrategy`.

`check_serde` explains what to write where an option needs a serde and got something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, Literal, Self
from uuid import UUID

from headrace import serde as serdes
from headrace.dsl.types import K, V
from headrace.hints import RenamedMembers, RenamedNames, explain_names
from headrace.model.windows import milliseconds
from headrace.serde.protocol import Serde
from headrace.topology.naming import valid_name
from headrace.topology.nodes import SerdeLike


@explain_names({"on_window_update": "EmitStrategy.ON_WINDOW_UPDATE", "on_window_close": "EmitStrategy.ON_WINDOW_CLOSE"})
class EmitStrategy(Enum, metaclass=RenamedMembers):
    """When a windowed table emits the result of a window.

    >>> EmitStrategy.ON_WINDOW_CLOSE.value
    'close'
    """

    ON_WINDOW_UPDATE = "update"  # with every change
    ON_WINDOW_CLOSE = "close"  # once, when the window accepts no more records


@explain_names(
    {
        "as_": "Materialized(name)",
        "with_": "Materialized(key=..., value=...)",
        "with_key_serde": "Materialized(name, key=...)",
        "with_value_serde": "Materialized(name, value=...)",
        "with_retention": "Materialized(name, retention=...)",
        "with_store_type": 'Materialized(name, kind="persistent" or "memory")',
        "with_caching_disabled": "Materialized(name, caching=False)",
        "with_caching_enabled": "Materialized(name), which caches",
        "with_logging_disabled": "Materialized(name, logging=False)",
        "with_logging_enabled": "Materialized(name), which is logged",
    },
)
@dataclass(frozen=True)  # without slots: Python 3.11 cannot call a generic class that is frozen and has slots, C[int]()
class Materialized(Generic[K, V], metaclass=RenamedNames):
    """The store of a table: its name, serdes and settings. A store without a name cannot be queried.

    `retention` is for windows: how long the store keeps them. `history` makes the table a versioned one: how long the
    store keeps old versions. Both are milliseconds or a `timedelta`. `migrate` is a function from an old value to a new
    one, and `migrate_from` the serde of the old ones: such values in the checkpoint are migrated when they are read.

    >>> from headrace import serde
    >>> Materialized("counts", value=serde.LONG, retention=timedelta(minutes=1)).retention
    60000
    """

    name: str | None = None
    key: Serde[K] | None = None
    value: Serde[V] | None = None
    kind: Literal["persistent", "memory"] | None = None  # None: the configuration decides
    logging: bool = True
    caching: bool = True
    retention: int | timedelta | None = None
    history: int | timedelta | None = None
    migrate: Callable[[Any], V] | None = None
    migrate_from: Serde[Any] | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            valid_name(self.name)
        check_serde("key", self.key)
        check_serde("value", self.value)
        check_serde("migrate_from", self.migrate_from)
        if (self.migrate is None) != (self.migrate_from is None):
            raise ValueError("migrate= is a function from an old value, and migrate_from= its serde: give both or none")
        if self.kind not in (None, "persistent", "memory"):
            raise ValueError(
                f"the kind of a store is 'persistent', 'memory' or None for the configured one, not {self.kind!r}"
            )
        if self.retention is not None:
            object.__setattr__(self, "retention", milliseconds(self.retention, "the retention"))
        if self.history is not None:
            object.__setattr__(self, "history", milliseconds(self.history, "the history"))
            if self.name is None:
                raise ValueError("a versioned table needs a named store: Materialized(name, history=…)")
            if self.retention is not None:
                raise ValueError(
                    f"{self.name!r} has a history and a retention: a history is for tables, a retention for windows"
                )


@explain_names()
@dataclass(frozen=True, slots=True)
class Buffer(metaclass=RenamedNames):
    """How much `suppress` may hold back, and what happens when the buffer is full.

    >>> Buffer.max_records(10).shut_down_when_full()
    Buffer(records=10, bytes=None, emit_early=False, logging=True)
    """

    records: int | None
    bytes: int | None
    emit_early: bool
    logging: bool = True

    @classmethod
    def unbounded(cls) -> Self:
        """A buffer without limits.

        >>> Buffer.unbounded()
        Buffer(records=None, bytes=None, emit_early=False, logging=True)
        """
        return cls(None, None, emit_early=False)

    @classmethod
    def max_records(cls, n: int) -> Self:
        """At most `n` keys. A full buffer emits the oldest update, unless `shut_down_when_full()` is called."""
        return cls(_at_least_zero(n, "max_records"), None, emit_early=True)

    @classmethod
    def max_bytes(cls, n: int) -> Self:
        """At most `n` bytes. A full buffer emits the oldest update, unless `shut_down_when_full()` is called."""
        return cls(None, _at_least_zero(n, "max_bytes"), emit_early=True)

    def with_max_records(self, n: int) -> Self:
        """The same buffer with at most `n` keys."""
        return replace(self, records=_at_least_zero(n, "max_records"))

    def with_max_bytes(self, n: int) -> Self:
        """The same buffer with at most `n` bytes."""
        return replace(self, bytes=_at_least_zero(n, "max_bytes"))

    def with_no_bound(self) -> Self:
        """The same buffer without limits."""
        return replace(self, records=None, bytes=None, emit_early=False)

    def emit_early_when_full(self) -> Self:
        """The same buffer; when it is full it emits the oldest update."""
        return replace(self, emit_early=True)

    def shut_down_when_full(self) -> Self:
        """The same buffer; when it is full the application stops with an error."""
        return replace(self, emit_early=False)

    def without_logging(self) -> Self:
        """The same buffer outside the checkpoint: it is empty after its local copy is lost."""
        return replace(self, logging=False)


@explain_names({"buffer_config": "Buffer", "BufferConfig": "Buffer"})
@dataclass(frozen=True, slots=True)
class Suppressed(metaclass=RenamedNames):
    """Which updates of a table `suppress` holds back, and in which buffer.

    >>> Suppressed.until_time_limit(timedelta(seconds=5), Buffer.unbounded()).wait
    5000
    """

    wait: int | None  # None: until the window closes
    buffer: Buffer

    @classmethod
    def until_window_closes(cls, buffer: Buffer) -> Self:
        """One result for each window, when it is final."""
        if buffer.emit_early:
            raise ValueError("a window's result cannot come out early: use Buffer.unbounded() or shut_down_when_full()")
        return cls(None, buffer)

    @classmethod
    def until_time_limit(cls, wait: int | timedelta, buffer: Buffer) -> Self:
        """At most one result for each key and `wait`."""
        return cls(milliseconds(wait, "the time limit"), buffer)


def _at_least_zero(n: int, what: str) -> int:
    if n < 0:
        raise ValueError(f"{what} cannot be negative, as {n} is")
    return n


# ----------------------------------------------------------------------------------------------------------- serdes
_SERDE_OF_TYPE = {
    str: "STRING",
    bytes: "BYTES",
    int: "LONG",
    float: "DOUBLE",
    bool: "BOOLEAN",
    UUID: "UUID",
    dict: "JSON",
    list: "JSON",
    type(None): "VOID",
}
_SERDE_OF_WORD = {kind.__name__: name for kind, name in _SERDE_OF_TYPE.items()}


def check_serde(option: str, given: object) -> None:
    """Raises a TypeError that says which serde to write, if an option is neither a serde nor None.

    >>> check_serde("value", str)
    Traceback (most recent call last):
    TypeError: value= is a serde, not <class 'str'>: use serde.STRING
    """
    if given is None or isinstance(given, SerdeLike):
        return
    if isinstance(given, str):
        word = given.removesuffix("Serde").rpartition(".")[2].rpartition("$")[2]
        name = _SERDE_OF_WORD.get(word.lower(), word.upper())
        hint = f"serde.{name}" if isinstance(getattr(serdes, name, None), Serde) else None
    elif isinstance(given, type):
        hint = f"serde.{_SERDE_OF_TYPE[given]}" if given in _SERDE_OF_TYPE else f"serde.json_of({given.__name__})"
    else:
        hint = None
    hint = hint or "one of headrace.serde, such as serde.STRING or serde.json_of(type)"
    raise TypeError(f"{option}= is a serde, not {given!r}: use {hint}")
