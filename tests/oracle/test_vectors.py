"""Headrace does what Apache Kafka Streams 4.3.0 does: records, order, timestamps, headers, stores and all."""

import pytest

from tests.oracle.comparing import differences
from tests.oracle.running import run
from tests.oracle.vectors import NAMED, RANDOM, untagged
from tests.profiles import sample


@pytest.mark.parametrize("case", [*untagged(NAMED), *sample(untagged(RANDOM))], ids=lambda case: case["name"])
def test_a_case_gives_what_kafka_streams_gave(case):
    found = differences(case, run(case))
    if found:
        pytest.fail(f"{case['name']}: {found[0]}", pytrace=False)
