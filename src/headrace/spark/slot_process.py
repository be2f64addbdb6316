"""A slot's home: the process in which its tasks live from batch to batch.

Spark gives a slot to whichever of its Python workers is free. So that processors keep their attributes and stores their
decoded values, as in Kafka Streams, a worker does not run tasks itself: it hands orders and rows to the slot's home on
its host, and passes on what comes back. A home is a child of the worker that first needed it. It belongs to the process
group of Spark's worker daemon, which ends it; it ends itself when the daemon or the application is gone.

    request  | length u64 | MessagePack: [orders, rows, ...] |
    answer   | length u64 | MessagePack: [[slot, message], ...], or the text of what went wrong |
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import StreamsError
from headrace.spark.application_state import lives

Message = tuple[int, bytes]  # the slot that it goes to, and what it says
Handler = Callable[[bytes, Sequence[bytes]], list[Message]]  # of orders and rows

_LENGTH = struct.Struct(">Q")
_ATTEMPTS = 3
_request = msgspec.msgpack.Decoder(list[bytes])
_answer = msgspec.msgpack.Decoder(list[Message] | str)


class SlotProcesses:
    """Where the slots of a job live on this host; `handler` makes what a new home does its work with."""

    def __init__(self, job: str, wanted: Callable[[], bool], handler: Callable[[], Handler]) -> None:
        self._job, self._wanted, self._handler = job, wanted, handler
        self.asked = 0

    def ask(self, slot: int, orders: bytes, rows: Sequence[bytes]) -> list[Message]:
        """Has the tasks of a slot run, in a new home if the one that there was is gone."""
        request = msgspec.msgpack.encode([orders, *rows])
        self.asked += 1
        for _ in range(_ATTEMPTS):
            try:
                with self._connection(slot) as connection:
                    _send(connection, request)
                    answer = _answer.decode(_receive(connection))
            except (ConnectionError, EOFError):
                continue  # it was killed; what it had not handed back never happened
            if isinstance(answer, str):
                raise StreamsError(answer)
            return answer
        raise StreamsError(
            f"the process that runs the tasks of slot {slot} died {_ATTEMPTS} times in one batch: it was killed, "
            "perhaps for lack of memory, or a library in it crashed"
        )

    def _connection(self, slot: int) -> socket.socket:
        path = _folder() / f"{hashlib.sha256(self._job.encode()).hexdigest()[:16]}-{slot}"
        with suppress(ConnectionError, FileNotFoundError):
            return _connected(path)
        with path.with_suffix(".lock").open("w") as lock:  # two attempts at a slot may come at once
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(ConnectionError, FileNotFoundError):
                return _connected(path)
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(path))
                listener.listen()
                self._found(listener)
            return _connected(path)

    def _found(self, listener: socket.socket) -> None:
        """Makes a home; the process between it and us ends at once, so that nobody has to wait for either."""
        daemon = os.getppid()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        if os.fork():
            os._exit(0)
        try:
            _leave_everything_but(listener.fileno())
            _watch(lambda: self._wanted() and lives(daemon))
            _serve(listener, self._handler)
        except BaseException:  # noqa: BLE001 - nothing of the worker that we were forked from may go on
            traceback.print_exc()
        os._exit(1)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise StreamsError(f"{folder} belongs to somebody else: set TMPDIR to a directory of your own")
    return folder


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


# ------------------------------------------------------------------------------------------------------- in the home
def _leave_everything_but(listener: int) -> None:
    """The worker's connection to Spark must end with the worker."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the daemon says so when it ends
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.stdout.flush()
    os.closerange(3, listener)
    os.closerange(listener + 1, os.sysconf("SC_OPEN_MAX"))


def _watch(wanted: Callable[[], bool]) -> None:
    """Ends the process when nobody wants it any more, whatever it does at that moment."""

    def look() -> None:
        never = threading.Event()
        while wanted():
            never.wait(1)
        os._exit(0)

    threading.Thread(target=look, name="headrace home watch", daemon=True).start()


def _serve(listener: socket.socket, make: Callable[[], Handler]) -> None:
    handle: Handler | None = None
    while True:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError, EOFError):  # the worker was killed
            orders, *rows = _request.decode(_receive(connection))
            try:
                if handle is None:
                    handle = make()
                    gc.collect()
                    gc.freeze()  # what is there now stays
                answer = handle(orders, rows)
            except Exception:  # noqa: BLE001 - the worker raises it
                _send(connection, msgspec.msgpack.encode(traceback.format_exc()))
            else:
                _send(connection, msgspec.msgpack.encode(answer))


def _send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(body)))
    connection.sendall(body)


def _receive(connection: socket.socket) -> bytearray:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    body = bytearray(size)
    view, done = memoryview(body), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise EOFError
        done += count
    return body


# ------------------------------------------------------------------------------------------------- the end of a worker
def _end_quietly(daemon: Any) -> None:
    """Keeps this Python worker of Spark from printing a traceback when Spark closes its connection.

    Spark closes the connection of a worker that was idle for a minute, and of a worker whose task it cancels. The
    worker is a fork of PySpark's daemon, whose `worker` then fails to write an answer that nobody reads.
    """
    original = daemon.worker

    def worker(connection: socket.socket, authenticated: bool) -> int:
        try:
            return original(connection, authenticated)
        except BrokenPipeError:
            return 1  # the daemon's loop ends the process

    daemon.worker = worker


# Every Python worker that runs a part of a job imports this module, to run tasks or to load the data source.
if getattr(sys.modules["__main__"].__spec__, "name", None) == "pyspark.daemon":
    _end_quietly(sys.modules["__main__"])
