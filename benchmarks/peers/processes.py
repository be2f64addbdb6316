"""A system's processes: started together, their CPU time read from /proc, ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

TICK = os.sysconf("SC_CLK_TCK")
SCAN = 2.0  # seconds between two looks at all processes of the machine: a look costs some milliseconds
PATIENCE = 15.0  # seconds to end in good order


class Processes:
    """Commands that run side by side, with everything that they start."""

    def __init__(
        self, commands: Sequence[Sequence[str]], log: Path, cores: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._roots: list[subprocess.Popen[bytes]] = []
        self._spent: dict[tuple[int, int], float] = {}  # by id and time of start, for ids are used again
        self._known: set[int] = set()
        self._scanned = 0.0
        allowed = sorted(os.sched_getaffinity(0))[-cores:]
        self.started = time.monotonic()
        with log.open("wb") as output:
            for command in commands:
                process = subprocess.Popen(  # noqa: S603
                    # taskset, not preexec_fn: it may not be used where there are threads
                    ["taskset", "--cpu-list", ",".join(map(str, allowed)), *command],  # noqa: S607
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **(environment or {})},
                )
                self._roots.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scan()
        for process in self._roots:
            process.terminate()
        end = time.monotonic() + PATIENCE
        for process in self._roots:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid, started in self._spent:
            if (stat := _stat(pid)) and stat.started == started:
                os.kill(pid, signal.SIGKILL)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For a moment, shorter than anything that would notice."""
        self._scan()
        pids = sorted(self._known)
        self._send(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(pids, signal.SIGCONT)

    @staticmethod
    def _send(pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def ended(self) -> str | None:
        """What the system said last, if one of its processes has ended."""
        codes = [code for process in self._roots if (code := process.poll()) is not None]
        if not codes:
            return None
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-2:]
        return f"ended with {codes[0]}: {' / '.join(last)}"

    def cpu_seconds(self) -> float:
        """Of all processes that there are and that there were."""
        if time.monotonic() - self._scanned > SCAN:
            self._scan()
        for pid in self._known:
            if stat := _stat(pid):
                self._spent[pid, stat.started] = stat.cpu
        return sum(self._spent.values())

    def _scan(self) -> None:
        """Finds what has been started since: children of ours, and what is in their sessions."""
        self._scanned = time.monotonic()
        own = {process.pid for process in self._roots}
        everything = {pid: stat for entry in Path("/proc").glob("[0-9]*") if (stat := _stat(pid := int(entry.name)))}
        found = {pid for pid, stat in everything.items() if stat.session in own} | (self._known & everything.keys())
        grown = True
        while grown:
            more = {pid for pid, stat in everything.items() if stat.parent in found} - found
            found |= more
            grown = bool(more)
        self._known = found


class _Stat:
    __slots__ = ("cpu", "parent", "session", "started")

    def __init__(self, fields: list[str]) -> None:
        self.parent, self.session, self.started = int(fields[1]), int(fields[3]), int(fields[19])
        self.cpu = (int(fields[11]) + int(fields[12])) / TICK


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return _Stat(file.read().rpartition(")")[2].split())
    except (FileNotFoundError, ProcessLookupError):
        return None
