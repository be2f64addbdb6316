"""The jars of Kafka, of its broker first of all: fetched once, then kept in the user's cache directory."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StreamsError

VERSION = "4.3.1"
BROKER, STREAMS = "kafka_2.13", "kafka-streams"
_JARS = {BROKER: 46, STREAMS: 13}  # or so: for the progress that is shown
_DEPENDENCIES = f"""\
<ivy-module version="2.0">
  <info organisation="headrace" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="{{module}}" rev="{VERSION}" conf="default->default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4" conf="default->default"/>
  </dependencies>
</ivy-module>
"""


def cache_directory() -> Path:
    """Where the jars are kept: below `XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def kafka_jars(java: str, cache: Path | None = None, module: str = BROKER) -> Path:
    """The folder of a broker's jars; they are fetched if they are not there, by one process at a time.

    The module STREAMS is Kafka Streams, for tests beside it.
    """
    cache = cache or cache_directory()
    name = f"{module.partition('_')[0]}-{VERSION}"
    jars = cache / name
    if not jars.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with alone(cache / f"{name}.lock"):
            if not jars.is_dir():
                _fetch(java, jars, module)
    return jars


@contextmanager
def alone(lock: Path) -> Generator[None]:
    """While one process is inside, others wait; a process that dies lets the next one in."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(java: str, jars: Path, module: str) -> None:
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="fetching-") as folder:
        wanted = Path(folder) / "ivy.xml"
        wanted.write_text(_DEPENDENCIES.format(module=module), encoding="utf-8")
        command = [java, "-jar", str(_ivy()), "-ivy", str(wanted), "-cache", f"{folder}/ivy"]
        command += ["-retrieve", f"{folder}/jars/[artifact]-[revision].[ext]"]
        said = _shown(command, _JARS[module])
        fetched = Path(folder) / "jars"
        if not list(fetched.glob(f"{module}-*.jar")):
            raise StreamsError(
                f"the jars of {module} {VERSION} could not be fetched. Ivy needs to reach a Maven repository; its last "
                "words:\n" + "".join(said[-20:])
            )
        shutil.move(fetched, jars)


def _shown(command: list[str], jars: int) -> list[str]:
    """Runs Ivy, shows how far it is, and gives what it said."""
    said: list[str] = []
    done = 0
    print(f"Fetching the jars of Kafka {VERSION}, once.", file=sys.stderr, flush=True)  # noqa: T201
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # noqa: S603
        for line in process.stdout or ():
            said.append(line)
            if "[SUCCESSFUL ]" in line:
                done += 1
                end = "\n" if done == jars else ""
                print(f"\r{done} of {jars} jars", end=end, file=sys.stderr, flush=True)  # noqa: T201
    return said


def _ivy() -> Path:
    """Ivy comes with PySpark, which is only looked for, not imported."""
    found = importlib.util.find_spec("pyspark")
    folders = found.submodule_search_locations if found else None
    for folder in folders or ():
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise StreamsError("a Kafka broker is fetched with the Ivy that comes with PySpark: pip install pyspark")
