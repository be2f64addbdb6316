"""Delivery markers: the number of the last batch of each application whose outputs are in the log.

`FileLog.deliver` writes the marker in the same transaction as the outputs.
"""

from __future__ import annotations

import sqlite3

from headrace.log.embedded.schema import damaged_row, row_checksum


def read_marker(connection: sqlite3.Connection, application: str) -> int:
    """Returns -1 if no batch was delivered."""
    row = connection.execute("SELECT number, seal FROM markers WHERE application = ?", (application,)).fetchone()
    if row is None:
        return -1
    if row[1] != row_checksum(application, row[0]):
        raise damaged_row(f"the row of the last delivery of {application!r}")
    return row[0]


def put_marker(connection: sqlite3.Connection, application: str, number: int | None) -> None:
    """Sets the marker; None removes it."""
    connection.execute("DELETE FROM markers WHERE application = ?", (application,))
    if number is not None:
        row = (application, number)
        connection.execute("INSERT INTO markers VALUES (?, ?, ?)", (*row, row_checksum(*row)))
