"""How a stream's joins become nodes, stores and repartitions: with a stream, a table, a global table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Literal, NamedTuple, TypedDict

from headrace.dsl.functions import Function, with_key
from headrace.dsl.lookup import stores_to_look_up
from headrace.dsl.options import Materialized
from headrace.dsl.place import Place
from headrace.dsl.repartition import repartition
from headrace.dsl.steps import JoinStreams, Operate, Step
from headrace.dsl.stores import StoreOption, materialized, store_serde
from headrace.model.windows import JoinWindows, milliseconds
from headrace.state.spec import BufferKind, StoreSpec, WindowKind
from headrace.topology.naming import valid_name
from headrace.topology.nodes import GlobalJoin, JoinWindow, PassThrough, SelfJoin, StreamJoin, StreamTableJoin
from headrace.topology.serdes import SerdeLike

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
