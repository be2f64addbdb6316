"""Every example on Spark: with 1, 2 and 7 partitions it comes to what it comes to in the driver."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from examples import read_process_write, reprocess, word_count
from headrace import Record, serde
from headrace.cli.main import exit_code
from tests.examples.on_spark import (
    PATIENCE_MS,
    Case,
    Table,
    Tables,
    application,
    in_the_driver,
    on_spark,
    read,
    values,
    write,
)
from tests.examples.playing import generated
from tests.examples.test_every_example import PROGRAMS

pytestmark = pytest.mark.spark

MINUTE, HOUR = 60_000, 3_600_000


def ordered_for_those_above(tables: Tables) -> set[str]:
    """The portfolios that are above their limit in the end, and have an order to rebalance."""
    return {name for name in tables["rebalancing-orders"] if tables["store above-limit"][name]}


CASES = [
    Case(name="account"),
    # Beacons are looked for when the time of their partition passes a minute, so each has its partition's timestamp.
    # After two hours pairs are forgotten, by the time of the partition too: the events end before.
    Case(name="beaconing", count=200, timestamps=False),
    # Views without a search, and what is kept for joins, wait for the time of their partition to go on.
    Case(name="clickstream", ahead=HOUR),
    Case(name="customer_service"),
    Case(name="daily_prices"),
    # Rules are read before all else, whatever their time: a seed of which none changes later.
    Case(name="fraud_detection", seed=6),
    Case(name="inventory"),
    Case(name="join_by_hand", ahead=HOUR),
    Case(name="join_by_hand", build="build_with_dsl", ahead=HOUR),
    Case(name="log_levels"),
    Case(name="offline_device", count=600),
    # Final results wait for the time of their partition, to which all devices in it contribute.
    Case(name="offline_device", build="build_with_one_clock", ahead=7 * HOUR),
    # A score waits for the time of its partition to pass it by five seconds.
    Case(name="online_model", ahead=MINUTE),
    Case(name="order_enrichment"),
    Case(name="order_filter"),
    # What a foreign-key join gives has the time of the side that came last; with caching, a batch lets products and
    # customers out after the orders.
    Case(name="orders_by_product", timestamps=False),
    Case(name="page_views_by_user"),
    Case(name="popular_results", ahead=HOUR),
    Case(name="predictive_maintenance", count=600),
    Case(name="read_process_write"),
    Case(name="reprocess"),
    Case(name="reprocess", build="build_version_2"),
    Case(name="sessions"),
    Case(name="star_wars"),
    Case(name="star_wars", build="build_by_release"),
    Case(name="stock_statistics"),
    # A place has the time of the gain that changed it; which gains come together to the one list is up to the batches.
    Case(name="top_10_stocks", count=600, timestamps=False),
    # A place has the time of the order or click that changed it, whichever the batch lets out last.
    Case(name="top_products", timestamps=False),
    # As with orders by product; and a limit that is passed and kept again within one batch was never passed.
    Case(name="value_at_risk", timestamps=False, equal={"rebalancing-orders": ordered_for_those_above}),
    Case(name="word_count"),
    Case(
        name="word_count",
        build="build_quick_start",
        topics={word_count.QUICK_START_INPUT: (serde.STRING, serde.STRING)},
        outputs={word_count.QUICK_START_OUTPUT: (serde.STRING, serde.LONG)},
    ),
]


# Its profiles are changes of a database, which the generator does not make; the driver's test feeds them by hand.
ELSEWHERE = {("clickstream", "build_from_changes")}


def test_every_program_is_here():
    assert [(case.name, case.build) for case in CASES] == [one for one in PROGRAMS if one not in ELSEWHERE]


@pytest.mark.parametrize("partitions", [1, 2, 7])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_comes_to_the_same_as_in_the_driver(case: Case, partitions: int, tmp_path: Path):
    expected, found = in_the_driver(case), on_spark(case, partitions, tmp_path)
    assert case.compared(found) == case.compared(expected)
    assert any(expected[topic] for topic in case.results())


# ------------------------------------------------------------------------------------- programs that do more than run
def by_key(records: list[Record]) -> dict[Any, list[tuple[Any, int]]]:
    found = defaultdict[Any, list[tuple[Any, int]]](list)
    for record in records:
        found[record.key].append((record.value, record.timestamp))
    return found


def test_payments_come_out_of_the_loop_by_hand_as_out_of_the_topology(tmp_path: Path):
    log, by_hand = f"file:{tmp_path}/log", "by-hand"
    outputs = {**read_process_write.OUTPUTS, by_hand: read_process_write.OUTPUTS[read_process_write.IN_EUROS]}
    write(log, read_process_write.TOPICS, outputs, generated(read_process_write, 300), partitions=2)
    with application(read_process_write.APPLICATION, read_process_write.build(), log, tmp_path) as app:
        assert read_process_write.run_by_hand(log, by_hand, idle=0) == 300
        app.drain(PATIENCE_MS)
    in_euros = by_key(read(log, read_process_write.IN_EUROS, outputs))
    assert in_euros
    assert by_key(read(log, by_hand, outputs)) == in_euros


@pytest.fixture
def visits(tmp_path: Path) -> str:
    """A log with visits."""
    log = f"file:{tmp_path}/log"
    write(log, reprocess.TOPICS, reprocess.OUTPUTS, generated(reprocess, 300), partitions=2)
    return log


def counts(build: str, topic: str) -> Table:
    return values(in_the_driver(Case(name="reprocess", build=build))[topic])


def test_two_versions_run_side_by_side_are_compared_and_the_second_takes_over(visits: str, tmp_path: Path):
    first, second = counts("build", reprocess.COUNTS), counts("build_version_2", reprocess.COUNTS_2)
    old = application(reprocess.APPLICATION, reprocess.build(), visits, tmp_path)
    with old, application(reprocess.APPLICATION_2, reprocess.build_version_2(), visits, tmp_path) as new:
        old.drain(PATIENCE_MS)
        new.drain(PATIENCE_MS)
        assert reprocess.compare(visits) == reprocess.differences(first, second)
        assert reprocess.current_counts(visits) == first
        reprocess.switch(visits, reprocess.COUNTS_2)
        assert reprocess.current_counts(visits) == second


def test_an_application_that_was_reset_reads_everything_again_also_as_another_program(visits: str, tmp_path: Path):
    name, expected = reprocess.APPLICATION, counts("build", reprocess.COUNTS)
    for times in (1, 2):
        application(name, reprocess.build(), visits, tmp_path).run_available()
        written = read(visits, reprocess.COUNTS, reprocess.OUTPUTS)
        assert [record.value for record in written].count(expected["/"]) == times
        assert reprocess.table(visits, reprocess.COUNTS) == expected
        places = ["--log", visits, "--checkpoint", str(tmp_path / name), "--state-dir", str(tmp_path / "state")]
        assert exit_code(["reset", "--application-id", name, "--input-topics", reprocess.VISITS, *places]) == 0
    application(name, reprocess.build_version_2(), visits, tmp_path).run_available()
    assert reprocess.table(visits, reprocess.COUNTS_2) == counts("build_version_2", reprocess.COUNTS_2)
