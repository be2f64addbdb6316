"""What must come out of a topology: what the test driver gives, which Kafka Streams' vectors prove."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace import Topology
from headrace.testing import TopologyTestDriver

Input = tuple[str, bytes | None, bytes | None, int]  # topic, key, value, timestamp
Row = tuple[bytes | None, bytes | None, int]  # key, value, timestamp


def driver_rows(
    topology: Topology, records: Iterable[Input], topics: Sequence[str], config: Mapping[str, Any]
) -> dict[str, list[Row]]:
    """The records that the driver writes to each topic."""
    with TopologyTestDriver(topology, dict(config)) as driver:
        for topic, key, value, timestamp in records:
            driver.pipe_row(topic, key, value, timestamp, ())
        return {
            topic: [(key, value, time) for _, _, key, value, time, *_ in driver.queue(topic)] for topic in topics
        }  # fmt: skip


def values_by_key(rows: Iterable[Sequence[Any]]) -> dict[bytes | None, list[bytes | None]]:
    """The values of every key, in their order."""
    found = defaultdict[bytes | None, list[bytes | None]](list)
    for key, value, *_ in rows:
        found[key].append(value)
    return dict(found)
