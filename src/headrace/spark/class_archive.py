"""The archive of the classes that Spark loads, one for each version of Java and Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.class_archive import ClassArchive
from headrace.errors import StreamsError
from headrace.spark.java import check_java


def spark_archive() -> ClassArchive:
    """Returns the archive for this Java and this Spark, which need not exist."""
    found = find_spec("pyspark")
    spark = os.environ.get("SPARK_HOME") or (found and found.origin)
    return ClassArchive(f"spark-{version('pyspark')}", f"{check_java().shown} {spark}")


def create_archive() -> Path:
    """Starts Spark as an application does, and has its JVM write the classes that it has loaded."""
    archive = spark_archive()
    with archive.create() as options:
        program = [sys.executable, "-m", "headrace.spark.class_archive", *options]
        done = subprocess.run(program, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
        if done.returncode:
            said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            raise StreamsError(f"Spark has not started: {said or 'it did not say why'}")
    return archive.path


def _load_classes(options: list[str]) -> None:
    """Loads what the start of an application loads, in a JVM that writes the archive when it ends."""
    from headrace.spark.session import session_of, start_context  # noqa: PLC0415 - it imports this module

    context = start_context("local[1]", java_options=" ".join(options)).result()
    context.parallelize([0], 1).map(int).collect()
    session_of(context).range(1).collect()
    context.stop()
    gateway: Any = context._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    _load_classes(sys.argv[1:])
