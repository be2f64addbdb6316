"""Start Spark for a command, and for a standby run a first batch on it."""

from __future__ import annotations

import logging
from tempfile import TemporaryDirectory
from typing import Any

from headrace.app import Application
from headrace.cli.output import CommandError, stderr
from headrace.clients import Admin, Producer
from headrace.dsl.builder import StreamsBuilder
from headrace.errors import StreamsError
from headrace.serde.primitives import STRING

WARM_UP_TIMEOUT = 60_000  # ms
_log = logging.getLogger(__name__)


def start_spark(app: Application, master: str | None = None, *, verbose: bool = False) -> None:
    """Start the session that the application will find, and explain what is missing if Spark does not start."""
    setup = app.setup
    if setup.spark is not None:
        return
    with stderr().status("Starting Spark …"):
        try:
            # The import takes a second, which other commands save.
            from headrace.spark.session import session  # noqa: PLC0415

            session(master or setup.master, setup.config.num_stream_threads, verbose=verbose)
        except StreamsError:
            raise
        except ImportError as error:
            raise CommandError(f"PySpark is missing ({error}): pip install pyspark") from error
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise CommandError(
                f"Spark could not be started: {reason}. `headrace doctor` says what is missing"
            ) from error


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
