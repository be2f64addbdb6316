"""A log in memory that survives the death of its writers."""

from __future__ import annotations

from collections import defaultdict

from headrace.errors import ProducerFencedError, UnknownTopicError
from headrace.log.chunk_format import unpack
from headrace.log.protocol import Chunk, Extent, Records, Topic
from headrace.model.ids import TopicPartition


class MemoryLog:
    """What a coordinator and a host need of a log, with the embedded log's rules."""

    def __init__(self, **topics: int) -> None:
        self._topics = {name: Topic(name, f"id of {name}", count, {}) for name, count in topics.items()}
        self.rows = defaultdict[TopicPartition, list[tuple]](list)
        self.markers: dict[str, int] = {}
        self.calls = 0

    def topics(self):
        return self._topics

    def topic(self, name):
        if name not in self._topics:
            raise UnknownTopicError(f"there is no topic {name!r}")
        return self._topics[name]

    def create_topic(self, name, partitions=1, config=None):
        self._topics[name] = Topic(name, f"id {len(self._topics)} of {name}", partitions, {})
        return self._topics[name]

    def extents(self, topics):
        places = [TopicPartition(name, part) for name in topics for part in range(self.topic(name).partitions)]
        return {at: Extent(0, len(self.rows[at])) for at in places}

    def read(self, at, start, end=None, *, topic_id=None):
        rows = self.rows[at][start:end]
        yield Chunk(range(start, start + len(rows)), Records.from_rows(rows))

    def append(self, items, *, stamp=None):
        self.calls += 1
        bases = []
        for at, given in items:
            records = given if isinstance(given, Records) else unpack(given)[0]
            assert at.partition < self.topic(at.topic).partitions
            bases.append(len(self.rows[at]))
            self.rows[at] += [row[1:] for row in Chunk(range(len(records)), records).rows()]
        return bases

    def begin_delivery(self, application, number, items):
        self.deliver(application, number, items)
        return lambda: None

    def deliver(self, application, number, items):
        last = self.delivered(application)
        if last not in {number - 1, number}:
            raise ProducerFencedError(f"batch {number} cannot be delivered after batch {last}")
        if last == number:
            return False
        self.append(items)
        self.mark_delivered(application, number)
        return True

    def delivered(self, application):
        return self.markers.get(application, -1)

    def mark_delivered(self, application, number):
        self.markers[application] = -1 if number is None else number
