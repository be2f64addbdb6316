"""Is everything in the log what was written?"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from headrace.errors import LogCorruptedError, StreamsError
from headrace.log.embedded import chunks, consumer_groups, deduplication
from headrace.log.embedded.reader import Reader
from headrace.model.ids import TopicPartition


def problems_of(reader: Reader) -> list[str]:
    """A sentence for each thing that is damaged; it reads the whole log."""
    try:
        with reader.database.reading() as connection:
            problems = [f"log.db: {text}" for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
            topics = reader.seen_by(connection).topics
            problems += _rows(connection)
    except StreamsError as error:
        return [str(error)]
    for name, entry in topics.items():
        for number in range(entry.partitions):
            problems += _partition(reader, TopicPartition(name, number))
    return problems


def _rows(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        consumer_groups.load_all(connection)
        for (application,) in connection.execute("SELECT application FROM markers").fetchall():
            deduplication.marker(connection, application)
    except LogCorruptedError as error:
        yield str(error)


def _partition(reader: Reader, at: TopicPartition) -> Iterator[str]:
    """Every chunk of a partition by itself, so that all that are damaged are named."""
    try:
        extent = reader.extent(at)
        with reader.database.reading() as connection:
            entry = reader.seen_by(connection).place(at)
            rows = list(chunks.chunks(connection, entry.number, at.partition, extent.earliest))
    except StreamsError as error:
        yield str(error)
        return
    position = extent.earliest
    for row in rows:
        if row.base > position:
            yield from _read(reader, at, position, row.base)
        yield from _read(reader, at, max(row.base, extent.earliest), min(row.upto, extent.end))
        position = row.upto
    if position < extent.end:
        yield from _read(reader, at, position, extent.end)


def _read(reader: Reader, at: TopicPartition, start: int, end: int) -> Iterator[str]:
    try:
        for _ in reader.chunks(at, start, end):
            pass
    except LogCorruptedError as error:
        yield str(error)
