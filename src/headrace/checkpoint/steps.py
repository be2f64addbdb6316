"""The named steps of a batch. Tests crash the application before and after each of them.

A step calls a hook of type `AtStep` with "before NAME" and "after NAME". In production the hook is `ignore_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

RANGES_PLANNED = "ranges planned"
TASK_RUN = "task run"
DELTA_WRITTEN = "delta written"
RECEIPT = "receipt"
MANIFEST = "manifest"
SHARE = "share"  # one share of a large batch; the coordinator delivers the rest with the marker
DELIVERY = "delivery"
MARKER = "marker"
SINK_WRITE = "sink write"  # of the records of a batch, to the target
SINK_COMMIT = "sink commit"
SINK_PROGRESS = "sink progress"  # the checkpoint records that the sink has the batch
MERGE = "merge of deltas"
PURGE = "purge"
OWNER = "owner"
TAKEOVER = "takeover"
RESCALE = "rescale"  # a new task's snapshot, before the takeover that names it

BATCH = (RANGES_PLANNED, TASK_RUN, DELTA_WRITTEN, RECEIPT, MANIFEST, DELIVERY, MARKER, MERGE, PURGE)
SINK = (SINK_WRITE, SINK_COMMIT, SINK_PROGRESS)
START = (OWNER, TAKEOVER)

AtStep = Callable[[str], None]


def ignore_step(_moment: str) -> None:
    """Does nothing: the hook of an application that is not under test."""


@contextmanager
def step(name: str, at_step: AtStep) -> Generator[None]:
    """Calls the hook before and after a block.

    >>> with step(MANIFEST, print):
    ...     print("the manifest is written")
    before manifest
    the manifest is written
    after manifest
    """
    at_step(f"before {name}")
    yield
    at_step(f"after {name}")
