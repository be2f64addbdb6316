"""Appends: what they store, all of it or nothing. Small ones that come together become one chunk."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from itertools import chain

from headrace.log import places, stamps
from headrace.log.catalog import Catalog, Entry
from headrace.log.files import ChunkFiles
from headrace.log.parcels import Parcel, Shipment, check, parcels_of
from headrace.log.places import ChunkRow
from headrace.log.protocol import Records, Stamp
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers


@dataclass(frozen=True, slots=True)
class Append:
    """What somebody wants to append; the stamp tells whether it was stored before."""

    shipment: Shipment
    now: int
    stamp: Stamp | None = None


class Tail:
    """The end of a partition, while a transaction adds to it."""

    def __init__(self, connection: sqlite3.Connection, entry: Entry, at: TopicPartition, files: ChunkFiles) -> None:
        self._connection, self._entry, self._at, self._files = connection, entry, at, files
        self._row = places.partition(connection, entry.number, at.partition)
        self._loose: list[Records] = []  # not packed yet
        self.end = self._row.upto

    def add(self, records: list[Parcel] | Records, now: int) -> int:
        """Gives the offset of the first record."""
        base = self.end
        if isinstance(records, Records):
            self._loose.append(records)
            self.end += len(records)
        else:
            self._pack(now)
            for parcel in records:
                self._put(parcel, now)
        return base

    def close(self, now: int) -> None:
        self._pack(now)
        places.put_partition(self._connection, self._row)

    def _pack(self, now: int) -> None:
        if self._loose:
            for parcel in parcels_of(joined(self._loose), self._files):
                self._put(parcel, now)
            self._loose.clear()

    def _put(self, parcel: Parcel, now: int) -> None:
        entry, base = self._entry, self._row.upto
        check(entry, self._at, parcel, self._files)
        stamped = now if entry.rules.append_time else None
        last_time = parcel.label.last_time if stamped is None else stamped
        self.end = base + parcel.label.records
        number, partition = entry.number, self._at.partition
        chunk = ChunkRow(
            number, partition, base, self.end, last_time, stamped, None, parcel.size, parcel.digest, None, parcel.file
        )
        places.put_chunk(self._connection, chunk, parcel.packed)
        self._row = self._row._replace(upto=self.end)


def joined(parts: list[Records]) -> Records:
    """Records one after the other.

    >>> joined([Records([b"a"], [b"1"], [1]), Records([b"b"], [b"2"], [2])]).keys
    [b'a', b'b']
    """
    if len(parts) == 1:
        return parts[0]
    headers: list[Headers] | None = None
    if any(part.headers is not None for part in parts):
        headers = [pairs for part in parts for pairs in part.headers or [()] * len(part)]
    keys, values = chain(*(part.keys for part in parts)), chain(*(part.values for part in parts))
    return Records([*keys], [*values], [*chain(*(part.timestamps for part in parts))], headers)


def store(
    connection: sqlite3.Connection, catalog: Catalog, appends: list[Append], files: ChunkFiles
) -> list[list[int]]:
    """Puts records at the ends of their partitions; gives the first offset of each item of each append."""
    producers = [append.stamp.producer for append in appends if append.stamp is not None]
    if len(set(producers)) < len(producers):
        raise ValueError("one producer, two appends at a time: each is stored by itself")
    tails: dict[TopicPartition, Tail] = {}
    now = max(append.now for append in appends)

    def stored(append: Append) -> list[int]:
        stamp, offsets = append.stamp, list[int]()
        if stamp is not None and (before := stamps.stored_before(connection, stamp)) is not None:
            return before
        for at, records in append.shipment:
            if at not in tails:
                tails[at] = Tail(connection, catalog.place(at), at, files)
            offsets.append(tails[at].add(records, now))
        if stamp is not None:
            stamps.put_producer(connection, stamp, offsets, append.now)
        return offsets

    answers = [stored(append) for append in appends]
    for tail in tails.values():
        tail.close(now)
    return answers
