"""The states of an application, and the signals that end it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
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
