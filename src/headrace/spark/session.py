"""Spark sessions: the one that Headrace makes if it is given none, and the one that a query runs in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.errors import ConfigError
from headrace.spark.java import check_java

MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
ATTEMPTS = 4  # at a task; the same on a cluster
LOGGING = Path(__file__).with_name("log4j2.properties")

# Our JVM only coordinates: its compiler and its collector must not compete with the work.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={LOGGING}",
    "spark.python.unix.domain.socket.enabled": "true",
}
# With adaptive execution the shuffle stages would run before the batch is ours to commit.
OF_THE_QUERY = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # of a few rows: to write the code takes longer than to do the work
    "spark.sql.ui.explainMode": "simple",  # every batch is explained to a user interface that there is not
    "spark.sql.streaming.checkpointFileManagerClass": MANAGER,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "1000000000",  # else Spark's logs are listed after every batch
}
# Where to go on is in the manifests, so nobody reads what Spark notes of a batch: it stays in memory, but for a note
# every hour. Written for every batch, before and after it, that was a fifth of the time of a small one.
DISPOSABLE = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "3600000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",  # Spark cannot know that our sink needs none of it
}


def session(master: str | None = None, slots: int | None = None) -> SparkSession:
    """The session of this process, or a new one: on `master`, else on this machine with so many slots, or all cores."""
    existing = SparkSession.getActiveSession()
    if existing is not None and master is None:
        return existing
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Workers on this machine find the modules that the driver finds.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or str(Path.cwd()) for path in sys.path))
    # On one machine Spark would not try again, though a worker may have been killed.
    builder = SparkSession.builder.appName("headrace").master(master or f"local[{slots or '*'},{ATTEMPTS}]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def own_session(spark: SparkSession) -> SparkSession:
    """A session of the same Spark for our query alone: the settings of the user's stay as they are."""
    if spark.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise ConfigError(
            "Spark runs with spark.speculation=true: tasks with state must not run twice at a time. Unset it"
        )
    own = spark.newSession()
    for name, value in OF_THE_QUERY.items():
        own.conf.set(name, value)
    return own
