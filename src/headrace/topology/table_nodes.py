"""The nodes of tables, and of joins of tables; see `nodes.py`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.topology.callables import Aggregator, Initializer, Joiner, KeyValueFunction, Reducer, Supplier
from headrace.topology.serdes import SerdeLike


# -------------------------------------------------------------------------------------------------------- tables
@dataclass(frozen=True, slots=True)
class TableSource:
    """A stream of updates becomes a table."""

    name: str
    store: str | None
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class TableFilter:
    name: str
    keep: KeyValueFunction
    negate: bool = False
    store: str | None = None
    send_old: bool = False
    versioned: bool = False  # the table above is versioned: Kafka's "versioned semantics"


@dataclass(frozen=True, slots=True)
class TableMapValues:
    name: str
    change: KeyValueFunction
    store: str | None = None
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class TableTransformValues:
    name: str
    supplier: Supplier
    store: str | None = None
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class TablePassThrough:
    """Where the aggregates of a cogrouped stream meet; they share one store."""

    name: str
    store: str
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class TableToStream:
    name: str


@dataclass(frozen=True, slots=True)
class Suppress:
    """Holds updates back in a buffer until their time has come."""

    name: str
    buffer: str
    final: bool  # until the window closes; else until `wait` has passed
    wait: int  # the time limit, or the grace of the windows above
    max_records: int | None
    max_bytes: int | None
    emit_early: bool  # when the buffer is full: emit the oldest, else stop the application
    safe_to_drop_tombstones: bool = False
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class TableRekey:
    """The first half of a table's `group_by`: old and new value under their group keys."""

    name: str
    select: KeyValueFunction  # -> (key, value)
    versioned: bool = False


@dataclass(frozen=True, slots=True)
class TableAggregate:
    name: str
    store: str
    initialize: Initializer
    add: Aggregator
    subtract: Aggregator
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class TableReduce:
    name: str
    store: str
    add: Reducer
    subtract: Reducer
    send_old: bool = False


# ------------------------------------------------------------------------------------------------ joins of tables
@dataclass(frozen=True, slots=True)
class TableJoin:
    """One side of a table-table join: its parent's changes meet the current values of `other`."""

    name: str
    this: str  # the table node on this side
    other: str  # the table node on the other side
    left_side: bool
    joiner: Joiner  # (left, right), whichever side this is
    left_outer: bool  # a left value comes out alone: left and outer joins
    right_outer: bool  # a right value comes out alone: outer joins
    send_old: bool = False
    versioned: bool = False


@dataclass(frozen=True, slots=True)
class TableJoinMerge:
    """Where the two sides of a table-table join meet; its parents are the `TableJoin`s, left one first."""

    name: str
    store: str | None
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Foreign-key join, left side: tells the right side which foreign key a row has, and no longer has."""

    name: str
    on: KeyValueFunction
    left: bool
    key: SerdeLike | None  # of the left table, to address the answer
    foreign_key: SerdeLike | None
    value: SerdeLike | None  # of the left table, for the hash that tells stale answers
    versioned: bool = False


@dataclass(frozen=True, slots=True)
class SubscriptionReceive:
    """Foreign-key join, right side: keeps the subscription and passes it on with the one before."""

    name: str
    store: str


@dataclass(frozen=True, slots=True)
class SubscriptionJoin:
    """Foreign-key join, right side: answers a new subscription with the current right value."""

    name: str
    table: str  # the right table's node


@dataclass(frozen=True, slots=True)
class ForeignUpdate:
    """Foreign-key join, right side: sends a changed right value to all its subscribers."""

    name: str
    store: str
    versioned: bool = False


@dataclass(frozen=True, slots=True)
class ResponseJoin:
    """Foreign-key join, left side again: joins an answer with the left value that asked for it."""

    name: str
    table: str  # the left table's node
    joiner: Joiner
    left: bool
    value: SerdeLike | None  # of the left table, for the hash
