"""Whether an application runs, as far as its checkpoint tells: its owner says again and again that it is alive."""

from __future__ import annotations

import msgspec

from headrace.commit.errors import CheckpointCorruptedError, MissingFileError
from headrace.commit.names import OWNERS, digits
from headrace.commit.owner import MAGIC, Sign
from headrace.commit.sealed import unseal
from headrace.commit.storage import Storage


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
