"""The version of Kafka's brokers, which an application checks when it starts.

The client library asks the brokers which requests they support (ApiVersions), but does not expose the answer. So this
module asks, too; brokers answer before a login. If no broker answers, this module raises no error: the clients wait for
brokers that are away, and report why they cannot connect.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.log.kafka.clients import ClientSettings

OLDEST = "3.9"  # the oldest version with which Headrace is tested
_FETCH, _FETCH_OF_OLDEST = 1, 17  # the request for records, and its highest version in Kafka 3.9
_API_VERSIONS, _CORRELATION = 18, 7
_TIMEOUT = 5.0  # seconds
_MOST_BYTES = 1 << 20  # of an answer


def check_brokers(settings: ClientSettings) -> None:
    """Raises an error if the brokers are older than the oldest version that is supported."""
    for server in settings.servers.split(","):
        host, _, port = server.rpartition(":")
        try:
            known = ask_versions(host.strip("[]"), int(port), settings.of("admin", {}))
        except (OSError, ValueError):
            continue
        if known.get(_FETCH, 0) < _FETCH_OF_OLDEST:
            raise ConfigError(
                f"the broker at {server} is older than Kafka {OLDEST}, the oldest version that Headrace supports: it "
                f"knows Fetch up to version {known.get(_FETCH, 0)}, and {OLDEST} up to {_FETCH_OF_OLDEST}. Update the "
                "brokers"
            )
        return


def ask_versions(host: str, port: int, settings: Mapping[str, Any]) -> dict[int, int]:
    """Returns the highest version of every request that a broker knows, by the number of the request."""
    name = b"headrace"
    header = struct.pack(">hhih", _API_VERSIONS, 0, _CORRELATION, len(name)) + name
    with (
        socket.create_connection((host, port), _TIMEOUT) as plain,
        _secured(plain, host, settings) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(struct.pack(">i", len(header)) + header)
        (size,) = struct.unpack(">i", _read(answers, 4))
        if not 10 <= size <= _MOST_BYTES:
            raise ValueError(f"an answer of {size} bytes is none of a broker")
        return parse_versions(_read(answers, size))


def parse_versions(answer: bytes) -> dict[int, int]:
    r"""Parses the answer to ApiVersions, version 0: | correlation i32 | error i16 | n i32 | n x (key, min, max) i16 |.

    >>> parse_versions(struct.pack(">ihihhh", 7, 0, 1, 1, 0, 17))
    {1: 17}
    """
    if len(answer) < 10:
        raise ValueError("the answer is cut off")
    correlation, error, count = struct.unpack_from(">ihi", answer)
    if correlation != _CORRELATION or error or len(answer) < 10 + 6 * count:
        raise ValueError(f"no answer to the question: correlation {correlation}, error {error}")
    triples = (struct.unpack_from(">hhh", answer, 10 + 6 * at) for at in range(count))
    return {key: highest for key, _, highest in triples}


def _read(answers: Any, size: int) -> bytes:
    found = answers.read(size)
    if len(found) < size:
        raise ValueError("the connection was closed")
    return found


def _secured(plain: socket.socket, host: str, settings: Mapping[str, Any]) -> socket.socket:
    """Returns the connection, with TLS if the clients use it."""
    if "ssl" not in str(settings.get("security.protocol", "")).lower():
        return plain
    context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
    context.check_hostname = settings.get("ssl.endpoint.identification.algorithm", "https") == "https"
    if str(settings.get("enable.ssl.certificate.verification", True)).lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate = settings.get("ssl.certificate.location")
    if certificate is not None:
        context.load_cert_chain(certificate, settings.get("ssl.key.location"), settings.get("ssl.key.password"))
    return context.wrap_socket(plain, server_hostname=host)
