"""State on the local disk, in one LMDB environment per task.

LMDB keys have at most 511 bytes, so long keys lie in buckets. A key of up to 440 bytes is a key of LMDB. All longer
keys that share their first 440 bytes lie together in one entry, a bucket, under these 440 bytes and a 0. The bucket
sorts right after the key that equals its prefix and before every greater key, so a scan that opens the buckets returns
all keys in order.

    short    | key |                         →  value
    bucket   | first 440 bytes | 00 |        →  changes (delta.py): the rest of each key, and its value
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Self
from weakref import WeakSet

import lmdb
import msgspec

from headrace.directories import FILE_MODE, check_file, check_folder, create_directory
from headrace.errors import InvalidStateStoreError, StateCorruptedError, StreamsError
from headrace.state.delta import decode_changes, encode_changes
from headrace.state.engine import Changes, Version, nothing_to_undo

LONGEST = 440


def bucket_of(key: bytes) -> bytes:
    return key[:LONGEST] + b"\x00"


def find(bucket: bytes | None, key: bytes) -> bytes | None:
    """The value of a long key in its bucket."""
    return None if bucket is None else dict(decode_changes(bucket)).get(key[LONGEST:])


def seek(key: bytes, *, past: bool = False) -> bytes:
    """The LMDB key at which a scan from `key` begins or, with `past`, a scan up to `key` ends: past its bucket."""
    if len(key) <= LONGEST:
        return key
    return bucket_of(key) + b"\x00" if past else bucket_of(key)


def opened(entry: bytes, bucket: bytes, low: bytes, high: bytes | None) -> list[tuple[bytes, bytes]]:
    """The entries of a bucket from `low` up to but excluding `high`."""
    start = entry[:LONGEST]
    keys = ((start + rest, value) for rest, value in decode_changes(bucket) if value is not None)
    return [(key, value) for key, value in keys if low <= key and (high is None or key < high)]


def folded(changes: Changes, stored: Callable[[bytes], bytes | None]) -> Changes:
    """Turns changes of keys into changes of LMDB entries; `stored` returns the current bytes of an entry."""
    if all(len(key) <= LONGEST for key, _ in changes):
        return changes
    entries = [(key, value) for key, value in changes if len(key) <= LONGEST]
    return sorted([*entries, *_buckets(changes, stored)])


def _buckets(changes: Changes, stored: Callable[[bytes], bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
    buckets: dict[bytes, dict[bytes, bytes | None]] = {}
    for key, value in changes:
        if len(key) > LONGEST:
            buckets.setdefault(bucket_of(key), {})[key[LONGEST:]] = value
    for entry, changed in buckets.items():
        before = stored(entry)
        contents = {} if before is None else dict(decode_changes(before))
        kept = sorted((rest, value) for rest, value in (contents | changed).items() if value is not None)
        yield entry, encode_changes(kept) if kept else None


FILES = ("data.mdb", "lock.mdb")  # the files that LMDB creates in the directory
FIRST_MAP = 64 * 1024 * 1024  # bytes of address space, not of disk; doubled whenever it is full
VERSION, UNDO, BOOT = b"version", b"undo", b"boot"  # keys in the database `notes`, beside `data`
RECENT, LARGE = 100_000, 1_000  # entries cached between commits; an entry of more bytes than this is not cached
# An undo is written at every commit and hardly ever read: MessagePack takes a quarter of the time of a delta.
pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode
LENGTH = struct.Struct(">I")


def boot_id(source: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """The id of the machine's boot; empty where the system has none."""
    return source.read_text().strip() if source.exists() else ""


class LmdbEngine:
    """A local copy of the state in the checkpoint. Commits do no fsync; after a reboot the engine discards the copy.

    Reads see the version of the last commit, in one read transaction; each commit starts a new one. Only one process
    may write to a directory.
    """

    def __init__(
        self, directory: Path | str, *, boot: str | None = None, map_size: int = FIRST_MAP, readers: int = 126
    ) -> None:
        self.directory = Path(directory)
        self._map_size, self._most_readers = map_size, readers
        self._readers = WeakSet[LmdbEngine]()
        self._recent: dict[bytes, bytes | None] = {}  # entries as the last commits left them
        self._open()
        self._check_boot((boot_id() if boot is None else boot).encode())

    # ------------------------------------------------------------------------------------------------- reading
    @property
    def version(self) -> Version | None:
        return self._version

    def get(self, key: bytes) -> bytes | None:
        try:
            if len(key) > LONGEST:
                return find(self._read.get(bucket_of(key)), key)
            return self._read.get(key)
        except lmdb.Error as error:
            raise self._failure(error) from error

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        try:
            for entry, value in self._entries(low, high, reverse=reverse):
                if len(entry) <= LONGEST:
                    yield entry, value
                else:
                    found = opened(entry, value, low, high)
                    yield from reversed(found) if reverse else found
        except lmdb.Error as error:
            raise self._failure(error) from error

    def _entries(self, low: bytes, high: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        start = seek(low)
        end = None if high is None else seek(high, past=True)
        with self._read.cursor() as cursor:
            if not reverse:
                if cursor.set_range(start):
                    for entry, value in cursor.iternext():
                        if end is not None and entry >= end:
                            return
                        yield entry, value
            elif cursor.last() if end is None or not cursor.set_range(end) else cursor.prev():
                for entry, value in cursor.iterprev():
                    if entry < start:
                        return
                    yield entry, value

    def reader(self) -> Self:
        """A read-only engine that stays at the last commit while it is held, whatever is committed meanwhile."""
        other = copy(self)
        try:
            other._start_reading()  # noqa: SLF001 - the same class
        except lmdb.ReadersFullError as error:
            raise InvalidStateStoreError(f"too many versions of {self.directory} are being read: ask again") from error
        except lmdb.Error as error:
            raise self._failure(error) from error
        self._readers.add(other)
        return other

    # ------------------------------------------------------------------------------------------------- writing
    def commit(self, changes: Changes, version: Version) -> None:
        entries = changes

        def write(txn: lmdb.Transaction[bytes]) -> None:
            nonlocal entries
            entries = folded(changes, txn.get)
            undo = pack(self._before(txn, entries))
            put_all(txn, entries)
            txn.put(UNDO, encode_undo(self._version, undo), db=self._notes)
            txn.put(VERSION, encode_version(version), db=self._notes)

        self._in_transaction(write)
        self._remember(entries)  # not inside `write`, which runs again if the map is full

    def _before(self, txn: lmdb.Transaction[bytes], entries: Changes) -> Changes:
        """The entries before this commit; those of recent commits come from the cache, which halves the time."""
        recent = self._recent
        with txn.cursor() as cursor:
            found = dict(cursor.getmulti([key for key, _ in entries if key not in recent]))
        return [(key, recent[key] if key in recent else found.get(key)) for key, _ in entries]

    def _remember(self, entries: Changes) -> None:
        recent = self._recent
        if len(entries) > RECENT:
            recent.clear()
            return
        recent.update(entries)
        for large in [key for key, value in entries if value is not None and len(value) > LARGE]:
            del recent[large]
        if len(recent) > RECENT:
            recent.clear()

    def undo(self) -> None:
        def write(txn: lmdb.Transaction[bytes]) -> None:
            undo = txn.get(UNDO, db=self._notes)
            if undo is None:
                raise nothing_to_undo(self._version)
            version, entries = decode_undo(undo)
            put_all(txn, entries)
            txn.delete(UNDO, db=self._notes)
            if version is None:
                txn.delete(VERSION, db=self._notes)
            else:
                txn.put(VERSION, encode_version(version), db=self._notes)

        self._recent.clear()
        self._in_transaction(write)

    def renew(self) -> None:
        """Reads the current version: another process may have written to the directory between two batches."""
        before = self._version
        self._restart_read()
        if self._version != before:
            self._recent.clear()

    def close(self) -> None:
        self._read.abort()
        self._env.close()

    def _restart_read(self) -> None:
        self._read.abort()
        self._start_reading()

    def _in_transaction(self, write: Callable[[lmdb.Transaction[bytes]], object]) -> None:
        expected = self._noted(VERSION)
        try:
            while True:
                try:
                    with self._env.begin(db=self._data, write=True) as txn:
                        if txn.get(VERSION, db=self._notes) != expected:
                            raise self._overtaken()
                        write(txn)
                    break
                except lmdb.MapFullError:
                    self._grow()
            self._fill_up()
            self._restart_read()
        except lmdb.MapResizedError as error:
            raise self._overtaken() from error
        except (lmdb.Error, OSError) as error:
            raise self._failure(error) from error

    def _grow(self) -> None:
        if self._readers:
            raise InvalidStateStoreError(
                f"the state in {self.directory} is larger than {self._map_size} bytes, and cannot grow while it is "
                "read: start again, with more room"
            )
        self._read.abort()  # the map can only be changed while there is no transaction
        self._map_size = 2 * max(self._map_size, self._env.info()["map_size"])
        self._env.set_mapsize(self._map_size)
        self._start_reading()

    # ------------------------------------------------------------------------------------------- the environment
    def _open(self) -> None:
        try:
            create_directory(self.directory)
            check_folder(self.directory)
            for name in FILES:
                check_file(self.directory / name)
            # Without fsync; reads are by key, so reading ahead does not help.
            self._env = lmdb.open(
                str(self.directory),
                mode=FILE_MODE,
                map_size=self._map_size,
                max_dbs=2,
                max_readers=self._most_readers,
                sync=False,
                metasync=False,
                readahead=False,
                meminit=False,
            )
            if self._file_size() < self._least_size():
                self._env.close()
                raise lmdb.CorruptedError("the file is cut off")
            self._env.reader_check()  # clears readers of dead processes, which would keep old pages alive
            self._data, self._notes = self._env.open_db(b"data"), self._env.open_db(b"notes")
            self._start_reading()
        except (lmdb.Error, OSError) as error:
            raise self._unreadable(error) from error

    def _start_reading(self) -> None:
        try:
            self._read: lmdb.Transaction[bytes] = self._env.begin(db=self._data, write=False)
        except lmdb.MapResizedError:  # another process has made the map larger
            self._env.set_mapsize(0)
            self._read = self._env.begin(db=self._data, write=False)
        noted = self._noted(VERSION)
        self._version = None if noted is None else decode_version(noted)

    def _noted(self, what: bytes) -> bytes | None:
        return self._read.get(what, db=self._notes)

    def _check_boot(self, boot: bytes) -> None:
        noted = self._noted(BOOT)
        if not boot or noted == boot:
            return
        if noted is not None or self._version is not None:
            self._discard()
            self._open()
        self._in_transaction(lambda txn: txn.put(BOOT, boot, db=self._notes))

    def _discard(self) -> None:
        self.close()
        for file in FILES:
            (self.directory / file).unlink(missing_ok=True)

    def _file_size(self) -> int:
        return (self.directory / "data.mdb").stat().st_size

    def _least_size(self) -> int:
        """The size below which the file is truncated: reading a page beyond its end kills the process."""
        return (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]

    def _fill_up(self) -> None:
        """Extends the file by the free last pages, which LMDB does not write: a shorter file is a sign of damage."""
        size = self._least_size()
        if self._file_size() < size:
            with (self.directory / "data.mdb").open("r+b") as file:
                file.truncate(size)

    def _overtaken(self) -> InvalidStateStoreError:
        return InvalidStateStoreError(f"another process has written to {self.directory}: call renew() and start again")

    def _failure(self, error: Exception) -> StreamsError:
        if isinstance(error, lmdb.DiskError):
            return InvalidStateStoreError(f"the disk of {self.directory} is full, nothing was written: make room")
        if type(error) is lmdb.Error:  # the binding raises the bare class for a closed object
            return InvalidStateStoreError(f"the state in {self.directory} was closed, or the iterator's batch is over")
        return self._unreadable(error)

    def _unreadable(self, error: Exception) -> StateCorruptedError:
        return StateCorruptedError(
            f"the state in {self.directory} cannot be read ({error}). It is a copy of what the checkpoint holds: "
            "delete the directory, and it is restored"
        )


def put_all(txn: lmdb.Transaction[bytes], entries: Changes) -> None:
    with txn.cursor() as cursor:
        cursor.putmulti([(key, value) for key, value in entries if value is not None])
    for key, value in entries:
        if value is None:
            txn.delete(key)


# | number u64 | attempt |
def encode_version(version: Version) -> bytes:
    return version.number.to_bytes(8, "big") + version.attempt.encode()


def decode_version(raw: bytes) -> Version:
    return Version(int.from_bytes(raw[:8], "big"), raw[8:].decode())


# | length of the version before u32, 0 if there was none | version before | MessagePack: [[key, value or nil], …] |
def encode_undo(before: Version | None, changes: bytes) -> bytes:
    version = b"" if before is None else encode_version(before)
    return LENGTH.pack(len(version)) + version + changes


def decode_undo(raw: bytes) -> tuple[Version | None, Changes]:
    (length,) = LENGTH.unpack_from(raw)
    version = decode_version(raw[4 : 4 + length]) if length else None
    return version, unpack(memoryview(raw)[4 + length :])
