"""Opens a log by its address: `file:DIRECTORY` or `kafka://HOST:PORT`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.config.settings import client_settings, name_once
from headrace.errors import ConfigError
from headrace.extras import needs_extra
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Log


def open_log(address: str, settings: Mapping[str, Any] | None = None) -> Log:
    """Opens `file:DIRECTORY`, or `kafka://HOST:PORT,HOST:PORT` with the settings of Kafka's clients.

    >>> open_log("files:data")
    Traceback (most recent call last):
    ...
    headrace.errors.ConfigError: 'files:data' is not the address of a log: write file:DIRECTORY or kafka://HOST:PORT
    """
    if address.startswith("kafka://"):
        with needs_extra("kafka"):
            from headrace.log.kafka import KafkaLog  # noqa: PLC0415 - loading the client library takes time

        return KafkaLog(address, settings)
    directory = find_directory(address)
    if directory is None:
        raise ConfigError(f"{address!r} is not the address of a log: write file:DIRECTORY or kafka://HOST:PORT")
    return FileLog(directory)


def find_directory(address: str) -> Path | None:
    """Returns the directory of an embedded log; None if the address is not that of one.

    >>> find_directory("file:data"), find_directory("kafka://broker:9092")
    (PosixPath('data'), None)
    """
    kind, colon, rest = address.partition(":")
    path = rest.removeprefix("//")
    is_local = not rest.startswith("//") or path.startswith("/")
    return Path(path).expanduser() if kind == "file" and colon and path and is_local else None


ClientConfig = Mapping[str, Any] | str | Path  # client settings, or the path of a .properties file with them


def resolve_log(log: Log | str, config: ClientConfig | None = None) -> tuple[Log, bool]:
    """Returns the log, and True if it was opened here from an address, so that the caller must close it.

    `config` has the settings of Kafka's clients (TLS, SASL and the like). Misspelt names are errors.
    """
    if not isinstance(log, str):
        if config is not None:
            raise ValueError("an open log has its settings already: give config= only with an address")
        return log, False
    settings = client_settings(config)
    if not log.startswith("kafka://"):
        for name in settings:
            if name.startswith("schema.registry."):
                continue
            name_once(name, f"it is for the clients of a Kafka cluster, and the log is {log}")
    return open_log(log, settings), True
