"""Retention: deletes expired records, chunks that cannot be read any more, and files that no row refers to.

Expiry only moves the earliest offset of a partition. Afterwards the cleaner deletes the chunks before it.
"""

from __future__ import annotations

import sqlite3

from headrace.log.embedded import chunks
from headrace.log.embedded.chunks import ChunkFiles, PartitionRow
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.topics import TopicEntry
from headrace.log.topic_config import TopicConfig

_MAX_PAGES = 2000  # that one transaction returns to the file system, so that writers do not wait long
ABANDONED_AFTER = 600.0  # seconds after which a file that no row refers to was left behind by a crash


def find_expired(connection: sqlite3.Connection, entry: TopicEntry, now: int) -> list[tuple[PartitionRow, int]]:
    """Returns the partitions of a topic that have expired records, with their new earliest offsets."""
    config = entry.parsed_config
    if not config.deletes or (config.retention_ms < 0 and config.retention_bytes < 0):
        return []
    found = [(row, _new_earliest(connection, row, config, now)) for row in chunks.read_partitions(connection, entry)]
    return [(row, earliest) for row, earliest in found if earliest > row.earliest]


def _new_earliest(connection: sqlite3.Connection, row: PartitionRow, config: TopicConfig, now: int) -> int:
    """Expires whole chunks, as Kafka expires segments: by the newest timestamp, or if enough bytes remain."""
    size, earliest = 0, row.earliest
    if config.retention_bytes >= 0:
        size = sum(chunk.size for chunk in chunks.read_chunks(connection, *row[:2], row.earliest))
    for chunk in chunks.read_chunks(connection, *row[:2], row.earliest):
        is_old = 0 <= config.retention_ms < now - chunk.last_time
        is_surplus = 0 <= config.retention_bytes <= size - chunk.size
        if not (is_old or is_surplus):
            break
        size, earliest = size - chunk.size, chunk.end
    return earliest


def truncate(connection: sqlite3.Connection, row: PartitionRow, before: int) -> int:
    """Moves the earliest offset of a partition forward. Returns the earliest offset."""
    earliest = max(row.earliest, before)
    chunks.put_partition(connection, row._replace(earliest=earliest, cleaned=max(row.cleaned, earliest)))
    return earliest


def shrink_database(connection: sqlite3.Connection) -> bool:
    """Returns some free pages to the file system; True if there may be more.

    A quarter of the pages stays free, because the log will need them again soon.
    """
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    surplus = free - pages // 4
    if surplus <= 0:
        return False
    for _ in range(min(surplus, _MAX_PAGES)):  # Python's sqlite3 ends the statement after the first page
        connection.execute("PRAGMA incremental_vacuum(1)")
    return surplus > _MAX_PAGES


def remove_abandoned_files(commits: GroupCommit, files: ChunkFiles, now: float) -> None:
    """Deletes files that no row refers to: their writer crashed or failed before its commit.

    This runs in a write transaction, so that a late writer finds its file missing before it commits, and raises.
    """
    if candidates := files.written_before(now - ABANDONED_AFTER):
        commits.run(lambda connection: files.remove(candidates - chunks.chunk_file_names(connection)))
