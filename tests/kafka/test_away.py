"""Brokers that are away: one line in the log, then one every ten seconds; commands give up after five seconds.

Nothing listens at the address of these tests, so that they need no broker.
"""

from __future__ import annotations

import logging
import re

import pytest

from headrace import LogUnavailableError
from headrace.cli.main import exit_code
from headrace.cli.options import log_at
from headrace.log import client_log
from headrace.log.client_log import INTERVAL, ClientLog, RateLimit, leave_to_driver
from headrace.log.kafka import KafkaLog
from headrace.log.kafka.clients import ClientSettings, create_client
from headrace.testing.broker import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def servers():
    return f"127.0.0.1:{free_port()}"


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "headrace.log.kafka"]


def test_clients_of_every_kind_and_requests_write_one_line_together(servers, caplog, monkeypatch):
    lines = list[str]()
    log = ClientLog.log
    monkeypatch.setattr(ClientLog, "log", lambda self, *words: (lines.append(words[-1]), log(self, *words)))
    settings = ClientSettings(servers, {})
    clients = [create_client(kind, settings, {"group.id": "g"} if kind == "consumer" else {})
               for kind in ("admin", "consumer", "producer")]  # fmt: skip
    with KafkaLog(f"kafka://{servers}", {"default.api.timeout.ms": 3000}) as log_of_cluster:
        with pytest.raises(LogUnavailableError, match="Are the brokers running"):
            log_of_cluster.topics()
        for client in clients:
            client.poll(0.2)
    assert len(lines) > 10  # that the library has written
    assert len(told(caplog)) == 1
    assert re.match(rf"Kafka at {servers} does not answer: Connect to \S+ failed: .*\. Trying again$", told(caplog)[0])


def test_the_next_line_comes_ten_seconds_later_and_says_how_many_were_left_out(servers, caplog, monkeypatch):
    times = [0.0, 1.0, INTERVAL - 0.1, INTERVAL, INTERVAL + 1]
    limit = RateLimit(iter(times).__next__)
    monkeypatch.setattr(client_log, "limit_of", lambda servers: limit)
    for _ in times:
        ClientLog(servers).log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#producer-1", "down")
    line = f"Kafka at {servers} does not answer: down. Trying again"
    assert told(caplog) == [line, f"{line} (2 more lines in between)"]


def test_slots_leave_it_to_the_driver(servers, caplog, monkeypatch):
    monkeypatch.setattr(client_log, "_is_left_to_driver", False)
    leave_to_driver()
    ClientLog(servers).log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#producer-1", "down")
    assert told(caplog) == []


@pytest.mark.parametrize(
    "command",
    [
        "topics list",
        "topics describe --topic orders",
        "groups list",
        "consume --topic orders",
        "produce --topic orders",
    ],
)
def test_a_command_prints_one_sentence_and_gives_up(servers, command, capfd, tmp_path):
    config = tmp_path / "client.properties"  # a shorter patience than the five seconds of a command
    config.write_text("default.api.timeout.ms=300\n")
    arguments = [*command.split(), "--bootstrap-server", servers, "--command-config", str(config)]
    assert exit_code(arguments) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"headrace: .* got no answer: .* Are the brokers running, and reachable, .*\?\n", err)


def test_a_command_waits_for_five_seconds_and_its_config_may_say_more(servers, tmp_path):
    config = tmp_path / "client.properties"
    config.write_text("default.api.timeout.ms=30000\n")
    for given, seconds in ((None, 5.0), (config, 30.0)):
        log = log_at(None, servers, given)
        assert isinstance(log, KafkaLog)
        assert log._settings.timeout == seconds
        log.close()
