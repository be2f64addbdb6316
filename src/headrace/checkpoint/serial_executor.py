"""Work that goes on beside the batches, in its order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class SerialExecutor:
    """A thread that does one piece of work after the other; `room` may be under way. Without room it is done at once.

    After a failure nothing more is done, and whoever comes next is told.
    """

    def __init__(self, name: str, room: int) -> None:
        self._room, self._waiting, self._busy, self._open = room, deque[Callable[[], object]](), 0, True
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        if room:
            self._thread.start()

    @property
    def idle(self) -> bool:
        with self._changed:
            return not self._waiting and not self._busy

    def submit(self, work: Callable[[], object]) -> None:
        """Hands over a piece of work; waits for room."""
        if not self._room:
            work()
            return
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._waiting) + self._busy < self._room)
            self._waiting.append(work)
            self._changed.notify_all()
        self.check()

    def check(self) -> None:
        """Raises what went wrong."""
        if self._error is not None:
            raise self._error

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until all is done, for some seconds or for ever; False if it is not done by then."""
        is_done = True
        if self._room:
            with self._changed:
                done = self._changed.wait_for(lambda: self._error or not (self._waiting or self._busy), timeout)
                is_done = bool(done)
        self.check()
        return is_done

    def stop(self, patience: float | None = None) -> None:
        """Lets what is under way come to its end, for some seconds or for ever, and nothing else begin."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        if self._room:
            self._thread.join(patience)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._open)
                if not self._open or self._error:
                    return
                work, self._busy = self._waiting.popleft(), 1
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - it is raised where the next work is handed over
                self._error = error
            with self._changed:
                self._busy = 0
                self._changed.notify_all()
