"""Spark, started without its chatter."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import BinaryIO

from headrace.app import Application
from headrace.cli.printing import Failed, err
from headrace.errors import StreamsError


def start_spark(app: Application, master: str | None = None, *, verbose: bool = False) -> None:
    """Starts the session that the application will find; before it runs, so that signals are the application's."""
    setup = app.setup
    if setup.spark is not None:
        return
    with err().status("Starting Spark …"), _chatter_kept(verbose=verbose):
        try:
            # Importing it takes a second, which other commands save.
            from headrace.spark.session import session  # noqa: PLC0415

            session(master or setup.master, setup.config.num_stream_threads)
        except StreamsError:
            raise
        except ImportError as error:
            raise Failed(f"PySpark is missing ({error}): pip install pyspark") from error
        except Exception as error:
            raise Failed(
                f"Spark could not be started: {_first_line(error)}. `headrace doctor` says what is missing"
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@contextmanager
def _chatter_kept(*, verbose: bool) -> Generator[None]:
    """What the JVM says while it starts is shown only if that fails; what it and its workers say later always is."""
    if verbose:
        yield
        return
    sys.stderr.flush()
    ours, (read_end, write_end) = os.dup(2), os.pipe()
    os.dup2(write_end, 2)  # the JVM inherits it
    os.close(write_end)
    relay = _Relay(os.fdopen(read_end, "rb"), ours)
    try:
        yield
    except BaseException:
        relay.show(with_beginning=True)
        raise
    finally:
        os.dup2(ours, 2)
        relay.show(with_beginning=False)


class _Relay:
    """Passes on what comes through a pipe, as soon as it may."""

    def __init__(self, source: BinaryIO, target: int) -> None:
        self._source, self._target, self._lock = source, target, threading.Lock()
        self._kept: list[bytes] | None = []
        threading.Thread(target=self._run, name="headrace stderr", daemon=True).start()

    def _run(self) -> None:
        for line in self._source:
            with self._lock:
                if self._kept is None:
                    os.write(self._target, line)
                else:
                    self._kept.append(line)

    def show(self, *, with_beginning: bool) -> None:
        """Keeps nothing back from now on."""
        with self._lock:
            if with_beginning:
                for line in self._kept or ():
                    os.write(self._target, line)
            self._kept = None
