"""Outcomes of transactions, as Kafka's coordinators have recorded them in the topic `__transaction_state`.

A broker that restarts while a transaction ends may lose the end in the partitions: its coordinator takes the
transaction for ended, and readers wait for ever. The coordinator's records say how it has ended. `find_outcome` reads
them, if the application may read the topic.

| bytes | of a value                                                                                |
|-------|-------------------------------------------------------------------------------------------|
| 2     | version: 0, or 1 with lengths as variable integers                                        |
| 14    | producer id (8), producer epoch (2), timeout of the transaction (4)                       |
| 1     | state: 2 a commit was decided, 3 an abort was decided; others are not needed here          |
| …     | the partitions of the transaction, by topic                                               |

A key has a version (2), and the transactional id behind its length (2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from headrace.errors import StreamsError
from headrace.log.kafka.reader import PartitionReader
from headrace.log.kafka.topics import Topics
from headrace.model.ids import TopicPartition

_TOPIC = "__transaction_state"
_STATE, _PARTITIONS = 16, 17  # where they are in a value
_COMMIT, _ABORT = 2, 3
_FIRST_STEP = 64  # offsets to look back at first; a transaction takes some five


class Outcome(NamedTuple):
    """How a transaction has ended, and in which partitions."""

    is_committed: bool
    partitions: tuple[TopicPartition, ...]


def find_outcome(
    topics: Topics, reader: PartitionReader, transactional_id: str, written: TopicPartition
) -> Outcome | None:
    """Returns the outcome of a producer's last transaction that has written to a partition.

    None if there was no such transaction, or the topic is not for this application to read.
    """
    try:
        topic = topics.find([_TOPIC])[_TOPIC]
        if topic is None:
            return None
        at = TopicPartition(_TOPIC, _hash(transactional_id) % topic.partitions)
        earliest, end = reader.extents([_TOPIC])[at]
        step = _FIRST_STEP
        while end > earliest:
            start = max(earliest, end - step)
            rows = [row for chunk in reader.read(at, start, end) for row in chunk.rows()]
            for _, key, value, *_ in reversed(rows):
                if value is None or key is None or key[4:] != transactional_id.encode():
                    continue
                if value[_STATE] in {_COMMIT, _ABORT} and written in (partitions := tuple(_partitions(value))):
                    return Outcome(value[_STATE] == _COMMIT, partitions)
            end, step = start, 8 * step
    except (StreamsError, IndexError, UnicodeDecodeError, struct.error):  # not ours to read, or another format
        return None
    return None


def _hash(text: str) -> int:
    """Java's hash of a string, without its sign. Kafka chooses partitions by it.

    >>> _hash("hello"), _hash("polygenelubricants")
    (99162322, 0)
    """
    found = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        found = (31 * found + unit) & 0xFFFFFFFF
    return abs(found - (1 << 32) if found >= 1 << 31 else found) & 0x7FFFFFFF


def _partitions(value: bytes) -> Iterator[TopicPartition]:
    r"""Reads the partitions of a transaction.

    >>> list(_partitions(bytes(17) + struct.pack(">ih3sii", 1, 3, b"out", 1, 7)))
    [TopicPartition(topic='out', partition=7)]
    >>> list(_partitions(b"\0\1" + bytes(15) + b"\2\4out\2" + struct.pack(">i", 7) + b"\0"))
    [TopicPartition(topic='out', partition=7)]
    """
    is_compact, place = value[1] > 0, _PARTITIONS

    def take(form: str) -> int:
        nonlocal place
        (found,) = struct.unpack_from(form, value, place)
        place += struct.calcsize(form)
        return found

    def take_length(form: str) -> int:
        """In the compact form a length is a variable integer, and one more than it is."""
        if not is_compact:
            return take(form)
        found = shift = 0
        while (part := take(">B")) >= 128:
            found, shift = found | (part - 128) << shift, shift + 7
        return (found | part << shift) - 1

    for _ in range(take_length(">i")):
        length = take_length(">h")
        name, place = value[place : place + length].decode(), place + length
        for _ in range(take_length(">i")):
            yield TopicPartition(name, take(">i"))
        if is_compact and take(">B"):  # fields that a later version may add
            raise struct.error("unknown fields")
