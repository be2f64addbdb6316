"""The states of an application, and the signals that end it.

Says again and again that an application is alive, whatever else it does.

Whether a process of this machine still runs.

The folder of a query: the job, the control file and Spark's own checkpoint, all of which end with the process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType

from headrace.errors import StreamsError


class QueryStoppedError(StreamsError):
    """Spark has stopped the query: nothing is lost, and it may be started again."""

    retriable = True


class OvertakenError(QueryStoppedError):
    """Retention has removed what was about to be read: where to go on is planned anew."""

    retriable = False  # not in the task, whose range is what it is


class State(StrEnum):
    """Kafka Streams' states of an application."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"  # taking over the checkpoint, or planning anew for other topics
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"


@contextmanager
def ended_by_signals() -> Generator[threading.Event]:
    """An event that SIGINT and SIGTERM set, where signals can be handled: in the main thread."""
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        over.set()

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


EVERY = 1.0  # seconds; `beat` knows whether it is time to


class Heartbeat:
    """Calls `beat` in a thread, until it is stopped or `beat` raises."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat, self._stopped = beat, threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="headrace heart", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - raised by `check`
                self._failed = error
                return

    def check(self) -> None:
        """Raises what stopped it."""
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is somebody else's
    return True


_NAME = re.compile(r"headrace-query-(\d+)-\w+")


def new_folder() -> Path:
    """A fresh one; those that killed processes have left are removed."""
    for folder in Path(tempfile.gettempdir()).glob("headrace-query-*"):
        found = _NAME.fullmatch(folder.name)
        if found and not lives(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"headrace-query-{os.getpid()}-"))
