"""What an application needs of a machine, looked at one by one."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.errors import StreamsError
from headrace.log import open_log
from headrace.spark.session import find_java

OLDEST_PYTHON, OLDEST_SPARK = (3, 11), (4, 3)
_ROOM, _LITTLE_ROOM = 1 << 30, 100 << 20  # bytes: enough for a while; soon full


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
    """The one that Spark would start."""
    java = find_java()
    if java.trouble is None:
        return Check("Java", "ok", java.shown)
    return Check("Java", "fail", java.shown, java.remedy)


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
