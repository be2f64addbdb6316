"""The steps of a batch by name: where a crash may come, and where tests let it come."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

RANGES_PLANNED = "ranges planned"
TASK_RUN = "task run"
DELTA_WRITTEN = "delta written"
RECEIPT = "receipt"
MANIFEST = "manifest"
SHARE = "share"  # of a batch that is large; what comes after it delivers the rest
DELIVERY = "delivery"
MARKER = "marker"
MERGE = "merge of deltas"
PURGE = "purge"
OWNER = "owner"
TAKEOVER = "takeover"

BATCH = (RANGES_PLANNED, TASK_RUN, DELTA_WRITTEN, RECEIPT, MANIFEST, DELIVERY, MARKER, MERGE, PURGE)
START = (OWNER, TAKEOVER)

AtStep = Callable[[str], None]


def unobserved(_moment: str) -> None:
    pass


@contextmanager
def step(name: str, at_step: AtStep) -> Generator[None]:
    """Tells of the moments before and after a step.

    >>> with step(MANIFEST, print):
    ...     print("it is written")
    before manifest
    it is written
    after manifest
    """
    at_step(f"before {name}")
    yield
    at_step(f"after {name}")
