"""Days of a time zone as windows: 24 hours, except where the clocks change."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Self
from zoneinfo import ZoneInfo

from headrace.model.windows import LONGEST, Window, milliseconds

_DAY = 86_400_000
_HOUR = 3_600_000
_LAST = 253_370_764_800_000  # 9999-01-01: beyond it Python knows no dates, and a day is one of UTC


@dataclass(frozen=True, slots=True)
class DailyWindows:
    """From midnight to midnight in a time zone.

    >>> [day] = DailyWindows.of("Europe/Paris").windows_for(1_774_760_000_000)  # 29 March 2026: the clocks go forward
    >>> (day.end - day.start) // 3_600_000
    23
    """

    zone: ZoneInfo
    grace: int
    # The day that was asked for last: records mostly come in order, and a day takes 9 µs to find.
    _recent: list[Window] = field(default_factory=list[Window], compare=False, repr=False)

    @classmethod
    def of(cls, zone: str | ZoneInfo, grace: int | timedelta = 0) -> Self:
        if isinstance(zone, str):
            try:
                zone = ZoneInfo(zone)
            except (KeyError, ValueError):
                raise ValueError(
                    f"there is no time zone {zone!r}: name one such as 'Europe/Paris' "
                    "(on a machine without time zones, install tzdata)"
                ) from None
        return cls(zone, milliseconds(grace, "the grace"))

    @property
    def size(self) -> int:
        """The usual size."""
        return _DAY

    @property
    def longest(self) -> int:
        """At least the size of the longest day, so that a store keeps it until its grace is over."""
        return _DAY + 2 * _HOUR

    def windows_for(self, timestamp: int) -> list[Window]:
        recent = self._recent
        if recent and recent[0].start <= timestamp < recent[0].end:
            return [recent[0]]
        day = self._day_of(timestamp)
        recent[:] = [day]
        return [day]

    def _day_of(self, timestamp: int) -> Window:
        if timestamp >= _LAST:
            start = timestamp - timestamp % _DAY
            return Window(start, min(start + _DAY, LONGEST))
        day = datetime.fromtimestamp(timestamp // 1000, tz=self.zone).date()
        # Where the clocks go back across midnight an hour of the old day comes again: it counts to the new day.
        while timestamp >= self._midnight(day + timedelta(days=1)):
            day += timedelta(days=1)
        return Window(max(0, self._midnight(day)), self._midnight(day + timedelta(days=1)))

    def _midnight(self, day: date) -> int:
        local = datetime.combine(day, time(), tzinfo=self.zone)
        return (local - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
