"""One run of an application in a process of its own: `python -m tests.faults.application_run FILE`.

The file has the `RunSettings` in JSON.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from pyspark import SparkContext

from headrace.app import Application
from headrace.checkpoint.steps import AtStep
from headrace.errors import AlreadyRunningError
from headrace.log.kafka import producer as kafka_producer
from headrace.spark.session import session
from tests.faults import programs
from tests.faults.kills import TRANSACTION, Kill, Killer

SETTINGS = "RUN_SETTINGS"
STACKS = signal.SIGUSR1  # has a run write the stacks of its threads


class RunSettings(msgspec.Struct):
    """What a run needs to know."""

    program: str
    folder: str  # of log, checkpoint and local state
    log: str = ""  # its address, if it is elsewhere
    kills: list[Kill] = []
    config: dict[str, Any] = {}
    checkpoint: str = ""
    master: str = ""
    tables: list[str] = []  # stores to be read at the end
    own_state: bool = False  # every host has a directory of local state of its own, the default one
    patient: bool = False  # waits until the one before may be followed
    until: str = ""  # a file: it runs until that is there, and nothing is left to do
    run: int = 0

    def application(self, spark: Any = None) -> Application:
        here = Path(self.folder)
        program: programs.Program = getattr(programs, self.program)
        return Application(
            "app", program.build(), self.log or f"file:{here}/log",
            checkpoint=self.checkpoint or str(here / "checkpoint"),
            state_dir=None if self.own_state else str(here / "state"), spark=spark,
            config={**program.config, **self.config},
            at_step=self.killer(),
        )  # fmt: skip

    def killer(self) -> Killer:
        return Killer(Path(self.folder) / f"run-{self.run}", os.getpid(), self.kills)


def app() -> Application:
    """For `headrace run`: the application of the settings in the file that the environment names."""
    return msgspec.json.decode(Path(os.environ[SETTINGS]).read_bytes(), type=RunSettings).application()


def main(path: str) -> None:
    faulthandler.register(STACKS)
    settings = msgspec.json.decode(Path(path).read_bytes(), type=RunSettings)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    if settings.log:
        observe_transactions(settings.killer())
    stop_what_a_dead_driver_left()
    spark = session(settings.master) if settings.master else session()
    app = settings.application(spark)
    start(app, settings.patient)
    with closing(app):
        app.drain()
        while settings.until and not Path(settings.until).exists():
            threading.Event().wait(0.05)
            app.drain()
        app.drain()
        tables = {name: [(key, plain(value)) for key, value in app.store(name).all()] for name in settings.tables}
    Path(path).with_name("tables").write_bytes(msgspec.json.encode(tables))
    spark.stop()


class ObservedProducer:
    """A producer that tells when a transaction is committed."""

    def __init__(self, producer: Any, at_step: AtStep) -> None:
        self._producer, self._at_step, self._is_committing = producer, at_step, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, timeout: float) -> None:
        if not self._is_committing:  # else a call without an answer is repeated, and goes on with the same commit
            self._is_committing = True
            self._at_step(f"before {TRANSACTION}")
        self._producer.commit_transaction(timeout)
        self._is_committing = False
        self._at_step(f"after {TRANSACTION}")


def observe_transactions(at_step: AtStep) -> None:
    """What is killed may be in the middle of a delivery to Kafka."""
    create = kafka_producer.create_client
    kafka_producer.create_client = lambda *given: ObservedProducer(create(*given), at_step)


def start(app: Application, patient: bool) -> None:
    """Somebody who is patient tries until the instance before is silent for long enough."""
    pause = threading.Event()
    while True:
        try:
            return app.start()
        except AlreadyRunningError:
            if not patient:
                raise
            pause.wait(0.1)


def plain(value: Any) -> Any:
    return getattr(value, "value", value)


def stop_what_a_dead_driver_left() -> None:
    """A JVM that outlives its driver still has its context; two have no room in it."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        jvm: Any = SparkContext._jvm
        left = getattr(getattr(jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
        if left.isDefined():
            left.get().stop()


if __name__ == "__main__":
    main(sys.argv[1])
