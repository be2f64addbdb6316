"""The broker for tests itself."""

from __future__ import annotations

import uuid

import pytest

from headrace.errors import StreamsError
from headrace.testing import KafkaBroker
from headrace.testing import broker as module
from tests.kafka.shared_broker import shared_broker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_a_broker_keeps_what_it_has_when_it_is_killed_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        module.uuid, "uuid4", lambda: uuid.UUID(int=62 << 122)
    )  # a cluster's id that begins with a dash
    with KafkaBroker() as broker:
        port, directory = broker.port, broker.directory
        assert broker.address == f"kafka://{broker.bootstrap}"
        broker.kill()
        assert not module._answers(port)
        with pytest.raises(StreamsError, match="restart"):
            broker.pause()
        broker.restart()
        assert module._answers(port)
        assert broker.output.exists()
    assert not directory.exists()
    assert not module._answers(port)


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(StreamsError, match="needs Java 17 or newer"):
        KafkaBroker()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(StreamsError, match=r"in JAVA_HOME \(/nowhere\)"):
        KafkaBroker()


def test_a_broker_that_cannot_start_says_why():
    with pytest.raises(StreamsError, match=r"could not be set up|ended while it started"):
        KafkaBroker(settings={"node.id": "nobody"})


def test_all_who_know_the_place_share_a_broker(tmp_path):
    with shared_broker(tmp_path) as first:
        with shared_broker(tmp_path) as second:
            assert first == second
        assert module._answers(int(first.rpartition(":")[2]))
    assert not module._answers(int(first.rpartition(":")[2]))
