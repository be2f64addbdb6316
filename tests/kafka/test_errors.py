"""What a cluster refuses, or cannot do at the moment: each is named, with what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.errors import LogUnavailableError, RecordTooLargeError
from headrace.log.kafka import KafkaLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from tests.kafka.acls import allow

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
ONE = Records([b"k"], [b"v"], [1])


@pytest.fixture(scope="module")
def broker(guarded: KafkaBroker) -> KafkaBroker:
    with KafkaLog(guarded.address) as log:
        log.create_topic("a")
    return guarded


@pytest.fixture
def log(broker: KafkaBroker) -> Iterator[KafkaLog]:
    """The log as bob sees it."""
    with KafkaLog(broker.secured, broker.settings_of("bob")) as log:
        yield log


# --------------------------------------------------------------------------------------------------------- users
def test_users_come_in_with_tls_and_a_password_and_do_what_they_may(broker: KafkaBroker):
    for kind, name in (("TOPIC", "ours"), ("TOPIC", "app-delivered"), ("TRANSACTIONAL_ID", "app-delivery")):
        allow(broker, "ada", kind, name, "ALL")
    allow(broker, "ada", "TRANSACTIONAL_ID", "app-delivery-next", "ALL")
    with KafkaLog(broker.secured, broker.settings_of("ada")) as log:
        log.create_topic("ours")
        at = TopicPartition("ours", 0)
        assert log.append([(at, ONE)]) == [0]
        assert log.deliver("app", 0, [(at, ONE)])
        assert [row[2] for chunk in log.read(at, 0) for row in chunk.rows()] == [b"v", b"v"]


def test_users_come_in_with_scram(broker: KafkaBroker):
    settings = broker.settings_of("ada", "SCRAM-SHA-512")
    with KafkaLog(broker.secured, settings) as log:
        log.topics()
    with (
        KafkaLog(broker.secured, {**settings, "sasl.password": "guessed"}) as log,
        pytest.raises(LogUnavailableError, match="listing the topics was refused: the credentials are not accepted"),
    ):
        log.topics()


@pytest.mark.parametrize(
    "change, says",
    [
        ({"sasl.password": "guessed"}, "listing the topics was refused: the credentials are not accepted"),
        ({"ssl.ca.location": None}, r"refused: no secure connection can be made .*certificate verify failed"),
    ],
)
def test_who_is_not_let_in_is_told_at_once_and_why(broker: KafkaBroker, change: dict[str, Any], says: str):
    settings = {**broker.settings_of("ada"), **change}
    with (
        KafkaLog(broker.secured, {name: value for name, value in settings.items() if value is not None}) as log,
        pytest.raises(LogUnavailableError, match=says),
    ):
        log.topics()


def test_who_comes_without_a_login_is_asked_about_it(broker: KafkaBroker):
    """The broker ends the connection without a word, so the error looks like that of a broker which is away."""
    with (
        KafkaLog(broker.secured, {"default.api.timeout.ms": 1000}) as log,
        pytest.raises(LogUnavailableError, match=r"got no answer: .* is security\.protocol what they expect\?"),
    ):
        log.topics()


# ---------------------------------------------------------------------------------------------------------- ACLs
REFUSALS: list[tuple[str, Callable[[KafkaLog], Any]]] = [
    ("describing the topic 'a' was refused: an ACL for the topic", lambda log: log.topic("a")),
    ("the topic 'b' was refused: an ACL for the topic", lambda log: log.create_topic("b")),
]


@pytest.mark.parametrize("says, call", REFUSALS)
def test_an_acl_that_is_missing_is_named_with_what_it_is_for(log: KafkaLog, says: str, call: Callable[[KafkaLog], Any]):
    with pytest.raises(LogUnavailableError, match=says):
        call(log)


def test_acls_that_are_missing_for_reading_and_writing_are_named(broker: KafkaBroker, log: KafkaLog):
    with KafkaLog(broker.address) as other:
        for name in ("mute", "bob-delivered"):
            other.create_topic(name)
        other.append([(TopicPartition("mute", 0), ONE)])
    allow(broker, "bob", "TOPIC", "mute", "DESCRIBE", "DESCRIBE_CONFIGS")
    allow(broker, "bob", "TOPIC", "bob-delivered", "ALL")
    at = TopicPartition("mute", 0)
    with pytest.raises(LogUnavailableError, match=r"the group 'g' was refused: an ACL for the group"):
        log.committed("g")
    with pytest.raises(LogUnavailableError, match=r"reading mute-0 was refused: an ACL for the topic"):
        list(log.read(at, 0))
    with pytest.raises(LogUnavailableError, match=r"appending to mute-0 was refused: an ACL for the topic"):
        log.append([(at, ONE)])
    with pytest.raises(LogUnavailableError, match=r"as 'bob-delivery' was refused: an ACL for the transactional id"):
        log.deliver("bob", 0, [(at, ONE)])
    allow(broker, "bob", "TRANSACTIONAL_ID", "bob-delivery", "ALL")
    with pytest.raises(LogUnavailableError, match=r"as 'bob-delivery-next' was refused: an ACL for the transactional"):
        log.deliver("bob", 0, [(at, ONE)])
    allow(broker, "bob", "TRANSACTIONAL_ID", "bob-delivery-next", "ALL")
    with pytest.raises(LogUnavailableError, match=r"a delivery as 'bob-delivery(-next)?' to mute was refused: an ACL"):
        log.deliver("bob", 0, [(at, ONE)])
    allow(broker, "bob", "TOPIC", "mute", "WRITE")
    assert log.deliver("bob", 0, [(at, ONE)])


# --------------------------------------------------------------------------------------------------------- sizes
def alter_and_apply(log: KafkaLog, size: int) -> None:
    """A broker applies changes in their order: once it shows a later topic, it has applied the setting."""
    log.alter_config("narrow", {"max.message.bytes": size})
    log.create_topic(f"after-{size}")


def test_a_record_that_is_too_large_is_named_with_its_topic_also_when_the_limit_came_later(broker: KafkaBroker):
    at, large = TopicPartition("narrow", 0), Records([b"k"], [bytes(5000)], [1])
    with KafkaLog(broker.address) as log:
        log.create_topic("narrow")
        assert log.deliver("size", 0, [(at, large)])
        with KafkaLog(broker.address) as other:
            alter_and_apply(other, 1000)
        with pytest.raises(RecordTooLargeError, match="narrow-0"):
            log.deliver("size", 1, [(at, large)])
        assert log.delivered("size") == 0
        with KafkaLog(broker.address) as other:
            alter_and_apply(other, 100_000)
        assert log.deliver("size", 1, [(at, large)])
        assert len([row for chunk in log.read(at, 0) for row in chunk.rows()]) == 2
