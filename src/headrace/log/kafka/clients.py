"""Clients of a Kafka cluster, made when they are needed first; the only file that knows the library.

Clients do not survive a fork: each process makes its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import confluent_kafka.admin

from headrace.errors import ConfigError
from headrace.log.kafka.settings import ClientSettings, Kind
from headrace.model.ids import TopicPartition

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
