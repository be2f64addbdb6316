"""Who runs on a checkpoint: one instance at a time, each with an epoch of its own.

Whoever makes the file of the next epoch is the owner. It says again and again that it is alive; one that has not said
so for the length of its lease, or whose process is known to be gone, may be followed. The lease is a courtesy: what
keeps an old owner from doing harm is that manifests are made once.

| "HRW1" | digest of the rest, 16 bytes | JSON: who, and when it last was alive |
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.checkpoint.files import OWNERS, digits, seal, unseal
from headrace.checkpoint.storage import Storage
from headrace.errors import AlreadyRunningError, CheckpointCorruptedError, FencedError, MissingFileError
from headrace.model.clock import Clock

MAGIC = b"HRW1"
_NAME = re.compile(rf"{OWNERS}(\d{{12,}})(?:\.(\d{{12,}}|released))?")
_log = logging.getLogger(__name__)


class Holder(NamedTuple):
    """A process: on which machine, since its last start, and when it began there."""

    host: str
    machine: str
    process: int
    began: str


class Sign(NamedTuple):
    """A sign of life."""

    holder: Holder
    at: int
    lease: int
    token: str = ""  # of the beginning of an epoch, by which one knows one's own


def this_process() -> Holder:
    """Who we are. Containers on one machine count their processes on their own, so they are machines, too."""
    machine = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return Holder(socket.gethostname(), machine, os.getpid(), _began(os.getpid()))


def is_gone(holder: Holder, me: Holder) -> bool:
    """Whether a process certainly does not run any more; only one on the same machine can tell."""
    if not holder.machine or holder.machine != me.machine:
        return False
    return _began(holder.process) != holder.began


def _began(process: int) -> str:
    """When a process began, in ticks since the machine did; empty if there is none, or only what is left of it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


class Ownership:
    """An epoch that is ours until it is released, or somebody begins the next one."""

    def __init__(self, storage: Storage, clock: Clock, me: Holder, lease: int, epoch: int) -> None:
        self.epoch, self._storage, self._clock, self._me, self._lease = epoch, storage, clock, me, lease
        self._beats, self._last, self._turn = 0, clock.now(), threading.Lock()

    @classmethod
    def claim(
        cls,
        storage: Storage,
        clock: Clock,
        *,
        me: Holder,
        lease: int,
        above: int = 0,
        gone: Callable[[Holder, Holder], bool] = is_gone,
    ) -> Ownership:
        """Begins the epoch after the last one, which is at least `above`, if nobody is in it."""
        last = max([above, *_epochs(storage)])
        sign = _last_sign(storage, last)
        now = clock.now()
        if sign is not None and now < sign.at + sign.lease and not gone(sign.holder, me):
            raise AlreadyRunningError(
                f"another instance runs on {storage.describe()}: process {sign.holder.process} on {sign.holder.host}, "
                f"{max(0, now - sign.at)} ms ago. One instance runs an application; to scale out, give Spark more "
                f"executors. If that one is gone, this works in {sign.at + sign.lease - now} ms"
            )
        epoch = last + 1
        if not _begun(storage, epoch, Sign(me, now, lease, secrets.token_hex(8))):
            raise AlreadyRunningError(f"another instance has just begun to run on {storage.describe()}")
        return cls(storage, clock, me, lease, epoch)

    def beat(self) -> None:
        """Says that we are alive, if it is time to and nobody has followed us."""
        with self._turn:
            now = self._clock.now()
            if now - self._last >= self._lease // 3:
                self._beat(now)

    def _beat(self, now: int) -> None:
        if max(_epochs(self._storage), default=0) > self.epoch:
            raise FencedError(f"another instance has taken over {self._storage.describe()}: this one must stop")
        name = OWNERS + digits(self.epoch)
        self._storage.create(f"{name}.{digits(self._beats + 1)}", _encode(Sign(self._me, now, self._lease)))
        if self._beats:
            self._storage.delete(f"{name}.{digits(self._beats)}")
        self._beats, self._last = self._beats + 1, now

    def release(self) -> None:
        """Lets others follow at once."""
        self._storage.create(f"{OWNERS}{digits(self.epoch)}.released", b"")

    def forget_earlier(self) -> None:
        """Removes what earlier epochs left."""
        for name in self._storage.names(OWNERS):
            found = _NAME.match(name)
            if found and int(found[1]) < self.epoch:
                self._storage.delete(name)


def _begun(storage: Storage, epoch: int, sign: Sign) -> bool:
    """Whether the epoch is ours; an object store may have taken the file though its answer was lost."""
    name, data = OWNERS + digits(epoch), _encode(sign)
    try:
        return storage.create(name, data) or storage.read(name) == data
    except MissingFileError:  # whoever made it was followed already
        return False


def _epochs(storage: Storage) -> set[int]:
    return {int(found[1]) for name in storage.names(OWNERS) if (found := _NAME.fullmatch(name))}


def _last_sign(storage: Storage, epoch: int) -> Sign | None:
    """The last sign of life in an epoch; None if there is none, or it is over."""
    begun = OWNERS + digits(epoch)
    names = [name for name in storage.names(begun) if _NAME.fullmatch(name)]
    if not names or f"{begun}.released" in names:
        return None
    try:
        raw = storage.read(names[-1])
    except MissingFileError:  # followed by another one just now
        return _last_sign(storage, epoch)
    try:
        return msgspec.json.decode(unseal(MAGIC, raw, names[-1]), type=Sign)
    except CheckpointCorruptedError as error:
        _log.warning("%s: whoever left it counts as gone", error)
        return None


def _encode(sign: Sign) -> bytes:
    return seal(MAGIC, msgspec.json.encode(sign))
