"""With one record per batch, level by level gives what the test driver gives, in which all is one task."""

from __future__ import annotations

from hypothesis import given

from headrace.runtime.rows import Row
from headrace.testing import TopologyTestDriver
from headrace.topology.subtopologies import Plan
from tests.properties.cases import Case, random_case
from tests.properties.levels import Levels
from tests.properties.processor_verbs import PUNCTUATE
from tests.properties.running import (
    Records,
    Unfit,
    by_topic,
    check,
    contents,
    expect,
    levels_of,
    profile,
    readable,
    seeds,
    settings_of,
)


@given(seed=seeds)
@profile
def test_one_record_per_batch_is_what_the_driver_does(seed: int):
    check(levels_do_what_the_driver_does, random_case(seed), seed)


def levels_do_what_the_driver_does(case: Case) -> None:
    program = case.program()
    with levels_of(case, program) as levels, TopologyTestDriver(case.program().topology, settings_of(case)) as driver:
        if len(levels.plan.stages) > 1 and case.says("times", "v_times", PUNCTUATE):
            raise Unfit  # each stage has a time of its own, the driver one for all of them
        for row in case.rows(program):
            produced = pipe(driver, row)
            if not decided(levels.plan, produced):
                return
            actual = readable(program, by_topic(levels.run([row])))
            expect(f"record {row[2]}", actual, readable(program, produced))
        expect_same_state(levels, driver)


def pipe(driver: TopologyTestDriver, row: Row) -> dict[str, Records]:
    """Pipes a record of the topic in; what it made the driver write, to internal topics, too."""
    topic, _, _, key, value, timestamp, headers, _ = row
    driver.pipe_row(topic, key, value, timestamp, headers)
    queues = [driver.queue(topic) for topic in sorted(driver.produced_topics)]
    return by_topic([queue.popleft() for queue in queues for _ in range(len(queue))])


def decided(plan: Plan, produced: dict[str, Records]) -> bool:
    """Whether both must take the records of a step in the same order; else they may differ from here on.

    Where a stage reads several internal topics the driver takes the one with the smallest timestamp, and of equal ones
    as its heap has it. With two topics of one record each, at the same time, that is the order in which they came.
    """
    inner = [f"oracle-{topic}" for stage in plan.stages.values() for topic in stage.inputs]
    loaded = {topic: produced[topic] for topic in inner if topic in produced}
    one_each = len(loaded) == 2 and all(len(records) == 1 for records in loaded.values())
    if one_each and len({records[0][2] for records in loaded.values()}) == 1:
        return True
    return all(sum(f"oracle-{topic}" in loaded for topic in stage.inputs) <= 1 for stage in plan.stages.values())


def expect_same_state(levels: Levels, driver: TopologyTestDriver) -> None:
    expect("stores", contents(levels.stores()), contents(driver.stores))
    prefix = "dropped-records-total/"
    dropped = {reason: count for reason, count in driver.metrics().items() if reason.startswith(prefix)}
    expect("dropped", {prefix + reason: count for reason, count in levels.dropped.items()}, dropped)
