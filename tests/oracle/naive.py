"""Results computed the slow way, from scratch, to compare Headrace with where Kafka Streams is no guide.

A case is *tapped*: what goes into an operator and what comes out of it is written to topics of its own. The models here
are functions from the one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from headrace import Record, Window, Windowed
from headrace.testing import TopologyTestDriver
from tests.oracle.aggregates import Aggregate, aggregate
from tests.oracle.functions import pair_mapper, reducer
from tests.oracle.language import LONG, Case, Spec, Types
from tests.oracle.running import configuration, perform, start_of
from tests.oracle.topologies import Program

Results = dict[Windowed, tuple[Any, int]]  # value and timestamp


class Tap(NamedTuple):
    """Topics with what goes into an operator and what comes out of it."""

    statement: Spec  # the `windowedBy` or `groupBy`
    aggregation: Spec
    before: str
    after: str


def tapped(case: Case, statements: Iterable[Spec]) -> tuple[dict[str, Any], list[Tap]]:
    """A case with taps around the aggregations below `statements`."""
    added, taps = list[Spec](), list[Tap]()
    for statement in statements:
        name, origin = statement["id"], source_of(case, statement)
        for aggregation in (s for s in case["topology"] if s.get("from") == name):
            tap = Tap(statement, aggregation, f"{name}-before", f"{aggregation['id']}-after")
            taps.append(tap)
            added += [*origin, {"op": "to", "from": f"{name}-input", "topic": tap.before}]
            added += [
                {"id": f"{name}-output", "op": "toStream", "from": aggregation["id"]},
                {"op": "to", "from": f"{name}-output", "topic": tap.after},
            ]
    return {**case, "topology": [*case["topology"], *added]}, taps


def tapped_records(case: Case, taps: Iterable[Tap]) -> tuple[Program, dict[str, list[Record]]]:
    """Runs a tapped case; the records in its taps, by topic."""
    program = Program(case)
    found: dict[str, list[Record]] = {topic: [] for tap in taps for topic in (tap.before, tap.after)}
    with TopologyTestDriver(program.topology, configuration(case), wall_clock=start_of(case)) as driver:
        for step in case["steps"]:
            perform(step, program, driver)
        for topic, records in found.items():
            records.extend(driver.output_topic(topic, **program.sinks[topic].serdes).read_records())
    return program, found


def source_of(case: Case, statement: Spec) -> list[Spec]:
    """Defines what an operator gets: a table as a stream, or a stream with the keys that it is grouped by."""
    by_id = {s["id"]: s for s in case["topology"] if "id" in s}
    target = f"{statement['id']}-input"
    if statement["op"] == "groupBy":
        return [{"id": target, "op": "toStream", "from": statement["from"]}]
    grouping = by_id[statement["from"]]
    key = grouping["key"] if grouping["op"] == "groupBy" else {"fn": "same"}
    return [{"id": target, "op": "selectKey", "from": grouping["from"], "key": key}]


# ------------------------------------------------------------------------------------- windows that have closed
class Store(NamedTuple):
    """What matters of the store of windows."""

    retention: int | None  # None: the shortest that there can be
    memory: bool


def closed(records: list[Record], windows: Spec, parts: Aggregate, store: Store) -> Results:
    """What `ON_WINDOW_CLOSE` emits: every window that got a record in time and then closed, with its value."""
    records = [record for record in records if record.key is not None]
    match windows["type"]:
        case "tumbling" | "hopping":
            return time_windows(records, windows, parts)
        case "sliding":
            return sliding_windows([record for record in records if record.value is not None], windows, parts)
        case _:
            return sessions(records, windows, parts, store)


def in_order(records: list[Record]) -> Iterator[tuple[Record, int]]:
    """Records with the stream time at which each of them is processed."""
    return zip(records, accumulate((record.timestamp for record in records), max), strict=True)


def folded(records: Iterable[Record], parts: Aggregate) -> tuple[Any, int] | None:
    """The aggregate of records; where it becomes None it starts again."""
    value, timestamp = None, -1
    for record in records:
        value, timestamp = (parts.initial, record.timestamp) if value is None else (value, timestamp)
        value, timestamp = parts.add(record.key, record.value, value), max(timestamp, record.timestamp)
    return None if value is None else (value, timestamp)


def time_windows(records: list[Record], windows: Spec, parts: Aggregate) -> Results:
    size, grace = windows["size_ms"], windows.get("grace_ms", 0)
    advance = windows.get("advance_ms", size)
    inside: dict[Windowed, list[Record]] = {}
    for record, stream_time in in_order(records):
        for start in range(0, record.timestamp + 1, advance):
            if start <= record.timestamp < start + size and start + size + grace > stream_time:
                inside.setdefault(Windowed(record.key, Window(start, start + size)), []).append(record)
    return closed_by(records, {key: folded(members, parts) for key, members in inside.items()}, grace)


def sliding_windows(records: list[Record], windows: Spec, parts: Aggregate) -> Results:
    """Windows end at a record or begin right after one.

    As in Kafka Streams only windows remember records: one that comes when its own window has closed, and that falls
    into no other, is not there for windows that are made later.
    """
    difference, grace = windows["diff_ms"], windows.get("grace_ms", 0)
    remembered: list[Record] = []
    inside: dict[Windowed, list[Record]] = {}
    for record, stream_time in in_order(records):
        closes = stream_time - grace
        if record.timestamp + difference < closes:
            continue
        known = [*(r for r in remembered if r.key == record.key), record]
        around = {max(0, r.timestamp - difference) for r in known} | {r.timestamp + 1 for r in known}
        for start in sorted(around):
            window, end = Windowed(record.key, Window(start, start + difference)), start + difference
            members = [r for r in known if start <= r.timestamp <= end]
            if window in inside and record in members and end >= closes:
                inside[window].append(record)
            elif window not in inside and members and end >= closes:
                inside[window] = members
        if any(record in members for members in inside.values()):
            remembered.append(record)
    return closed_by(records, {key: folded(members, parts) for key, members in inside.items()}, grace + 1)


def sessions(records: list[Record], windows: Spec, parts: Aggregate, store: Store) -> Results:
    """As in Kafka Streams a session is forgotten when its end lies the retention behind the largest end.

    That can be one millisecond before records for it are late. A store in memory does not even take such a session.
    """
    gap, grace = windows["gap_ms"], windows.get("grace_ms", 0)
    retention, latest = store.retention or gap + grace, -1
    results, emitted = dict[Windowed, tuple[Any, int] | None](), Results()
    for record, stream_time in in_order(records):
        at, value = record.timestamp, parts.initial
        touched = [
            (key, result[0])
            for key, result in sorted(results.items(), key=lambda entry: (entry[0].window.end, entry[0].window.start))
            if key.key == record.key and result and key.window.end > latest - retention
            if key.window.start - gap <= at <= key.window.end + gap
        ]
        start = min([at, *(key.window.start for key, _ in touched)])
        end = max([at, *(key.window.end for key, _ in touched)])
        latest = max(latest, end)
        if end < stream_time - gap - grace or (store.memory and end <= latest - retention):
            continue
        for key, part in touched:
            value = parts.merge(record.key, value, part)
            del results[key]
        value = parts.add(record.key, record.value, value)
        results[Windowed(record.key, Window(start, end))] = None if value is None else (value, end)
        emitted |= closed_by([record], results, gap + grace + 1)
    return emitted


def closed_by(records: list[Record], results: Mapping[Windowed, tuple[Any, int] | None], wait: int) -> Results:
    """The windows that have ended so long before the last of the records."""
    now = max((record.timestamp for record in records), default=-1)
    return {key: result for key, result in results.items() if result is not None and key.window.end + wait <= now}


# ------------------------------------------------------------------------------------- tables with other keys
def regrouped(records: Iterable[Record], grouping: Spec, parts: Aggregate, types: Types) -> list[tuple[Any, Any]]:
    """The updates of an aggregate over a table, of which `records` are the updates."""
    select: Callable[[Any, Any], tuple[Any, Any]] = pair_mapper(grouping, types)[1]
    table: dict[Any, Any] = {}
    aggregates: dict[Any, Any] = {}
    updates: list[tuple[Any, Any]] = []

    def part_of(key: Any, value: Any) -> tuple[Any, Any] | None:
        group, part = (None, None) if value is None else select(key, value)
        return None if group is None or part is None else (group, part)

    def update(group: Any, removed: Any, added: Any) -> None:
        so_far = aggregates.get(group)
        if removed is not None and so_far is not None:
            so_far = parts.subtract(group, removed, so_far)
        if added is not None:
            so_far = parts.add(group, added, parts.initial if so_far is None else so_far)
        aggregates[group] = so_far
        updates.append((group, so_far))

    for record in records:
        old, new = part_of(record.key, table.get(record.key)), part_of(record.key, record.value)
        table[record.key] = record.value
        if old and new and old[0] == new[0]:
            update(old[0], old[1], new[1])
            continue
        if old:
            update(old[0], old[1], None)
        if new:
            update(new[0], None, new[1])
    return updates


# --------------------------------------------------------------------------------------------------- aggregations
def parts_of(aggregation: Spec) -> Aggregate:
    """Any aggregation as one with an initial value: that of a reduction is None."""
    match aggregation:
        case {"op": "count"}:
            return aggregate({"fn": "count"})
        case {"op": "reduce"}:
            add = reducer(aggregation["reducer"])
            subtract = reducer(aggregation.get("subtractor", aggregation["reducer"]))
            return Aggregate(
                LONG,
                None,
                lambda key, value, so_far: value if so_far is None else add(so_far, value),
                lambda key, value, so_far: subtract(so_far, value),
                lambda key, a, b: b if a is None else add(a, b),
            )
        case _:
            return aggregate(aggregation["agg"])
