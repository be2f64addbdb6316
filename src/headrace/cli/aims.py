"""Where an application is to go on reading: Kafka's ways to say it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from headrace.cli.printing import Failed, WrongUsage
from headrace.log.protocol import Extent, Log
from headrace.model.ids import TopicPartition

Offsets = dict[TopicPartition, int]
Extents = Mapping[TopicPartition, Extent]
# (log, the partitions to move with what they have, where they are now) -> where they are to be
Aim = Callable[[Log, Extents, Mapping[TopicPartition, int]], Offsets]
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,3})?)S)?)?")


def to_earliest(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
    return {at: extent.earliest for at, extent in extents.items()}


def to_latest(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
    return {at: extent.end for at, extent in extents.items()}


def to_offset(offset: int) -> Aim:
    return lambda log, extents, now: dict.fromkeys(extents, offset)


def to_time(time: int) -> Aim:
    """The first record at or after a time, in ms; the end, where there is none."""

    def aim(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
        found = log.offsets_for_times(dict.fromkeys(extents, time))
        return {at: extent.end if (offset := found[at]) is None else offset for at, extent in extents.items()}

    return aim


def shift_by(many: int) -> Aim:
    """So many records on, or, if it is negative, back."""

    def aim(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
        unknown = [str(at) for at in extents if at not in now]
        if unknown:
            raise Failed(f"--shift-by needs a position to shift, and {', '.join(unknown)} has none: give an offset")
        return {at: now[at] + many for at in extents}

    return aim


def from_file(path: Path) -> Aim:
    """Of a CSV file: topic,partition,offset."""

    def aim(log: Log, extents: Extents, now: Mapping[TopicPartition, int]) -> Offsets:
        found: Offsets = {}
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                try:
                    topic, partition, offset = row
                    found[TopicPartition(topic.strip(), int(partition))] = int(offset)
                except ValueError:
                    raise Failed(f"{path}, line {number}: a line is topic,partition,offset, not {row!r}") from None
        unknown = sorted(found.keys() - extents.keys())
        if unknown:
            raise Failed(f"{path} names {unknown[0]}, which is not a partition of the --input-topics")
        return found

    return aim


def clamped(at: TopicPartition, offset: int, extent: Extent) -> int:
    """The nearest offset that there is."""
    return min(max(offset, extent.earliest), extent.end)


def milliseconds_of(duration: str) -> int:
    """How long an ISO 8601 duration is.

    >>> milliseconds_of("P1DT2H"), milliseconds_of("PT1.5S")
    (93600000, 1500)
    """
    found = _DURATION.fullmatch(duration)
    if found is None or not any(found.groups()):
        raise WrongUsage(f"--by-duration is PnDTnHnMnS, such as PT1H30M, not {duration!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def time_of(text: str) -> int:
    """A date and time in ms since the epoch; without a zone it is UTC, as for Kafka's tool.

    >>> time_of("1970-01-01T00:00:01.500"), time_of("1970-01-01T01:00:00+01:00")
    (1500, 0)
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(f"--to-datetime is YYYY-MM-DDTHH:MM:SS.sss, not {text!r}") from None
    given = given if given.tzinfo else given.replace(tzinfo=UTC)
    return round(given.timestamp() * 1000)
