"""Golden vectors in an `Application` on Spark: many cases in one application, whose batches run a step of each.

Every step is processed and delivered before the next one is written, as in Kafka Streams' test driver. Where the cut
does not matter, all steps are also written at once.
"""

from __future__ import annotations

import pytest

from tests.oracle.language import Case
from tests.oracle.packs import can_be_cut, packs, run_pack
from tests.oracle.vectors import NAMED, RANDOM, untagged

pytestmark = pytest.mark.spark

TRIGGERS = ("real-time", pytest.param("micro-batch", marks=pytest.mark.long))
AT_ONCE = 1_000  # steps; no case has as many
# Caches are behind a repartition: Kafka Streams' driver commits between the records of a step, a batch does not.
DIFFERENT = {"cache_count", "expired_in_memory_cached_session_near_groupBy", "random_1_0054"}


def chosen(path, fits=lambda case: True) -> list[list[Case]]:
    return list(packs(case for case in untagged(path) if case["name"] not in DIFFERENT and fits(case)))


def in_packs(found: list[list[Case]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cases", found, ids=lambda cases: f"{cases[0]['name']}-{cases[-1]['name']}")


@pytest.mark.parametrize("trigger", TRIGGERS)
@in_packs(chosen(NAMED))
def test_cases_give_on_spark_what_kafka_streams_gave(cases: list[Case], trigger: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_PROCESSING_TRIGGER", trigger)
    assert run_pack(cases) == {}


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
@in_packs(chosen(NAMED, can_be_cut))
def test_cases_whose_steps_come_at_once_give_the_same(cases: list[Case], trigger: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_PROCESSING_TRIGGER", trigger)
    assert run_pack(cases, AT_ONCE) == {}


@pytest.mark.long
@pytest.mark.parametrize("trigger", TRIGGERS)
@in_packs(chosen(RANDOM))
def test_random_cases_give_on_spark_what_kafka_streams_gave(
    cases: list[Case], trigger: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HEADRACE_PROCESSING_TRIGGER", trigger)
    assert run_pack(cases) == {}
