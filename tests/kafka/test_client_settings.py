"""Settings of clients reach Kafka's clients, and replication factors reach the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.clients import Admin, Consumer, Producer
from headrace.errors import ConfigError, LogUnavailableError
from headrace.log.kafka import KafkaLog
from headrace.testing import KafkaBroker
from tests.cli.commands import Here
from tests.kafka.acls import allow

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def login(guarded: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the settings with which ada may use the topics `letters` and `words`, and the group `readers`."""
    for kind, name in (("TOPIC", "letters"), ("TOPIC", "words"), ("GROUP", "readers")):
        allow(guarded, "ada", kind, name, "ALL")
    file = tmp_path_factory.mktemp("login") / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in guarded.settings_of("ada").items()))
    return file


def test_the_clients_take_a_mapping_or_a_file(guarded: KafkaBroker, login: Path):
    log, settings = guarded.secured, guarded.settings_of("ada")
    with Admin(log, config=settings) as admin:
        assert admin.create_topic("letters", partitions=2, replication_factor=1).partitions == 2
    with Producer(log, config=login) as producer:
        producer.send("letters", b"k", b"v").result()
    with Consumer(log, "readers", auto_offset_reset="earliest", config=str(login)) as consumer:
        consumer.subscribe("letters")
        assert [record.value for record in consumer.poll(30_000)] == [b"v"]
    with (
        Admin(log, config={**settings, "sasl.password": "guessed"}) as admin,
        pytest.raises(LogUnavailableError, match="the credentials are not accepted"),
    ):
        admin.topics()


def test_the_console_tools_take_a_file(guarded: KafkaBroker, login: Path, capfd: pytest.CaptureFixture[str]):
    headrace, server = Here(capfd), guarded.secured.removeprefix("kafka://")
    access = ("--bootstrap-server", server, "--command-config", login)
    made = headrace("topics", "create", "--topic", "words", *access)
    assert (made.code, made.err) == (0, "Created topic words.\n")
    with Producer(guarded.secured, config=login) as producer:
        producer.send("words", None, b"hello").result()
    read = headrace("consume", "--topic", "words", "--from-beginning", "--max-messages", "1", *access)
    assert (read.code, read.out) == (0, "hello\n")
    assert headrace("doctor", "--json", *access).out.count(f"{server}, ") == 1


def test_the_console_tools_take_a_password_from_the_environment(
    guarded: KafkaBroker,
    login: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    kept = [line for line in login.read_text().splitlines() if not line.startswith("sasl.password")]
    (tmp_path / "client.properties").write_text("\n".join([*kept, "default.api.timeout.ms=60000"]))
    options = ("--log", guarded.secured, "--command-config", str(tmp_path / "client.properties"))
    monkeypatch.setenv("HEADRACE_SASL_PASSWORD", guarded.settings_of("ada")["sasl.password"])
    assert Here(capfd)("topics", "list", *options).code == 0
    monkeypatch.setenv("HEADRACE_SASL_PASSWORD", "guessed")
    assert "the credentials are not accepted" in Here(capfd)("topics", "list", *options).err


def test_a_replication_factor_reaches_the_cluster_and_its_error_comes_back(
    guarded: KafkaBroker, capfd: pytest.CaptureFixture[str]
):
    refused = Here(capfd)(
        "topics", "create", "--topic", "copied", "--replication-factor", "3", "--log", guarded.address
    )
    assert refused.code == 1
    assert "creating the topic 'copied' failed" in refused.err
    assert "INVALID_REPLICATION_FACTOR" in refused.err
    with Admin(guarded.address) as admin:
        assert "copied" not in admin.topics()
        with pytest.raises(ConfigError, match="INVALID_REPLICATION_FACTOR"):
            admin.create_topic("copied", replication_factor=2)


def test_topics_that_headrace_creates_have_the_replication_factor_of_the_settings(guarded: KafkaBroker):
    with (
        KafkaLog(guarded.address, {"replication.factor": 3}) as log,
        pytest.raises(ConfigError, match=r"'copies-delivered' failed.*INVALID_REPLICATION_FACTOR"),
    ):
        log.deliver("copies", 0, [])
    with KafkaLog(guarded.address, {"replication.factor": 1}) as log:
        assert log.deliver("copies", 0, [])


def test_a_login_in_the_form_of_java_says_what_to_give():
    with (
        Admin("kafka://127.0.0.1:1", config={"sasl.jaas.config": "x"}) as admin,
        pytest.raises(ConfigError, match=r"Give sasl\.username and sasl\.password instead$"),
    ):
        admin.topics()
