"""Which settings each of the Kafka clients gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.config.settings import SHARED_BY_CLIENTS
from headrace.errors import ConfigError

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
