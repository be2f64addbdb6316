"""Every kind of node, as data; what a node does is in `runtime/operators`.

A stream node passes plain values on. A table node passes changes on: `(new, old, is_latest)`, where the old value is
there only if `send_old` (somebody below subtracts it). A table node with a `store` keeps its values there; one without
can still be looked up, by way of its parents' values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.model.windows import JoinWindows, SessionWindows, SlidingWindows, Windows
from headrace.topology.callables import (
    Aggregator,
    Initializer,
    KeyedJoiner,
    KeyValueFunction,
    Merger,
    Partitioner,
    Reducer,
    Supplier,
    TimestampExtractor,
    TopicExtractor,
)
from headrace.topology.serdes import SerdeLike
from headrace.topology.table_nodes import (
    ForeignUpdate,
    ResponseJoin,
    Subscribe,
    SubscriptionJoin,
    SubscriptionReceive,
    Suppress,
    TableAggregate,
    TableFilter,
    TableJoin,
    TableJoinMerge,
    TableMapValues,
    TablePassThrough,
    TableReduce,
    TableRekey,
    TableSource,
    TableToStream,
    TableTransformValues,
)


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
    """Records leave for a topic, or for the one that a function names."""

    name: str
    topic: str | TopicExtractor
    key: SerdeLike | None = None
    value: SerdeLike | None = None
    partitioner: Partitioner | None = None


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
    | Branch | Process | StreamAggregate | StreamReduce | WindowAggregate | SlidingAggregate | SessionAggregate
    | JoinWindow | StreamJoin | SelfJoin | StreamTableJoin | GlobalJoin | TableSource | TableFilter | TableMapValues
    | TableTransformValues | TablePassThrough | TableToStream | Suppress | TableRekey | TableAggregate | TableReduce
    | TableJoin | TableJoinMerge | Subscribe | SubscriptionReceive | SubscriptionJoin | ForeignUpdate | ResponseJoin
)  # fmt: skip
