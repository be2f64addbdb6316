"""Says again and again that an application is alive, whatever else it does."""

from __future__ import annotations

import threading
from collections.abc import Callable

EVERY = 1.0  # seconds; `beat` knows whether it is time to


class Heart:
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
