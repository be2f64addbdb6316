"""Counters and gauges of one task or application, in plain dictionaries."""

from __future__ import annotations

from collections.abc import Mapping

DROPPED = "dropped-records-total"


class Metrics:
    """What has been counted so far, under Kafka Streams' names.

    >>> metrics = Metrics()
    >>> metrics.drop("null key")
    >>> metrics.drop("late", 2)
    >>> metrics.snapshot()
    {'dropped-records-total': 3, 'dropped-records-total{reason=late}': 2, 'dropped-records-total{reason=null key}': 1}
    """

    __slots__ = ("_counters", "_dropped", "_gauges")

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._gauges: dict[str, float] = {}
        self._dropped: dict[str, int] = {}

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter."""
        counters = self._counters
        counters[name] = counters.get(name, 0) + n

    def gauge(self, name: str, value: float) -> None:
        """Say how much there is of something now."""
        self._gauges[name] = value

    def drop(self, reason: str, n: int = 1) -> None:
        """Count records that were dropped."""
        dropped = self._dropped
        dropped[reason] = dropped.get(reason, 0) + n

    @property
    def dropped(self) -> Mapping[str, int]:
        """Records dropped, by reason."""
        return self._dropped

    @property
    def dropped_total(self) -> int:
        return sum(self._dropped.values())

    def add(self, other: Metrics) -> None:
        """Take in what another task counted; of a gauge the latest value stays."""
        for name, n in other._counters.items():
            self.count(name, n)
        for reason, n in other._dropped.items():
            self.drop(reason, n)
        self._gauges |= other._gauges

    def snapshot(self) -> dict[str, int | float]:
        """Everything by name; the sum of dropped records is always there."""
        by_reason = {f"{DROPPED}{{reason={reason}}}": n for reason, n in sorted(self._dropped.items())}
        return {DROPPED: self.dropped_total, **by_reason, **self._counters, **self._gauges}
