"""The faults of a soak: one after the other, at a steady rate. After each of them results must flow again."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from headrace.testing import KafkaBroker
from tests.soak.processes import ApplicationProcess, members
from tests.soak.traffic import CountReader, Feeder

RECOVERY = 90.0  # seconds until everything that was sent before the end of a fault must be counted
ENDED = 20.0  # seconds until the processes of a driver that was killed must be gone
LEASE = 10.0  # seconds after which a slot that is not heard of is replaced, by default
STILL = 5.0  # seconds that a broker stands still


class Fault(NamedTuple):
    """What happened, when (seconds since the first fault was due), and how long results were away."""

    kind: str
    at: float
    seconds: float


class FaultInjector:
    """Injects a fault every `every` seconds, in a thread, until it is stopped. `failed` says why it has given up."""

    def __init__(
        self, app: ApplicationProcess, broker: KafkaBroker, feeder: Feeder, reader: CountReader, every: float, seed: int
    ) -> None:
        self._app, self._broker, self._feeder, self._reader, self._every = app, broker, feeder, reader, every
        self._chance = random.Random(seed)  # noqa: S311
        self.faults: list[Fault] = []
        self.failed = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        if self.failed:
            raise SystemExit(self.failed)

    def _run(self) -> None:
        kinds: dict[str, Callable[[], None]] = {
            "slot killed": self._kill_slot,
            "slot stood still": self._stop_slot,
            "driver killed": self._kill_driver,
            "JVM killed": self._kill_jvm,
            "stopped and started": self._restart,
            "broker killed": self._broker.restart,
            "broker stood still": self._stop_broker,
        }
        began, waiting = time.monotonic(), list[str]()
        while not self._over.wait(max(0.0, began + self._every * (len(self.faults) + 1) - time.monotonic())):
            if not waiting:
                waiting = self._chance.sample(list(kinds), len(kinds))
            kind, at = waiting.pop(), time.monotonic()
            try:
                kinds[kind]()
                self._await_results(kind)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the main thread says it
                self.failed = f"{kind}, fault {len(self.faults) + 1}: {error}"
                return
            self.faults.append(Fault(kind, at - began, time.monotonic() - at))

    def _await_results(self, kind: str) -> None:
        sent, end = self._feeder.sent, time.monotonic() + RECOVERY
        while self._reader.counted < sent or not self._app.slots():
            self._app.check()
            if time.monotonic() > end:
                missing = sent - self._reader.counted
                raise SystemExit(f"{missing:,} words are missing after {RECOVERY:g} s ({kind}):\n{self._app.said()}")
            time.sleep(0.1)

    # ---------------------------------------------------------------------------------------------------------- faults
    def _kill_slot(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._chance.choice(self._app.slots()), signal.SIGKILL)

    def _stop_slot(self) -> None:
        """The slot wakes up when another process has its tasks."""
        slot = self._chance.choice(self._app.slots())
        with suppress(ProcessLookupError):
            os.kill(slot, signal.SIGSTOP)
            time.sleep(LEASE + 2)
            os.kill(slot, signal.SIGCONT)

    def _kill_driver(self) -> None:
        """The next driver starts while the processes of the one before end by themselves."""
        before = self._app.process
        self._app.may_be_gone.set()
        before.kill()
        before.wait()
        self._app.start()
        end = time.monotonic() + ENDED
        while left := members(before.pid):
            if time.monotonic() > end:
                raise SystemExit(f"processes {left} have outlived their driver by {ENDED:g} s")
            time.sleep(0.1)

    def _kill_jvm(self) -> None:
        jvm = self._app.jvm()
        assert jvm is not None
        self._app.may_be_gone.set()
        os.kill(jvm, signal.SIGKILL)
        if self._app.process.wait(60) == 0:
            raise SystemExit("an application without its JVM ended as if nothing had happened")
        self._app.start()

    def _restart(self) -> None:
        self._app.may_be_gone.set()
        self._app.stop()
        self._app.start()

    def _stop_broker(self) -> None:
        self._broker.pause()
        time.sleep(STILL)
        self._broker.resume()


def summarize(faults: list[Fault]) -> list[str]:
    """One line for each kind of fault.

    >>> summarize([Fault("slot killed", 30, 2.0), Fault("slot killed", 60, 4.0)])
    ['slot killed: 2 times, results flow again after 3.0 s (median), 4.0 s (longest)']
    """
    told: list[str] = []
    for kind in sorted({fault.kind for fault in faults}):
        took = sorted(fault.seconds for fault in faults if fault.kind == kind)
        middle = (took[(len(took) - 1) // 2] + took[len(took) // 2]) / 2
        told.append(
            f"{kind}: {len(took)} times, results flow again after {middle:.1f} s (median), {took[-1]:.1f} s (longest)"
        )
    return told
