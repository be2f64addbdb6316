"""Timestamp extractors: which time a record has. A negative one means that the record is dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from headrace.errors import ConfigError, StreamsError
from headrace.model.clock import Clock

Extract = Callable[[Any, int], int]  # (decoded record, partition time) -> milliseconds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extractor:
    """One of the extractors below: a function of (record, partition time) that the runtime recognizes.

    `bound` gives the batch's clock to an extractor that needs one. Without it, such an extractor raises an error.
    """

    name: str
    extract: Extract
    needs_clock: bool = False

    def __call__(self, record: Any, partition_time: int) -> int:
        return self.extract(record, partition_time)

    def bound(self, clock: Clock) -> Extract:
        """The plain function to call for every record."""
        return partial(_now, clock) if self.needs_clock else self.extract

    def __repr__(self) -> str:
        return f"<timestamps.{self.name}>"


def _record(record: Any, _partition_time: int) -> int:
    if record.timestamp < 0:
        raise StreamsError(
            f"the record {record!r} has the negative timestamp {record.timestamp}: its producer set none, or a wrong "
            "one. Choose what to do with such records: timestamps.LOG_AND_SKIP drops them, timestamps.PARTITION_TIME "
            "and timestamps.WALL_CLOCK give them another time"
        )
    return record.timestamp


def _log_and_skip(record: Any, _partition_time: int) -> int:
    if record.timestamp < 0:
        _log.warning("a record is skipped: its timestamp is negative, %d", record.timestamp)
        _log.debug("skipped: %r", record)
    return record.timestamp


def _partition_time(record: Any, partition_time: int) -> int:
    if record.timestamp >= 0:
        return record.timestamp
    if partition_time < 0:
        raise StreamsError(
            f"the record {record!r} has a negative timestamp, and no record before it gives its partition a time. "
            "timestamps.LOG_AND_SKIP drops such records"
        )
    return partition_time


def _without_clock(_record: Any, _partition_time: int) -> int:
    raise StreamsError("timestamps.WALL_CLOCK was called without a clock: bind one, WALL_CLOCK.bound(clock)")


def _now(clock: Clock, _record: Any, _partition_time: int) -> int:
    return clock.now()


RECORD = Extractor("RECORD", _record)
LOG_AND_SKIP = Extractor("LOG_AND_SKIP", _log_and_skip)
PARTITION_TIME = Extractor("PARTITION_TIME", _partition_time)
WALL_CLOCK = Extractor("WALL_CLOCK", _without_clock, needs_clock=True)

_BY_CLASS_NAME = {
    "FailOnInvalidTimestamp": RECORD,
    "LogAndSkipOnInvalidTimestamp": LOG_AND_SKIP,
    "UsePartitionTimeOnInvalidTimestamp": PARTITION_TIME,
    "WallclockTimestampExtractor": WALL_CLOCK,
}


def field(name: str) -> Extractor:
    """The time in a field of the value: milliseconds, an ISO 8601 text with its offset, or an aware `datetime`.

    >>> from headrace.model.record import Record
    >>> field("at")(Record("k", {"at": "1970-01-01T00:00:01Z"}, 0), -1)
    1000
    """
    return Extractor(f"field({name!r})", partial(_field, name))


def by_class_name(name: str) -> Extractor:
    """Kafka Streams' extractor of that class, with or without its package.

    >>> by_class_name("org.apache.kafka.streams.processor.WallclockTimestampExtractor")
    <timestamps.WALL_CLOCK>
    """
    try:
        return _BY_CLASS_NAME[name.rpartition(".")[2]]
    except KeyError:
        known = ", ".join(_BY_CLASS_NAME)
        raise ConfigError(f"no timestamp extractor is called {name!r}: give one of {known}, or a function") from None


def extractor_of(setting: Any) -> Extract:
    """What `default.timestamp.extractor` means: nothing, an extractor, a function or a class name.

    >>> extractor_of(None)
    <timestamps.RECORD>
    """
    if setting is None:
        return RECORD
    if isinstance(setting, str):
        return by_class_name(setting)
    if callable(setting):
        return cast("Extract", setting)
    raise ConfigError(f"a timestamp extractor is a function of (record, partition time), not {setting!r}")


def _field(name: str, record: Any, _partition_time: int) -> int:
    value = record.value
    try:
        found: Any = cast("Mapping[str, Any]", value)[name] if isinstance(value, Mapping) else getattr(value, name)
    except (KeyError, AttributeError):
        raise ValueError(f"no field {name!r} to take the timestamp from in the value {value!r}") from None
    return epoch_milliseconds(found, f"the field {name!r}")


def epoch_milliseconds(moment: Any, what: str) -> int:
    """A moment, in whatever form, in milliseconds since the epoch.

    >>> epoch_milliseconds("2026-01-01T01:00:00+01:00", "the start")
    1767225600000
    """
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ValueError(f"{what} is {moment!r}: not milliseconds, and not a time of ISO 8601") from None
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise ValueError(f"{what} is {moment.isoformat()}, without an offset from UTC: add one, as in 08:00Z")
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(moment, (int, float)) and not isinstance(moment, bool):
        return int(moment // 1)
    raise TypeError(f"{what} is {moment!r}: a time is milliseconds, a text of ISO 8601 or an aware datetime")
