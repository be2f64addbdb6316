"""What an application needs of a machine, looked at one by one."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.errors import StreamsError
from headrace.log import open_log

OLDEST_PYTHON, OLDEST_JAVA, OLDEST_SPARK = (3, 11), 17, (4, 3)
_ROOM, _LITTLE_ROOM = 1 << 30, 100 << 20  # bytes: enough for a while; soon full
_RELEASE = Path("/etc/os-release")


class Check(NamedTuple):
    """Something that was looked at, how it is, and, unless it is ok, what to do."""

    what: str
    result: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def python(release: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    found = ".".join(map(str, release))
    if release >= OLDEST_PYTHON:
        return Check("Python", "ok", found)
    return Check("Python", "fail", f"{found}: too old", "use Python 3.11 or newer")


def java() -> Check:
    """The one that Spark would start: of JAVA_HOME, else the first on the path."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None or not Path(command).exists():
        what = f"none in JAVA_HOME, {home}" if home else "none"
        return Check("Java", "fail", what, install_java())
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Java", "fail", f"{command} does not answer: {error}", install_java())
    number = re.search(r'version "(?:1\.)?(\d+)[^"]*"', told.stderr)
    if number is None:
        return Check("Java", "fail", f"{command} does not say its version", install_java())
    shown = f"{number[0].removeprefix('version ')[1:-1]}, {command}"
    if int(number[1]) < OLDEST_JAVA:
        hint = "; and let JAVA_HOME name it, or unset it" if home else ""
        return Check("Java", "fail", f"{shown}: too old", install_java() + hint)
    return Check("Java", "ok", shown)


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
    is_new = "ID=debian" in text and newest is not None and int(newest[1]) >= 13  # has no 17 any more
    return f"apt-get install -y openjdk-{21 if is_new else 17}-jre-headless"


def pyspark() -> Check:
    found = _installed("pyspark")
    if found is None:
        return Check("PySpark", "fail", "not installed", "pip install pyspark")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST_SPARK:
        return Check("PySpark", "fail", f"{found}: too old", "pip install 'pyspark>=4.3'")
    return Check("PySpark", "ok", found)


def pandas() -> Check:
    found = _installed("pandas")
    if found is None:
        return Check("pandas", "fail", "not installed", "pip install 'pandas<3'")
    if int(found.partition(".")[0]) >= 3:
        return Check("pandas", "fail", f"{found}: PySpark does not know it", "pip install 'pandas<3'")
    return Check("pandas", "ok", found)


def log(address: str | None) -> Check:
    if address is None:
        return Check(
            "log", "warn", "none given", "give --log file:DIRECTORY, or set HEADRACE_LOG, to have it looked at"
        )
    path = Path(address.removeprefix("file:"))
    if address.startswith("file:") and not path.exists():
        return _writable("log", path, f"{address} will be made")
    try:
        opened = open_log(address)
        many = len(opened.topics())
        opened.close()
    except StreamsError as error:
        return Check("log", "fail", str(error), "see the sentence to the left")
    return Check("log", "ok", f"{address}, {many} topics")


def checkpoint(place: str | None) -> Check:
    if place is None:
        return Check("checkpoint", "warn", "none given", "give --checkpoint DIRECTORY to have it looked at")
    if "://" in place:
        return Check(
            "checkpoint", "warn", f"{place} is not looked at", "start the application: it says if it cannot write"
        )
    return _writable("checkpoint", Path(place.removeprefix("file:")), place)


def state(directory: str | None) -> Check:
    place = Path(directory or Path(tempfile.gettempdir()) / "headrace")
    return _writable("local state", place, str(place))


def loopback() -> Check:
    """Spark's JVM and its workers talk over ports of this machine that are free."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            return Check("ports", "ok", "processes of this machine reach each other")
    except OSError as error:
        return Check("ports", "fail", f"no port of 127.0.0.1 can be used: {error}", "allow local connections")


def port(number: int) -> Check:
    try:
        with socket.create_server(("127.0.0.1", number)):
            return Check(f"port {number}", "ok", "free")
    except (OSError, OverflowError) as error:
        return Check(f"port {number}", "fail", f"cannot be used: {error}", "stop who has it, or choose another one")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _writable(what: str, place: Path, found: str) -> Check:
    """Whether something can be written at a place, which may be yet to be made, and how much."""
    there = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
    if not there.is_dir():
        return Check(what, "fail", f"{found}: {there} is a file", "choose another directory")
    try:
        with tempfile.TemporaryFile(dir=there):
            room = shutil.disk_usage(there).free
    except OSError as error:
        return Check(what, "fail", f"{found}: {error.strerror}", f"make {there} writable, or choose another directory")
    shown = f"{found}, {room / (1 << 30):.1f} GiB free"
    if room < _LITTLE_ROOM:
        return Check(what, "fail", shown, f"make room on the disk of {there}")
    return (
        Check(what, "ok", shown) if room >= _ROOM else Check(what, "warn", shown, f"make room on the disk of {there}")
    )
