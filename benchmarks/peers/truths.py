"""Whether an output is complete and right: the last value of each key, or all values in any order."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from math import isclose
from typing import Any, Protocol

import orjson


class Judge(Protocol):
    """Sees every output record, partition by partition, and says what is wrong with them all."""

    def sees(self, key: bytes, value: bytes) -> bool:
        """Takes a record; whether it counts, for those that only show that a system has started do not."""
        ...

    def wrong(self) -> str | None: ...

    def anew(self) -> None:
        """Forgets what it has seen."""
        ...


class Latest:
    """The last value of each key is its count, eight bytes, as Kafka's serializer of longs writes it."""

    def __init__(self, truth: Mapping[bytes, int], ignored: bytes) -> None:
        self._truth = {key: count.to_bytes(8, "big") for key, count in truth.items()}
        self._ignored = ignored
        self._last: dict[bytes, bytes] = {}

    def sees(self, key: bytes, value: bytes) -> bool:
        if key.startswith(self._ignored):
            return False
        self._last[key] = value
        return True

    def wrong(self) -> str | None:
        if self._last == self._truth:
            return None
        differing = sum(self._last.get(key) != value for key, value in self._truth.items())
        return f"{differing:,} of {len(self._truth):,} keys are missing or have another count" + _more(
            self._last, self._truth
        )

    def anew(self) -> None:
        self._last = {}


class Statistics:
    """The last value of each key and window is its lowest price, number and average.

    The window is in the key, as Kafka Streams' serializer writes it, or is the `start` in the value.
    """

    def __init__(self, truth: Mapping[tuple[bytes, int], tuple[float, int, float]], ignored: bytes) -> None:
        self._truth, self._ignored = truth, ignored
        self._last: dict[tuple[bytes, int], bytes] = {}

    def sees(self, key: bytes, value: bytes) -> bool:
        if key.startswith(self._ignored):
            return False
        if len(key) > 8:
            self._last[key[:-8], int.from_bytes(key[-8:], "big")] = value
        else:
            self._last[key, orjson.loads(value)["start"]] = value
        return True

    def wrong(self) -> str | None:
        differing = sum(not self._is_right(self._last.get(place), *it) for place, it in self._truth.items())
        if not differing and len(self._last) == len(self._truth):
            return None
        return f"{differing:,} of {len(self._truth):,} windows are missing or wrong" + _more(self._last, self._truth)

    def anew(self) -> None:
        self._last = {}

    @staticmethod
    def _is_right(value: bytes | None, low: float, count: int, total: float) -> bool:
        if value is None:
            return False
        it = orjson.loads(value)
        return (
            it["trades"] == count
            and isclose(it["minimum"], low)
            and isclose(it["average"], total / count, rel_tol=1e-9)
        )


class Multiset:
    """All of it and nothing twice, in any order: the number of records and the sum of their checksums.

    `tolerance` is the share of records by which the number may differ; the sum is then not looked at.
    """

    def __init__(
        self, truth: Iterable[bytes], said: Callable[[bytes, bytes], bytes | None], tolerance: float = 0.0
    ) -> None:
        self._count, self._sum, self._tolerance = 0, 0, tolerance
        for it in truth:
            self._count += 1
            self._sum += zlib.crc32(it)
        self._said = said
        self._seen, self._seen_sum = 0, 0

    def sees(self, key: bytes, value: bytes) -> bool:
        it = self._said(key, value)
        if it is None:
            return False
        self._seen += 1
        self._seen_sum += zlib.crc32(it)
        return True

    def wrong(self) -> str | None:
        if self._tolerance and abs(self._seen - self._count) <= self._tolerance * self._count:
            return None
        if self._seen != self._count:
            return f"{self._seen:,} records instead of {self._count:,}"
        return None if self._seen_sum == self._sum else "as many records as there should be, but other ones"

    def anew(self) -> None:
        self._seen, self._seen_sum = 0, 0


def _more(seen: Mapping[Any, Any], truth: Mapping[Any, Any]) -> str:
    more = len(seen.keys() - truth.keys())
    return f"; {more:,} more that there should not be" if more else ""
