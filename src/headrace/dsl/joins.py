"""How a stream's joins become nodes, stores and repartitions: with a stream, a table, a global table.

How a join of two tables becomes nodes.

How a foreign-key join becomes nodes.

The left side subscribes, through a topic, to the right row that its foreign key names; the right side keeps the
subscriptions and answers, through another topic, now and whenever that row changes.

    left table ─ Subscribe ─▶ topic ─▶ SubscriptionReceive ─ SubscriptionJoin ─┐
                                            right table ──── ForeignUpdate ────┴─▶ topic ─▶ ResponseJoin ─ result
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, NamedTuple, TypedDict

from headrace.dsl.functions import Function, with_key
from headrace.dsl.logical.graph import Place, repartition
from headrace.dsl.logical.steps import JoinStreams, JoinTables, Operate, ReadStream, Step, Write
from headrace.dsl.logical.table_properties import send_old, stores_to_look_up
from headrace.dsl.materialization import StoreOption, materialized, named, store_serde, table_store, with_serdes
from headrace.dsl.options import Materialized
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


class JoinOptions(TypedDict, total=False):
    windows: JoinWindows | None  # with a stream
    store: StoreOption
    other_value: SerdeLike | None
    grace: int | timedelta | None  # with a versioned table
    on: Function | None  # with a global table: the key to look up
    key: SerdeLike | None
    value: SerdeLike | None
    name: str | None


class Side(NamedTuple):
    place: Place
    rekeyed: bool


def check_options(options: JoinOptions, allowed: set[str], other: str) -> None:
    for option, value in options.items():
        if option not in allowed and value is not None:
            raise TypeError(f"a join with {other} has no {option}=, only {', '.join(sorted(allowed))}")


def repartitioned(side: Side, name: str, key: SerdeLike | None, value: SerdeLike | None) -> Place:
    """A side of a join, partitioned by its keys. Joins that are not named share the topic of a stream."""
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
    """The nodes of a join of two streams; the generated names live on in its stores."""

    left_window: str
    right_window: str
    left: str
    right: str
    merge: str
    left_store: str
    right_store: str
    outer_store: str | None


def with_stream(mine: Side, theirs: Side, joiner: Function, kind: JoinKind, options: JoinOptions) -> Place:
    check_options(options, {"windows", "store", "key", "value", "other_value", "name"}, "a stream")
    windows, name, key = options.get("windows"), options.get("name"), options.get("key")
    if not isinstance(windows, JoinWindows):
        raise TypeError(f"a join of two streams needs windows=JoinWindows.of(difference), not {windows!r}")
    given = materialized(options.get("store"))
    if name is not None:
        valid_name(name)
    left_topic, right_topic = (
        (mine.place.name, theirs.place.name) if name is None else (f"{name}-left", f"{name}-right")
    )
    left = repartitioned(mine, left_topic, key, options.get("value"))
    right = repartitioned(theirs, right_topic, key, options.get("other_value"))
    sources = left.draft.copartition(left.sources, right.sources)
    join = _join_of_streams(left, right, joiner, windows, kind, _names(left, name, given, kind), given)
    left.draft.add(
        Step(join.left_window, Operate(JoinWindow(join.left_window, join.left_spec.name), (join.left_spec,))), left.step
    )
    right.draft.add(
        Step(join.right_window, Operate(JoinWindow(join.right_window, join.right_spec.name), (join.right_spec,))),
        right.step,
    )
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
    check_options(options, {"grace", "key", "value", "name"}, "a table")
    name, given_grace = options.get("name"), options.get("grace")
    if name is not None:
        valid_name(name)
    stream = repartitioned(mine, name or mine.place.name, options.get("key"), options.get("value"))
    sources = stream.draft.copartition(stream.sources, table.sources)
    name = stream.named(name, "KSTREAM-LEFTJOIN-" if kind == "left" else "KSTREAM-JOIN-")
    grace = None if given_grace is None else milliseconds(given_grace, "the grace")
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
    check_options(options, {"on", "name"}, "a global table")
    on = options.get("on")
    if on is None:
        raise TypeError("a join with a global table needs on=, a function that gives the key to look up")
    node = GlobalJoin(
        mine.place.named(options.get("name"), "KSTREAM-LEFTJOIN-"), store, with_key(on, "on="), joiner, kind == "left"
    )
    place = mine.place.at(Step(node.name, Operate(node), needs_null_keys=kind == "left"))
    return replace(place, value=None)


TableJoinKind = Literal["inner", "left", "outer"]


class TableJoinOptions(TypedDict, total=False):
    store: StoreOption
    name: str | None
    on: Function | None  # the foreign key of a row
    partitioner: Partitioner | None  # how the left table is partitioned, in a foreign-key join
    other_partitioner: Partitioner | None  # how the right one is


def join(
    left: Place, right: Place, joiner: Function, kind: TableJoinKind, options: TableJoinOptions
) -> tuple[Place, str | None]:
    """The joined table, and the name of its store if it has one."""
    refuse_partitioners(options)
    draft, name = left.draft, options.get("name")
    spec, key, value = result_store(left, options.get("store"))
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


def result_store(left: Place, store: StoreOption) -> tuple[StoreSpec | None, SerdeLike | None, SerdeLike | None]:
    """The store of a joined table, and its serdes; a Materialized makes one also without a name."""
    if store is None:
        return None, left.key, None
    given = with_serdes(materialized(store), left.key, None)
    return table_store(given, named(given, left.draft.names, "KTABLE-MERGE-")), given.key, given.value


def refuse_partitioners(options: TableJoinOptions) -> None:
    for option in ("partitioner", "other_partitioner"):
        if options.get(option) is not None:
            raise TypeError(f"{option}= is for foreign-key joins: give on=, or leave it out")


PREFIX = "KTABLE-FK-JOIN-"
REGISTRATION = f"{PREFIX}SUBSCRIPTION-REGISTRATION-"
RESPONSE = f"{PREFIX}SUBSCRIPTION-RESPONSE-"
PROCESSOR = f"{PREFIX}SUBSCRIPTION-PROCESSOR-"


@dataclass(frozen=True, slots=True)
class ForeignPair:
    """The two tables; `on` gives the foreign key of a left row."""

    left: Place
    right: Place
    on: Function
    joiner: Function
    is_left: bool  # a left row without partner comes out too


def join_on_foreign_key(pair: ForeignPair, options: TableJoinOptions) -> tuple[Place, str]:
    """The joined table, and the name of its store."""
    send_old(pair.right.step, keep=True)
    send_old(pair.left.step, keep=True)
    subscriptions = _subscribe(pair, options)
    answers = _answer(pair, subscriptions, options)
    return _resolve(pair, answers, options)


def _subscribe(pair: ForeignPair, options: TableJoinOptions) -> Step:
    """Subscriptions leave for the right side; gives the source that reads them there."""
    left, right, draft, name = pair.left, pair.right, pair.left.draft, options.get("name")
    topic = left.named(name, REGISTRATION, "-subscription-registration") + "-topic"
    node = left.named(name, REGISTRATION, "-subscription-registration-processor")
    sink = left.named(name, "KTABLE-SINK-", "-subscription-registration-sink")
    source = left.named(name, "KTABLE-SOURCE-", "-subscription-registration-source")
    value = SubscriptionOf(left.key)
    sent = _add(left, left.step, Subscribe(node, pair.on, pair.is_left, left.key, right.key, left.value))
    written = draft.add(Step(sink, Write(Sink(sink, topic, right.key, value, options.get("other_partitioner")))), sent)
    read = draft.add(Step(source, ReadStream(Source(source, (topic,), None, right.key, value))), written)
    draft.internal_topics.append(InternalTopic(topic))
    draft.copartition(right.sources, frozenset({source}))
    return read


def _answer(pair: ForeignPair, subscriptions: Step, options: TableJoinOptions) -> Step:
    """The right side answers; gives the source that reads the answers on the left side."""
    left, right, draft, name = pair.left, pair.right, pair.left.draft, options.get("name")
    store = left.named(name, f"{PREFIX}SUBSCRIPTION-STATE-STORE-", "-subscription-store")
    kept = store_serde(right.key), store_serde(SubscriptionOf(left.key))
    spec = StoreSpec(store, SubscriptionKind(), *kept, persistent=None)
    receive = SubscriptionReceive(left.named(name, PROCESSOR, "-subscription-receive"), store)
    received = _add(left, subscriptions, receive, spec)
    looked_up = stores_to_look_up(right.step)
    join = SubscriptionJoin(left.named(name, PROCESSOR, "-subscription-join-foreign"), right.name)
    joined = draft.add(Step(join.name, Operate(join, uses=looked_up)), received)
    update = ForeignUpdate(left.named(name, PROCESSOR, "-foreign-join-subscription"), store)
    updated = _add(left, right.step, update, spec)
    topic = left.named(name, RESPONSE, "-subscription-response") + "-topic"
    value = ResponseOf(right.value)
    sink = left.named(name, "KTABLE-SINK-", "-subscription-response-sink")
    written = Step(sink, Write(Sink(sink, topic, left.key, value, options.get("partitioner"))))
    draft.add(written, joined, updated)
    source = left.named(name, "KTABLE-SOURCE-", "-subscription-response-source")
    draft.internal_topics.append(InternalTopic(topic))
    return draft.add(Step(source, ReadStream(Source(source, (topic,), None, left.key, value))), written)


def _resolve(pair: ForeignPair, answers: Step, options: TableJoinOptions) -> tuple[Place, str]:
    """Answers meet the left rows that asked."""
    left, draft, name = pair.left, pair.left.draft, options.get("name")
    sources = draft.copartition(left.sources, frozenset({answers.name}))
    looked_up = stores_to_look_up(left.step)
    resolver = left.named(name, f"{RESPONSE}RESOLVER-PROCESSOR-", "-subscription-response-resolver")
    node = ResponseJoin(resolver, left.name, pair.joiner, pair.is_left, left.value)
    joined = draft.add(Step(node.name, Operate(node, uses=looked_up)), answers)
    result = left.named(name, f"{PREFIX}OUTPUT-", "-result")
    given = with_serdes(materialized(options.get("store")), left.key, None)
    spec = table_store(given, named(given, draft.names, f"{PREFIX}OUTPUT-"))
    table = TableSource(result, given.name)
    step = draft.add(Step(result, Operate(table, (spec,)), versioned=given.history is not None), joined)
    return replace(left, step=step, name=result, value=given.value, sources=sources), spec.name


def _add(place: Place, parent: Step, node: Node, *stores: StoreSpec) -> Step:
    return place.draft.add(Step(node.name, Operate(node, stores)), parent)
