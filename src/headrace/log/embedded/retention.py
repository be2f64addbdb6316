"""What may go: old records, chunks that nobody can read any more, files that no chunk names."""

from __future__ import annotations

import sqlite3

from headrace.log.embedded import chunks
from headrace.log.embedded.chunks import ChunkFiles, ChunkRow, PartitionRow
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.topics import Catalog, Entry, TopicRules

_AT_ONCE = 200  # chunks that one transaction deletes, so that others need not wait long
_PAGES_AT_ONCE = 2000  # freed pages that one transaction gives back to the disk
ABANDONED = 600.0  # seconds after which a file that no chunk names is nobody's


def expired(connection: sqlite3.Connection, entry: Entry, now: int) -> dict[int, int]:
    """The partitions of a topic that have records to lose by its retention, with their new earliest offsets."""
    rules = entry.rules
    if not rules.deletes or (rules.retention_ms < 0 and rules.retention_bytes < 0):
        return {}
    found = ((row, _earliest(connection, row, rules, now)) for row in chunks.partitions(connection, entry))
    return {row.partition: earliest for row, earliest in found if earliest > row.earliest}


def _earliest(connection: sqlite3.Connection, row: PartitionRow, rules: TopicRules, now: int) -> int:
    """As Kafka does with segments: a chunk goes if its newest record is too old, or if enough is left without it."""
    size, earliest = 0, row.earliest
    if rules.retention_bytes >= 0:
        size = sum(chunk.size for chunk in chunks.chunks(connection, row.topic, row.partition, row.earliest))
    for chunk in chunks.chunks(connection, row.topic, row.partition, row.earliest):
        too_old = 0 <= rules.retention_ms < now - chunk.last_time
        too_much = 0 <= rules.retention_bytes <= size - chunk.size
        if not (too_old or too_much):
            break
        size, earliest = size - chunk.size, chunk.upto
    return earliest


def truncate(connection: sqlite3.Connection, row: PartitionRow, before: int) -> int:
    """Moves the earliest offset of a partition on to an offset; gives where it is then."""
    earliest = max(row.earliest, before)
    chunks.put_partition(connection, row._replace(earliest=earliest, cleaned=max(row.cleaned, earliest)))
    return earliest


def dead_chunks(connection: sqlite3.Connection, catalog: Catalog) -> list[ChunkRow]:
    """Some of the chunks that nobody can read any more."""
    return chunks.dead_chunks(connection, {entry.number: entry for entry in catalog.topics.values()}, _AT_ONCE)


def shrink(connection: sqlite3.Connection) -> bool:
    """Gives some of the pages that nothing needs back to the disk; True if there may be more.

    A quarter of the pages stays free: they are needed again soon.
    """
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    surplus = free - pages // 4
    if surplus <= 0:
        return False
    for _ in range(min(surplus, _PAGES_AT_ONCE)):  # Python's sqlite3 ends the statement after the first page
        connection.execute("PRAGMA incremental_vacuum(1)")
    return surplus > _PAGES_AT_ONCE


def remove_abandoned(commits: GroupCommit, files: ChunkFiles, now: float) -> None:
    """Deletes files that no chunk names: whoever wrote them died before its commit, or it failed.

    In a write transaction: one that comes late finds its file missing, and says so, before it commits.
    """
    if candidates := files.written_before(now - ABANDONED):
        commits(lambda connection: files.remove(candidates - chunks.files(connection)))
