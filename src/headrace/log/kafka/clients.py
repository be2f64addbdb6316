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

kafka: Any = confluent_kafka  # its types are incomplete
administration: Any = confluent_kafka.admin
_LOGGER = logging.getLogger("headrace.log.kafka")
_IDLE_READERS = 4
_READING = {
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


class Clients:
    """The warm clients of a process: one for administration, and some that read ranges."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._admin: Any = None
        self._readers: list[Any] = []
        self._is_closed = False

    @property
    def admin(self) -> Any:
        with self._lock:
            if self._admin is None:
                self._admin = make("admin", self.settings)
            return self._admin

    @contextmanager
    def reader(self) -> Generator[Any]:
        """A consumer for one range; after trouble it is not used again."""
        with self._lock:
            consumer = self._readers.pop() if self._readers else None
        if consumer is None:
            consumer = make("consumer", self.settings, _READING)
        is_well = False
        try:
            yield consumer
            is_well = True
        except GeneratorExit:
            is_well = True
            raise
        finally:
            if is_well:
                consumer.unassign()
            with self._lock:
                is_kept = is_well and not self._is_closed and len(self._readers) < _IDLE_READERS
                if is_kept:
                    self._readers.append(consumer)
            if not is_kept:
                consumer.close()

    def close(self) -> None:
        with self._lock:
            readers, self._readers, self._is_closed = self._readers, [], True
            self._admin = None
        for consumer in readers:
            consumer.close()
