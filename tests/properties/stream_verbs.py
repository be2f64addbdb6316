"""What can be done with a stream: each verb writes statements at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.properties import claims
from tests.properties import functions as f
from tests.properties.functions import Spec, fn
from tests.properties.nodes import Node
from tests.properties.writer import Discarded, Writer

Verb = Callable[[Writer, Node], Any]


# ------------------------------------------------------------------------------------------------- record by record
def filter_(w: Writer, n: Node) -> Node:
    return w.stream(w.pick(["filter", "filterNot"]), n, {"pred": w.pick(f.PREDICATES)})


def map_values(w: Writer, n: Node) -> Node:
    change, value = w.pick(f.STREAM_VALUE_MAPPERS)
    return w.stream("mapValues", n, {"value": change}, value=value)


def map_(w: Writer, n: Node) -> Node:
    (select, key), (change, value) = w.key_selector(n), w.pick(f.STREAM_VALUE_MAPPERS)
    return w.stream("map", n, {"key": select, "value": change}, key, value, rekeyed=True)


def select_key(w: Writer, n: Node) -> Node:
    select, key = w.key_selector(n)
    return w.stream("selectKey", n, {"key": select}, key, rekeyed=True)


def flat_map(w: Writer, n: Node) -> Node:
    change, types = w.pick(f.FLAT_PAIRS)
    return w.stream("flatMap", n, {"flat": change}, *types, rekeyed=True)


def flat_map_values(w: Writer, n: Node) -> Node:
    change, value = w.pick(f.FLAT_VALUES)
    return w.stream("flatMapValues", n, {"flat": change}, value=value)


def peek(w: Writer, n: Node) -> Node:
    return w.stream("peek", n, {})


def repartition(w: Writer, n: Node) -> Node:
    return w.repartition(n, {"named": w.name("name")} if w.chance(3) else {})


def split(w: Writer, n: Node) -> None:
    claim = claims.of_stream("split", {}, n.claim)
    if claim is None and w.steady:
        raise Discarded
    branches = [{"id": w.name("n"), "pred": w.pick(f.PREDICATES)} for _ in range(2)]
    default = {"default": {"id": w.name("n")}} if w.chance(2) else {}
    w.state("split", {"from": n.id, "branches": branches, **default})
    for branch in [*branches, *default.values()]:
        w.live.append(Node(branch["id"], "stream", n.key, n.value, claim or n.claim, n.region, n.rekeyed))


def merge(w: Writer, n: Node) -> Node:
    other = w.pick([x for x in w.live if (x.kind, x.key, x.value) == (n.kind, n.key, n.value)])
    if not w.regions.meet(n.region, other.region):
        raise Discarded
    claim = claims.of_streams("merge", {}, n.claim, other.claim)
    rest = {"region": n.region, "rekeyed": n.rekeyed or other.rekeyed}
    return w.define("merge", {"from": n.id, "other": other.id}, "stream", (n.key, n.value), claim, **rest)


# -------------------------------------------------------------------------------------------------------- aggregates
def to_table(w: Writer, n: Node) -> Node:
    fields = with_history(w, {"from": n.id})
    rest = {"region": w.landing(n), "versioned": fields.get("versioned_ms")}
    return w.define("toTable", fields, "table", (n.key, n.value), claims.to_table(fields, n.claim), **rest)


def with_history(w: Writer, fields: Spec) -> Spec:
    """Perhaps with a store, perhaps a versioned one."""
    fields = w.store(fields)
    history = {"versioned_ms": w.pick([20, 50, 500])} if "store" in fields and w.chance(3) else {}
    return fields | history


def group(w: Writer, n: Node) -> Node:
    op, fields, key, rekeyed = "groupByKey", {}, n.key, n.rekeyed
    if w.chance(3):
        op, rekeyed = "groupBy", True
        fields["key"], key = w.key_selector(n)
    if rekeyed and w.chance(4):
        fields["named"] = w.name("name")
    claim = claims.of_stream(op, fields, n.claim)
    fields = {"from": n.id, **fields}
    return w.define(op, fields, "grouped", (key, n.value), claim, region=n.region, rekeyed=rekeyed)


def aggregate(w: Writer, n: Node) -> Node:
    grouped = group(w, n)
    fields = with_history(w, {"from": grouped.id})
    return aggregated(w, grouped, fields, grouped.key)


def aggregate_windows(w: Writer, n: Node) -> Node:
    grouped = group(w, n)
    windows, fields = windowed(w, {"from": grouped.id})
    by_window = w.define("windowedBy", fields, "windowed", (grouped.key, n.value), grouped.claim, region=grouped.region)
    result = w.store({"from": by_window.id})
    result |= {"retention_ms": f.FOREVER} if windows["type"] != "unlimited" and w.chance(3) else {}
    key = f.windowed_type(windows, grouped.key)
    table = aggregated(w, grouped, result, key, windows=windows, on_close=fields.get("emit") == "close")
    if windows["type"] != "unlimited" and w.chance(3):
        return w.table("suppress", table, {"kind": "until_window_closes", "buffer": {"unbounded": True}})
    return table


def windowed(w: Writer, fields: Spec, *, may_close: bool = True) -> tuple[Spec, Spec]:
    """The windows, and the fields of the statement."""
    windows = w.pick(f.WINDOWS)
    if windows["type"] != "unlimited":
        windows = windows | w.pick(f.GRACES)
        if may_close and w.chance(3):
            fields = fields | {"emit": "close"}
        elif may_close and w.chance(5):
            fields = fields | {"emit": "update"}
    return windows, fields | {"windows": windows}


def aggregated(
    w: Writer, grouped: Node, fields: Spec, key: str, windows: Spec | None = None, *, on_close: bool = False
) -> Node:
    op = w.pick(["count", "reduce", "aggregate"])
    value = "long"
    if op == "reduce":
        fields, value = fields | {"reducer": w.pick(f.REDUCERS[grouped.value])}, grouped.value
    elif op == "aggregate":
        add, value = w.pick(f.AGGREGATES)
        fields = fields | {"agg": add}
    claim = claims.aggregated(op, fields, [grouped.claim], windows, on_close=on_close)
    rest = {"region": w.landing(grouped), "windows": windows, "versioned": fields.get("versioned_ms")}
    return w.define(op, fields, "table", (key, value), claim, **rest)


def cogroup(w: Writer, n: Node) -> Node:
    one = group(w, n)
    other = w.pick([x for x in w.live if (x.kind, x.key) == ("stream", one.key)] or [n])
    two = group(w, other)
    if two.key != one.key:
        raise Discarded
    for grouped in (one, two):  # topics of their own need names of their own
        statement = next(s for s in w.statements if s.get("id") == grouped.id)
        if grouped.rekeyed:
            statement.setdefault("named", w.name("name"))
    parts, value = w.pick([(("sum", "count"), "long"), (("concat", "concat_kv"), "string")])
    fields: Spec = {"from": [one.id, two.id], "aggs": [fn(part) for part in parts]}
    one, two, region = w.meet(one, two)
    both = w.define("cogroup", fields, "cogrouped", (one.key, value), one.claim, region=region)
    windows, key, subject = None, one.key, both.id
    if w.chance(2):
        windows, fields = windowed(w, {"from": both.id}, may_close=False)
        subject = w.define("windowedBy", fields, "windowed", (key, value), one.claim, region=region).id
        key = f.windowed_type(windows, key)
    fields = w.store({"from": subject})
    claim = claims.aggregated("aggregate", fields, [one.claim, two.claim], windows, on_close=False)
    rest: dict[str, Any] = {"region": region, "windows": windows, "joinable": windows is None}
    return w.define("aggregate", fields, "table", (key, value), claim, **rest)


# ------------------------------------------------------------------------------------------------------------- joins
def join_stream(w: Writer, n: Node) -> Node:
    if sum("windows" in s and "joiner" in s for s in w.statements) >= 3:
        raise Discarded  # each may multiply what the one before it gave
    other = w.pick([n, *(x for x in w.live if (x.kind, x.key) == ("stream", n.key))])
    n, other, region = w.meet(n, other) if other is not n else (n, n, w.landing(n))
    joiner, value = w.pick(f.STREAM_JOINERS)
    fields = {"joiner": joiner, "windows": w.pick(f.JOIN_WINDOWS) | w.pick(f.GRACES)}
    op = w.pick(["join", "leftJoin", "outerJoin"])
    claim = claims.of_streams(op, fields, n.claim, other.claim)
    fields |= {"from": n.id, "other": other.id}
    return w.define(op, fields, "stream", (n.key, f.typed(value, n.value)), claim, region=region)


def join_table(w: Writer, n: Node) -> Node:
    made = w.pick([to_table, to_table, aggregate, None])
    if made is not None:
        made(w, n)
    tables = [x for x in w.live if (x.kind, x.key) == ("table", n.key) and x.joinable]
    if not tables:
        raise Discarded
    table = w.pick(tables[::-1])
    joiner, value = w.pick(f.STREAM_JOINERS)
    fields: Spec = {"joiner": joiner}
    if table.versioned and not w.chance(3):
        fields["grace_ms"] = table.versioned // 2
        n = w.stream("filter", n, {"pred": fn("key_not_null")})  # without a key nothing can wait for its grace
    n, table, region = w.meet(n, table)
    claim = claims.of_stream_and_table(fields, n.claim, table.claim)
    fields |= {"from": n.id, "other": table.id}
    op = w.pick(["join", "leftJoin"])
    return w.define(op, fields, "stream", (n.key, f.typed(value, n.value)), claim, region=region)
