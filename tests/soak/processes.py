"""The processes of a soak's application, and what they use: memory, open files, threads and temporary files."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.soak.application import FOLDER, LOG
from tests.web.servers import ask

ROOT = Path(__file__).parents[2]
URL = re.compile(r"http://127\.0\.0\.1:\d+")
STOP = 60.0  # seconds until an application that is asked to stop must have ended


class ApplicationProcess:
    """`headrace run` with its web server, in a session of its own; it can be started again."""

    def __init__(self, folder: Path, log: str) -> None:
        self.folder, self._log = folder, log
        self.may_be_gone = threading.Event()  # a fault has ended it, and it is not started again yet
        self._starts = 0
        (folder / "tmp").mkdir()
        self.start()

    def start(self) -> None:
        self._starts += 1
        self._output = self.folder / f"output-{self._starts}"
        run = ["-m", "headrace", "run", "tests.soak.application:app", "--web", "--no-token", "--port", "0"]
        environment = {
            FOLDER: str(self.folder), LOG: self._log, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "TMPDIR": str(self.folder / "tmp"),
        }  # fmt: skip
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *run], cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.may_be_gone.clear()

    def check(self) -> None:
        """Raises an error if the application has ended, and no fault was the cause."""
        if self.process.poll() is not None and not self.may_be_gone.is_set():
            raise SystemExit(f"the application has ended with {self.process.poll()}:\n{self.said()}")

    def said(self) -> str:
        """The last lines of its output."""
        return self._output.read_text()[-3000:]

    def slots(self) -> list[int]:
        """The processes of its slots; none while it starts."""
        return [slot["process"] for slot in self._ask("/api/durability").get("slots", [])]

    def time_by_phase(self) -> list[dict[str, float]]:
        """How many ms the phases of batches took, every two seconds since the first call; at most 15 minutes."""
        return [point["parts"] for point in self._ask("/api/history").get("points", []) if point["parts"]]

    def _ask(self, path: str) -> dict[str, Any]:
        url = URL.search(self._output.read_text())
        with suppress(OSError, http.client.HTTPException):
            answer = None if url is None else ask(url[0], path)
            if answer is not None and answer.status == 200:
                return answer.json
        return {}

    def jvm(self) -> int | None:
        return next((process for process in members(self.process.pid) if _name(process) == "java"), None)

    def stop(self) -> None:
        """Asks it to stop, and fails if it does not end as it should."""
        self.process.send_signal(signal.SIGTERM)
        if (code := self.process.wait(STOP)) != 0:
            raise SystemExit(f"the application was asked to stop, and ended with {code}:\n{self.said()}")

    def kill(self) -> None:
        for process in members(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


def members(session: int) -> list[int]:
    """The processes of a session."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def memory_of(process: int | None) -> float:
    """The memory of a process in MB, its share of what it shares with others included; 0 if it has ended."""
    try:
        rolled = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(rolled.partition("\nPss:")[2].split()[0]) / 1024


def count_open(processes: Iterable[int], what: str) -> int:
    """How many open files (`fd`) or threads (`task`) processes have."""
    total = 0
    for process in processes:
        with suppress(OSError):
            total += sum(1 for _ in Path(f"/proc/{process}/{what}").iterdir())
    return total


class CpuMeter:
    """How much of a core the processes of a session use, and how much the host of a virtual machine takes away.

    With the second, latency rises though the application does not do more.
    """

    def __init__(self, session: int) -> None:
        self._session, self._last = session, (0.0, 0, 0)
        self.read()

    def read(self) -> tuple[float, float]:
        """Returns used and stolen time since the last call, in percent of one core."""
        used = sum(map(_ticks_of, members(self._session)))
        stolen = int(Path("/proc/stat").read_text().split()[8])
        (began, *before), self._last = self._last, (time.monotonic(), used, stolen)
        passed = (self._last[0] - began) * os.sysconf("SC_CLK_TCK") / 100
        return (used - before[0]) / passed, (stolen - before[1]) / passed


def _ticks_of(process: int) -> int:
    try:
        user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0
    return int(user) + int(system)


def count_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def size_of(folder: Path) -> float:
    """The files of a folder in MB."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # it was deleted meanwhile
            total += file.stat().st_size
    return total / 2**20
