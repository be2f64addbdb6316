"""Golden vectors in an `Application` on Spark: all steps at once where the cut does not matter."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Record
from tests.oracle.language import Case
from tests.oracle.running import rows, shown
from tests.oracle.spark_host import SparkHost
from tests.oracle.topologies import Program
from tests.oracle.vectors import NAMED, untagged

pytestmark = pytest.mark.spark

# One of each kind: what runs on one level, on several, with windows, sessions, joins, buffers and processors.
NAMES = (
    "count",
    "tumbling",
    "hopping",
    "session",
    "sliding",
    "suppress",
    "groupBy",
    "repartition",
    "toTable",
    "process",
)


def fed_by_one_topic(case: Case) -> bool:
    topics = {step["pipe"]["topic"] for step in case["steps"] if "pipe" in step}
    expected = case["expected"]
    return (
        len(topics) == 1
        and all("pipe" in step for step in case["steps"])
        and "error" not in expected
        and not expected.get("multi_internal_steps")
        and not case.get("config")
        and "fk" not in case["name"]
    )


def chosen() -> list[Case]:
    cases = [case for case in untagged(NAMED) if fed_by_one_topic(case)]
    return [next(case for case in cases if name in case["name"]) for name in NAMES]


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
@pytest.mark.parametrize("case", chosen(), ids=lambda case: case["name"])
def test_a_case_gives_on_spark_what_kafka_streams_gave(case: Case, trigger: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_PROCESSING_TRIGGER", trigger)
    program = Program(case)
    host = SparkHost(program.topology, dict(case))
    try:
        for step in case["steps"]:
            pipe(host, program, step["pipe"])
        host.settle()
        for topic, expected in case["expected"]["outputs"].items():
            types = program.outputs([topic])[topic]
            found = [shown(record, 0) for record in host.read(topic, **types.serdes)]
            assert found == [record | {"step": 0} for record in expected], topic
        for name, expected in case["expected"]["stores"].items():
            assert rows(host.store(name), program.stores[name], case) == expected, name
        assert host.dropped_records() == case["expected"]["metrics"]["dropped_records_total"]
    finally:
        host.close()


def pipe(host: SparkHost, program: Program, piped: dict[str, Any]) -> None:
    headers = [(name, None if value is None else value.encode()) for name, value in piped.get("headers", [])]
    record = Record(piped.get("key"), piped.get("value"), piped["ts"], tuple(headers))
    host.pipe(piped["topic"], record, **program.types_of(piped["topic"]).serdes)
