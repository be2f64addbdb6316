"""A workload: records that are given, and who judges what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.peers.truths import Judge
from examples.events import START
from headrace.model.partitioner import partition_of

PARTITIONS = 4
WARM = b"warm"  # how keys of records begin that only show that a system has started
BEFORE = START - 3_600_000  # the time of such records


class Given(NamedTuple):
    """A record for an input topic; without a partition its key says where it goes."""

    topic: str
    key: bytes | None
    value: bytes
    timestamp: int
    partition: int | None = None


@dataclass(frozen=True)
class Workload:
    """Input topics, the records that are there before (`first`), the backlog, and who judges the output."""

    name: str
    title: str
    detail: str
    topics: tuple[str, ...]
    size: int  # records of the backlog that are counted
    first: Callable[[], Iterable[Given]]
    backlog: Callable[[], Iterable[Given]]
    judge: Callable[[], Judge]
    ticks: Callable[[int], Iterable[Given]] | None = None  # records that let time go on after the backlog
    record_bytes: int | None = None  # of a value, where MB/s are asked for


def keys_of_partitions(name: Callable[[int], bytes]) -> list[bytes]:
    """A key for each partition, the first ones of those that `name` gives."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < PARTITIONS:
        found.setdefault(partition_of(name(number), PARTITIONS) or 0, name(number))
        number += 1
    return [found[partition] for partition in range(PARTITIONS)]


def warm_keys() -> list[bytes]:
    return keys_of_partitions(lambda number: WARM + b"-%d" % number)
