"""Which settings each of the Kafka clients gets.

Clients of a Kafka cluster, made when they are needed first; the only file that knows the library.

Clients do not survive a fork: each process makes its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import confluent_kafka
import confluent_kafka.admin

from headrace.config.settings import SHARED_BY_CLIENTS
from headrace.errors import ConfigError
from headrace.model.ids import TopicPartition

Kind = Literal["admin", "consumer", "producer"]
_PATIENCE = "default.api.timeout.ms"  # how long a call waits for an answer
_FOR_ALL = {"reconnect.backoff.max.ms": 1000}  # as Java's clients do; it would be ten seconds
_USUAL: dict[Kind, dict[str, Any]] = {
    "admin": {},
    # A range is read as fast as it comes, and nobody waits at the end of a partition for more.
    "consumer": {"fetch.wait.max.ms": 5, "queued.min.messages": 200_000},
    # Without the short pause every transaction waits 100 ms for the one before it.
    "producer": {"linger.ms": 5, "message.max.bytes": 1_000_000_000, "queue.buffering.max.messages": 1_000_000}
    | {"retry.backoff.ms": 5},
}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Servers, and what was given for them: `consumer.*`, `producer.*`, `admin.*`, and TLS and SASL for all of them."""

    servers: str
    given: Mapping[str, Any]

    def of(self, kind: Kind, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """What a client of some kind gets; `fixed` is what correctness depends on, so nobody can change it.

        >>> given = {"sasl.username": "ada", "producer.linger.ms": 1, "num.stream.threads": 4}
        >>> ClientSettings("host:9092", given).of("admin", {})
        {'reconnect.backoff.max.ms': 1000, 'sasl.username': 'ada', 'bootstrap.servers': 'host:9092'}
        """
        shared = {name: value for name, value in self.given.items() if name.startswith(SHARED_BY_CLIENTS)}
        prefix = f"{kind}."
        own = {name.removeprefix(prefix): value for name, value in self.given.items() if name.startswith(prefix)}
        return {**_FOR_ALL, **_USUAL[kind], **shared, **own, **fixed, "bootstrap.servers": self.servers}

    @property
    def replication_factor(self) -> int:
        """How many copies a topic has that is created without a number of its own; -1: the broker's default."""
        return int(self.given.get("replication.factor", -1))

    @property
    def patience(self) -> float:
        """How many seconds a call waits for an answer."""
        return int(self.given.get(_PATIENCE, 60_000)) / 1000


def servers_of(address: str) -> str:
    """The servers of an address.

    >>> servers_of("kafka://one:9092,two:9092")
    'one:9092,two:9092'
    """
    servers = [server.strip() for server in address.removeprefix("kafka://").rstrip("/").split(",")]
    for server in servers:
        host, colon, port = server.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ConfigError(f"{address!r} is not the address of a log: write kafka://HOST:PORT,HOST:PORT,...")
    return ",".join(servers)


kafka: Any = confluent_kafka  # its types are incomplete
administration: Any = confluent_kafka.admin
_LOGGER = logging.getLogger("headrace.log.kafka")
_IDLE_READERS = 8
READING = {
    "group.id": "headrace",  # one has to be given; nothing is ever committed for it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}


def make(kind: Kind, settings: ClientSettings, fixed: Mapping[str, Any] | None = None) -> Any:
    """A client of some kind."""
    maker = {"admin": administration.AdminClient, "consumer": kafka.Consumer, "producer": kafka.Producer}[kind]
    try:
        return maker(settings.of(kind, fixed or {}), logger=_LOGGER)
    except kafka.KafkaException as error:
        raise ConfigError(f"the settings for Kafka's {kind} cannot be: {error.args[0].str()}") from error


class Reader:
    """A consumer on one partition; `at` and `position` say where it stands, if it is to go on there."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.at: TopicPartition | None = None
        self.position = -1
        self.rest: list[Any] = []  # messages that belong to the range that comes next
        self.upto = -1  # it has given all that there is before this offset, and does not say so again

    def stay(self, at: TopicPartition, position: int, rest: list[Any]) -> None:
        """More will be read from here: the consumer goes on fetching it."""
        self.at, self.position, self.rest = at, position, rest

    def leave(self) -> None:
        self.at, self.rest = None, []
        self.consumer.unassign()


class Clients:
    """The warm clients of a process: one for administration, and some that read ranges."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._admin: Any = None
        self._readers: list[Reader] = []
        self._is_closed = False
        self._trouble: Any = None

    @property
    def admin(self) -> Any:
        with self._lock:
            if self._admin is None:
                self._admin = make("admin", self.settings, {"error_cb": self._note})
            return self._admin

    def _note(self, error: Any) -> None:
        self._trouble = error

    def trouble(self) -> Any:
        """Why nobody answers, if the client for administration knows: credentials, for one."""
        self._trouble = None
        self.admin.poll(0)
        return self._trouble

    @contextmanager
    def reader(self, at: TopicPartition, position: int) -> Generator[Reader]:
        """The consumer that stands at a position, or one that stands nowhere; after trouble it is not used again."""
        reader = self._taken(at, position)
        is_well = False
        try:
            yield reader
            is_well = True
        except GeneratorExit:
            reader.at = None
            is_well = True
            raise
        finally:
            with self._lock:
                is_kept = is_well and not self._is_closed
                if is_kept:
                    self._readers.append(reader)
                dropped = None if is_kept else reader
                if len(self._readers) > _IDLE_READERS:
                    dropped = self._readers.pop(0)
            if reader.at is None and is_kept:
                reader.leave()
            if dropped is not None:
                dropped.consumer.close()

    def _taken(self, at: TopicPartition, position: int) -> Reader:
        with self._lock:
            standing = [reader for reader in self._readers if (reader.at, reader.position) == (at, position)]
            free = [reader for reader in self._readers if reader.at is None or reader.at == at]
            for reader in (*standing, *free):
                self._readers.remove(reader)
                return reader
        return Reader(make("consumer", self.settings, READING))

    def close(self) -> None:
        with self._lock:
            readers, self._readers, self._is_closed = self._readers, [], True
            self._admin = None
        for reader in readers:
            reader.consumer.close()
