"""Records on their way from a producer to the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from headrace.log.errors import LogBusyError
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers, RecordMetadata
from headrace.model.windows import milliseconds


class Batch:
    """Records for one partition that are appended together; `hurry` asks that this be soon."""

    def __init__(self, at: TopicPartition, hurry: Callable[[], None]) -> None:
        self.at, self.hurry = at, hurry
        self.error: BaseException | None = None
        self.was_told = False  # whether somebody has seen the error
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._headers: list[Headers] = []
        self._base = -1
        self._stored = threading.Event()

    def add(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> Delivery:
        index = len(self._keys)
        self._keys.append(key)
        self._values.append(value)
        self._timestamps.append(timestamp)
        self._headers.append(headers)
        return Delivery(self, index)

    def records(self) -> Records:
        headers = self._headers if any(self._headers) else None
        return Records(self._keys, self._values, self._timestamps, headers)

    def succeed(self, base: int) -> None:
        self._base = base
        self._stored.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._stored.set()

    def is_done(self) -> bool:
        return self._stored.is_set()

    def base(self, timeout: int | timedelta | None) -> int:
        """The offset of the first record, once it is stored."""
        if not self._stored.is_set():
            self.hurry()
            seconds = None if timeout is None else milliseconds(timeout, "the timeout") / 1000
            if not self._stored.wait(seconds):
                raise LogBusyError(f"a record for {self.at} was not stored within {timeout} ms; it may still be")
        if self.error is not None:
            self.was_told = True
            raise self.error
        return self._base


class Delivery:
    """What becomes of a record that was sent."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index

    def done(self) -> bool:
        return self._batch.is_done()

    def result(self, timeout: int | timedelta | None = None) -> RecordMetadata:
        """Waits until the record is stored, and says where; raises if it could not be."""
        return RecordMetadata(*self._batch.at, self._batch.base(timeout) + self._index)

    def exception(self, timeout: int | timedelta | None = None) -> BaseException | None:
        """Waits until it is known what became of the record."""
        try:
            self._batch.base(timeout)
        except LogBusyError:
            if not self._batch.is_done():
                raise
        except BaseException:  # noqa: BLE001, S110 - it is the answer
            pass
        return self._batch.error

    @property
    def offset(self) -> int:
        return self.result().offset
