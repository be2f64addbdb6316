"""Kills, at a step of a batch, in whichever process it is taken."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

DRIVER, WORKER, EXECUTOR = "driver", "worker", "executor"


class Kill(NamedTuple):
    """Whom to kill, when a moment comes for the nth time in all processes of a life."""

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
        match kill.whom:
            case "driver":
                os.kill(self.driver, signal.SIGKILL)
            case "worker":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                os.kill(grandparent(), signal.SIGKILL)


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


def grandparent() -> int:
    """A worker is a child of a daemon, which is a child of the executor."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
