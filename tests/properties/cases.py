"""Random cases: a topology fed from one topic, and the records in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from headrace import TopologyError
from headrace.runtime.rows import Row
from tests.oracle.topologies import Program
from tests.properties import processor_verbs, stream_verbs, table_verbs
from tests.properties.claims import Claim, source_table
from tests.properties.functions import Spec, fn
from tests.properties.writer import Writer

KEYS = {"string": ["a", "b", "ab", "c"], "long": [1, 2, 3, -1]}
VALUES = {
    "string": ["a", "b", "ab", "1", "3", "6", "ba 1", "a:1", "b:2", "x y x", "", "a b", "-4", "k", "a@15", "b@42"],
    "long": [0, 1, 2, 3, 5, 8, 12, -1, -4],
}
HEADERS = [[], [], [], [["h", "1"]], [["h", "2"], ["g", None]]]
# How far a record is from the largest timestamp so far: windows are about 10 long, and stores expire by segments of
# 60,000, as Kafka's do.
CALM = [0, 1, 2, 3, 4, 5, -1, -2, -3, -4, -6, -8, -11, 8, 12]
USUAL = [0, 1, 2, 3, 5, 7, 10, 0, 1, 2, 3, 5, 13, 25, 40, -1, -2, -5, -10, -20, -60, 300, -1000]
WILD = [0, 1, 2, 3, 5, -1, -2, -3, -10, 13, 40, 300, -1000, 70_000, 200_000, -65_000]


class Piped(NamedTuple):
    """A record of the source topic."""

    key: Any
    value: Any
    timestamp: int
    headers: list[list[Any]]


Cut = list[tuple[int, bool]]  # the sizes of batches, and whether there is a restart after each; the rest is the last

AT_ONCE: Cut = []
ONE_BY_ONE: Cut = [(1, False)] * 100
RESTARTED: Cut = [(1, True)] * 100


@dataclass(repr=False)
class Case:
    """A topology, its input, how to cut that, and what is claimed of the output with caching on."""

    topology: list[Spec]
    config: Spec
    records: list[Piped]
    cut: Cut = field(default_factory=list)
    sinks: dict[str, Claim] = field(default_factory=dict)  # by topic
    stores: dict[str, Claim] = field(default_factory=dict)

    def program(self) -> Program:
        return Program({"topology": self.topology, "config": self.config})

    def rows(self, program: Program) -> list[Row]:
        key, value = program.types_of("in")
        rows, latest = list[Row](), 0
        for offset, record in enumerate(self.records):
            latest = max(latest, record.timestamp)
            headers = tuple((name, None if text is None else text.encode()) for name, text in record.headers)
            raw_key = None if record.key is None else key.serde.encode(record.key)
            raw_value = None if record.value is None else value.serde.encode(record.value)
            rows.append(("in", 0, offset, raw_key, raw_value, record.timestamp, headers, (latest, 0, offset)))
        return rows

    def says(self, *functions: str) -> bool:
        """Whether one of these functions is used."""
        return any(f'"{function}"' in json.dumps(self.topology) for function in functions)

    def __repr__(self) -> str:
        statements = "\n".join(f"  {json.dumps(statement)}" for statement in self.topology)
        records = "\n".join(
            f"  {at:3}  key {record.key!r:6} value {record.value!r:9} at {record.timestamp}"
            + (f"  headers {record.headers}" if record.headers else "")
            for at, record in enumerate(self.records)
        )
        batches = ", ".join(f"{size} then restart" if restart else f"{size}" for size, restart in self.cut)
        return (
            f"config {json.dumps(self.config)}\nstatements\n{statements}\nrecords\n{records}\nbatches {batches}, rest"
        )


# -------------------------------------------------------------------------------------------------------- topologies
STREAM_VERBS: list[Callable[..., Any]] = [
    stream_verbs.map_values,
    stream_verbs.filter_,
    stream_verbs.peek,
    stream_verbs.select_key,
    stream_verbs.map_,
    stream_verbs.flat_map_values,
    stream_verbs.flat_map,
    stream_verbs.repartition,
    stream_verbs.split,
    stream_verbs.merge,
    stream_verbs.to_table,
    *[stream_verbs.aggregate] * 3,
    *[stream_verbs.aggregate_windows] * 6,
    *[stream_verbs.cogroup] * 2,
    *[stream_verbs.join_stream] * 4,
    *[stream_verbs.join_table] * 3,
    processor_verbs.process,
    *[processor_verbs.process_with_store] * 3,
    processor_verbs.process_values,
    processor_verbs.look_into_table,
]
TABLE_VERBS: list[Callable[..., Any]] = [
    *[table_verbs.to_stream] * 4,
    table_verbs.map_values,
    *[table_verbs.filter_] * 2,
    table_verbs.transform_values,
    *[table_verbs.group_by] * 3,
    *[table_verbs.join_table] * 3,
    *[table_verbs.suppress] * 3,
]


def write_source(w: Writer) -> tuple[str, str]:
    """One topic, read as a stream or as a table; the types of its keys and values."""
    key, value = types = w.pick([("string", "string"), ("string", "long"), ("long", "string")])
    fields: Spec = {"topic": "in", "key": key, "value": value}
    if w.chance(10):
        extractors = [fn("plus", ms=5), *(fn("value_at", missing=m) for m in ("record", "partition_time", "drop"))]
        fields["extractor"] = w.pick(extractors)
    if not w.chance(4):
        w.define("stream", fields, "stream", types, Claim(), region=w.regions.top)
        return types
    fields = stream_verbs.with_history(w, fields)
    claim, history = source_table(fields), fields.get("versioned_ms")
    w.define("table", fields, "table", types, claim, region=w.regions.top, versioned=history)
    return types


def write_step(w: Writer) -> None:
    """One verb on one of the last nodes, or on any."""
    node = w.pick(w.live if w.chance(4) else w.live[-2:])
    verb = w.pick(STREAM_VERBS if node.kind == "stream" else TABLE_VERBS)
    with w.step():
        verb(w, node)


def random_case(seed: int, *, steady: bool = False) -> Case:
    """`steady`: only what keeps a claim with caching on."""
    random = Random(seed)  # noqa: S311 -- no secret
    w, types = Writer(random, steady=steady), ("string", "string")
    if w.chance(15):
        processor_verbs.write_processors(w)
    else:
        types = write_source(w)
        for _ in range(w.pick([1, 2, 3, 4, 4, 5, 5, 6, 7])):
            write_step(w)
        w.write_sinks()
    config: Spec = {"store_type": "in_memory"} if w.chance(3) else {}
    if w.may_optimize and w.chance(3) and optimizable(w.statements):
        config["optimization"] = "all"
    return Case(w.statements, config, random_records(random, *types), random_cut(random), w.sinks, w.stores)


def optimizable(statements: list[Spec]) -> bool:
    """As Kafka Streams we refuse to optimize some topologies whose repartitions share a branch."""
    try:
        Program({"topology": statements, "config": {"optimization": "all"}})
    except TopologyError as refusal:
        return "share a branch" not in str(refusal)
    return True


# ----------------------------------------------------------------------------------------------------------- records
def random_records(random: Random, key: str, value: str) -> list[Piped]:
    """Few keys, so that they meet."""
    keys, moves = KEYS[key][: random.choice([1, 2, 2, 3, 4])], random.choice([CALM, CALM, USUAL, WILD])
    latest, found = 10, list[Piped]()
    for _ in range(random.randrange(30)):
        timestamp = max(0, latest + random.choice(moves))
        latest = max(latest, timestamp)
        drawn_key = None if random.random() < 0.07 else random.choice(keys)
        drawn_value = None if random.random() < 0.1 else random.choice(VALUES[value])
        found.append(Piped(drawn_key, drawn_value, timestamp, random.choice(HEADERS)))
    return found


def random_cut(random: Random) -> Cut:
    largest = random.choice([2, 4, 10])
    return [(random.randint(1, largest), random.random() < 0.5) for _ in range(random.randrange(12))]
