"""An application whose user lacks one ACL: the error names what is missing, and with all ACLs it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Application, StreamsBuilder, StreamsError, Topology, serde
from headrace.log.kafka import KafkaLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from tests.kafka.acls import allow, forbid

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

APP, USER = "ada-app", "ada"
# As docs/running.md lists them, but for DescribeConfigs of the marker topic, without which a run succeeds.
NEEDED = [
    ("TOPIC", "acl-in", "READ"),
    ("TOPIC", "acl-out", "WRITE"),
    ("TOPIC", "acl-out", "DESCRIBE_CONFIGS"),
    ("TOPIC", f"{APP}-delivered", "CREATE"),
    ("TOPIC", f"{APP}-delivered", "READ"),
    ("TOPIC", f"{APP}-delivered", "WRITE"),
    ("TRANSACTIONAL_ID", f"{APP}-delivery", "WRITE"),
    ("TRANSACTIONAL_ID", f"{APP}-delivery-next", "WRITE"),
    ("GROUP", APP, "READ"),
]


def counting() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("acl-in", key=serde.STRING, value=serde.STRING)
    words.group_by_key().count(store="counts").to_stream().map_values(str).to("acl-out", value=serde.STRING)
    return builder.build()


def run(broker: KafkaBroker, folder: Path) -> None:
    settings = {**broker.settings_of(USER, "SCRAM-SHA-512"), "statestore.cache.max.bytes": 0}
    Application(
        APP, counting(), broker.secured, checkpoint=str(folder / "checkpoint"), state_dir=str(folder / "state"),
        config=settings,
    ).run_available()  # fmt: skip


def test_every_acl_that_is_missing_is_named(guarded: KafkaBroker, tmp_path: Path):
    with KafkaLog(guarded.address) as log:
        for topic in ("acl-in", "acl-out"):
            log.create_topic(topic)
        log.append([(TopicPartition("acl-in", 0), Records([b"a"] * 2, [b"word"] * 2, [1, 2]))])
        for acl in NEEDED:
            allow(guarded, USER, *acl)
        for number, (kind, name, operation) in enumerate(NEEDED):
            forbid(guarded, USER, kind, name, operation)
            with pytest.raises(StreamsError) as raised:
                run(guarded, tmp_path / str(number))
            said = str(raised.value)
            assert name in said, (operation, said)
            assert f"an ACL for the {kind.lower().replace('_', ' ')} is missing" in said, (operation, said)
            allow(guarded, USER, kind, name, operation)
            if f"{APP}-delivered" in log.topics():
                log.delete_topic(f"{APP}-delivered")
        run(guarded, tmp_path / "all")
        rows = [row[2] for chunk in log.read(TopicPartition("acl-out", 0), 0) for row in chunk.rows()]
        assert rows == [b"1", b"2"]
