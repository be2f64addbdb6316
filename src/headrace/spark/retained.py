"""Ranges of the log of which retention has removed something before it was read: never passed over in silence."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from headrace.log.errors import OffsetOutOfRangeError
from headrace.log.protocol import Chunk, Log
from headrace.model.ids import TopicPartition
from headrace.spark.job import Job
from headrace.spark.life import OvertakenError
from headrace.spark.topics import reset_of
from headrace.spark.wire import Range

_log = logging.getLogger(__name__)


def chunks_of(log: Log, job: Job, range_: Range) -> Iterator[Chunk]:
    """What is in a range; if it is not there any more, where to go on is planned anew, or it is an error."""
    topic, partition, start, end, more, _ = range_
    try:
        yield from log.read(TopicPartition(topic, partition), start, end, topic_id=job.topics.get(topic), more=more)
    except OffsetOutOfRangeError as error:
        reset = reset_of(job.graph, job.config, topic)
        if reset == "none":
            error.add_note("auto.offset.reset is none, so nothing says where to go on: `headrace reset` can.")
            raise
        raise OvertakenError(f"{error}. It goes on where auto.offset.reset ({reset}) says") from error


def with_lost(ranges: Sequence[Range], dropped: Mapping[str, int]) -> dict[str, int]:
    """What was left out by reason, with the offsets that were gone before anybody read them."""
    found = dict(dropped)
    for topic, partition, start, _, _, lost in ranges:
        if lost:
            at = TopicPartition(topic, partition)
            _log.warning("%s: retention removed %d offsets before they were read; going on at %d", at, lost, start)
            found["retention"] = found.get("retention", 0) + lost
    return found
