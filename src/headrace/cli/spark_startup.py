"""Start Spark for a command: without the messages of the JVM, and for a standby with a first batch behind it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from headrace.app import Application
from headrace.cli.output import CommandError, stderr
from headrace.clients import Admin, Producer
from headrace.dsl.builder import StreamsBuilder
from headrace.errors import StreamsError
from headrace.serde.primitives import STRING

WARM_UP_TIMEOUT = 60_000  # ms
_log = logging.getLogger(__name__)


def start_spark(app: Application, master: str | None = None, *, verbose: bool = False) -> None:
    """Start the session that the application will find, before it runs, so that it handles the signals itself."""
    setup = app.setup
    if setup.spark is not None:
        return
    with stderr().status("Starting Spark …"), _jvm_messages_kept(verbose=verbose):
        try:
            # The import takes a second, which other commands save.
            from headrace.spark.session import session  # noqa: PLC0415

            session(master or setup.master, setup.config.num_stream_threads)
        except StreamsError:
            raise
        except ImportError as error:
            raise CommandError(f"PySpark is missing ({error}): pip install pyspark") from error
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise CommandError(
                f"Spark could not be started: {reason}. `headrace doctor` says what is missing"
            ) from error


@contextmanager
def _jvm_messages_kept(*, verbose: bool) -> Generator[None]:
    """Keep back what the JVM prints while it starts, and show it only if the start fails. Later messages pass."""
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
        relay.release(with_kept=True)
        raise
    finally:
        os.dup2(ours, 2)
        relay.release(with_kept=False)


class _Relay:
    """A thread that copies lines from a pipe to a file, and keeps them back until it is released."""

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

    def release(self, *, with_kept: bool) -> None:
        """Pass every further line on; `with_kept`, print the lines that were kept back first."""
        with self._lock:
            if with_kept:
                for line in self._kept or ():
                    os.write(self._target, line)
            self._kept = None


def warm_up(app: Application) -> None:
    """Count a word in the application's session, with a temporary log, checkpoint and state directory.

    The first batch of a JVM takes seconds, which a standby can afford and a failover cannot.
    """
    builder = StreamsBuilder()
    words = builder.stream("words", key=STRING, value=STRING)
    words.group_by(_select_word, key=STRING, value=STRING).count()
    with TemporaryDirectory(prefix="headrace-warm-up-") as folder:
        log, setup = f"file:{folder}/log", app.setup
        with Admin(log) as admin:
            admin.create_topic("words", partitions=1)
        with Producer(log, key_serde=STRING, value_serde=STRING) as producer:
            producer.send("words", "a", "a")
        warm_up_app = Application(
            "warm-up", builder.build(), log,
            checkpoint=f"{folder}/checkpoint", state_dir=f"{folder}/state", spark=setup.spark, master=setup.master,
        )  # fmt: skip
        try:
            with warm_up_app:
                warm_up_app.drain(WARM_UP_TIMEOUT)
        except StreamsError as error:  # on a cluster, whose executors cannot read the temporary log
            _log.info("Spark is not warm: %s", error)


def _select_word(key: Any, word: Any) -> Any:
    return word
