"""Programs of the real Kafka Streams, in a JVM beside the test."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import Topology, serde
from headrace.app import Application
from headrace.clients.admin import Admin
from headrace.clients.consumer import Consumer
from headrace.clients.producer import Producer
from headrace.serde import Serde
from headrace.testing.broker import STREAMS, kafka_jars

SOURCE = Path(__file__).parent / "java" / "Programs.java"
# Short-lived and beside a broker and Spark, on few cores.
JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def compiled(folder: Path) -> list[str]:
    """Compiles `SOURCE`, and gives the command that runs one of its programs."""
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.fail("the Java programs need a JDK, and there is no `javac` on the PATH: `make jdk` installs it")
    java = str(Path(compiler).with_name("java"))
    path = f"{kafka_jars(java, module=STREAMS)}/*"
    subprocess.run([compiler, "-cp", path, "-d", str(folder), str(SOURCE)], check=True)
    return [java, *JVM, "-cp", f"{folder}:{path}", "Programs"]


@contextmanager
def running(command: list[str], program: str, address: str, room: str, folder: Path) -> Generator[None]:
    """Runs it, and lets it end in good order: everything that it has read is written and committed."""
    said = folder / f"{program}.txt"
    arguments = [*command, program, address.removeprefix("kafka://"), room, str(folder / "java-state")]
    with said.open("wb") as output:
        process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0, said.read_text()


# ------------------------------------------------------------------------------------------------ what both work on
def create(address: str, *topics: str) -> None:
    with Admin(address) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions=2)


def send(address: str, topic: str, serdes: tuple[Serde, Serde], records: Iterable[tuple[Any, Any, int]]) -> None:
    with Producer(address) as producer:
        for key, value, timestamp in records:
            producer.send(
                topic, key, value, key_serde=serdes[0], value_serde=serdes[1], timestamp=timestamp,
                partition=None if key is not None else timestamp % 2,
            )  # fmt: skip


def records(
    address: str, topic: str, count: int, serdes: tuple[Serde, Serde] = (serde.BYTES, serde.BYTES)
) -> list[Any]:
    """What is committed in a topic, once that is as much as it shall be; a moment more shows that there is no more."""
    found: list[Any] = []
    end = time.monotonic() + 60
    with Consumer(address, key=serdes[0], value=serdes[1], auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        while len(found) < count and time.monotonic() < end:
            found += consumer.poll(500)
        found += consumer.poll(300)
    assert len(found) == count, f"{topic} has {found}"
    return found


def application(address: str, name: str, topology: Topology, folder: Path, **more: Any) -> Application:
    """Without caches: every update comes out, on both sides."""
    checkpoint, state = str(folder / "checkpoint"), str(folder / "state")
    return Application(
        name, topology, address, checkpoint=checkpoint, state_dir=state, statestore_cache_max_bytes=0, **more
    )
