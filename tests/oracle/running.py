"""Runs a case in the `TopologyTestDriver`; the result has the form of `case["expected"]`."""

from __future__ import annotations

import re
from typing import Any

from headrace import Record, ValueAndTimestamp, Windowed
from headrace.testing import TopologyTestDriver
from tests.oracle.language import LONG, BadCase, Case, Spec, num, text, utf16
from tests.oracle.topologies import Program, Shape

Result = dict[str, Any]
Row = list[Any]


def run(case: Case) -> Result:
    """What Headrace makes of a case. An error is a result too, with the phase in which it came."""
    progress: Result = {"phase": "build"}
    try:
        program = Program(case)
        progress = {"phase": "start", "describe": described(program)}
        with TopologyTestDriver(program.topology, configuration(case), wall_clock=start_of(case)) as driver:
            outputs: dict[str, list[Result]] = {topic: [] for topic in program.sinks}
            for number, step in enumerate(case["steps"]):
                progress |= {"phase": "step", "step": number}
                perform(step, program, driver)
                for topic, types in program.outputs(driver.produced_topics).items():
                    records = driver.output_topic(topic, **types.serdes).read_records()
                    outputs.setdefault(topic, []).extend(shown(record, number) for record in records)
            return {
                "outputs": outputs,
                "stores": {name: rows(driver.stores.get(name), shape, case) for name, shape in program.stores.items()},
                "metrics": {"dropped_records_total": driver.metrics()["dropped-records-total"]},
                "internal_topics": program.topology.internal_topics,
                "describe": progress["describe"],
            }
    except BadCase:
        raise
    except Exception as error:  # noqa: BLE001 -- that a case fails, and how, is compared too
        return {"error": error} | progress


def described(program: Program) -> str:
    """The description, without the name of a router's class."""
    return re.sub(r"extractor class: [^)]*", "extractor class: ROUTER", str(program.topology.describe()))


def configuration(case: Case) -> dict[str, Any]:
    """Unlike an application a case has no cache and emits at every record, unless it says otherwise."""
    given = case.get("config", {})
    config = {
        "application.id": "oracle",
        "statestore.cache.max.bytes": given.get("cache_max_bytes", 0),
        "emit.interval.ms": given.get("emit_interval_ms", 0),
        "dsl.store.suppliers.class": "memory" if given.get("store_type") == "in_memory" else "persistent",
    }
    return config | ({"dsl.store.format": given["store_format"]} if "store_format" in given else {})


def start_of(case: Case) -> int:
    return case.get("config", {}).get("wall_clock_start_ms", 0)


def perform(step: Spec, program: Program, driver: TopologyTestDriver) -> None:
    match step:
        case {"pipe": {"topic": topic, "ts": timestamp, **piped}}:
            headers = [(name, None if value is None else value.encode()) for name, value in piped.get("headers", [])]
            source = driver.input_topic(topic, **program.types_of(topic).serdes)
            source.pipe(piped.get("key"), piped.get("value"), timestamp=timestamp, headers=headers)
        case {"advance_wall_clock_ms": ms}:
            driver.advance_wall_clock(ms)
        case _:
            raise BadCase(f"unknown step {step}")


# ------------------------------------------------------------------------------------------------------ as in JSON
def shown(record: Record, step: int) -> Result:
    result = {"key": plain(record.key), "value": plain(record.value), "ts": record.timestamp, "step": step}
    headers = [[name, None if value is None else value.decode()] for name, value in record.headers]
    return result | ({"headers": headers} if headers else {})


def plain(x: Any) -> Any:
    """A key or value."""
    return {"key": plain(x.key), "start": x.window.start, "end": x.window.end} if isinstance(x, Windowed) else x


def rows(store: Any, shape: Shape, case: Case) -> list[Row] | None:
    """All that is in a store: by the text of the key, then by window."""
    if store is None:
        return None
    match shape.kind:
        case "kv":
            found = [[plain(key), *cells(value)] for key, value in store.all()]
        case "window":
            found = [[plain(key.key), key.window.start, *cells(value)] for key, value in store.all()]
        case "session":
            found = [[plain(key.key), *key.window, *cells(value)] for key, value in store.all()]
        case _:
            versions = {key: store.get(key) for key in keys_to_look_up(case, shape)}
            found = [[key, *cells(ValueAndTimestamp(*version[:2]))] for key, version in versions.items() if version]
    return sorted(found, key=place)


def cells(value: Any) -> Row:
    return [plain(value.value), value.timestamp] if isinstance(value, ValueAndTimestamp) else [plain(value)]


def keys_to_look_up(case: Case, shape: Shape) -> set[Any]:
    """A versioned store cannot list its keys: everything that was piped as a key or a value may be one."""
    piped = [step["pipe"].get(part) for step in case["steps"] if "pipe" in step for part in ("key", "value")]
    return {num(x) if shape.key is LONG else text(x) for x in piped if x is not None}


def place(row: Row) -> tuple[Any, ...]:
    """Where a row stands in its store."""
    key, *rest = row
    window = (0, 0)
    if isinstance(key, dict):
        key, *window = key.values()
    numbers = [x if isinstance(x, int) else 0 for x in (*rest, 0)[:2]]
    return (utf16(text(key)), *window, *numbers)
