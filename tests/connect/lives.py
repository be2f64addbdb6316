"""Processes that end by SIGKILL: lives of sinks and of sources.

    with Lives() as lives:
        life = lives.begin(deliver_batches, moment="after sink commit", nth=2, **arguments)
        life.end()                                       # -9: it has killed itself at that moment

A process that has imported everything forks once for each life, which takes milliseconds; a new Python would need
seconds. It runs no threads, so that a fork is safe.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
SECONDS = 120.0  # a life that lasts so long hangs


class Lives:
    """The process that forks."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.connect.lives"], cwd=ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._current: Life | None = None

    def begin(self, run: Callable[..., None], errors: Path, **arguments: Any) -> Life:
        """Begins a life that calls `run`, a function of a module, in a process of its own; one at a time."""
        assert self._current is None or self._current.code is not None, "the life before has not ended"
        order = {"module": run.__module__, "name": run.__name__, "errors": str(errors), "arguments": arguments}
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        self._current = Life(self, errors, self.read()["process"])
        return self._current

    def read(self, timeout: float = SECONDS) -> dict[str, int]:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            raise TimeoutError
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        if self._current is not None:
            self._current.kill()
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(SECONDS)
        assert self._process.stdout
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Life:
    """One process."""

    def __init__(self, lives: Lives, errors: Path, process: int) -> None:
        self._lives, self._errors, self._process = lives, errors, process
        self.code: int | None = None

    @property
    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]

    def end(self, timeout: float = SECONDS) -> int:
        """Waits for the end, and returns the exit code: -9 after a kill."""
        if self.code is None:
            try:
                self.code = self._lives.read(timeout)["code"]
            except TimeoutError:
                raise TimeoutError(f"a life has not ended: {self.said}") from None
        return self.code

    def kill(self) -> int:
        """Kills it, unless it has ended."""
        if self.code is None:
            with suppress(TimeoutError):
                return self.end(0)
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
        return self.end()


class KillAt:
    """Kills this process at the nth time of a moment, or holds it there until a file appears.

    `hold` is a file: it is created at the moment, and the life goes on when `hold`.go exists.
    """

    def __init__(self, moment: str | None, nth: int = 1, hold: str | None = None) -> None:
        self._moment, self._left, self._hold = moment, nth, hold

    def __call__(self, moment: str) -> None:
        self._left -= moment == self._moment
        if moment != self._moment or self._left:
            return
        if self._hold is None:
            os.kill(os.getpid(), signal.SIGKILL)
            return
        Path(self._hold).touch()
        end = time.monotonic() + SECONDS
        while not Path(f"{self._hold}.go").exists():
            assert time.monotonic() < end
            time.sleep(0.01)


# ---------------------------------------------------------------------------------------------------- the child process
def orders() -> Iterator[dict[str, Any]]:
    while line := os.read(0, 1 << 20):
        assert line.endswith(b"\n")
        yield json.loads(line)


def serve() -> None:
    for module in ("tests.connect.sink_cases", "tests.connect.source_cases"):
        import_module(module)
    for order in orders():
        process = os.fork()
        if not process:
            os._exit(live(order))
        tell({"process": process})
        _, status = os.waitpid(process, 0)
        tell({"code": os.waitstatus_to_exitcode(status)})


def live(order: dict[str, Any]) -> int:
    with closing(os.fdopen(os.open(order["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w")) as errors:
        os.dup2(errors.fileno(), 2)
        os.dup2(errors.fileno(), 1)
        try:
            getattr(import_module(order["module"]), order["name"])(**order["arguments"])
        except BaseException:  # noqa: BLE001 - the parent reads it
            traceback.print_exc()
            return 1
        return 0


def tell(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    serve()
