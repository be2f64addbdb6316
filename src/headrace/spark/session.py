"""The Spark session that Headrace makes if it is given none: our JVM only coordinates."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.speculation": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": MANAGER,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.log.level": "ERROR",
}


def session(master: str = "local[2]") -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Workers on this machine find the modules that the driver finds.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or str(Path.cwd()) for path in sys.path))
    builder = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
