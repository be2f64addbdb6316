"""Makes functions of the user that hang, or that end the process of their slot, fail with an error for the record.

`CallTimeout` interrupts a call that takes longer than `max.record.processing.ms`: a thread looks at the stack of the
main thread, which costs a record nothing, and raises TimeoutError in the main thread by a signal. The error counts as
an error of the record, so `processing.exception.handler` decides. A call that cannot be interrupted ends the process.

`RecordWatch` is for functions that end the process (os._exit, a crash, the kernel's out-of-memory killer): the process
cannot report an error. When slots are lost in the middle of a batch, the driver runs the batch again, and the slots
report every call before they make it. If a slot is lost again, its last reported call is the suspect, and fails in the
next attempt.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

from headrace.runtime.failures import GUARDS, Failures, Place

SIGNAL = signal.SIGUSR2
LOOKS = 4  # at the stack, within the time that a call may take
LONGEST_LOOK = 1.0  # seconds between two looks, at most
STATE = "headrace.state."  # modules that must not be interrupted: a half-made change would damage the state
KILLED = (
    "the process that ran it has ended {count} times: a function called os._exit, a library crashed, or the system "
    "killed it, perhaps for lack of memory"
)


class ProcessEndedError(Exception):
    """Replaces a call that has ended the process of its slot before."""


class RecordWatch:
    """Reports calls while `report` is set. A call of a suspect raises `ProcessEndedError`, with its reason."""

    def __init__(self) -> None:
        self.report: Callable[[Place], None] | None = None
        self.suspects: Mapping[Place, str] = {}

    def __call__(self, place: Place) -> None:
        if self.report is not None:
            if place in self.suspects:
                raise ProcessEndedError(self.suspects[place])
            self.report(place)


class CallTimeout:
    """Interrupts calls of the main thread after `seconds`. It has to be created in the main thread.

    If a call goes on for as long again after it was interrupted, the watching thread calls `give_up(place, reason)`,
    which has to end the process.
    """

    def __init__(self, seconds: float, give_up: Callable[[Place, str], None]) -> None:
        self._seconds, self._give_up = seconds, give_up
        self._call: FrameType | None = None  # the call that is observed
        self._began = self._asked = 0.0  # when the call was seen first, and when it was interrupted first
        self._interrupted: FrameType | None = None  # the call that was interrupted last
        self._main, self._is_closed = threading.main_thread().ident or 0, threading.Event()
        signal.signal(SIGNAL, self._interrupt)
        threading.Thread(target=self._watch, name="headrace record watch", daemon=True).start()

    def close(self) -> None:
        """Ends the watching thread. Spark reuses the process of an ended slot for slots that have their own limits."""
        self._is_closed.set()

    def forget(self) -> None:
        """Forgets the calls of a task that has ended: their frames keep its records and results in memory."""
        self._call = self._interrupted = None

    def _watch(self) -> None:
        while not self._is_closed.wait(min(self._seconds / LOOKS, LONGEST_LOOK)):
            self._look()

    def _look(self) -> None:
        # A frame in a variable of this thread would keep the records of a task in memory until the next look.
        call = _outermost_call(self._frame())
        if call is None or call is not self._call:  # the frame is held, so no other call can have the same one
            self._call, self._began, self._asked = call, time.monotonic(), 0.0
        elif self._asked and time.monotonic() >= self._asked + self._seconds:
            self._give_up(*self._describe(self._frame()))
        elif call is not self._interrupted and time.monotonic() >= self._began + self._seconds:
            self._asked = self._asked or time.monotonic()
            signal.pthread_kill(self._main, SIGNAL)

    def _frame(self) -> FrameType | None:
        # The frames include that of this function: in a variable they would be a cycle, which keeps all of them.
        return sys._current_frames().get(self._main)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raises in the main thread, unless the call has ended meanwhile, or is just changing the state."""
        stack = list(_stack(frame))
        if self._call not in stack or any(some.f_globals.get("__name__", "").startswith(STATE) for some in stack):
            return
        self._interrupted = self._call
        raise TimeoutError(self._describe(frame)[1])

    def _describe(self, frame: FrameType | None) -> tuple[Place, str]:
        stack = list(_stack(frame))
        inner, innermost = stack[0], next(some for some in stack if some.f_code in GUARDS)
        failures: Failures = innermost.f_locals["self"]
        where = f"{inner.f_code.co_qualname} ({inner.f_code.co_filename}:{inner.f_lineno})"
        limit = round(1000 * self._seconds)
        reason = f"it took longer than {limit} ms (max.record.processing.ms), and was in {where}"
        return failures.place_of(innermost.f_locals["node"]), reason


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _outermost_call(frame: FrameType | None) -> FrameType | None:
    """The call of a node with a record, or of a punctuation, that the thread is in."""
    calls = [some for some in _stack(frame) if some.f_code in GUARDS]
    return calls[-1] if calls else None
