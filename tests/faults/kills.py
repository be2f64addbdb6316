"""Kills, at a step of a batch, in whichever process it is taken."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

DRIVER, HOME, WORKERS, EXECUTOR, HANG = "driver", "home", "workers", "executor", "hang"
ZOMBIE, SLEEPER, BROKER, STALL = "zombie", "sleeper", "broker", "stall"
JVM = "jvm"
TRANSACTION = "transaction"  # of Kafka, when it is committed: a step that only tests know
_STOPPED = {HANG, ZOMBIE, SLEEPER, STALL}


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
        if not once(self.folder / f"landed-{number}"):
            return
        victims = self.victims(kill.whom)
        if kill.whom == ZOMBIE:
            self.abandon()
        (self.folder / f"landed-{number}").write_text(" ".join(map(str, victims)))
        for process in victims:
            os.kill(process, signal.SIGSTOP if kill.whom in _STOPPED else signal.SIGKILL)

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
                return [process for process in processes() if parent_of(process) == self.driver and is_java(process)]
            case "home" | "zombie" | "sleeper":
                return [os.getpid()]
            case "broker" | "stall":
                return [int((self.folder.parent / "broker").read_text())]
            case "workers":
                return [process for process in processes() if parent_of(process) == os.getpgrp()]
            case _:
                executor = parent_of(os.getpgrp())
                assert is_java(executor)
                return [executor]


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


def is_java(process: int) -> bool:
    return Path(f"/proc/{process}/comm").read_text() == "java\n"


def parent_of(process: int) -> int:
    """0 if there is no such process any more."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
