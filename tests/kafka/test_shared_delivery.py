"""An application on Spark whose batches are delivered to Kafka by Spark jobs, in shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace import StreamsBuilder, Topology, serde
from headrace.app import Application
from headrace.checkpoint.ledger import manifest_numbers
from headrace.checkpoint.storage import open_storage
from headrace.errors import RecordTooLargeError
from headrace.log.open import open_log
from headrace.log.protocol import Log, Records
from headrace.model.ids import TopicPartition
from tests.spark.places import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

PARTITIONS, LINES = 3, 60
TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
SHARED = {"delivery.job.min.bytes": 1, "batch.max.records": 5, "statestore.cache.max.bytes": 0}


def topology(room: str) -> Topology:
    """Two levels, whose tasks write to partitions of each other, and to a topic that no task has seen before."""
    builder = StreamsBuilder()
    lines = builder.stream(f"{room}lines", **TEXTS)
    lines.map_values(str.upper).to(f"{room}loud", **TEXTS)
    lines.to(lambda key, value, context: f"{room}rare", **TEXTS)
    words = lines.flat_map_values(str.split).group_by(lambda _, word: word, **TEXTS)
    words.count(store="counts").to_stream().map_values(str).to(f"{room}counts", **TEXTS)
    return builder.build()


@pytest.fixture
def room() -> str:
    return f"shared-{uuid4().hex[:8]}-"


@pytest.fixture
def log(broker_address: str) -> Iterator[Log]:
    with closing(open_log(broker_address)) as log:
        yield log


def begin(log: Log, room: str) -> None:
    for topic in ("lines", "loud", "counts"):
        log.create_topic(f"{room}{topic}", PARTITIONS)
    for part in range(PARTITIONS):
        own = range(part, LINES, PARTITIONS)
        records = Records([b"%d" % n for n in own], [b"a b%d c%d" % (n % 4, n % 7) for n in own], [10 * n for n in own])
        log.append([(TopicPartition(f"{room}lines", part), records)])


def application(address: str, room: str, folder: Path, **config: Any) -> Application:
    return Application(
        f"{room}app", topology(room), address, checkpoint=str(folder / "checkpoint"), state_dir=str(folder / "state"),
        config={**SHARED, **config},
    )  # fmt: skip


def outputs(log: Log, room: str) -> dict[tuple[str, int], list[Any]]:
    names = [f"{room}{name}" for name in ("loud", "rare", "counts")]
    places = log.extents(names)
    rows = {at: [row[1:] for chunk in log.read(at, 0) for row in chunk.rows()] for at in places}
    return {(at.topic.removeprefix(room), at.partition): some for at, some in rows.items()}


def marks(log: Log, room: str) -> set[str]:
    at = TopicPartition(f"{room}app-delivered", 0)
    return {(row[1] or b"").decode().replace(room, "") for chunk in log.read(at, 0) for row in chunk.rows()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[Any]]:
    """What one process delivers to the embedded log."""
    folder = tmp_path_factory.mktemp("alone")
    with closing(open_log(f"file:{folder}/log")) as alone:
        begin(alone, "")
        application(f"file:{folder}/log", "", folder).run_available()
        return outputs(alone, "")


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_what_shares_deliver_is_what_one_process_delivers(
    log: Log,
    broker_address: str,
    room: str,
    tmp_path: Path,
    reference: dict[tuple[str, int], list[Any]],
    guarantee: str,
):
    begin(log, room)
    with application(broker_address, room, tmp_path, **{"processing.guarantee": guarantee}) as app:
        app.drain(timeout=60_000)
        assert app.metrics()["process-total"] == LINES
    assert outputs(log, room) == reference
    assert sum(map(len, reference.values())) == 5 * LINES
    lines = {TopicPartition(f"{room}lines", p): LINES // PARTITIONS for p in range(PARTITIONS)}
    assert log.committed(f"{room}app") == lines
    shared = {f"delivered {topic}-{p}" for topic in ("loud", "counts") for p in range(PARTITIONS)}
    known = marks(log, room)
    if guarantee == "exactly_once":
        assert shared | {"delivered rare-0", "barrier 0", "barrier 1"} <= known
    else:
        assert known == {"delivered", "barrier", "probe"}


def test_what_is_refused_in_a_share_stops_the_application_and_is_delivered_when_it_can_be(
    log: Log, broker_address: str, room: str, tmp_path: Path
):
    begin(log, room)
    log.append([(TopicPartition(f"{room}lines", 0), Records([b"k"], [b"long" * 10], [LINES * 10]))])
    log.alter_config(f"{room}loud", {"max.message.bytes": 85})  # enough for a task to write it, but not for the broker
    with (
        pytest.raises(RecordTooLargeError, match=f"{room}loud") as error,
        application(broker_address, room, tmp_path) as app,
    ):
        app.drain(timeout=60_000)
    assert "is committed in" in "".join(error.value.__notes__)
    log.alter_config(f"{room}loud", {"max.message.bytes": 1000})
    log.append([(TopicPartition(f"{room}lines", 0), Records([b"k"], [b"a b0 c0"], [LINES * 10]))])
    with application(broker_address, room, tmp_path) as app:
        wait_for(app, lambda: app.metrics()["process-total"] > 0)
    assert log.delivered(f"{room}app") == manifest_numbers(open_storage(tmp_path / "checkpoint"))[-1]
    assert sum(map(len, outputs(log, room).values())) == 5 * LINES + 3 + 5
