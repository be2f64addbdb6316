"""What differs between the result of a case and what Kafka Streams gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from headrace import InvalidStateStoreError, StreamsError, TopologyError
from tests.oracle.language import Case
from tests.oracle.running import Result

# By Kafka Streams' error: ours. What is not here may be any error in the same phase.
ERRORS = {
    "TopologyException": TopologyError,
    "StreamsException": StreamsError,
    "InvalidStateStoreException": InvalidStateStoreError,
    "IllegalArgumentException": ValueError,
}


def differences(case: Case, actual: Result) -> list[str]:
    """The first differing record of every topic, row of every store, and so on; empty if nothing differs.

    In a step of `multi_internal_steps` several internal topics had records, and how those interleave is not specified:
    there a topic's records are compared without their order.
    """
    expected = case["expected"]
    if "error" in expected or "error" in actual:
        found = list(in_error(expected, actual))
    else:
        found = [*in_outputs(expected, actual), *in_stores(expected, actual)]
        found += [*in_value("metrics", expected, actual), *in_value("internal_topics", expected, actual)]
    return [*found, *in_description(expected, actual)]


def in_error(expected: Result, actual: Result) -> Iterator[str]:
    wanted, error = expected.get("error"), actual.get("error")
    if error is None:
        yield f"expected {wanted} in {phase(expected)}, got no error"
    elif wanted is None:
        yield f"unexpected {error!r} in {phase(actual)}"
    elif phase(expected) != phase(actual):
        yield f"expected {wanted} in {phase(expected)}, got {error!r} in {phase(actual)}"
    elif not isinstance(error, ERRORS.get(wanted, Exception)):
        yield f"expected {ERRORS[wanted].__name__}, got {error!r}"


def phase(failed: Result) -> str:
    return f"step {failed['step']}" if "step" in failed else f"the {failed['phase']}"


def in_outputs(expected: Result, actual: Result) -> Iterator[str]:
    unordered = set(expected.get("multi_internal_steps", ()))
    for topic in sorted(expected["outputs"].keys() | actual["outputs"].keys()):
        if topic not in expected["outputs"] or topic not in actual["outputs"]:
            yield f"the topic {topic} is only in what was {'expected' if topic in expected['outputs'] else 'produced'}"
            continue
        both = (comparable(result["outputs"][topic], unordered) for result in (expected, actual))
        for index, (wanted, given) in enumerate(zip_longest(*both)):
            if wanted != given:
                yield f"topic {topic}, record {index}: expected {compact(wanted)}, got {compact(given)}"
                break


def comparable(records: list[Result], unordered: set[int]) -> list[Result]:
    return sorted(records, key=lambda record: (record["step"], compact(record) if record["step"] in unordered else ""))


def in_stores(expected: Result, actual: Result) -> Iterator[str]:
    for name, wanted in expected["stores"].items():
        given = actual["stores"].get(name)
        if wanted is None or given is None:
            yield from in_value(name, expected["stores"], actual["stores"])
            continue
        pairs = zip_longest(wanted, given)
        yield from (f"store {name}: expected {compact(a)}, got {compact(b)}" for a, b in [*pairs] if a != b)


def in_value(name: str, expected: Result, actual: Result) -> Iterator[str]:
    if expected.get(name) != actual.get(name):
        yield f"{name}: expected {compact(expected.get(name))}, got {compact(actual.get(name))}"


def in_description(expected: Result, actual: Result) -> Iterator[str]:
    lines = (result.get("describe", "").split("\n") for result in (expected, actual))
    for number, (wanted, given) in enumerate(zip_longest(*lines), start=1):
        if wanted != given:
            yield f"describe, line {number}: expected {wanted!r}, got {given!r}"
            return


def compact(x: Any) -> str:
    return json.dumps(x, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
