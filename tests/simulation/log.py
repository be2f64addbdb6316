"""A simulated log with the rules of the embedded one: a delivery stores records and marker together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import LogBusyError, LogUnavailableError
from headrace.log.chunk_format import unpack
from headrace.log.protocol import Chunk, Extent, Item, Records, Topic
from headrace.log.validation import is_next_batch, unknown_topic
from headrace.model.ids import TopicPartition
from tests.simulation.faults import Faults
from tests.simulation.scheduler import Process

Row = tuple[bytes | None, bytes | None, int, Any]


class StoredLog:
    """The records and markers, which survive every process."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.topics = {name: Topic(name, f"id of {name}", count, {}) for name, count in topics.items()}
        self.rows = defaultdict[TopicPartition, list[Row]](list)
        self.markers: dict[str, int] = {}
        self.may_repeat = False  # deliveries are at least once

    def append(self, items: Sequence[Item]) -> list[int]:
        bases: list[int] = []
        for at, given in items:
            records = given if isinstance(given, Records) else unpack(given)[0]
            assert at.partition < self.topics[at.topic].partitions
            bases.append(len(self.rows[at]))
            self.rows[at] += [row[1:] for row in Chunk(range(len(records)), records).rows()]
        return bases

    def delivered(self, application: str) -> int:
        return self.markers.get(application, -1)

    def written(self, topic: str) -> list[list[Row]]:
        """The records of a topic, by partition."""
        return [self.rows[TopicPartition(topic, part)] for part in range(self.topics[topic].partitions)]

    def connect(self, process: Process, faults: Faults, *, stores_chunks: bool) -> SimulatedLog:
        """The log of one process."""
        return SimulatedLog(self, process, faults, stores_chunks=stores_chunks)


class SimulatedLog:
    """What coordinator, planner and slots use of a log."""

    def __init__(self, stored: StoredLog, process: Process, faults: Faults, *, stores_chunks: bool) -> None:
        self._stored, self._process, self._faults, self.stores_chunks = stored, process, faults, stores_chunks

    def _pass_time(self) -> None:
        random = self._process.scheduler.random
        is_slow = self._faults.happens("log is slow")
        self._process.sleep(random.uniform(0.2, 10.0) if is_slow else random.expovariate(500))

    def _ask(self, what: str) -> None:
        self._process.check()
        self._process.scheduler.note(f"{self._process} {what}")
        self._pass_time()
        if self._faults.happens("log fails"):
            kind = self._process.scheduler.random.choice([LogBusyError, LogUnavailableError])
            raise kind(f"{what}: the log does not answer")

    def _answer(self, what: str) -> None:
        self._pass_time()
        if self._faults.happens("log loses its answer"):
            raise LogBusyError(f"{what}: the answer was lost")

    # ---------------------------------------------------------------------------------------------------------- topics
    def topics(self) -> Mapping[str, Topic]:
        self._process.check()
        return self._stored.topics

    def topic(self, name: str) -> Topic:
        self._process.check()
        if name not in self._stored.topics:
            raise unknown_topic(name, self._stored.topics)
        return self._stored.topics[name]

    def confirm_topics(self, ids: Mapping[str, str]) -> Callable[[], dict[str, int]]:
        return lambda: {name: self._stored.topics[name].partitions for name in ids}

    # --------------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        self._ask("asks for the extents")
        places = [TopicPartition(name, part) for name in topics for part in range(self.topic(name).partitions)]
        return {at: Extent(0, len(self._stored.rows[at])) for at in places}

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        extents = self.extents(sorted({at.topic for at in partitions}))
        return {at: extents[at].end for at in partitions}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        self._ask("asks for offsets")
        return {
            at: next((offset for offset, row in enumerate(self._stored.rows[at]) if row[2] >= time), None)
            for at, time in times.items()
        }

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        has_more: bool | None = None,
    ) -> Iterator[Chunk]:
        self._ask(f"reads {at} from {start}")
        rows = self._stored.rows[at][start:end]
        yield Chunk(range(start, start + len(rows)), Records.from_rows(rows))

    def wait(self, positions: Mapping[TopicPartition, int], timeout: int) -> bool:
        self._process.sleep(timeout / 1000)
        return True

    def append(self, items: Sequence[Item]) -> list[int]:
        self._ask("appends")
        bases = self._stored.append(items)
        self._answer("appends")
        return bases

    # ------------------------------------------------------------------------------------------------------ deliveries
    def begin_delivery(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]:
        self._ask(f"delivers batch {number}")
        if is_next_batch(application, number, self._stored.delivered(application)):
            self._stored.append(items)
            self._stored.markers[application] = number
            self._process.scheduler.note(f"the log has batch {number}")
        self._answer(f"delivers batch {number}")
        return lambda: self._ask(f"waits for batch {number}")

    def delivered(self, application: str) -> int:
        self._ask("reads the marker")
        return self._stored.delivered(application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._ask(f"marks batch {number}")
        self._stored.markers[application] = -1 if number is None else number

    def close(self) -> None:
        pass
