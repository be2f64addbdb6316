"""Which time a record gets."""

import logging
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest

from headrace.errors import ConfigError, StreamsError
from headrace.model import timestamps
from headrace.model.record import Record
from tests.clocks import ManualClock

ALL = [timestamps.RECORD, timestamps.LOG_AND_SKIP, timestamps.PARTITION_TIME, timestamps.WALL_CLOCK]


@dataclass
class Trade:
    at: object


def record(timestamp, value=None):
    return Record("k", value, timestamp)


@pytest.mark.parametrize("extractor", ALL[:3], ids=repr)
def test_a_valid_timestamp_is_kept(extractor):
    assert extractor(record(7), 100) == 7
    assert extractor.bound(ManualClock(50))(record(0), -1) == 0


def test_a_negative_timestamp_stops_the_application_by_default():
    with pytest.raises(StreamsError, match=r"negative timestamp -1.*LOG_AND_SKIP drops them"):
        timestamps.RECORD(record(-1), 5)


def test_a_negative_timestamp_may_be_logged_and_skipped(caplog):
    with caplog.at_level(logging.WARNING):
        assert timestamps.LOG_AND_SKIP(record(-3), 5) == -3
    assert "its timestamp is negative" in caplog.text


def test_a_negative_timestamp_may_become_the_partitions_time():
    assert timestamps.PARTITION_TIME(record(-1), 5) == 5
    with pytest.raises(StreamsError, match="no record before it"):
        timestamps.PARTITION_TIME(record(-1), -1)


def test_the_wall_clock_is_the_one_that_was_bound():
    assert timestamps.WALL_CLOCK.needs_clock
    clock = ManualClock(50)
    extract = timestamps.WALL_CLOCK.bound(clock)
    clock.advance(1)
    assert extract(record(-1), -1) == 51
    with pytest.raises(StreamsError, match=r"WALL_CLOCK.bound\(clock\)"):
        timestamps.WALL_CLOCK(record(1), 1)


@pytest.mark.parametrize("extractor", [*ALL, timestamps.field("at")], ids=repr)
def test_an_extractor_is_the_same_in_another_process(extractor):
    assert repr(pickle.loads(pickle.dumps(extractor))) == repr(extractor)


@pytest.mark.parametrize("extractor", ALL, ids=repr)
def test_the_runtime_recognizes_an_extractor_from_another_process(extractor):
    assert pickle.loads(pickle.dumps(extractor)) == extractor


@pytest.mark.parametrize(
    "moment, expected",
    [
        (1000, 1000),
        (1000.9, 1000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T02:00:00.250+01:00", 3_600_250),
        (datetime(1970, 1, 2, tzinfo=UTC), 86_400_000),
        (datetime(1970, 1, 2, tzinfo=timezone(timedelta(hours=1))), 82_800_000),
        ("1969-12-31T23:59:59.999Z", -1),
        (-5, -5),
    ],
)
@pytest.mark.parametrize("value", [lambda at: {"at": at}, Trade], ids=["dict", "object"])
def test_a_field_may_have_the_time(moment, expected, value):
    assert timestamps.field("at")(record(7, value(moment)), -1) == expected


@pytest.mark.parametrize("moment", [datetime(1970, 1, 2), "1970-01-02T00:00:00", "1970-01-02"])  # noqa: DTZ001
def test_a_time_without_offset_is_refused(moment):
    with pytest.raises(ValueError, match="without an offset from UTC"):
        timestamps.field("at")(record(7, {"at": moment}), -1)


@pytest.mark.parametrize("moment", [None, True, [], "soon"])
def test_what_is_no_time_is_refused(moment):
    with pytest.raises((ValueError, TypeError), match="the field 'at' is"):
        timestamps.field("at")(record(7, {"at": moment}), -1)


@pytest.mark.parametrize("value", [{"other": 1}, None, 5, "at"])
def test_a_value_without_the_field_is_refused(value):
    with pytest.raises(ValueError, match="no field 'at' to take the timestamp from"):
        timestamps.field("at")(record(7, value), -1)


@pytest.mark.parametrize(
    "name, extractor",
    [
        ("FailOnInvalidTimestamp", timestamps.RECORD),
        ("LogAndSkipOnInvalidTimestamp", timestamps.LOG_AND_SKIP),
        ("UsePartitionTimeOnInvalidTimestamp", timestamps.PARTITION_TIME),
        ("WallclockTimestampExtractor", timestamps.WALL_CLOCK),
    ],
)
def test_kafkas_class_names_are_understood(name, extractor):
    assert timestamps.by_class_name(name) is extractor
    assert timestamps.extractor_of(f"org.apache.kafka.streams.processor.{name}") is extractor


def test_a_setting_is_nothing_a_function_or_a_name():
    assert timestamps.extractor_of(None) is timestamps.RECORD
    assert timestamps.extractor_of(max) is max
    with pytest.raises(ConfigError, match="no timestamp extractor is called 'Mine'"):
        timestamps.extractor_of("Mine")
    with pytest.raises(ConfigError, match="a timestamp extractor is a function"):
        timestamps.extractor_of(5)
