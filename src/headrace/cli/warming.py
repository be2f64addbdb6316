"""Spark, warm: the first batch of a JVM takes seconds, which one who stands by has, and one who takes over has not."""

from __future__ import annotations

import logging
from tempfile import TemporaryDirectory
from typing import Any

from headrace.app import Application
from headrace.dsl.builder import StreamsBuilder
from headrace.errors import StreamsError
from headrace.log import Admin, Producer
from headrace.serde.primitives import STRING

PATIENCE = 60.0  # seconds
_log = logging.getLogger(__name__)


def warm_up(app: Application) -> None:
    """Counts a word in the session of an application, with a log, a checkpoint and a state that are gone afterwards."""
    builder = StreamsBuilder()
    words = builder.stream("words", key=STRING, value=STRING)
    words.group_by(_word, key=STRING, value=STRING).count()
    with TemporaryDirectory(prefix="headrace-warm-up-") as folder:
        log, setup = f"file:{folder}/log", app.setup
        with Admin(log) as admin:
            admin.create_topic("words", partitions=1)
        with Producer(log, key_serde=STRING, value_serde=STRING) as producer:
            producer.send("words", "a", "a")
        made = Application(
            "warm-up", builder.build(), log,
            checkpoint=f"{folder}/checkpoint", state_dir=f"{folder}/state", spark=setup.spark, master=setup.master,
        )  # fmt: skip
        try:
            with made:
                made.drain(PATIENCE)
        except StreamsError as error:  # on a cluster, whose executors cannot read such a log
            _log.info("Spark is not warm: %s", error)


def _word(key: Any, word: Any) -> Any:
    return word
