"""An application whose user lacks one ACL: the error names what is missing, and with all ACLs it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Application, StreamsBuilder, StreamsError, Topology, serde
from headrace.log.kafka import KafkaLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from tests.kafka.acls import allow, forbid

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

APP, USER = "ada-app", "ada"
CHANGELOG = f"{APP}-counts-changelog"
Acl = tuple[str, str, str]
# As docs/running.md lists them, but for DescribeConfigs of the marker topic, without which a run succeeds.
NEEDED: list[Acl] = [
    ("TOPIC", "acl-in", "READ"),
    ("TOPIC", "acl-out", "WRITE"),
    ("TOPIC", "acl-out", "DESCRIBE_CONFIGS"),
    ("TOPIC", "acl-dead", "WRITE"),
    ("TOPIC", "acl-dead", "DESCRIBE_CONFIGS"),
    ("TOPIC", f"{APP}-delivered", "CREATE"),
    ("TOPIC", f"{APP}-delivered", "READ"),
    ("TOPIC", f"{APP}-delivered", "WRITE"),
    ("TRANSACTIONAL_ID", f"{APP}-delivery", "WRITE"),
    ("TRANSACTIONAL_ID", f"{APP}-delivery-next", "WRITE"),
    ("GROUP", APP, "READ"),
]
# If two slots deliver the shares of a batch.
SHARES: list[Acl] = [("TRANSACTIONAL_ID", f"{APP}-delivery-{share}", "WRITE") for share in range(2)]
IN_SHARES = {"delivery.job.min.bytes": 1, "num.stream.threads": 2}
# For `headrace changelogs`.
EXPORT: list[Acl] = [("TOPIC", CHANGELOG, operation) for operation in ("CREATE", "WRITE", "DESCRIBE_CONFIGS")]
READ_CHANGELOG: Acl = ("TOPIC", CHANGELOG, "READ")


def counting() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("acl-in", key=serde.STRING, value=serde.STRING).map_values(checked)
    words.group_by_key().count(store="counts").to_stream().map_values(str).to("acl-out", value=serde.STRING)
    return builder.build()


def checked(value: str) -> str:
    if value == "bad":
        raise ValueError(value)
    return value


def make_application(broker: KafkaBroker, folder: Path, **config: Any) -> Application:
    settings = {
        **broker.settings_of(USER, "SCRAM-SHA-512"),
        "statestore.cache.max.bytes": 0,
        "processing.exception.handler": "dead_letter",
        "errors.dead.letter.queue.topic.name": "acl-dead",
        **config,
    }
    return Application(
        APP, counting(), broker.secured, checkpoint=str(folder / "checkpoint"), state_dir=str(folder / "state"),
        config=settings,
    )  # fmt: skip


@pytest.fixture
def log(guarded: KafkaBroker) -> Iterator[KafkaLog]:
    with KafkaLog(guarded.address) as log:
        begin_anew(log)
        for acl in NEEDED:
            allow(guarded, USER, *acl)
        yield log
        forget(log)


def begin_anew(log: KafkaLog) -> None:
    forget(log)
    for topic in ("acl-in", "acl-out", "acl-dead"):
        log.create_topic(topic, 2)
    for partition in range(2):
        records = Records([b"k%d" % partition] * 3, [b"word", b"word", b"bad"], [1, 2, 3])
        log.append([(TopicPartition("acl-in", partition), records)])


def forget(log: KafkaLog) -> None:
    for topic in ("acl-in", "acl-out", "acl-dead", f"{APP}-delivered", CHANGELOG):
        delete(log, topic)
    if APP in log.groups():
        log.delete_group(APP)


def delete(log: KafkaLog, topic: str) -> None:
    if topic in log.topics():
        log.delete_topic(topic)


def check_missing(broker: KafkaBroker, acl: Acl, run: Callable[[], Any]) -> None:
    """Without the ACL the error names it."""
    kind, name, operation = acl
    forbid(broker, USER, *acl)
    with pytest.raises(StreamsError) as raised:
        run()
    said = str(raised.value)
    assert name in said, (operation, said)
    assert f"an ACL for the {kind.lower().replace('_', ' ')} is missing" in said, (operation, said)
    allow(broker, USER, *acl)


def values(log: KafkaLog, topic: str) -> list[bytes]:
    chunks = [chunk for partition in range(2) for chunk in log.read(TopicPartition(topic, partition), 0)]
    return sorted(row[2] or b"" for chunk in chunks for row in chunk.rows())


def test_every_acl_that_is_missing_is_named(guarded: KafkaBroker, log: KafkaLog, tmp_path: Path):
    for number, acl in enumerate(NEEDED):
        check_missing(guarded, acl, make_application(guarded, tmp_path / str(number)).run_available)
        delete(log, f"{APP}-delivered")
    make_application(guarded, tmp_path / "all").run_available()
    assert values(log, "acl-out") == [b"1", b"1", b"2", b"2"]
    assert values(log, "acl-dead") == [b"bad", b"bad"]


def test_every_acl_for_shares_that_is_missing_is_named(guarded: KafkaBroker, log: KafkaLog, tmp_path: Path):
    for acl in SHARES:
        allow(guarded, USER, *acl)
    for number, acl in enumerate(SHARES):
        check_missing(guarded, acl, make_application(guarded, tmp_path / str(number), **IN_SHARES).run_available)
        begin_anew(log)  # the other share was delivered
    make_application(guarded, tmp_path / "all", **IN_SHARES).run_available()
    assert values(log, "acl-out") == [b"1", b"1", b"2", b"2"]


def test_every_acl_for_changelogs_that_is_missing_is_named(guarded: KafkaBroker, log: KafkaLog, tmp_path: Path):
    app = make_application(guarded, tmp_path / "first")
    app.run_available()
    for acl in (*EXPORT, READ_CHANGELOG):
        allow(guarded, USER, *acl)
    for acl in EXPORT:
        check_missing(guarded, acl, app.write_changelogs)
        delete(log, CHANGELOG)
    app.write_changelogs()
    check_missing(guarded, READ_CHANGELOG, app.write_changelogs)  # it reads what the topic has already
    # As if a Java application had written the changelog: a new checkpoint begins with its state.
    delete(log, f"{APP}-delivered")
    log.append([(TopicPartition("acl-in", 0), Records([b"k0"], [b"word"], [4]))])
    check_missing(guarded, READ_CHANGELOG, make_application(guarded, tmp_path / "without").run_available)
    delete(log, f"{APP}-delivered")
    make_application(guarded, tmp_path / "second").run_available()
    assert values(log, "acl-out") == [b"1", b"1", b"2", b"2", b"3"]
