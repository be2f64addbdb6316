"""`backfill=True` on a Kafka cluster, with both triggers: a new store is filled from what the topics still have."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace import Admin, Application, Consumer, Producer, StreamsBuilder, serde
from headrace.config.parsing import Trigger
from headrace.query.follower import Follower, view_latest

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
LONGS: dict[str, Any] = {"key": serde.STRING, "value": serde.LONG}


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_a_new_store_has_what_was_read_before_and_only_new_results_are_written(
    broker_address: str, tmp_path: Path, trigger: Trigger
):
    name = f"filled-{uuid4().hex[:8]}"
    with Admin(broker_address) as admin:
        for topic in (name, f"{name}-totals"):
            admin.create_topic(topic, partitions=2)
    for has_totals in (False, True):
        start = 200 * has_totals
        with Producer(broker_address, **LONGS) as producer:
            for number in range(start, start + 200):
                producer.send(name, f"{'abc'[number % 3]}{number % 7}", number)
        Application(
            name, count_orders(name, has_totals=has_totals), broker_address, trigger=trigger, backfill=True,
            checkpoint=str(tmp_path / "checkpoint"), state_dir=str(tmp_path / "state"), batch_max_records=50,
        ).run_available()  # fmt: skip
    expected = {letter: sum(range(place, 400, 3)) for place, letter in enumerate("abc")}
    assert read(tmp_path, "totals") == expected
    assert sum(read(tmp_path, "counts").values()) == 400
    with Consumer(broker_address, value=serde.LONG, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(f"{name}-totals")
        written = [record.value for record in consumer.poll(10_000)]
    assert len(written) <= 200
    assert max(expected.values()) in written
    assert min(written) > sum(range(0, 200, 3)) // 2  # the first results stand on the history


def count_orders(name: str, *, has_totals: bool) -> Any:
    builder = StreamsBuilder()
    orders = builder.stream(name, **LONGS)
    orders.group_by_key().count(store="counts")
    if has_totals:
        by_letter = orders.group_by(lambda key, amount: key[:1], **LONGS)
        totals = by_letter.reduce(lambda total, amount: total + amount, store="totals")
        totals.to_stream().to(f"{name}-totals", value=serde.LONG)
    return builder.build()


def read(folder: Path, store: str) -> dict[str, int]:
    follower = Follower.open(str(folder / "checkpoint"))
    return {key: value.value for key, value in view_latest(store, follower.refresh).all()}
