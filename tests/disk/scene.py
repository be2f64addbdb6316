"""An application in the middle of its input: embedded log (SQLite), checkpoint and state (LMDB) in one directory."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from headrace.checkpoint.storage import open_storage
from headrace.errors import StreamsError
from headrace.log.embedded.file_log import FileLog
from tests.checkpoint.cluster import Cluster, Ground, outputs
from tests.checkpoint.programs import WORDS
from tests.clocks import ManualClock

PATIENCE = 60  # seconds that a run may take


def open_log(place: Path) -> FileLog:
    return FileLog(place / "log", clock=ManualClock(5), clean_every=None)


def begin(place: Path, batches: int = 4) -> None:
    """The input is in the log. After four batches, deltas have been merged and manifests purged."""
    with open_log(place) as log:
        for topic in ("lines", "out"):
            log.create_topic(topic)
        WORDS.feed(log)
    if batches:
        go_on(place, "first", batches)


def go_on(place: Path, boot: str, batches: int = 1_000) -> Any:
    """Runs to the end of the input, or for some batches: what the log has, and the stores."""
    with open_log(place) as log:
        ground = Ground(log=log, storage=open_storage(place / "checkpoint"), state=place / "state", boot=boot)
        cluster = Cluster(ground, WORDS, limit=1, inline=100)
        try:
            cluster.run(batches)
            return outputs(log), cluster.stores()
        finally:
            cluster.close()


# --------------------------------------------------------------------------------------------------------- processes
class Ended(NamedTuple):
    """How a process ended: what it gave, or the error of Headrace, or neither if it was killed; `how` describes it."""

    result: Any
    error: str
    how: str


class Child:
    """A forked process that waits for `go`, then runs a function. Its modules are loaded already."""

    def __init__(self, run: Callable[[], Any]) -> None:
        start, self._start = os.pipe()
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._start)
            os.close(self._answer)
            _serve(run, start, answer)
        os.close(start)
        os.close(answer)

    def go(self) -> Ended:
        os.write(self._start, b"!")
        os.close(self._start)
        late = threading.Timer(PATIENCE, os.kill, (self.pid, signal.SIGKILL))
        late.start()
        with os.fdopen(self._answer, "rb") as file:
            answer = file.read()
        _, status = os.waitpid(self.pid, 0)
        late.cancel()
        if os.WIFSIGNALED(status):
            return Ended(None, "", f"killed by signal {os.WTERMSIG(status)}")
        result, error = pickle.loads(answer)
        return Ended(result, error, f"ended with {error or 'its result'}")


def _serve(run: Callable[[], Any], start: int, answer: int) -> None:
    try:
        # PR_SET_PTRACER: strace, which is no ancestor of this process, may attach whoever the user is.
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
        try:
            os.read(start, 1)
        except OSError:  # this call may be the one that fails
            os.read(start, 1)
        try:
            found = run(), ""
        except StreamsError as error:
            found = None, f"{type(error).__name__}: {error}"
        except BaseException:  # noqa: BLE001 - the test says what it was
            found = None, f"UNEXPECTED {traceback.format_exc()}"
        with suppress(OSError):  # this call may be the one that fails; if not, what is written twice is read once
            os.write(answer, pickle.dumps(found))
        os.write(answer, pickle.dumps(found))
    finally:
        os._exit(0)


def run_traced(run: Callable[[], Any], *options: str) -> Ended:
    """Runs a function in a process of its own, under strace."""
    child = Child(run)
    strace = ["strace", "-f", "-p", str(child.pid), *options]
    with subprocess.Popen(strace, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr
        said = tracer.stderr.readline()
        assert "attached" in said, said
        drain = threading.Thread(target=tracer.stderr.read)
        drain.start()
        ended = child.go()
        drain.join()
    return ended
