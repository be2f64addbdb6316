"""A source that makes its records itself, for demonstrations, tests and load."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from headrace.serde.json import JSON
from headrace.serde.protocol import Serde
from headrace.topology.connectors import SourceBatch, SourcePosition, SourceReader, SourceRecord


@dataclass(frozen=True)
class GeneratorSource:
    """Calls `make(number)` for the numbers 0, 1, 2, …, which returns (key, value) or a `SourceRecord`.

    `rate` is the most records a second, without it there is no limit; `limit` ends after so many. The position is the
    next number, so a generator that depends on nothing else makes each record once.

    >>> clicks = GeneratorSource("clicks", lambda number: (f"user-{number % 3}", {"page": number}), rate=100)
    >>> clicks.name
    'clicks'
    """

    name: str
    make: Callable[[int], tuple[Any, Any] | SourceRecord]
    _: KW_ONLY
    rate: float | None = None
    limit: int | None = None
    key: Serde[Any] = JSON
    value: Serde[Any] = JSON

    def open(self, position: SourcePosition) -> SourceReader:
        return _Generator(self, position or 0)


class _Generator:
    def __init__(self, source: GeneratorSource, start: int) -> None:
        self._source, self._next = source, start
        self._first, self._began = start, time.monotonic()

    def read(self, max_records: int, timeout: float) -> SourceBatch | None:
        count = self._due(max_records)
        if count == 0 and self._source.rate and not self._is_over():
            time.sleep(min(timeout, 1 / self._source.rate))
            count = self._due(max_records)
        if count == 0:
            return None
        numbers = range(self._next, self._next + count)
        self._next += count
        made = (self._source.make(number) for number in numbers)
        records = [record if isinstance(record, SourceRecord) else SourceRecord(*record) for record in made]
        return SourceBatch(records, self._next)

    def _due(self, max_records: int) -> int:
        count = max_records
        if self._source.rate is not None:
            by_now = self._first + int((time.monotonic() - self._began) * self._source.rate)
            count = min(count, by_now - self._next)
        if self._source.limit is not None:
            count = min(count, self._source.limit - self._next)
        return max(0, count)

    def _is_over(self) -> bool:
        return self._source.limit is not None and self._next >= self._source.limit

    def acknowledge(self, position: SourcePosition) -> None:
        pass

    def lag(self) -> int | None:
        return None if self._source.limit is None else max(0, self._source.limit - self._next)

    def close(self) -> None:
        pass
