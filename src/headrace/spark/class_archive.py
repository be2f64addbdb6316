"""An archive of the classes that Spark loads when it starts, for Java's class data sharing.

A JVM spends 40 % of the CPU time of Spark's start on loading and checking classes. With the archive it maps them into
memory instead. `headrace prepare` creates the archive, once for each version of Java and Spark; every later start uses
it. Java itself compares the archive with its own version and with the jars, and ignores one that does not fit.

The archive is code, so it is in the cache directory of the user, and is used only if no other user can write to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.directories import cache_directory, check_file, check_folder, create_directory
from headrace.errors import StreamsError
from headrace.spark.java import check_java

# Hides why an archive does not fit, because no user can act on that: `headrace prepare` creates a new archive.
_QUIET = "-Xlog:cds*=off"


def archive_path() -> Path:
    """Where the archive for this Java and this Spark is, or would be."""
    found = find_spec("pyspark")
    spark = os.environ.get("SPARK_HOME") or (found and found.origin)
    fitting = f"{check_java().shown} {spark}"
    name = f"spark-{version('pyspark')}-{sha256(fitting.encode()).hexdigest()[:12]}.jsa"
    return cache_directory() / "classes" / name


def archive_options() -> str:
    """Returns the options for Spark's JVM: none if there is no archive, or if its path has a space."""
    path = archive_path()
    if not path.exists() or any(map(str.isspace, str(path))):
        return ""
    check_folder(path.parent)
    check_file(path)
    return f"-XX:SharedArchiveFile={path} {_QUIET}"


def create_archive() -> Path:
    """Starts Spark as an application does, and has its JVM write the classes that it has loaded."""
    path = archive_path()
    create_directory(path.parent)
    check_folder(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="new-") as folder:
        fresh = Path(folder, "classes.jsa")
        program = [sys.executable, "-m", "headrace.spark.class_archive", str(fresh)]
        done = subprocess.run(program, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
        if done.returncode or not fresh.exists():
            said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            raise StreamsError(f"Java has written no archive of Spark's classes: {said or 'it did not say why'}")
        fresh.chmod(0o600)
        fresh.replace(path)
    return path


def _load_classes(archive: str) -> None:
    """Loads what the start of an application loads, in a JVM that writes the archive when it ends."""
    from headrace.spark.session import session_of, start_context  # noqa: PLC0415 - it imports this module

    context = start_context("local[1]", java_options=f"-XX:ArchiveClassesAtExit={archive} {_QUIET}").result()
    context.parallelize([0], 1).map(int).collect()
    session_of(context).range(1).collect()
    context.stop()
    gateway: Any = context._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    _load_classes(sys.argv[1])
