"""Kills, at a step of a batch, in whichever process it is taken."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DRIVER, HOME, WORKERS, EXECUTOR, SLOT, HANG = "driver", "home", "workers", "executor", "slot", "hang"
ZOMBIE, SLEEPER, BROKER, STALL, SHUTDOWN = "zombie", "sleeper", "broker", "stall", "shutdown"
JVM = "jvm"
TRANSACTION = "transaction"  # of Kafka, when it is committed: a step that only tests know
_SIGNALS = {
    **dict.fromkeys((HANG, ZOMBIE, SLEEPER, STALL), signal.SIGSTOP),
    SHUTDOWN: signal.SIGTERM,  # of a broker, which then ends cleanly
}


class Kill(NamedTuple):
    """Whom to kill, when a moment comes for the nth time in all processes of a run."""

    moment: str
    time: int = 1
    whom: str = DRIVER


class Killer:
    """What an application tells of its steps; what it counts and what landed is in files of a folder."""

    def __init__(self, folder: Path, driver: int, kills: list[Kill]) -> None:
        self.folder, self.driver, self.kills = folder, driver, kills

    def __call__(self, moment: str) -> None:
        for number, kill in enumerate(self.kills):
            if kill.moment == moment and counted(self.folder / f"count-{number}") >= kill.time:
                self.land(number, kill)

    def land(self, number: int, kill: Kill) -> None:
        landed = self.folder / f"landed-{number}"
        victims = [] if landed.exists() else self.victims(kill.whom)
        if not victims or not once(landed):
            return
        if kill.whom == ZOMBIE:
            self.abandon()
        landed.write_text(" ".join(map(str, victims)))
        number = _SIGNALS.get(kill.whom, signal.SIGKILL)
        for process in victims:
            if process == os.getpid():  # this thread must not go on: a signal to the process may wait for another one
                signal.pthread_kill(threading.get_ident(), number)
            else:
                with suppress(ProcessLookupError):  # the test has just ended it
                    os.kill(process, number)

    def abandon(self) -> None:
        """As if this process were on a host that is cut off: no process finds it, and no process waits for it any more.

        A slot need not be abandoned: it is replaced when its lease has expired.
        """
        if parent_of(os.getpid()) == os.getpgrp():
            return
        for path in addresses_of(os.getpid()):
            path.unlink(missing_ok=True)
        for process in self.victims(WORKERS):
            os.kill(process, signal.SIGKILL)

    def victims(self, whom: str) -> list[int]:
        """Tasks run in a process that is in the process group of Spark's worker daemon, a child of the executor.

        With the real-time trigger it is a worker (a slot), else a process that a worker has forked.
        """
        match whom:
            case "driver" | "hang":
                return [self.driver]
            case "jvm":
                return self.jvms()
            case "home" | "zombie" | "sleeper":
                return [os.getpid()]
            case "broker" | "stall" | "shutdown":
                broker = int((self.folder.parent / "broker").read_text())
                return [] if is_dead(broker) else [broker]  # the kill lands later, on the next one
            case "workers":
                return [process for process in processes() if parent_of(process) == os.getpgrp()]
            case "slot":
                return self.slots()[:1] if self.is_driver() else [os.getpid()]
            case _:
                own = parent_of(os.getpgrp())  # not in the driver, nor where micro-batches are planned
                executors = [own] if is_java(own) and not self.is_driver() else self.executors()[:1]
                assert executors
                return executors

    # In the driver, which must have started its JVM itself.
    def is_driver(self) -> bool:
        return os.getpid() == self.driver

    def jvms(self) -> list[int]:
        return [process for process in children_of([self.driver]) if is_java(process)]

    def executors(self) -> list[int]:
        """With the master local-cluster, the JVM of the driver starts them."""
        return [process for process in children_of(self.jvms()) if is_java(process)]

    def slots(self) -> list[int]:
        """The daemons of Spark are children of executors, or of the JVM of the driver."""
        started = children_of([*self.jvms(), *self.executors()])
        return children_of([process for process in started if not is_java(process)])


def counted(file: Path) -> int:
    """How many have come here, with this one."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"x")
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    return size


def once(file: Path) -> bool:
    """Whether nobody came here before."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def addresses_of(process: int) -> set[Path]:
    """Where a process can be reached on this machine: the names of its sockets."""
    files = list(Path(f"/proc/{process}/fd").iterdir())
    sockets = {file.readlink() for file in files if file.is_symlink()}
    fields = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {Path(row[7]) for row in fields if len(row) > 7 and Path(f"socket:[{row[6]}]") in sockets}


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def children_of(parents: Collection[int]) -> list[int]:
    """Those that still run."""
    return [process for process in processes() if parent_of(process) in parents and not is_dead(process)]


def is_java(process: int) -> bool:
    """False if there is no such process any more."""
    try:
        return Path(f"/proc/{process}/comm").read_text() == "java\n"
    except OSError:
        return False


def parent_of(process: int) -> int:
    """0 if there is no such process any more."""
    return int(status_of(process)[1])


def is_dead(process: int) -> bool:
    """It is gone, or its parent has yet to learn of its end."""
    return status_of(process)[0] in "XZ"


def status_of(process: int) -> list[str]:
    """What the kernel says of it, from its state on."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]
