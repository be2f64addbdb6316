"""Golden vectors in an `Application` on Spark: all steps at once where the cut does not matter, joins step by step."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from headrace import Record
from tests.oracle.language import Case
from tests.oracle.running import Result, rows, shown
from tests.oracle.spark_host import SparkHost
from tests.oracle.topologies import Program
from tests.oracle.vectors import NAMED, untagged

pytestmark = pytest.mark.spark

# One of each kind: what runs on one level, on several, with windows, sessions, buffers and processors.
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
# Of streams, of tables, of a stream with a table, and by a foreign key. They read two topics, whose order matters.
JOINS = ("ss_outerJoin_repartition", "tt_outerJoin_oldvalues", "st_leftJoin_derived_table", "fk_left_with_count")
TRIGGERS = ("real-time", "micro-batch")


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


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("case", chosen(), ids=lambda case: case["name"])
def test_a_case_gives_on_spark_what_kafka_streams_gave(case: Case, trigger: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_PROCESSING_TRIGGER", trigger)
    program = Program(case)
    with closing(SparkHost(program.topology, dict(case))) as host:
        for step in case["steps"]:
            pipe(host, program, step["pipe"])
        host.settle()
        for topic, expected in case["expected"]["outputs"].items():
            assert read(host, program, topic, 0) == [record | {"step": 0} for record in expected], topic
        check_state(host, program, case)


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("name", JOINS)
def test_a_join_gives_on_spark_what_kafka_streams_gave(name: str, trigger: str, monkeypatch: pytest.MonkeyPatch):
    """Every step is processed and delivered before the next one is written, as in Kafka Streams' test driver."""
    monkeypatch.setenv("HEADRACE_PROCESSING_TRIGGER", trigger)
    (case,) = (case for case in untagged(NAMED) if case["name"] == name)
    program, outputs = Program(case), case["expected"]["outputs"]
    assert any(outputs.values())
    with closing(SparkHost(program.topology, dict(case))) as host:
        for number, step in enumerate(case["steps"]):
            pipe(host, program, step["pipe"])
            host.settle()
            for topic, expected in outputs.items():
                due = [record for record in expected if record["step"] == number]
                found = read(host, program, topic, number)
                assert in_order(found, case, number) == in_order(due, case, number), (topic, number)
        check_state(host, program, case)


def in_order(records: list[Result], case: Case, number: int) -> list[Result]:
    """The order of what several internal records of a step cause is not given."""
    return sorted(records, key=str) if number in case["expected"].get("multi_internal_steps", ()) else records


def pipe(host: SparkHost, program: Program, piped: dict[str, Any]) -> None:
    headers = [(name, None if value is None else value.encode()) for name, value in piped.get("headers", [])]
    record = Record(piped.get("key"), piped.get("value"), piped["ts"], tuple(headers))
    host.pipe(piped["topic"], record, **program.types_of(piped["topic"]).serdes)


def read(host: SparkHost, program: Program, topic: str, number: int) -> list[Result]:
    return [shown(record, number) for record in host.read(topic, **program.outputs([topic])[topic].serdes)]


def check_state(host: SparkHost, program: Program, case: Case) -> None:
    for name, expected in case["expected"]["stores"].items():
        assert rows(host.store(name), program.stores[name], case) == expected, name
    assert host.dropped_records() == case["expected"]["metrics"]["dropped_records_total"]
