"""Every kind of node of a topology, as frozen data. `runtime/operators` has what a node does.

The module begins with the types of users' functions, in the shape that the DSL gives them, and with serdes that are
known only in part: the defaults of the configuration are not known while a topology is built, so a node holds a
description of a serde that wraps another one, and the runtime makes the serde. None in a description is the default.

A stream node forwards values. A table node forwards changes, `(new, old, is_latest)`; the old value is there only if
`send_old`, which a node below needs to subtract it. A table node with a `store` keeps its values there; the value of a
node without one is computed from its parents' values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.model import sink
from headrace.model.windows import JoinWindows, SessionWindows, SlidingWindows, Windows
from headrace.serde.protocol import Serde

KeyValueFunction = Callable[[Any, Any], Any]
OF_VALUE = "of_value"  # the attribute of a `KeyValueFunction` that has the function of values alone which it calls
Initializer = Callable[[], Any]
Aggregator = Callable[[Any, Any, Any], Any]  # (key, value, aggregate) -> aggregate
Reducer = Callable[[Any, Any], Any]  # (aggregate, value) -> aggregate
Merger = Callable[[Any, Any, Any], Any]  # (key, left, right) -> aggregate
KeyedJoiner = Callable[[Any, Any, Any], Any]  # (key, left, right) -> value
Joiner = Callable[[Any, Any], Any]  # (left, right) -> value
TimestampExtractor = Callable[[Any, int], int]  # (record, partition time) -> milliseconds
TopicExtractor = Callable[[Any, Any, Any], str]  # (key, value, context) -> topic
# (topic, key, value, partitions) -> partition, or None for the default
Partitioner = Callable[[str, Any, Any, int], Any]
Supplier = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class WindowedOf:
    """Keys in time windows of `size` milliseconds, or of a definition whose windows differ in size."""

    inner: SerdeLike | None
    size: int | Windows


@dataclass(frozen=True, slots=True)
class SessionWindowedOf:
    """Keys in session windows."""

    inner: SerdeLike | None


@dataclass(frozen=True, slots=True)
class ChangeOf:
    """New and old value in one: what travels to the aggregate of a grouped table."""

    inner: SerdeLike | None


@dataclass(frozen=True, slots=True)
class SubscriptionOf:
    """What the left side of a foreign-key join tells the right side; it holds the left table's key."""

    primary_key: SerdeLike | None


@dataclass(frozen=True, slots=True)
class ResponseOf:
    """What the right side of a foreign-key join answers; it holds the right table's value."""

    value: SerdeLike | None


SerdeLike = Serde | WindowedOf | SessionWindowedOf | ChangeOf | SubscriptionOf | ResponseOf


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


# ------------------------------------------------------------------------------------------------------ the edges
@dataclass(frozen=True, slots=True)
class Source:
    """Records of topics come in here; the topics are named, or match a pattern."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    key: SerdeLike | None = None
    value: SerdeLike | None = None
    timestamp: TimestampExtractor | None = None
    offset_reset: str | int | None = None  # earliest, latest, none, or this many milliseconds back


@dataclass(frozen=True, slots=True)
class Sink:
    """Records leave for a topic, for the one that a function names, or for another system than the log."""

    name: str
    topic: str | TopicExtractor
    key: SerdeLike | None = None
    value: SerdeLike | None = None
    partitioner: Partitioner | None = None
    target: sink.Sink | None = None  # the other system; `topic` then is `sink_topic` of the sink's name
    on_rejected: str | None = None  # fail, continue or dead_letter; None: as `production.exception.handler` says


# ------------------------------------------------------------------------------------------------------- streams
@dataclass(frozen=True, slots=True)
class PassThrough:
    """Everything passes: where streams merge, and where a branch begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Filter:
    name: str
    keep: KeyValueFunction
    negate: bool = False


@dataclass(frozen=True, slots=True)
class Map:
    name: str
    change: KeyValueFunction  # -> (key, value)


@dataclass(frozen=True, slots=True)
class MapValues:
    name: str
    change: KeyValueFunction


@dataclass(frozen=True, slots=True)
class MapValuesBatch:
    """A function of many values, which returns as many."""

    name: str
    change: Callable[[Any], Any]
    max_records: int
    arrow: bool  # the function takes an Arrow array, not a list


@dataclass(frozen=True, slots=True)
class MapValuesAsync:
    """A lookup of each value elsewhere, many at a time. Without `on`, `lookup` takes the key and the value."""

    name: str
    lookup: Callable[..., Any]
    on: KeyValueFunction | None  # chooses the one argument of `lookup`
    joiner: KeyedJoiner | None  # (key, value, what was found) -> value
    capacity: int
    timeout_ms: int | None
    retries: int
    cache_entries: int
    cache_ms: int | None


@dataclass(frozen=True, slots=True)
class FlatMap:
    name: str
    change: KeyValueFunction  # -> iterable of (key, value)


@dataclass(frozen=True, slots=True)
class FlatMapValues:
    name: str
    change: KeyValueFunction  # -> iterable of values


@dataclass(frozen=True, slots=True)
class SelectKey:
    name: str
    select: KeyValueFunction


@dataclass(frozen=True, slots=True)
class Peek:
    """Look at every record and pass it on."""

    name: str
    look: KeyValueFunction


@dataclass(frozen=True, slots=True)
class Foreach:
    """Look at every record; nothing follows."""

    name: str
    look: KeyValueFunction


@dataclass(frozen=True, slots=True)
class Branch:
    """The first predicate that holds says which child gets the record; the last child may be without predicate."""

    name: str
    predicates: tuple[KeyValueFunction, ...]
    branches: tuple[str, ...]  # names of children; one more than predicates if there is a default


@dataclass(frozen=True, slots=True)
class Process:
    """Hosts a user's processor; `fixed_key`: its records come without `with_key`."""

    name: str
    supplier: Supplier
    fixed_key: bool = False


# ------------------------------------------------------------------------------------------ aggregates of streams
@dataclass(frozen=True, slots=True)
class StreamAggregate:
    name: str
    store: str
    initialize: Initializer
    add: Aggregator
    counts: bool = False  # `add` adds one, whatever the value
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class StreamReduce:
    name: str
    store: str
    add: Reducer
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """Tumbling, hopping, unlimited and user-defined windows."""

    name: str
    store: str
    windows: Windows
    initialize: Initializer
    add: Aggregator
    on_close: bool = False  # emit a window once, when it closes
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class SlidingAggregate:
    name: str
    store: str
    windows: SlidingWindows
    initialize: Initializer
    add: Aggregator
    on_close: bool = False
    send_old: bool = False


@dataclass(frozen=True, slots=True)
class SessionAggregate:
    name: str
    store: str
    windows: SessionWindows
    initialize: Initializer
    add: Aggregator
    merge: Merger
    on_close: bool = False
    send_old: bool = False


# ------------------------------------------------------------------------------------------------ joins of streams
@dataclass(frozen=True, slots=True)
class JoinWindow:
    """Keeps the records of one side of a join in its window store, and passes them on."""

    name: str
    store: str


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """One side of a stream-stream join; its twin is the other side."""

    name: str
    left_side: bool
    other_store: str  # the window store with the other side's records
    outer_store: str | None  # what waits for a partner, shared by both sides; None in an inner join
    windows: JoinWindows
    joiner: KeyedJoiner  # (key, left, right), whichever side this is
    outer: bool  # a record of this side comes out alone if it finds no partner
    join: str  # one name for both sides: they share their stream time


@dataclass(frozen=True, slots=True)
class SelfJoin:
    """A stream joined with itself, optimized to one store."""

    name: str
    store: str
    windows: JoinWindows
    joiner: KeyedJoiner


@dataclass(frozen=True, slots=True)
class StreamTableJoin:
    """Every record with the table's value of its key; with a grace, as of the record's time, from the `buffer`."""

    name: str
    table: str  # the table's node
    joiner: KeyedJoiner
    left: bool
    grace: int | None = None
    buffer: str | None = None


@dataclass(frozen=True, slots=True)
class GlobalJoin:
    """Every record with the value of a global table under the key that `on` selects."""

    name: str
    store: str
    on: KeyValueFunction
    joiner: KeyedJoiner  # the key it is given is the stream record's
    left: bool


Node = (
    Source | Sink | PassThrough | Filter | Map | MapValues | FlatMap | FlatMapValues | SelectKey | Peek | Foreach
    | MapValuesBatch | MapValuesAsync
    | Branch | Process | StreamAggregate | StreamReduce | WindowAggregate | SlidingAggregate | SessionAggregate
    | JoinWindow | StreamJoin | SelfJoin | StreamTableJoin | GlobalJoin | TableSource | TableFilter | TableMapValues
    | TableTransformValues | TablePassThrough | TableToStream | Suppress | TableRekey | TableAggregate | TableReduce
    | TableJoin | TableJoinMerge | Subscribe | SubscriptionReceive | SubscriptionJoin | ForeignUpdate | ResponseJoin
)  # fmt: skip
