"""One broker for a whole test run of any number of processes: the first to ask starts it, the last to leave ends it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.testing import KafkaBroker
from headrace.testing.broker import alone

_STARTED: list[KafkaBroker] = []  # they may outlive the process that has started them


@contextmanager
def shared_broker(meeting_place: Path) -> Generator[str]:
    """The address of the broker that all who know the meeting place share."""
    notes, lock = meeting_place / "broker.json", meeting_place / "broker.lock"
    with alone(lock):
        if not notes.exists():
            broker = KafkaBroker(meeting_place / "broker")
            _STARTED.append(broker)
            notes.write_text(json.dumps({"address": broker.address, "pid": broker.pid, "users": 0}))
        address = _counted(notes, 1)["address"]
    try:
        yield address
    finally:
        with alone(lock):
            left = _counted(notes, -1)
            if left["users"] == 0:
                with os.fdopen(os.pidfd_open(left["pid"])) as process:
                    os.kill(left["pid"], signal.SIGKILL)
                    select.select([process], [], [])  # else it writes into what is removed
                notes.unlink()
                shutil.rmtree(meeting_place / "broker", ignore_errors=True)


def _counted(notes: Path, more: int) -> dict:
    found = json.loads(notes.read_text())
    found["users"] += more
    notes.write_text(json.dumps(found))
    return found
