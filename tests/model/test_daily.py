"""Days of a time zone."""

import pickle
from datetime import UTC, datetime

import pytest

from headrace.model.windows import LONGEST, DailyWindows, Window

HOUR = 3_600_000
# Zones whose clocks change at midnight, by half an hour, across midnight, or that skipped a day.
ODD = ["America/Sao_Paulo", "America/Havana", "Africa/Cairo", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia"]


def at(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    "moment, start, hours",
    [
        ("2026-01-15T12:00:00", "2026-01-14T23:00:00", 24),
        ("2026-03-29T12:00:00", "2026-03-28T23:00:00", 23),  # 02:00 becomes 03:00
        ("2026-10-25T12:00:00", "2026-10-24T22:00:00", 25),  # 03:00 becomes 02:00
        ("2026-03-28T22:59:59", "2026-03-27T23:00:00", 24),
        ("2026-03-28T23:00:00", "2026-03-28T23:00:00", 23),
    ],
)
def test_a_day_in_paris(moment, start, hours):
    assert DailyWindows.of("Europe/Paris").windows_for(at(moment)) == [Window(at(start), at(start) + hours * HOUR)]


@pytest.mark.parametrize("zone", ["Europe/Paris", "UTC", "Asia/Kathmandu", *ODD])
def test_every_moment_belongs_to_one_day(zone):
    windows = DailyWindows.of(zone)
    [day] = windows.windows_for(at("1986-12-31T12:00:00"))
    for _ in range(9500):  # 26 years
        [following] = windows.windows_for(day.end)
        assert following.start == day.end
        assert windows.windows_for(following.end - 1) == [following]
        assert following.end - following.start <= windows.longest
        day = following


def test_the_first_day_starts_with_time_itself():
    assert DailyWindows.of("Europe/Paris").windows_for(0) == [Window(0, 23 * HOUR)]


def test_the_far_future_has_days_too():
    [day] = DailyWindows.of("Europe/Paris").windows_for(LONGEST)
    assert day.start <= LONGEST == day.end


def test_late_records_find_their_own_day():
    windows = DailyWindows.of("Europe/Paris")
    for moment in ("2026-03-29T12:00:00", "2026-03-28T12:00:00", "2026-03-29T12:00:00"):
        [day] = windows.windows_for(at(moment))
        assert day.start <= at(moment) < day.end


def test_the_definition_has_a_size_and_a_grace_and_travels():
    windows = DailyWindows.of("Europe/Paris", grace=HOUR)
    windows.windows_for(0)
    assert (windows.size, windows.grace) == (24 * HOUR, HOUR)
    assert pickle.loads(pickle.dumps(windows)) == windows


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd"])
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(ValueError, match="there is no time zone"):
        DailyWindows.of(zone)


def test_a_negative_grace_is_refused():
    with pytest.raises(ValueError, match="the grace must be at least 0 ms"):
        DailyWindows.of("UTC", grace=-1)
