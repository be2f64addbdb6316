"""Whether an application runs, as far as its checkpoint tells: its owner says again and again that it is alive.

Standing by: follows a running application, and says when it is gone.

Whoever stands by has a copy of the stores, and takes over as soon as nobody holds the checkpoint. Any number may stand
by: the next epoch is made once, so one of them gets it, and the others go on.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from headrace.checkpoint.files import OWNERS, digits, unseal
from headrace.checkpoint.ownership import MAGIC, Holder, Sign, is_gone, this_process
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


def state_of(storage: Storage, epoch: int, now: int) -> str:
    """RUNNING, NOT_RUNNING, or UNKNOWN if the last sign of life is older than it should be."""
    begun = OWNERS + digits(epoch)
    names = storage.names(begun)
    if f"{begun}.released" in names:
        return "NOT_RUNNING"
    try:
        sign = msgspec.json.decode(unseal(MAGIC, storage.read(names[-1]), names[-1]), type=Sign)
    except (IndexError, MissingFileError, CheckpointCorruptedError):
        return "UNKNOWN"
    return "RUNNING" if now < sign.at + sign.lease else "UNKNOWN"


LOOK = 0.5  # seconds between two looks: a small part of a lease, and two lists of an object store a second
_SIGN = re.compile(rf"{OWNERS}\d{{12,}}(?:\.(?:\d{{12,}}|released))?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Who watches, and by which clock."""

    clock: Clock = field(default_factory=SystemClock)
    me: Holder = field(default_factory=this_process)
    gone: Callable[[Holder, Holder], bool] = is_gone


def is_held(storage: Storage, watcher: Watcher) -> bool:
    """Whether an instance runs: not if it was released, its process is known to be gone, or its lease is over."""
    signs = [name for name in storage.names(OWNERS) if _SIGN.fullmatch(name)]
    if not signs or signs[-1].endswith(".released"):
        return False
    try:
        sign = msgspec.json.decode(unseal(MAGIC, storage.read(signs[-1]), signs[-1]), type=Sign)
    except MissingFileError:  # there is a later one
        return True
    except CheckpointCorruptedError:  # whoever left it counts as gone
        return False
    return watcher.clock.now() < sign.at + sign.lease and not watcher.gone(sign.holder, watcher.me)


def wait_for_turn(
    follower: Follower, over: threading.Event, watcher: Watcher | None = None, *, look: float = LOOK
) -> bool:
    """Follows until nobody holds the checkpoint; False: `over` was set before."""
    watcher = watcher or Watcher()
    said = None
    while not over.is_set():
        try:
            with suppress(StoreNotReadyError):  # before the first batch
                follower.refresh()
            if not is_held(follower.storage, watcher):
                return True
        except CheckpointMismatchError:  # what runs there is not what could take over
            raise
        except StreamsError as error:
            if str(error) != said:
                _log.warning("standing by as of batch %d: %s", follower.freshness.batch, error)
            said = str(error)
        over.wait(look)
    return False
