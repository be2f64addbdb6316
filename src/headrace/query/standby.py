"""Standby: read from a checkpoint whether its application runs, and wait until it can be taken over.

The owner of a checkpoint writes heartbeats with a lease. A standby follows the checkpoint, so that it has a copy of the
stores, and takes over when the checkpoint has no owner. Any number of standbys may wait: the next epoch is created
once, so one of them gets it, and the others continue to wait.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.checkpoint.files import OWNERS, format_number
from headrace.checkpoint.ownership import LeaseHolder, LeaseRecord, decode_lease, has_exited, this_process
from headrace.checkpoint.storage import Storage
from headrace.errors import (
    CheckpointCorruptedError,
    CheckpointMismatchError,
    MissingFileError,
    StoreNotReadyError,
    StreamsError,
)
from headrace.model.clock import Clock, SystemClock
from headrace.query.follower import Follower
from headrace.query.status import ApplicationReport, decode_slots

INTERVAL = 0.5  # seconds between two checks: a small part of a lease, and two list requests to an object store a second
_HEARTBEAT = re.compile(rf"{OWNERS}\d{{12,}}(?:\.(?:\d{{12,}}|released))?")
_log = logging.getLogger(__name__)


def read_report(storage: Storage, epoch: int, now: int) -> ApplicationReport:
    """Return what the owner of a checkpoint said about itself in its last heartbeat, a few seconds ago.

    The state is RUNNING, NOT_RUNNING or ERROR, or UNKNOWN if the last heartbeat of the epoch is older than its lease.
    """
    prefix = OWNERS + format_number(epoch)
    names = storage.names(prefix)
    if f"{prefix}.released" in names:
        return _read_end(storage, f"{prefix}.released")
    try:
        heartbeat = _read_heartbeat(storage, names[-1])
    except (IndexError, MissingFileError, CheckpointCorruptedError):
        return ApplicationReport(state="UNKNOWN")
    if now >= heartbeat.at + heartbeat.lease:
        return ApplicationReport(state="UNKNOWN")
    return ApplicationReport(state="RUNNING", **decode_slots(heartbeat.description or {}))


def _read_end(storage: Storage, name: str) -> ApplicationReport:
    """Return how an owner has ended, as far as its last file says so."""
    try:
        end = _read_heartbeat(storage, name).description or {}
    except (MissingFileError, CheckpointCorruptedError):  # the file of an earlier version is empty
        end = {}
    error, known = end.get("error"), decode_slots(end)
    return ApplicationReport(
        state="NOT_RUNNING" if error is None else "ERROR",
        error=error,
        delivered=end.get("delivered"),
        sinks=known["sinks"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerCheck:
    """Decides whether a checkpoint has a live owner. `process_gone` says whether one on the same machine has exited."""

    clock: Clock = field(default_factory=SystemClock)
    this_process: LeaseHolder = field(default_factory=this_process)
    process_gone: Callable[[LeaseHolder, LeaseHolder], bool] = has_exited

    def is_owned(self, storage: Storage) -> bool:
        """Return False if the owner released the checkpoint, its process is gone, or its lease has expired."""
        names = [name for name in storage.names(OWNERS) if _HEARTBEAT.fullmatch(name)]
        if not names or names[-1].endswith(".released"):
            return False
        try:
            heartbeat = _read_heartbeat(storage, names[-1])
        except MissingFileError:  # the owner has replaced it by a later one
            return True
        except CheckpointCorruptedError:
            return False
        is_leased = self.clock.now() < heartbeat.at + heartbeat.lease
        return is_leased and not self.process_gone(heartbeat.holder, self.this_process)


def _read_heartbeat(storage: Storage, name: str) -> LeaseRecord:
    return decode_lease(storage.read(name), name)


def wait_for_takeover(
    follower: Follower, stop: threading.Event, check: OwnerCheck | None = None, *, interval: float = INTERVAL
) -> bool:
    """Follow the checkpoint until it has no owner, and return True; return False once `stop` is set."""
    check = check or OwnerCheck()
    logged = None
    while not stop.is_set():
        try:
            with suppress(StoreNotReadyError):  # before the first batch
                follower.refresh()
            if not check.is_owned(follower.storage):
                return True
        except CheckpointMismatchError:  # the running application has another topology: this one cannot take over
            raise
        except StreamsError as error:
            if str(error) != logged:
                _log.warning("standby: the copy of the state stays at batch %d: %s", follower.freshness.batch, error)
            logged = str(error)
        stop.wait(interval)
    return False
