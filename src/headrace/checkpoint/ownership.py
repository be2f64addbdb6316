"""Ownership of a checkpoint: one instance at a time, each with its own epoch, kept alive by a lease.

    owner = the process that creates owners/EPOCH first; it renews its lease with owners/EPOCH.COUNT
    | "HRW1" | digest of the rest, 16 bytes | JSON of `LeaseRecord` |

Another instance may take over when the lease has expired, was released, or belongs to a process that has exited. The
lease is no protection, only a courtesy: an owner that was replaced can do no harm because manifests are created once.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.checkpoint.files import OWNERS, decode_json, encode_checksummed, format_number
from headrace.checkpoint.storage import Storage
from headrace.errors import AlreadyRunningError, CheckpointCorruptedError, FencedError, MissingFileError, StorageError
from headrace.model.clock import Clock
from headrace.model.threads import SYSTEM_THREADS, Threads

MAGIC = b"HRW1"
_NAME = re.compile(rf"{OWNERS}(\d{{12,}})(?:\.(\d{{12,}}|released))?")
_log = logging.getLogger(__name__)


class LeaseHolder(NamedTuple):
    """A process that may own a checkpoint. `machine` is the boot id and the pid namespace, `started` in ticks."""

    host: str
    machine: str
    process: int
    started: str


class LeaseRecord(NamedTuple):
    """The content of an owner file: the lease was renewed at `at`, for `lease` ms."""

    holder: LeaseHolder
    at: int
    lease: int
    token: str = ""  # tells two instances apart that create the same epoch
    description: dict[str, Any] | None = None  # what the owner says about itself, for `headrace status`


def this_process() -> LeaseHolder:
    """Returns this process. A container counts as a machine, because it has its own process ids."""
    machine = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return LeaseHolder(socket.gethostname(), machine, os.getpid(), _start_time(os.getpid()))


def has_exited(holder: LeaseHolder, observer: LeaseHolder) -> bool:
    """True when a process has certainly exited. Only an observer on the same machine can tell."""
    if not holder.machine or holder.machine != observer.machine:
        return False
    return _start_time(holder.process) != holder.started


def _start_time(process: int) -> str:
    """Returns when a process started, in ticks since boot; empty if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


class Ownership:
    """An epoch that this instance holds until it releases it, or until another instance begins the next one."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        process: LeaseHolder,
        lease_ms: int,
        epoch: int,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        self.epoch, self._storage, self._clock, self._process, self._lease_ms = epoch, storage, clock, process, lease_ms
        self._renewals, self._renewed_at, self._lock = 0, clock.now(), threads.lock()
        self.describe: Callable[[], dict[str, Any]] = dict  # called at every renewal

    @classmethod
    def claim(
        cls,
        storage: Storage,
        clock: Clock,
        *,
        process: LeaseHolder,
        lease_ms: int,
        last_epoch: int = 0,
        has_exited: Callable[[LeaseHolder, LeaseHolder], bool] = has_exited,
        threads: Threads = SYSTEM_THREADS,
    ) -> Ownership:
        """Begins the next epoch. Raises AlreadyRunningError if the last epoch still has a live owner.

        The last epoch is the latest one in the storage, or `last_epoch` if that is later.
        """
        last = max([last_epoch, *_epochs(storage)])
        lease = _read_lease(storage, last)
        now = clock.now()
        if lease is not None and now < lease.at + lease.lease and not has_exited(lease.holder, process):
            raise AlreadyRunningError(
                f"another instance runs on {storage.describe()}: process {lease.holder.process} on "
                f"{lease.holder.host}, {max(0, now - lease.at)} ms ago. One instance runs an application; to scale "
                "out, give Spark more executors. If that instance is gone, this works in "
                f"{lease.at + lease.lease - now} ms"
            )
        epoch = last + 1
        if not _create_epoch(storage, epoch, LeaseRecord(process, now, lease_ms, secrets.token_hex(8))):
            raise AlreadyRunningError(f"another instance has just begun to run on {storage.describe()}")
        return cls(storage, clock, process, lease_ms, epoch, threads)

    def renew(self) -> None:
        """Renews the lease if a third of it has passed. Raises FencedError if another instance has taken over."""
        with self._lock:
            now = self._clock.now()
            if now - self._renewed_at >= self._lease_ms // 3:
                self._renew(now)

    def _renew(self, now: int) -> None:
        if max(_epochs(self._storage), default=0) > self.epoch:
            raise FencedError(f"another instance has taken over {self._storage.describe()}: this one must stop")
        name, count = OWNERS + format_number(self.epoch), self._renewals + 1
        lease = LeaseRecord(self._process, now, self._lease_ms, description=self.describe())
        self._storage.create(f"{name}.{format_number(count)}", _encode(lease))
        if self._renewals:
            self._storage.delete(f"{name}.{format_number(self._renewals)}")
        self._renewals, self._renewed_at = count, now

    def release(self, description: dict[str, Any] | None = None) -> None:
        """Ends the lease, so that another instance can start at once. `description` says how the owner has ended."""
        name = f"{OWNERS}{format_number(self.epoch)}.released"
        last = LeaseRecord(self._process, self._clock.now(), 0, description=description)
        try:
            self._storage.create(name, _encode(last))
        except StorageError:  # a disk that is full still takes an empty file
            self._storage.create(name, b"")

    def delete_earlier_epochs(self) -> None:
        """Deletes the files of earlier epochs."""
        for name in self._storage.names(OWNERS):
            found = _NAME.match(name)
            if found and int(found[1]) < self.epoch:
                self._storage.delete(name)


def _create_epoch(storage: Storage, epoch: int, lease: LeaseRecord) -> bool:
    """Returns True if the epoch is ours, also when an object store took the file and lost its answer."""
    name, data = OWNERS + format_number(epoch), _encode(lease)
    try:
        return storage.create(name, data) or storage.read(name) == data
    except MissingFileError:  # a later owner has deleted it
        return False


def _epochs(storage: Storage) -> set[int]:
    return {int(found[1]) for name in storage.names(OWNERS) if (found := _NAME.fullmatch(name))}


def _read_lease(storage: Storage, epoch: int) -> LeaseRecord | None:
    """Returns the latest lease of an epoch; None if there is none, or it was released."""
    first = OWNERS + format_number(epoch)
    names = [name for name in storage.names(first) if _NAME.fullmatch(name)]
    if not names or f"{first}.released" in names:
        return None
    try:
        raw = storage.read(names[-1])
    except MissingFileError:  # it was renewed meanwhile
        return _read_lease(storage, epoch)
    try:
        return decode_lease(raw, names[-1])
    except CheckpointCorruptedError as error:
        _log.warning("%s: the lease in it counts as expired", error)
        return None


def _encode(lease: LeaseRecord) -> bytes:
    return encode_checksummed(MAGIC, msgspec.json.encode(lease))


def decode_lease(raw: bytes, name: str) -> LeaseRecord:
    """Decodes an owner file. `name` is the name of the file, for errors."""
    return decode_json(MAGIC, raw, name, LeaseRecord)
