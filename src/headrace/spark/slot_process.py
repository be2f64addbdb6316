"""Slot processes of the micro-batch trigger: the tasks of a slot stay in one process from batch to batch.

Spark runs a slot in any Python worker that is free. Processors must keep their attributes and stores their decoded
values, as in Kafka Streams. So a worker does not run tasks itself: it sends orders and rows to the slot's process on
its host, over a Unix socket, and returns the answer. The worker that first needs a slot process forks it.

A slot process must not outlive the application. It belongs to the process group of Spark's worker daemon, which ends
it, and it ends itself when the daemon or the file of the job is gone.

The sockets of a job are in a folder of its own in a directory that only this user can enter, and both ends check that
the other one runs as this user. Only MessagePack passes through them. The folder is removed with the job; folders of
jobs whose processes were all killed are removed when the next job begins.

    TMPDIR/headrace-UID/slots-HASH/
      job          the path of the job's file on this host
      slot-0       the socket of the process of slot 0
      slot-0.lock  locked by a worker that starts this process

    request  | length u64 | MessagePack: [orders, rows, ...] |
    answer   | length u64 | MessagePack: [[slot, message], ...], or the traceback of an error |
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from headrace.directories import create_directory, open_file, temporary_directory, write_file
from headrace.errors import StreamsError
from headrace.log.client_log import leave_to_driver
from headrace.secrets import log_to_stderr
from headrace.spark.application_state import is_alive

Message = tuple[int, bytes]  # the slot that receives it, and its bytes
Handler = Callable[[bytes, Sequence[bytes]], list[Message]]  # called with orders and rows

_LENGTH = struct.Struct(">Q")
_CREDENTIALS = struct.Struct("iII")  # process, user and group: Linux' struct ucred
_ATTEMPTS = 3
LONGEST_PATH = 103  # bytes of a socket's path on macOS; 107 on Linux
_request = msgspec.msgpack.Decoder(list[bytes])
_answer = msgspec.msgpack.Decoder(list[Message] | str)


class SlotProcesses:
    """The slot processes of a job on this host.

    A new process calls `handler` once, to make the function that handles its requests, and ends when `file`, which has
    the job, is gone. `kind` is the kind of their work: a job may have processes of several kinds for each slot.
    """

    def __init__(self, job: str, file: Path, handler: Callable[[], Handler], *, kind: str = "slot") -> None:
        self._job, self._file, self._handler, self._kind = job, file, handler, kind
        self.requests = 0

    def ask(self, slot: int, orders: bytes, rows: Sequence[bytes]) -> list[Message]:
        """Sends orders and rows to the process of a slot; returns its answer. A process that has died is replaced."""
        request = msgspec.msgpack.encode([orders, *rows])
        self.requests += 1
        for _ in range(_ATTEMPTS):
            try:
                with self._connection(slot) as connection:
                    _send(connection, request)
                    answer = _answer.decode(_receive(connection))
            except (ConnectionError, EOFError):
                continue  # the process was killed; without an answer its work does not count
            if isinstance(answer, str):
                raise StreamsError(answer)
            return answer
        raise StreamsError(
            f"the process that runs the tasks of slot {slot} died {_ATTEMPTS} times in one batch: it was killed, "
            "perhaps for lack of memory, or a library in it crashed"
        )

    def _connection(self, slot: int) -> socket.socket:
        folder = socket_folder(self._job)
        path = folder / f"{self._kind}-{slot}"
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise StreamsError(f"{path} is too long for a socket: set TMPDIR to a directory with a shorter path")
        with suppress(ConnectionError, FileNotFoundError):
            return _connect(path)
        self._prepare_folder(folder)
        # Two workers may run attempts at a slot at the same time.
        with os.fdopen(open_file(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT), "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(ConnectionError, FileNotFoundError):
                return _connect(path)
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(path))
                listener.listen()
                self._fork_process(listener, folder)
            return _connect(path)

    def _prepare_folder(self, folder: Path) -> None:
        """Creates the folder of the sockets, and removes those of jobs that are gone."""
        for other in folder.parent.glob("slots-*"):
            with suppress(OSError):
                if not Path((other / "job").read_text()).exists():
                    shutil.rmtree(other)
        create_directory(folder)
        with suppress(FileExistsError):
            write_file(folder / "job", str(self._file).encode())

    def _fork_process(self, listener: socket.socket, folder: Path) -> None:
        """Forks a slot process, twice: the process in between ends at once, so that the worker has no child to reap."""
        daemon = os.getppid()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        if os.fork():
            os._exit(0)
        try:
            _close_files_except(listener.fileno())
            _watch(self._file, daemon, folder)
            _serve(listener, self._handler)
        except BaseException:  # noqa: BLE001 - the code of the forked worker must not continue here
            traceback.print_exc()
        os._exit(1)


def socket_folder(job: str) -> Path:
    """Returns where the sockets of a job are on this host. Socket paths are short: the path of the job is hashed."""
    return temporary_directory() / f"slots-{hashlib.sha256(job.encode()).hexdigest()[:16]}"


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    if not is_same_user(connection):
        connection.close()
        raise StreamsError(f"the process that listens at {path} runs as another user: remove {path}")
    return connection


def is_same_user(connection: socket.socket) -> bool:
    """True if the process at the other end runs as this user.

    Where the system does not tell (it is not Linux), the directory of the socket has to keep other users out.

    >>> ours, theirs = socket.socketpair()
    >>> with ours, theirs:
    ...     is_same_user(ours)
    True
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = _CREDENTIALS.size
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user == os.geteuid()


# ----------------------------------------------------------------------------------------------- in the slot process
def _close_files_except(listener: int) -> None:
    """Closes the inherited files: the worker's connection to Spark must end with the worker."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the daemon sends it when it ends
    outlive_sigterm()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.stdout.flush()
    os.closerange(3, listener)
    os.closerange(listener + 1, os.sysconf("SC_OPEN_MAX"))


def _watch(file: Path, daemon: int, folder: Path) -> None:
    """Ends the process when the file of the job or the daemon is gone, even in the middle of a task."""

    def look() -> None:
        never = threading.Event()
        while file.exists() and is_alive(daemon):
            never.wait(1)
        if not file.exists():
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=look, name="headrace slot process watch", daemon=True).start()


def _serve(listener: socket.socket, make: Callable[[], Handler]) -> None:
    prepare_log()
    handle: Handler | None = None
    while True:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError, EOFError):  # the worker was killed
            if not is_same_user(connection):
                continue
            orders, *rows = _request.decode(_receive(connection))
            try:
                if handle is None:
                    handle = make()
                    gc.collect()
                    gc.freeze()  # these objects live as long as the process
                answer = handle(orders, rows)
            except Exception:  # noqa: BLE001 - the worker raises it
                _send(connection, msgspec.msgpack.encode(traceback.format_exc()))
            else:
                _send(connection, msgspec.msgpack.encode(answer))


def _send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(body)))
    connection.sendall(body)


def _receive(connection: socket.socket) -> bytearray:
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, size: int) -> bytearray:
    body = bytearray(size)
    view, done = memoryview(body), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise EOFError
        done += count
    return body


def prepare_log() -> None:
    """Gives the log lines of this process times and levels, and leaves warnings about Kafka clusters to the driver."""
    log_to_stderr()
    leave_to_driver()


# ------------------------------------------------------------------------------------------------- the end of a worker
def outlive_sigterm() -> None:
    """Keeps SIGTERM from ending this process: service managers send it to all processes, and the driver ends slots.

    The signal is handled: if it were ignored or blocked, programs that a slot starts would inherit that.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def end_quietly(daemon: Any) -> None:
    """Keeps this Python worker of Spark from printing a traceback when Spark closes its connection.

    Spark closes the connection of a worker that was idle for a minute, and of a worker whose task it cancels. The
    worker is a fork of PySpark's daemon, a module whose `worker` then fails to write its answer.
    """
    original = daemon.worker

    def worker(connection: socket.socket, authenticated: bool) -> int:
        try:
            return original(connection, authenticated)
        except BrokenPipeError:
            return 1  # the daemon's loop ends the process

    daemon.worker = worker


# Every Python worker that runs a part of a job imports this module, to run tasks or to load the data source. A fork of
# `python_daemon` has this already.
if getattr(sys.modules["__main__"].__spec__, "name", None) == "pyspark.daemon":
    end_quietly(sys.modules["__main__"])
