"""The lifecycle of an application on the driver: its states, its signals, its heartbeat, and its temporary folder.

`Application` moves through `State`, and stops when `ended_by_signals` sets its event. A `Run` renews the lease of the
checkpoint with a `Heartbeat`. A micro-batch query keeps its files in the folder that `make_query_folder` makes, and
Spark keeps its sockets in the folder of `make_socket_folder`.

Nothing in these folders outlives the process: what an application needs to continue is in its checkpoint.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType

from headrace.directories import temporary_directory
from headrace.errors import StreamsError


class QueryStoppedError(StreamsError):
    """Spark has stopped the query. Nothing is lost, and the application may start it again."""

    retriable = True


class OvertakenError(QueryStoppedError):
    """Retention has removed records of a range before a task read them. The batch must be planned again."""

    retriable = False  # a task cannot retry: its range is fixed


class TopicGrownError(QueryStoppedError):
    """A topic has more partitions than when the job was planned. The job must be planned again.

    Producers that know the new number may have written a key to a partition of another task.
    """

    retriable = False


class State(StrEnum):
    """Kafka Streams' states of an application."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"  # taking over the checkpoint, or planning again because the topics have changed
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"


SAME_INTERRUPT = 0.5  # seconds


@contextmanager
def ended_by_signals(on_signal: Callable[[], None] | None = None) -> Generator[threading.Event]:
    """Yields an event that SIGINT and SIGTERM set. Only in the main thread: Python handles no signals in others.

    The first signal also calls `on_signal`.

    A second SIGINT ends the process at once. A SIGINT within half a second of the first counts as the same Ctrl-C,
    which some launchers pass on. A second SIGTERM changes nothing: `timeout` always sends two.
    """
    over, first = threading.Event(), float("inf")

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if number == signal.SIGINT and time.monotonic() > first + SAME_INTERRUPT:
            os.write(2, b"Interrupted again: ended at once. The next start continues with the last batch.\n")
            os._exit(128 + number)
        first = min(first, time.monotonic())
        is_first = not over.is_set()
        over.set()
        if is_first and on_signal is not None:
            on_signal()

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


EVERY = 1.0  # seconds between calls; `beat` itself decides whether the lease needs renewing


class Heartbeat:
    """Calls `beat` every second in a thread of its own, until `stop` is called or `beat` raises."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat, self._stopped = beat, threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="headrace heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - raised by `check`
                self._failed = error
                return

    def check(self) -> None:
        """Raises the error of `beat`, if it has raised one."""
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def is_alive(process: int) -> bool:
    """True if a process with this id runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, under another user
    return True


_NAME = re.compile(r"(?:query|spark)-(\d+)-\w+")


def make_query_folder() -> Path:
    """Makes a new folder for a query, and removes the folders that killed processes of this user have left."""
    return _make_folder("query")


def make_socket_folder() -> Path:
    """Makes a new folder for the sockets of Spark's Python workers. It is removed when this process ends."""
    folder, process = _make_folder("spark"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not when a fork ends
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _make_folder(kind: str) -> Path:
    own = temporary_directory()
    for folder in own.iterdir():
        found = _NAME.fullmatch(folder.name)
        if found and not is_alive(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=own))
