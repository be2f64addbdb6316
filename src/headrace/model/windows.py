"""Window definitions, and which windows a timestamp belongs to. All times are milliseconds.

`DailyWindows` are days of a time zone: 24 hours, except where the clocks change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, Self
from zoneinfo import ZoneInfo

from typing_extensions import TypeVar

from headrace.hints import RenamedNames, explain_names

K_co = TypeVar("K_co", covariant=True, default=Any)

LONGEST = 2**63 - 1


class Window(NamedTuple):
    """From `start` to `end`; whether the end belongs to it depends on the kind of window.

    >>> Window(0, 60_000).end
    60000
    """

    start: int
    end: int


class Windowed(NamedTuple, Generic[K_co]):
    """A key in a window: the key of a windowed table.

    >>> Windowed("ada", Window(0, 60_000))
    Windowed(key='ada', window=Window(start=0, end=60000))
    """

    key: K_co
    window: Window


# `Window` of a (start, end) pair and `Windowed` of a (key, window) pair, in half the time that their constructors take.
window: Callable[[tuple[int, int]], Window] = partial(tuple.__new__, Window)  # pyright: ignore[reportUnknownMemberType]
windowed: Callable[[tuple[Any, Window]], Windowed] = partial(tuple.__new__, Windowed)  # pyright: ignore[reportUnknownMemberType]


class Windows(Protocol):
    """Any definition of windows with fixed bounds: what `windowed_by` accepts besides sliding and session windows."""

    @property
    def size(self) -> int: ...

    @property
    def grace(self) -> int: ...

    def windows_for(self, timestamp: int) -> Iterable[Window]:
        """The windows that a timestamp belongs to, by their start."""
        ...


def ends_of(windows: int | Windows) -> Callable[[int], int]:
    """The function from the start of a window to its end, for windows of one size or of a definition.

    >>> ends_of(10)(5)
    15
    """
    if isinstance(windows, int):
        return lambda start: min(start + windows, LONGEST)
    if isinstance(windows, TimeWindows | UnlimitedWindows):
        return ends_of(windows.size)
    known: dict[int, int] = {}

    def end_of(start: int) -> int:
        if start not in known:
            if len(known) >= 1000:
                known.clear()
            ends = (window.end for window in windows.windows_for(start) if window.start == start)
            known[start] = next(ends, min(start + windows.size, LONGEST))
        return known[start]

    return end_of


def milliseconds(duration: int | timedelta, what: str, *, at_least: int = 0) -> int:
    """A duration in milliseconds, checked.

    >>> milliseconds(timedelta(seconds=1), "grace")
    1000
    """
    if isinstance(duration, timedelta):
        ms = duration // timedelta(milliseconds=1)
    elif type(duration) is int:
        ms = duration
    else:
        raise TypeError(f"{what} must be milliseconds as an int or a timedelta, not {duration!r}")
    if not at_least <= ms <= LONGEST:
        raise ValueError(f"{what} must be at least {at_least} ms, not {ms}")
    return ms


@explain_names(
    {
        "advance_by": "TimeWindows.of(size, advance=...)",
        "of_size_with_no_grace": "TimeWindows.of(size)",
        "of_size_and_grace": "TimeWindows.of(size, grace=...)",
        "until": "Materialized(name, retention=...)",
    }
)
@dataclass(frozen=True, slots=True)
class TimeWindows(metaclass=RenamedNames):
    """Tumbling windows, or hopping ones if `advance` is shorter than the size.

    >>> list(TimeWindows.of(10, advance=5).windows_for(12))
    [Window(start=5, end=15), Window(start=10, end=20)]
    """

    size: int
    advance: int
    grace: int

    @classmethod
    def of(cls, size: int | timedelta, grace: int | timedelta = 0, advance: int | timedelta | None = None) -> Self:
        size = milliseconds(size, "the window size", at_least=1)
        advance = size if advance is None else milliseconds(advance, "the advance", at_least=1)
        if advance > size:
            raise ValueError(
                f"the advance of {advance} ms is longer than the window of {size} ms: records would be lost"
            )
        return cls(size, advance, milliseconds(grace, "the grace"))

    def starts_for(self, timestamp: int) -> range:
        """Where the windows of a timestamp start."""
        advance = self.advance
        return range(max(0, timestamp - self.size + advance) // advance * advance, timestamp + 1, advance)

    def windows_for(self, timestamp: int) -> list[Window]:
        return [Window(start, start + self.size) for start in self.starts_for(timestamp)]


@explain_names(
    {
        "start_on": "UnlimitedWindows.of(start=...)",
    }
)
@dataclass(frozen=True, slots=True)
class UnlimitedWindows(metaclass=RenamedNames):
    """One window, from `start` to the end of time.

    >>> UnlimitedWindows.of(start=5).windows_for(4)
    []
    """

    start: int
    size: int = LONGEST
    grace: int = 0

    @classmethod
    def of(cls, start: int = 0) -> Self:
        return cls(milliseconds(start, "the start"))

    def windows_for(self, timestamp: int) -> list[Window]:
        return [Window(self.start, LONGEST)] if timestamp >= self.start else []


@explain_names(
    {
        "of_time_difference_with_no_grace": "SlidingWindows.of(difference)",
        "of_time_difference_and_grace": "SlidingWindows.of(difference, grace=...)",
        "with_time_difference_and_grace": "SlidingWindows.of(difference, grace=...)",
    }
)
@dataclass(frozen=True, slots=True)
class SlidingWindows(metaclass=RenamedNames):
    """Windows of records that are at most `difference` apart; both bounds belong to the window.

    >>> SlidingWindows.of(timedelta(seconds=10), grace=500)
    SlidingWindows(difference=10000, grace=500)
    """

    difference: int
    grace: int

    @classmethod
    def of(cls, difference: int | timedelta, grace: int | timedelta = 0) -> Self:
        return cls(milliseconds(difference, "the difference"), milliseconds(grace, "the grace"))


@explain_names(
    {
        "of_inactivity_gap_with_no_grace": "SessionWindows.of(gap)",
        "of_inactivity_gap_and_grace": "SessionWindows.of(gap, grace=...)",
        "with_": "SessionWindows.of(gap)",
        "until": "Materialized(name, retention=...)",
    }
)
@dataclass(frozen=True, slots=True)
class SessionWindows(metaclass=RenamedNames):
    """Windows that end when no record has come for `gap`.

    >>> SessionWindows.of(timedelta(minutes=5))
    SessionWindows(gap=300000, grace=0)
    """

    gap: int
    grace: int

    @classmethod
    def of(cls, gap: int | timedelta, grace: int | timedelta = 0) -> Self:
        return cls(milliseconds(gap, "the gap"), milliseconds(grace, "the grace"))


@explain_names(
    {
        "of_time_difference_with_no_grace": "JoinWindows.of(difference)",
        "of_time_difference_and_grace": "JoinWindows.of(difference, grace=...)",
    }
)
@dataclass(frozen=True, slots=True)
class JoinWindows(metaclass=RenamedNames):
    """A right record joins a left one if it is at most `before_ms` earlier and at most `after_ms` later.

    >>> JoinWindows.of(10, grace=5).after(0)
    JoinWindows(before_ms=10, after_ms=0, grace=5)
    """

    before_ms: int
    after_ms: int
    grace: int

    @classmethod
    def of(cls, difference: int | timedelta, grace: int | timedelta = 0) -> Self:
        ms = milliseconds(difference, "the difference")
        return cls(ms, ms, milliseconds(grace, "the grace"))

    def before(self, duration: int | timedelta) -> Self:
        """Sets how much earlier the right record may be; a negative number means that it must be later."""
        return replace(self, before_ms=milliseconds(duration, "before", at_least=-self.after_ms))

    def after(self, duration: int | timedelta) -> Self:
        """Sets how much later the right record may be; a negative number means that it must be earlier."""
        return replace(self, after_ms=milliseconds(duration, "after", at_least=-self.before_ms))


_DAY = 86_400_000
_HOUR = 3_600_000
_LAST = 253_370_764_800_000  # 9999-01-01: Python's dates end with that year, so from here on days are days of UTC


@dataclass(frozen=True, slots=True)
class DailyWindows:
    """From midnight to midnight in a time zone.

    >>> [day] = DailyWindows.of("Europe/Paris").windows_for(1_774_760_000_000)  # 29 March 2026: the clocks go forward
    >>> (day.end - day.start) // 3_600_000
    23
    """

    zone: ZoneInfo
    grace: int
    # Caches the last day: records mostly come in order, and finding a day takes 9 µs.
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
        # Where the clocks go back across midnight, the repeated hour belongs to the new day.
        while timestamp >= self._midnight(day + timedelta(days=1)):
            day += timedelta(days=1)
        return Window(max(0, self._midnight(day)), self._midnight(day + timedelta(days=1)))

    def _midnight(self, day: date) -> int:
        local = datetime.combine(day, time(), tzinfo=self.zone)
        return (local - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
