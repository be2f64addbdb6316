"""What can be done with a table: each verb writes statements at random."""

from __future__ import annotations

from tests.properties import claims
from tests.properties import functions as f
from tests.properties.functions import Spec, fn
from tests.properties.nodes import Node
from tests.properties.writer import Discarded, Writer


def filter_(w: Writer, n: Node) -> Node:
    return w.table(w.pick(["filter", "filterNot"]), n, w.store({"pred": w.pick(f.PREDICATES)}))


def map_values(w: Writer, n: Node) -> Node:
    change, value = w.pick(f.VALUE_MAPPERS)
    return w.table("mapValues", n, declared(w.store({"value": change}), value), value)


def declared(fields: Spec, value: str) -> Spec:
    """A table without a store needs to be told serdes that are not the default ones."""
    return fields if "store" in fields or value == "string" else {**fields, "serdes": True}


def transform_values(w: Writer, n: Node) -> Node:
    transformer = w.pick([fn("t_nullable"), fn("t_with_key"), fn("t_count")])
    if transformer["fn"] == "t_count":
        transformer["store"] = w.own_store(n.key, "long", {})
    return w.table("transformValues", n, w.store({"transformer": transformer}), "string")


def to_stream(w: Writer, n: Node) -> Node:
    if not w.chance(4):
        return w.to_stream(n, {})
    select, key = w.key_selector(n)
    return w.to_stream(n, {"key": select}, key)


def suppress(w: Writer, n: Node) -> Node:
    # Versioned tables cannot be suppressed; the table of a windowed cogroup counts as one if its streams come from one.
    if n.versioned is not None or (not n.joinable and any(x.versioned is not None for x in w.live)):
        raise Discarded
    closes = n.windows is not None and n.windows["type"] != "unlimited"
    if closes and w.chance(2):
        return w.table("suppress", n, {"kind": "until_window_closes", "buffer": {"unbounded": True}})
    buffer = w.pick([{"unbounded": True}, *({"max_records": count, "full": "emit"} for count in (1, 2, 3))])
    return w.table("suppress", n, {"kind": "until_time_limit", "ms": w.pick([0, 10, 30]), "buffer": buffer})


def group_by(w: Writer, n: Node) -> Node:
    select, key = w.key_selector(n)
    change, value = w.pick([(fn("identity"), f.SAME), *f.VALUE_MAPPERS])
    value = f.typed(value, n.value)
    fields = {"key": select, "value": change}
    claim = claims.of_table("groupBy", fields, n.claim, n.windows)
    region = w.regions.below(n.region)
    grouped = w.define("groupBy", {"from": n.id, **fields}, "grouped table", (key, value), claim, region=region)
    fields = w.store({"from": grouped.id})
    fields |= {"versioned_ms": 50} if "store" in fields and w.chance(5) else {}
    op = w.pick(["count", "reduce", "aggregate"])
    if op == "reduce":
        add, subtract = f.REDUCERS_WITH_SUBTRACTORS[value]
        fields |= {"reducer": add, "subtractor": subtract}
    elif op == "aggregate":
        fields["agg"], value = w.pick(f.AGGREGATES)
    else:
        value = "long"
    claim = claims.regrouped(op, fields, grouped.claim)
    return w.define(op, fields, "table", (key, value), claim, region=region, versioned=fields.get("versioned_ms"))


def join_table(w: Writer, n: Node) -> Node:
    made = w.pick([map_values, filter_, None])
    if made is not None:
        made(w, n)
    other = w.pick([x for x in reversed(w.live) if (x.kind, x.key) == ("table", n.key)])
    if not (n.joinable and other.joinable):
        raise Discarded
    n, other, region = w.meet(n, other)
    op, (joiner, value) = w.pick(["join", "leftJoin", "outerJoin"]), w.pick(f.JOINERS)
    value = f.typed(value, n.value)
    fields = declared(w.store({"joiner": joiner}), value)
    claim = claims.joined_tables(op, fields, n.claim, other.claim)
    stored = claims.join_is_stored(fields)
    versioned = 0 if n.versioned is not None and other.versioned is not None and not stored else None
    fields |= {"from": n.id, "other": other.id}
    # A join of windowed tables lets `suppress` look for the windows above it.
    windows = n.windows if n.windows and other.windows else None
    return w.define(op, fields, "table", (n.key, value), claim, region=region, versioned=versioned, windows=windows)
