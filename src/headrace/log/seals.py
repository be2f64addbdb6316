"""Checksums of rows: SQLite notices damage to its own structure, but not to what it holds."""

from __future__ import annotations

from zlib import crc32

from headrace.log.errors import LogCorruptedError


def seal(*fields: object) -> int:
    """What is written beside the fields of a row; they are numbers, texts, bytes and None.

    >>> seal("orders", 1) == seal("orders", 1), seal("orders", 1) == seal("orders", 2)
    (True, False)
    """
    return crc32(repr(fields).encode())


def broken(what: str) -> LogCorruptedError:
    """The error for a row that does not match its seal."""
    return LogCorruptedError(
        f"{what} in log.db is not what was written: the file is damaged. Restore the log's directory from a copy"
    )
