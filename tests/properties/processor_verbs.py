"""Processors of a stream, with stores of every kind, and topologies that are made of processors only."""

from __future__ import annotations

from tests.properties import claims
from tests.properties import functions as f
from tests.properties.functions import SAME, Spec, fn
from tests.properties.nodes import Node
from tests.properties.writer import Discarded, Writer

WithStore = tuple[Spec, str, str, list[Spec]]  # the processor, its store's values, what it forwards, kinds of store

KEYED: list[Spec] = [
    {},
    {"in_memory": True},
    {"kind": "lru", "max": 2},
    {"kind": "lru", "max": 3},
]
WINDOW = {"kind": "window", "size_ms": 10, "retention_ms": 30}
SESSION = {"kind": "session", "retention_ms": 30}
VERSIONED = {"kind": "versioned", "retention_ms": 30}

STATELESS = [
    (fn("forward"), SAME),
    (fn("emit_twice"), SAME),
    (fn("shift_ts", ms=-10), SAME),
    (fn("shift_ts", ms=5), SAME),
    (fn("add_header", header="x", value="1"), SAME),
    (fn("headers_to_value"), "string"),
    (fn("metadata"), "string"),
]
CLOCKED = [(fn("times"), "string"), (fn("v_times"), "string")]  # these see the time of their task
PUNCTUATE = "count_punctuate"
WITH_STORE: list[WithStore] = [
    (fn("running_count"), "long", "long", KEYED),
    (fn("dedup"), SAME, SAME, KEYED),
    (fn("buffer_flush", max=2), "string", "string", KEYED),
    (fn("range_dump"), "string", "string", KEYED),
    (fn("range_dump", reverse=True), "string", "string", KEYED),
    (fn(PUNCTUATE, every_ms=10, clock="stream"), "long", "long", KEYED),
    (fn(PUNCTUATE, every_ms=7, clock="stream", clear=True), "long", "long", KEYED),
    (fn(PUNCTUATE, every_ms=10, clock="stream", start_ms=15), "long", "long", KEYED),
]
WITH_TIMED_STORE: list[WithStore] = [
    (fn("window_count", size_ms=10), "long", "long", [WINDOW, WINDOW | {"in_memory": True}]),
    (fn("session_log", len_ms=5), "string", "string", [SESSION, SESSION | {"in_memory": True}]),
    (fn("versioned_asof", back_ms=10), SAME, "string", [VERSIONED]),
]
VALUES = [(fn("v_upper"), "string"), (fn("v_emit_twice"), SAME), (fn("v_headers_to_value"), "string")]
VALUES_WITH_STORE = [(fn("v_running_concat"), "string"), (fn("v_count"), "long")]


def process(w: Writer, n: Node) -> Node:
    processor, value = w.pick([*STATELESS, (fn("filter", pred=w.pick(f.PREDICATES)), SAME), *CLOCKED[:1] * 4])
    check_clock(w, n, processor)
    return w.stream("process", n, {"processor": processor}, value=value, rekeyed=True)


def process_with_store(w: Writer, n: Node) -> Node:
    plain_key = f.inner_type(n.key) is None
    processor, kept, value, kinds = w.pick(WITH_STORE + WITH_TIMED_STORE if plain_key else WITH_STORE)
    check_clock(w, n, processor)
    store = w.own_store(n.key, f.typed(kept, n.value), w.pick(kinds))
    key = "string" if processor["fn"] == "window_count" else SAME
    return w.stream("process", n, {"processor": {**processor, "store": store}}, key, value, rekeyed=True)


def process_values(w: Writer, n: Node) -> Node:
    if w.chance(2):
        processor, value = w.pick(VALUES_WITH_STORE)
        processor = {**processor, "store": w.own_store(n.key, value, w.pick(KEYED))}
    else:
        processor, value = w.pick([*VALUES, (fn("v_filter", pred=w.pick(f.PREDICATES)), SAME), *CLOCKED[1:] * 3])
        check_clock(w, n, processor)
    return w.stream("processValues", n, {"processor": processor}, value=value)


def look_into_table(w: Writer, n: Node) -> Node:
    """A processor that is connected to the store of a table."""
    tables = [x for x in w.live if (x.kind, x.key) == ("table", n.key) and x.store and not x.versioned]
    if not tables or f.inner_type(n.key) is not None:
        raise Discarded
    table = w.pick(tables)
    if not w.regions.meet(n.region, table.region):
        raise Discarded
    if w.steady and claims.of_stream_and_table({"joiner": fn("left")}, n.claim, table.claim) is None:
        raise Discarded
    fields = {"processor": fn("store_peek", store=table.store)}
    return w.stream("process", n, fields, value="string", rekeyed=True)


def check_clock(w: Writer, n: Node, processor: Spec) -> None:
    timed = processor["fn"] in {PUNCTUATE, "times", "v_times"}
    if timed and w.steady and w.regions.find(n.region) != w.regions.top:
        raise Discarded
    # Of two that are due at the same time, a restart changes which fires first: test_invariance.py has an example.
    if processor["fn"] == PUNCTUATE and any(s.get("processor", {}).get("fn") == PUNCTUATE for s in w.statements):
        raise Discarded


# ------------------------------------------------------------------------------------------------ by hand
def write_processors(w: Writer) -> None:
    """A topology of the Processor API, all of strings: one source, processors below it, a sink for each of them."""
    types = {"key": "string", "value": "string"}
    w.state("papi_source", {"name": "source", "topics": ["in"], **types})
    names, stores = ["source"], list[Spec]()
    for _ in range(w.pick([1, 2, 3, 4])):
        name, processor = w.name("processor"), w.pick([by_hand(w, stores), routing(w)])
        parents = sorted({w.pick(names), w.pick(names)})
        if processor["fn"] == "route":
            children = [f"{name}-then", f"{name}-else"]
            processor = processor | dict(zip(("then", "else"), children, strict=True))
        w.state("papi_processor", {"name": name, "processor": processor, "parents": parents})
        if processor["fn"] == "route":
            for child in children:
                w.state("papi_processor", {"name": child, "processor": fn("forward"), "parents": [name]})
            names += children
        else:
            names.append(name)
        for store in stores:
            w.state("papi_store", {**store, **types, "processors": [name]})
        stores.clear()
    for name in names[1:]:
        topic = w.name("out")
        w.state("papi_sink", {"name": f"to-{topic}", "topic": topic, "parents": [name], **types})
        w.sinks[topic] = claims.Claim()


def by_hand(w: Writer, stores: list[Spec]) -> Spec:
    kept = [(p, kinds) for p, _, value, kinds in WITH_STORE if value in (SAME, "string")]
    processor, kinds = w.pick([*((p, None) for p, _ in [*STATELESS, CLOCKED[0]]), *kept])
    if kinds is None:
        return processor
    store = w.name("store")
    stores.append({"store": store, **w.pick(kinds)})
    w.stores[store] = claims.Claim()
    return {**processor, "store": store}


def routing(w: Writer) -> Spec:
    return fn("route", pred=w.pick(f.PREDICATES))
