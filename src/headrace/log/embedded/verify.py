"""Verification: reads the whole log and reports everything that is not what was written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from headrace.errors import LogCorruptedError, StreamsError
from headrace.log.embedded import chunks, consumer_groups
from headrace.log.embedded.markers import read_marker
from headrace.log.embedded.reader import ChunkReader
from headrace.model.ids import TopicPartition


def find_damage(reader: ChunkReader) -> list[str]:
    """Returns a sentence for each damaged part of a log."""
    try:
        with reader.database.reading() as connection:
            problems = [f"log.db: {text}" for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
            topics = reader.database.catalog(connection).topics
            problems += _check_rows(connection)
    except StreamsError as error:
        return [str(error)]
    for name, entry in topics.items():
        for number in range(entry.partitions):
            problems += _check_partition(reader, TopicPartition(name, number))
    return problems


def _check_rows(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        consumer_groups.load_all(connection)
        for (application,) in connection.execute("SELECT application FROM markers").fetchall():
            read_marker(connection, application)
    except LogCorruptedError as error:
        yield str(error)


def _check_partition(reader: ChunkReader, at: TopicPartition) -> Iterator[str]:
    """Reads every chunk of a partition by itself, so that each damaged one is reported."""
    try:
        extent = reader.extent(at)
        with reader.database.reading() as connection:
            entry = reader.database.catalog(connection).topic_of(at)
            rows = list(chunks.read_chunks(connection, entry.number, at.partition, extent.earliest))
    except StreamsError as error:
        yield str(error)
        return
    position = extent.earliest
    for row in rows:
        if row.base > position:
            yield from _check_range(reader, at, position, row.base)
        yield from _check_range(reader, at, max(row.base, extent.earliest), min(row.end, extent.end))
        position = row.end
    if position < extent.end:
        yield from _check_range(reader, at, position, extent.end)


def _check_range(reader: ChunkReader, at: TopicPartition, start: int, end: int) -> Iterator[str]:
    try:
        for _ in reader.read(at, start, end):
            pass
    except LogCorruptedError as error:
        yield str(error)
