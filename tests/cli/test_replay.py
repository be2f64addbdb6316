"""`headrace replay` runs a topology over a range of the past, into topics with a prefix, and stops at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import Admin, Consumer, Producer, serde
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.storage import open_storage
from headrace.model.ids import TopicPartition
from tests.cli.commands import finished

PROGRAM = """
from headrace import Application, StreamsBuilder, serde

builder = StreamsBuilder()
orders = builder.stream("orders", key=serde.STRING, value=serde.STRING)
orders.group_by_key().count(store="counts").to_stream().map_values(str).to("counts", value=serde.STRING)
app = Application("shop", builder.build(), log="file:./data")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM, encoding="utf-8")
    log = f"file:{tmp_path}/data"
    with Admin(log) as admin, Producer(log, key=serde.STRING, value=serde.STRING) as producer:
        admin.create_topic("orders", partitions=2)
        for second in range(20):
            producer.send("orders", f"customer {second % 2}", "x", partition=second % 2, timestamp=1000 * second)
    return tmp_path


@pytest.mark.spark
def test_a_range_of_the_past_is_processed_and_nothing_else(folder: Path):
    span = ("--from", "1970-01-01T00:00:04", "--to", "1970-01-01T00:00:10", "--into", "again-")
    done = finished("replay", "shop:app", *span, "--master", "local[2]", "--json", cwd=folder)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [(row["partition"], row["from"], row["to"]) for row in found["ranges"]] == [(0, 2, 5), (1, 2, 5)]
    ledger = recover_ledger(open_storage(folder / "again-shop-checkpoint"), 1)
    assert ledger.positions == {TopicPartition("orders", partition): 5 for partition in (0, 1)}
    log = f"file:{folder}/data"
    with Admin(log) as admin, Consumer(log, value=serde.STRING, auto_offset_reset="earliest") as consumer:
        assert sorted(admin.topics()) == ["again-counts", "orders"]
        consumer.subscribe("again-counts")
        assert sorted(record.value for record in consumer.poll(1000))[-2:] == ["3", "3"]
    again = finished("replay", "shop:app", *span, cwd=folder)
    assert (again.code, "has a checkpoint already" in again.err) == (1, True)


def test_a_range_must_have_a_length(headrace, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    outcome = headrace("replay", "shop:app", "--into", "p-", "--from", "2026-01-02", "--to", "2026-01-01")
    assert (outcome.code, "--to 2026-01-01 is not after --from 2026-01-02" in outcome.err) == (2, True)
