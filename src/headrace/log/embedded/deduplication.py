"""What was appended and delivered before: the last append of every producer, the last batch of every application."""

from __future__ import annotations

import sqlite3

import msgspec

from headrace.errors import ProducerFencedError
from headrace.log.embedded import database
from headrace.log.embedded.database import broken, seal
from headrace.log.protocol import Stamp


# -------------------------------------------------------------------------------------------------------- producers
def new_producer(connection: sqlite3.Connection, now: int) -> int:
    number = database.meta(connection, "producers")[0] + 1
    database.put_meta(connection, "producers", number, b"")
    put_producer(connection, Stamp(number, -1), [], now)
    return number


def stored_before(connection: sqlite3.Connection, stamp: Stamp) -> list[int] | None:
    """The offsets that an append got when it came for the first time; None if this is it."""
    query = "SELECT id, sequence, offsets, used, seal FROM producers WHERE id = ?"
    row = connection.execute(query, (stamp.producer,)).fetchone()
    if row is None:
        raise ProducerFencedError(
            f"the producer {stamp.producer} is unknown, or was idle for more than a day: make a new one"
        )
    if row[4] != seal(*row[:4]):
        raise broken(f"the row of producer {stamp.producer}")
    if row[1] == stamp.sequence:
        return msgspec.json.decode(row[2], type=list[int])
    if row[1] + 1 != stamp.sequence:
        raise ProducerFencedError(
            f"producer {stamp.producer} appends number {stamp.sequence} after number {row[1]}: two clients use one "
            "id, or an append was lost. Make a new producer"
        )
    return None


def forget_producers(connection: sqlite3.Connection, before: int) -> None:
    """Those that did nothing since a time."""
    connection.execute("DELETE FROM producers WHERE used < ?", (before,))


def put_producer(connection: sqlite3.Connection, stamp: Stamp, offsets: list[int], now: int) -> None:
    row = (*stamp, msgspec.json.encode(offsets), now)
    connection.execute("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?, ?)", (*row, seal(*row)))


# ---------------------------------------------------------------------------------------------------------- markers
def marker(connection: sqlite3.Connection, application: str) -> int:
    row = connection.execute("SELECT number, seal FROM markers WHERE application = ?", (application,)).fetchone()
    if row is None:
        return -1
    if row[1] != seal(application, row[0]):
        raise broken(f"the row of the last delivery of {application!r}")
    return row[0]


def put_marker(connection: sqlite3.Connection, application: str, number: int | None) -> None:
    connection.execute("DELETE FROM markers WHERE application = ?", (application,))
    if number is not None:
        connection.execute("INSERT INTO markers VALUES (?, ?, ?)", (application, number, seal(application, number)))


def due(connection: sqlite3.Connection, application: str, number: int) -> bool:
    """Whether a batch is the next one to be delivered; False if it is the last one that was."""
    last = marker(connection, application)
    if last not in {number - 1, number}:
        said = f"batch {last} was" if last >= 0 else "no batch was"
        raise ProducerFencedError(
            f"batch {number} of {application!r} cannot be delivered: {said} the last one delivered to this log. "
            "The log or the checkpoint is not the one that belongs to the other, or is an older copy"
        )
    return last == number - 1
