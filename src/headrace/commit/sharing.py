"""A large batch is delivered in shares, by several processes at once: each has the partitions that only it delivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple
from zlib import crc32

from headrace.commit.ledger import read_manifest
from headrace.commit.manifest import Outbox
from headrace.commit.outbox import Section, decode_outbox, items_of
from headrace.commit.pieces import Piece, read_piece
from headrace.commit.storage import Storage
from headrace.log.protocol import Item
from headrace.model.ids import TopicPartition

Read = Callable[[Piece, str], bytes]


def sections_of(
    number: int, outboxes: Iterable[Outbox], read: Read, wanted: Callable[[Section], bool] = lambda section: True
) -> list[tuple[int, list[Section]]]:
    """What tasks wrote in a batch, as far as it is wanted, each with the partition of its task."""
    found: list[tuple[int, list[Section]]] = []
    for origin, piece in outboxes:
        raw = read(piece, f"what task {origin} wrote in batch {number}")
        found.append((origin.partition, [section for section in decode_outbox(raw, piece.name) if wanted(section)]))
    return found


def share_of(at: TopicPartition, shares: int) -> int:
    """The share that a partition belongs to: those of a topic one after the other.

    >>> [share_of(TopicPartition("t", partition), 3) for partition in range(4)]
    [2, 0, 1, 2]
    """
    return (crc32(at.topic.encode()) + at.partition) % shares


class Part(NamedTuple):
    """What one share has to deliver, and the topics that none of them has.

    Where a topic was not known to every task that wrote to it, the places of records depend on who looks, and when:
    all of it is left to the one who delivers what the shares have not.
    """

    items: list[Item]
    left: list[str]


def part_of(storage: Storage, number: int, share: int, shares: int) -> Part:
    """The part of a share in a batch, as the checkpoint has it."""
    left = set[str]()

    def is_ours(section: Section) -> bool:
        if section.partition is None:
            left.add(section.topic)
            return False
        return share_of(TopicPartition(section.topic, section.partition), shares) == share

    manifest, _ = read_manifest(storage, number)
    found = sections_of(number, manifest.outboxes, partial(read_piece, storage), is_ours)
    ours = [(home, [section for section in some if section.topic not in left]) for home, some in found]
    return Part(items_of(ours, dict[str, int]().__getitem__), sorted(left))  # nobody's place has to be counted out
