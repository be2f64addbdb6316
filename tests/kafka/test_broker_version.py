"""Brokers that are too old are rejected when an application starts."""

from __future__ import annotations

import socket
import struct

import pytest

from headrace.errors import ConfigError
from headrace.log.kafka import KafkaLog, broker_version
from headrace.log.kafka.broker_version import ask_versions, parse_versions
from headrace.log.protocol import HasBrokers
from headrace.testing import KafkaBroker
from tests.kafka.proxy import KafkaProxy, Request

API_VERSIONS = 18


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(broker_version, "_TIMEOUT", 60.0)


def test_a_broker_that_is_older_than_the_oldest_supported_one_is_rejected():
    """Kafka 3.3 knew Fetch up to version 13."""
    proxy = KafkaProxy()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        proxy.target = nobody.getsockname()[1]
        asked = list[Request]()

        def answer(request: Request) -> bytes:
            asked.append(request)
            return request.frame[4:8] + struct.pack(">hihhhhhh", 0, 2, 0, 0, 9, 1, 0, 13)

        proxy.on_request = answer
        with KafkaLog(f"kafka://127.0.0.1:{proxy.port}") as log:
            assert isinstance(log, HasBrokers)
            with pytest.raises(ConfigError, match=r"older than Kafka 3\.9.*Update the brokers"):
                log.check_brokers()
    assert [(request.api, request.version) for request in asked] == [(API_VERSIONS, 0)]
    proxy.close()


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(4), b"\xff" * 40, bytes(3) + b"\x0e" + bytes(14)]
)
def test_what_is_no_answer_of_a_broker_is_left_to_the_clients(said: bytes):
    proxy = KafkaProxy()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        proxy.target = nobody.getsockname()[1]
        proxy.on_request = lambda request: said
        with KafkaLog(f"kafka://127.0.0.1:{proxy.port}") as log:
            log.check_brokers()
    proxy.close()
    with KafkaLog(f"kafka://127.0.0.1:{proxy.port}") as log:
        log.check_brokers()  # nobody listens there


@pytest.mark.parametrize("raw", [b"", bytes(9), struct.pack(">ihi", 7, 0, 1 << 30), struct.pack(">ihi", 6, 0, 0)])
def test_a_damaged_answer_is_none(raw: bytes):
    with pytest.raises(ValueError, match=r"."):
        parse_versions(raw)


@pytest.mark.kafka
def test_a_broker_is_asked_before_a_login(guarded: KafkaBroker):
    settings = guarded.settings_of("ada")
    port = int(guarded.secured.rpartition(":")[2])
    assert ask_versions("127.0.0.1", port, settings)[1] >= 17
    with KafkaLog(guarded.secured, settings) as log:
        log.check_brokers()
