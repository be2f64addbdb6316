"""What both logs do in the same way: open and close, survive a fork, and wait for records."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headrace.log.protocol import Extent
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition

Resources = TypeVar("Resources")
_CLOSED = -1
_FIRST_PAUSE, _LONGEST_PAUSE = 1, 20  # ms; reading the extents of an embedded log takes 0.1
# Resources of the parent process. They are never destroyed: a Kafka client would wait for threads that a fork lacks.
_INHERITED: list[Any] = []


class Closeable(ABC):
    """An object that `with` closes."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BaseLog(Closeable, Generic[Resources]):
    """A log with the connections that it needs. Connections do not survive a fork, so each process opens its own."""

    stores_chunks = False

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()
        self._process, self._opened = os.getpid(), self._open()

    @property
    @abstractmethod
    def url(self) -> str:
        """The address that `open_log` takes."""

    @abstractmethod
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]: ...

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        extents = self.extents(sorted({at.topic for at in partitions}))
        return {at: extents[at].end for at in partitions if at in extents}

    @abstractmethod
    def _open(self) -> Resources: ...

    @abstractmethod
    def _close(self, resources: Resources) -> None: ...

    @property
    def _resources(self) -> Resources:
        process = os.getpid()
        if self._process != process:
            if self._process == _CLOSED:
                raise ValueError(f"the log at {self.url} was closed: open it again, open_log({self.url!r})")
            _INHERITED.append(self._opened)
            self._process, self._opened = process, self._open()
        return self._opened

    def close(self) -> None:
        if self._process == os.getpid():
            self._process = _CLOSED
            self._close(self._opened)

    def _wait(self, positions: Mapping[TopicPartition, int], timeout: int, pause: Callable[[float], None]) -> bool:
        """Reads the ends again and again, with growing pauses, until one is beyond its position."""
        deadline = self._clock.now() + timeout
        length = _FIRST_PAUSE
        while True:
            ends = self.ends(list(positions))
            if any(end > positions[at] for at, end in ends.items()):
                return True
            left = deadline - self._clock.now()
            if left <= 0:
                return False
            pause(min(length, left) / 1000)
            length = min(2 * length, _LONGEST_PAUSE)
