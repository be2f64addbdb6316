"""Logs by their address."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.log.filelog import FileLog
from headrace.log.protocol import Log


def open_log(address: str, settings: Mapping[str, Any] | None = None) -> Log:
    """The log at an address: `file:DIRECTORY`, or `kafka://HOST:PORT,HOST:PORT` with the settings of Kafka's clients.

    >>> open_log("files:data")
    Traceback (most recent call last):
    ...
    headrace.errors.ConfigError: 'files:data' is not the address of a log: write file:DIRECTORY or kafka://HOST:PORT
    """
    if address.startswith("kafka://"):
        from headrace.log.kafka import KafkaLog  # noqa: PLC0415 - loading the client takes time, which others save

        return KafkaLog(address, settings)
    kind, colon, rest = address.partition(":")
    path = rest.removeprefix("//")
    is_local = not rest.startswith("//") or path.startswith("/")
    if kind == "file" and colon and path and is_local:
        return FileLog(Path(path).expanduser())
    raise ConfigError(f"{address!r} is not the address of a log: write file:DIRECTORY or kafka://HOST:PORT")


def opened(log: Log | str) -> tuple[Log, bool]:
    """A log, and whether it was opened here, so that it is to be closed by whoever asked."""
    return (open_log(log), True) if isinstance(log, str) else (log, False)
