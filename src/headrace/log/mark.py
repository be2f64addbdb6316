"""The number of the last commit that somebody was told of, beside the database.

SQLite drops the end of a damaged write-ahead file without a word, as it does with one that a crash cut off. What was
acknowledged was never cut off by a crash: a database that is behind this number has lost data.

| number u64 | CRC-32 of it u32 |
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path
from zlib import crc32

_NUMBER, _SUM = struct.Struct("<Q"), struct.Struct("<I")
_log = logging.getLogger(__name__)


class Mark:
    """The file `acknowledged`; it is not forced to disk, so after a loss of power it may be behind, never ahead."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def write(self, number: int) -> None:
        raw = _NUMBER.pack(number)
        os.pwrite(self._file, raw + _SUM.pack(crc32(raw)), 0)

    def close(self) -> None:
        os.close(self._file)


def acknowledged(path: Path) -> int | None:
    """What the file says; None if there is none, or none that can be read, which loses a check and no data."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) != _NUMBER.size + _SUM.size or _SUM.unpack_from(raw, _NUMBER.size)[0] != crc32(raw[: _NUMBER.size]):
        if raw:
            _log.warning("%s is damaged: it is written anew, and this one time nobody notices a lost commit", path)
        return None
    return _NUMBER.unpack_from(raw)[0]
