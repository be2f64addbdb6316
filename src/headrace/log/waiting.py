"""Waiting for records: look, pause, look again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.log.protocol import Log
from headrace.model.clock import Clock
from headrace.model.ids import TopicPartition

_FIRST_PAUSE, _LONGEST_PAUSE = 1, 20  # ms; a look takes 0.1


def wait(
    log: Log, positions: Mapping[TopicPartition, int], timeout: int, clock: Clock, pause: Callable[[float], None]
) -> bool:
    """Until there is a record at one of the positions; False if there is none in time."""
    deadline = clock.now() + timeout
    topics = sorted({at.topic for at in positions})
    length = _FIRST_PAUSE
    while True:
        extents = log.extents(topics)
        if any(extents[at].end > position for at, position in positions.items() if at in extents):
            return True
        left = deadline - clock.now()
        if left <= 0:
            return False
        pause(min(length, left) / 1000)
        length = min(2 * length, _LONGEST_PAUSE)
