"""Kafka's clients, and the settings that each kind of client gets. Only this module imports the client library.

Clients do not survive a fork: each process creates its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import confluent_kafka
import confluent_kafka.admin

from headrace.config.settings import SHARED_BY_CLIENTS
from headrace.errors import ConfigError
from headrace.log.client_log import ClientLog
from headrace.model.threads import SYSTEM_THREADS, Threads

kafka: Any = confluent_kafka  # its types are incomplete
kafka_admin: Any = confluent_kafka.admin
Kind = Literal["admin", "consumer", "producer"]
# Java's clients also wait at most a second before they connect again; this library's default is ten.
_DEFAULTS_OF_ALL = {"reconnect.backoff.max.ms": 1000}
_DEFAULTS: dict[Kind, dict[str, Any]] = {
    "admin": {},
    # A range of offsets is read as fast as it arrives, and does not wait at the end of a partition for more.
    "consumer": {"fetch.wait.max.ms": 5, "queued.min.messages": 200_000},
    "producer": {
        "linger.ms": 5,
        "message.max.bytes": 1_000_000_000,
        "queue.buffering.max.messages": 1_000_000,
        "retry.backoff.ms": 5,  # with the default, every transaction waits 100 ms for the one before it
    },
}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The servers, and the settings that the user has given: `consumer.*`, `producer.*`, `admin.*`, TLS and SASL.

    `make_client`, if given, creates the clients instead of the client library.
    """

    servers: str
    given: Mapping[str, Any]
    threads: Threads = SYSTEM_THREADS
    make_client: Callable[[Kind, dict[str, Any]], Any] | None = None

    def of(self, kind: Kind, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings of one client. Correctness depends on `fixed`, so the user cannot change these.

        >>> given = {"sasl.username": "ada", "producer.linger.ms": 1, "num.stream.threads": 4}
        >>> ClientSettings("host:9092", given).of("admin", {})
        {'reconnect.backoff.max.ms': 1000, 'sasl.username': 'ada', 'bootstrap.servers': 'host:9092'}
        """
        shared = {name: value for name, value in self.given.items() if name.startswith(SHARED_BY_CLIENTS)}
        prefix = f"{kind}."
        own = {name.removeprefix(prefix): value for name, value in self.given.items() if name.startswith(prefix)}
        return {**_DEFAULTS_OF_ALL, **_DEFAULTS[kind], **shared, **own, **fixed, "bootstrap.servers": self.servers}

    @property
    def replication_factor(self) -> int:
        """The replication factor of topics that are created without one. -1 is the broker's default."""
        return int(self.given.get("replication.factor", -1))

    @property
    def timeout(self) -> float:
        """How many seconds a call waits for an answer."""
        return int(self.given.get("default.api.timeout.ms", 60_000)) / 1000


def parse_servers(address: str) -> str:
    """Returns the bootstrap servers of an address.

    >>> parse_servers("kafka://one:9092,two:9092")
    'one:9092,two:9092'
    """
    servers = [server.strip() for server in address.removeprefix("kafka://").rstrip("/").split(",")]
    for server in servers:
        host, colon, port = server.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ConfigError(f"{address!r} is not the address of a log: write kafka://HOST:PORT,HOST:PORT,...")
    return ",".join(servers)


def create_client(kind: Kind, settings: ClientSettings, fixed: Mapping[str, Any] | None = None) -> Any:
    """Creates an admin client, a consumer or a producer."""
    if settings.make_client is not None:
        return settings.make_client(kind, settings.of(kind, fixed or {}))
    constructors = {"admin": kafka_admin.AdminClient, "consumer": kafka.Consumer, "producer": kafka.Producer}
    try:
        return constructors[kind](settings.of(kind, fixed or {}), logger=ClientLog(settings.servers))
    except kafka.KafkaException as error:
        hint = ". Give sasl.username and sasl.password instead" if "sasl.jaas.config" in settings.given else ""
        raise ConfigError(f"Kafka's client does not take these settings: {error.args[0].str()}{hint}") from error


def create_reader(settings: ClientSettings, group: str = "headrace") -> Any:
    """Creates a consumer that is no member of a group. A group must be named, even if nothing is committed for it."""
    fixed = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    }
    return create_client("consumer", settings, fixed)


class AdminConnection:
    """The admin client of a process. It is created when it is first used."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None
        self._errors: list[Any] = []

    @property
    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = create_client("admin", self.settings, {"error_cb": self._add_error})
            return self._client

    def _add_error(self, error: Any) -> None:
        self._errors.append(error)

    def poll_errors(self) -> list[Any]:
        """Returns the new errors of the connection: a refused login may be followed by "all brokers are down"."""
        self._errors = []
        self.client.poll(0)
        return self._errors

    def close(self) -> None:
        with self._lock:
            self._client = None
