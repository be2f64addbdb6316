"""The Java that Spark runs on: which one it is, how to install it, and the archive of the classes that Spark loads.

`find_java` looks for Java, `install_java` names the command that installs it. `create_archive` starts Spark once and
has Java write the archive, with which later starts are faster; there is one for each version of Java and Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from headrace.class_archive import ClassArchive
from headrace.errors import ConfigError, StreamsError

OLDEST = 17
_RELEASE = Path("/etc/os-release")


class Java(NamedTuple):
    """The Java that was found, in words. If Spark cannot run on it: the trouble, and the remedy."""

    shown: str
    trouble: str | None = None
    remedy: str = ""


def check_java() -> Java:
    """Returns the Java that Spark uses. Raises an error with the remedy where Spark would end with a stack trace."""
    java = find_java()
    if java.trouble is not None:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer, but {java.trouble}: {java.remedy}")
    return java


def find_java() -> Java:
    """Returns the Java that Spark would start: the one of JAVA_HOME, else the first on the path."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None or not Path(command).exists():
        where = f" in JAVA_HOME, {home}" if home else ""
        return Java(f"none{where}", f"there is none{where}", install_java())
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return Java(f"{command} does not answer: {error}", f"{command} does not answer", install_java())
    number = re.search(r'version "(?:1\.)?(\d+)[^"]*"', told.stderr)
    if number is None:
        return Java(f"{command} does not say its version", f"{command} does not say its version", install_java())
    shown = f"{number[0].removeprefix('version ')[1:-1]}, {command}"
    if int(number[1]) < OLDEST:
        hint = "; and let JAVA_HOME name it, or unset it" if home else ""
        return Java(f"{shown}: too old", f"{command} is Java {number[1]}", install_java() + hint)
    return Java(shown)


def install_java(system: str = sys.platform, release: str | None = None) -> str:
    """The command that installs Java.

    >>> install_java("darwin"), install_java("linux", "ID=fedora")
    ('brew install openjdk@17', 'dnf install -y java-21-openjdk-headless')
    """
    if system == "darwin":
        return "brew install openjdk@17"
    if system == "win32":
        return "winget install EclipseAdoptium.Temurin.17.JRE"
    text = (_RELEASE.read_text() if _RELEASE.exists() else "") if release is None else release
    families = {word for line in re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', text, re.MULTILINE) for word in line.split()}
    if families & {"fedora", "rhel", "centos"}:
        return "dnf install -y java-21-openjdk-headless"
    if families & {"alpine"}:
        return "apk add openjdk17-jre-headless"
    if families & {"arch"}:
        return "pacman -S --noconfirm jre17-openjdk-headless"
    if families & {"suse", "opensuse"}:
        return "zypper install -y java-17-openjdk-headless"
    newest = re.search(r'^VERSION_ID="?(\d+)', text, re.MULTILINE)
    is_new = "ID=debian" in text and newest is not None and int(newest[1]) >= 13  # it has no Java 17
    return f"apt-get install -y openjdk-{21 if is_new else 17}-jre-headless"


# ----------------------------------------------------------------------------------------------- the archive of classes
def spark_archive() -> ClassArchive:
    """Returns the archive for this Java and this Spark, which need not exist."""
    found = find_spec("pyspark")
    spark = os.environ.get("SPARK_HOME") or (found and found.origin)
    return ClassArchive(f"spark-{version('pyspark')}", f"{check_java().shown} {spark}")


def create_archive() -> Path:
    """Starts Spark as an application does, and has its JVM write the classes that it has loaded."""
    archive = spark_archive()
    with archive.create() as options:
        program = [sys.executable, "-m", "headrace.spark.java", *options]
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
