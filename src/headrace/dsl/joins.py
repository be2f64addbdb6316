"""Joins, as nodes, stores and repartitions: stream with stream, table or global table; table with table.

A foreign-key join sends messages. The left side subscribes, through a topic, to the right row that its foreign key
names. The right side keeps the subscriptions and answers, through another topic, now and whenever that row changes.

    left table ─ Subscribe ─▶ topic ─▶ SubscriptionReceive ─ SubscriptionJoin ─┐
                                            right table ──── ForeignUpdate ────┴─▶ topic ─▶ ResponseJoin ─ result
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from headrace.dsl.functions import Function, with_key
from headrace.dsl.logical.graph import JoinStreams, JoinTables, Operate, Place, ReadStream, Step, Write, repartition
from headrace.dsl.logical.table_properties import send_old, stores_to_look_up
from headrace.dsl.materialization import StoreOption, materialized, named, store_serde, table_store, with_serdes
from headrace.dsl.options import Materialized, check_serde
from headrace.model.windows import JoinWindows, milliseconds
from headrace.state.spec import BufferKind, StoreSpec, SubscriptionKind, VersionedKind, WindowKind
from headrace.topology.graph import InternalTopic
from headrace.topology.naming import valid_name
from headrace.topology.nodes import (
    ForeignUpdate,
    GlobalJoin,
    JoinWindow,
    Node,
    Partitioner,
    PassThrough,
    ResponseJoin,
    ResponseOf,
    SelfJoin,
    SerdeLike,
    Sink,
    Source,
    StreamJoin,
    StreamTableJoin,
    Subscribe,
    SubscriptionJoin,
    SubscriptionOf,
    SubscriptionReceive,
    TableJoin,
    TableJoinMerge,
    TableSource,
)

JoinKind = Literal["inner", "left", "outer"]


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """The options of a stream's join. Each kind of join accepts some of them."""

    windows: JoinWindows | None = None
    grace: int | timedelta | None = None
    on: Function | None = None
    key: SerdeLike | None = None
    value: SerdeLike | None = None
    other_value: SerdeLike | None = None
    store: StoreOption[Any, Any] = None
    name: str | None = None

    def __post_init__(self) -> None:
        for option in ("key", "value", "other_value"):
            check_serde(option, getattr(self, option))
        if self.name is not None:
            valid_name(self.name)

    def check(self, other: str, *allowed: str) -> None:
        """Raises a TypeError for an option that this kind of join does not accept."""
        for option in fields(self):
            if option.name not in allowed and getattr(self, option.name) is not None:
                raise TypeError(f"a join with {other} has no {option.name}=, only {', '.join(sorted(allowed))}")


class Side(NamedTuple):
    """One side of a join. A `rekeyed` stream needs a repartition."""

    place: Place
    rekeyed: bool


def repartitioned(side: Side, name: str, key: SerdeLike | None, value: SerdeLike | None) -> Place:
    """Repartitions a side of a join if its keys have changed. Joins without a name share the repartition."""
    place = replace(
        side.place, key=side.place.key if key is None else key, value=side.place.value if value is None else value
    )
    if not side.rekeyed:
        return place
    step, stream = repartition(place.draft, name, place.key, place.value), place.step
    if stream.for_joins is None or name != place.name:
        stream.for_joins = place.draft.add(step, stream)
    source = stream.for_joins.name
    return replace(place, step=stream.for_joins, name=step.name, sources=frozenset({source}))


# -------------------------------------------------------------------------------------------- stream with stream
class _Names(NamedTuple):
    """The names of the nodes and stores of a join of two streams. Stores keep the generated names of their nodes."""

    left_window: str
    right_window: str
    left: str
    right: str
    merge: str
    left_store: str
    right_store: str
    outer_store: str | None


def with_stream(mine: Side, theirs: Side, joiner: Function, kind: JoinKind, options: JoinOptions) -> Place:
    """Adds a join of two streams; returns the place of the joined records."""
    options.check("a stream", "windows", "store", "key", "value", "other_value", "name")
    windows, name = options.windows, options.name
    if not isinstance(windows, JoinWindows):
        raise TypeError(f"a join of two streams needs windows=JoinWindows.of(difference), not {windows!r}")
    given = materialized(options.store)
    left_topic = mine.place.name if name is None else f"{name}-left"
    right_topic = theirs.place.name if name is None else f"{name}-right"
    left = repartitioned(mine, left_topic, options.key, options.value)
    right = repartitioned(theirs, right_topic, options.key, options.other_value)
    sources = left.draft.copartition(left.sources, right.sources)
    join = _join_of_streams(left, right, joiner, windows, kind, _names(left, name, given, kind), given)
    for side, window, spec in (left, join.left_window, join.left_spec), (right, join.right_window, join.right_spec):
        side.draft.add(Step(window, Operate(JoinWindow(window, spec.name), (spec,))), side.step)
    step = Step(join.merge.name, join, needs_null_keys=kind != "inner")
    left.draft.add(step, left.step, right.step)
    return replace(left, step=step, name=step.name, value=None, sources=sources)


def _names(place: Place, name: str | None, given: Materialized, kind: JoinKind) -> _Names:
    outer, some = kind == "outer", kind != "inner"
    left_window = place.named(name, "KSTREAM-WINDOWED-", "-this-windowed")
    right_window = place.named(name, "KSTREAM-WINDOWED-", "-other-windowed")
    left = place.draft.names.take("KSTREAM-OUTERTHIS-" if outer else "KSTREAM-JOINTHIS-")
    right = place.draft.names.take("KSTREAM-OUTEROTHER-" if some else "KSTREAM-JOINOTHER-")
    merge = place.named(name, "KSTREAM-MERGE-", "-merge")
    this, other = "-outer-this-join" if outer else "-this-join", "-outer-other-join" if some else "-other-join"
    left_store, right_store = (left, right) if given.name is None else (given.name + this, given.name + other)
    shared = f"KSTREAM-OUTERSHARED-{left[-10:]}" if given.name is None else f"{given.name}-{kind}-shared-join"
    return _Names(
        left_window,
        right_window,
        left if name is None else name + this,
        right if name is None else name + other,
        merge,
        f"{left_store}-store",
        f"{right_store}-store",
        f"{shared}-store" if some else None,
    )


def _join_of_streams(
    left: Place,
    right: Place,
    joiner: Function,
    windows: JoinWindows,
    kind: JoinKind,
    names: _Names,
    given: Materialized,
) -> JoinStreams:
    outer_store = names.outer_store

    def side(name: str, other_store: str, *, is_left: bool, outer: bool) -> StreamJoin:
        return StreamJoin(name, is_left, other_store, outer_store, windows, joiner, outer, names.merge)

    return JoinStreams(
        left=side(names.left, names.right_store, is_left=True, outer=kind != "inner"),
        right=side(names.right, names.left_store, is_left=False, outer=kind == "outer"),
        merge=PassThrough(names.merge),
        with_itself=SelfJoin(names.merge, names.left_store, windows, joiner),
        left_window=names.left_window,
        right_window=names.right_window,
        left_spec=_join_store(names.left_store, windows, left.key, left.value, given),
        right_spec=_join_store(names.right_store, windows, left.key, right.value, given),
        outer_spec=None if outer_store is None else _buffer(outer_store, left.key, None, given),
    )


def _join_store(
    name: str, windows: JoinWindows, key: SerdeLike | None, value: SerdeLike | None, given: Materialized
) -> StoreSpec:
    size = windows.before_ms + windows.after_ms
    kind = WindowKind(size + windows.grace, size, retain_duplicates=True)
    return replace(_buffer(name, key, value, given), kind=kind)


def _buffer(name: str, key: SerdeLike | None, value: SerdeLike | None, given: Materialized) -> StoreSpec:
    persistent = None if given.kind is None else given.kind == "persistent"
    return StoreSpec(name, BufferKind(), store_serde(key), store_serde(value), persistent, logging=given.logging)


# --------------------------------------------------------------------------------------------- stream with table
def with_table(mine: Side, table: Place, joiner: Function, kind: JoinKind, options: JoinOptions) -> Place:
    """Adds a join of a stream with a table; returns the place of the joined records."""
    options.check("a table", "grace", "key", "value", "name")
    stream = repartitioned(mine, options.name or mine.place.name, options.key, options.value)
    sources = stream.draft.copartition(stream.sources, table.sources)
    name = stream.named(options.name, "KSTREAM-LEFTJOIN-" if kind == "left" else "KSTREAM-JOIN-")
    grace = None if options.grace is None else milliseconds(options.grace, "the grace")
    if grace is not None and table.step.versioned is False:
        raise ValueError(
            f"the join {name!r} has a grace, but the table {table.name!r} is not versioned: give it a history"
        )
    buffer = None if grace is None else _buffer(f"{name}-Buffer", stream.key, stream.value, Materialized())
    node = StreamTableJoin(name, table.name, joiner, kind == "left", grace, buffer and buffer.name)
    operate = Operate(node, () if buffer is None else (buffer,), stores_to_look_up(table.step))
    place = stream.at(Step(name, operate, needs_null_keys=kind == "left"))
    return replace(place, value=None, sources=sources)


def with_global_table(mine: Side, store: str, joiner: Function, kind: JoinKind, options: JoinOptions) -> Place:
    """Adds a join of a stream with a global table; returns the place of the joined records."""
    options.check("a global table", "on", "name")
    if options.on is None:
        raise TypeError("a join with a global table needs on=, a function that gives the key to look up")
    name, on = mine.place.named(options.name, "KSTREAM-LEFTJOIN-"), with_key(options.on, "on=")
    node = GlobalJoin(name, store, on, joiner, kind == "left")
    place = mine.place.at(Step(node.name, Operate(node), needs_null_keys=kind == "left"))
    return replace(place, value=None)


# ---------------------------------------------------------------------------------------------- table with table
def join_tables(
    left: Place, right: Place, joiner: Function, kind: JoinKind, store: StoreOption[Any, Any], name: str | None
) -> tuple[Place, str | None]:
    """Adds a join of two tables; returns the place of the result, and the name of its store if it has one."""
    draft = left.draft
    spec, key, value = result_store(left, store)
    merge = TableJoinMerge(left.named(name, "KTABLE-MERGE-"), None if spec is None else spec.name)
    sources = draft.copartition(left.sources, right.sources)
    left_outer, right_outer = kind != "inner", kind == "outer"
    if left_outer:
        send_old(left.step, keep=True)
    if right_outer:
        send_old(right.step, keep=True)
    left_stores, right_stores = stores_to_look_up(left.step), stores_to_look_up(right.step)
    this = left.named(name, "KTABLE-JOINTHIS-", "-join-this")
    other = left.named(name, "KTABLE-JOINOTHER-", "-join-other")
    step = Step(
        merge.name,
        JoinTables(
            left=TableJoin(this, left.name, right.name, True, joiner, left_outer, right_outer),
            right=TableJoin(other, right.name, left.name, False, joiner, left_outer, right_outer),
            merge=merge,
            left_table=left.step,
            right_table=right.step,
            left_stores=left_stores,
            right_stores=right_stores,
            spec=spec,
        ),
        versioned=spec is not None and isinstance(spec.kind, VersionedKind),
    )
    draft.add(step, left.step, right.step)
    return Place(draft, step, merge.name, key, value, sources), merge.store


def result_store(
    left: Place, store: StoreOption[Any, Any]
) -> tuple[StoreSpec | None, SerdeLike | None, SerdeLike | None]:
    """Returns the store of a joined table, and its serdes. A Materialized without a name has a store, too."""
    if store is None:
        return None, left.key, None
    given = with_serdes(materialized(store), left.key, None)
    return table_store(given, named(given, left.draft.names, "KTABLE-MERGE-")), given.key, given.value


# ------------------------------------------------------------------------------------------- table by foreign key
PREFIX = "KTABLE-FK-JOIN-"
REGISTRATION = f"{PREFIX}SUBSCRIPTION-REGISTRATION-"
RESPONSE = f"{PREFIX}SUBSCRIPTION-RESPONSE-"
PROCESSOR = f"{PREFIX}SUBSCRIPTION-PROCESSOR-"


@dataclass(frozen=True, slots=True)
class ForeignKeyJoin:
    """A join of left rows with the right rows that their foreign keys name. `on` returns the foreign key of a row."""

    left: Place
    right: Place
    on: Function
    joiner: Function
    is_left: bool  # a left row without a partner is in the result too
    partitioner: Partitioner | None  # of the left table
    other_partitioner: Partitioner | None  # of the right table
    store: StoreOption[Any, Any]
    name: str | None

    def named(self, prefix: str, suffix: str) -> str:
        return self.left.named(self.name, prefix, suffix)

    def add(self, node: Node, parent: Step, *stores: StoreSpec, uses: tuple[str, ...] = ()) -> Step:
        return self.left.draft.add(Step(node.name, Operate(node, stores, uses)), parent)


def join_on_foreign_key(join: ForeignKeyJoin) -> tuple[Place, str]:
    """Adds a foreign-key join; returns the place of the result, and the name of its store."""
    send_old(join.right.step, keep=True)
    send_old(join.left.step, keep=True)
    return _resolve(join, _answer(join, _subscribe(join)))


def _subscribe(join: ForeignKeyJoin) -> Step:
    """Sends subscriptions to the right side; returns the source that reads them there."""
    left, right, draft = join.left, join.right, join.left.draft
    topic = join.named(REGISTRATION, "-subscription-registration") + "-topic"
    node = join.named(REGISTRATION, "-subscription-registration-processor")
    sink = join.named("KTABLE-SINK-", "-subscription-registration-sink")
    source = join.named("KTABLE-SOURCE-", "-subscription-registration-source")
    value = SubscriptionOf(left.key)
    sent = join.add(Subscribe(node, join.on, join.is_left, left.key, right.key, left.value), left.step)
    written = draft.add(Step(sink, Write(Sink(sink, topic, right.key, value, join.other_partitioner))), sent)
    read = draft.add(Step(source, ReadStream(Source(source, (topic,), None, right.key, value))), written)
    draft.internal_topics.append(InternalTopic(topic))
    draft.copartition(right.sources, frozenset({source}))
    return read


def _answer(join: ForeignKeyJoin, subscriptions: Step) -> Step:
    """Answers subscriptions on the right side; returns the source that reads the answers on the left side."""
    left, right, draft = join.left, join.right, join.left.draft
    store = join.named(f"{PREFIX}SUBSCRIPTION-STATE-STORE-", "-subscription-store")
    kept = store_serde(right.key), store_serde(SubscriptionOf(left.key))
    spec = StoreSpec(store, SubscriptionKind(), *kept, persistent=None)
    received = join.add(SubscriptionReceive(join.named(PROCESSOR, "-subscription-receive"), store), subscriptions, spec)
    looked_up = stores_to_look_up(right.step)
    answer = SubscriptionJoin(join.named(PROCESSOR, "-subscription-join-foreign"), right.name)
    joined = join.add(answer, received, uses=looked_up)
    update = ForeignUpdate(join.named(PROCESSOR, "-foreign-join-subscription"), store)
    updated = join.add(update, right.step, spec)
    topic = join.named(RESPONSE, "-subscription-response") + "-topic"
    value = ResponseOf(right.value)
    sink = join.named("KTABLE-SINK-", "-subscription-response-sink")
    written = draft.add(Step(sink, Write(Sink(sink, topic, left.key, value, join.partitioner))), joined, updated)
    source = join.named("KTABLE-SOURCE-", "-subscription-response-source")
    draft.internal_topics.append(InternalTopic(topic))
    return draft.add(Step(source, ReadStream(Source(source, (topic,), None, left.key, value))), written)


def _resolve(join: ForeignKeyJoin, answers: Step) -> tuple[Place, str]:
    """Joins the answers with the left rows that subscribed."""
    left, draft = join.left, join.left.draft
    sources = draft.copartition(left.sources, frozenset({answers.name}))
    looked_up = stores_to_look_up(left.step)
    resolver = join.named(f"{RESPONSE}RESOLVER-PROCESSOR-", "-subscription-response-resolver")
    joined = join.add(ResponseJoin(resolver, left.name, join.joiner, join.is_left, left.value), answers, uses=looked_up)
    result = join.named(f"{PREFIX}OUTPUT-", "-result")
    given = with_serdes(materialized(join.store), left.key, None)
    spec = table_store(given, named(given, draft.names, f"{PREFIX}OUTPUT-"))
    table = TableSource(result, given.name)
    step = draft.add(Step(result, Operate(table, (spec,)), versioned=given.history is not None), joined)
    return replace(left, step=step, name=result, value=given.value, sources=sources), spec.name
