"""Programs of the real Kafka Streams, in a JVM beside the test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.testing.jars import STREAMS, kafka_jars

SOURCE = Path(__file__).parent / "java" / "Programs.java"
# Short-lived and beside a broker and Spark, on few cores.
JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def compiled(folder: Path) -> list[str]:
    """The command that runs a program of `SOURCE`; skips the test where Java has no compiler."""
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("the Java programs need a JDK: there is no `javac` on the PATH")
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
