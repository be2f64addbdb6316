"""Servers that a command starts in the background: where the file with their status is, and how they are ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.directories import cache_directory

SHUTDOWN_TIMEOUT = 20.0  # seconds until the process is killed; a clean shutdown takes 1 or 2


def choose_directory(directory: Path | None, name: str) -> Path:
    """Return the directory that was given, or the one that all servers of this name share."""
    return directory.absolute() if directory else cache_directory() / name


def status_file(folder: Path) -> Path:
    return folder / "running.json"


def write_status(folder: Path, status: dict[str, Any]) -> None:
    status_file(folder).write_text(json.dumps(status), encoding="utf-8")


def read_status(folder: Path) -> dict[str, Any]:
    return json.loads(status_file(folder).read_text(encoding="utf-8"))


def end_server(folder: Path, is_running: Callable[[Path], bool], *, remove: bool) -> dict[str, Any]:
    """End the server of a directory, remove the directory if asked, and return the status that it had."""
    status = read_status(folder)
    os.kill(status["pid"], signal.SIGTERM)
    end = time.monotonic() + SHUTDOWN_TIMEOUT
    while is_running(folder):
        if time.monotonic() > end:
            os.kill(status["pid"], signal.SIGKILL)
        time.sleep(0.05)
    status_file(folder).unlink()
    if remove:
        shutil.rmtree(folder)
    return status
