"""An application on Spark whose slots write to PostgreSQL and Delta Lake; it is stopped, and goes on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from headrace import Admin, Application, Producer, StreamsBuilder, serde
from headrace.connect import DeltaSink, PostgresSink
from headrace.topology.builder import Topology

pytestmark = [pytest.mark.spark, pytest.mark.slow]
COLUMNS = {"id": str, "n": int}


def topology(dsn: str, lake: str) -> Topology:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serde.STRING, value=serde.JSON)
    numbers.sink(DeltaSink(lake, key="id", create=COLUMNS))
    numbers.to_table().sink(PostgresSink(dsn, "newest", key="id", mode="upsert", create=COLUMNS))
    return builder.build()


def send(log: str, first: int, last: int) -> None:
    with Producer(log) as producer:
        for n in range(first, last):
            producer.send("numbers", f"k{n % 10}", {"n": n}, key_serde=serde.STRING, value_serde=serde.JSON)


def test_slots_write_every_record_once_to_a_lake_and_a_database(postgres, tmp_path: Path):
    log, lake = f"file:{tmp_path}/log", str(tmp_path / "lake")
    Admin(log).create_topic("numbers", partitions=4)
    for first, last in ((0, 100), (100, 150)):
        send(log, first, last)
        # From one byte on, slots write the parts of a batch: the records do not pass through the driver.
        app = Application(
            "numbers", topology(postgres.dsn, lake), log, checkpoint=str(tmp_path / "checkpoint"),
            delivery_job_min_bytes=1, num_stream_threads=2, state_dir=str(tmp_path / "state"),
        )  # fmt: skip
        with app:
            app.drain()
            sinks = {sink.name: sink for sink in app.report().sinks}
            assert (sinks["lake"].waiting, sinks["lake"].error) == (0, None)
            assert sinks["lake"].records == last - first
    table = DeltaTable(lake)
    assert sorted(row["n"] for row in table.to_pyarrow_table().to_pylist()) == list(range(150))
    batches = [commit.get("headrace.batch") for commit in table.history()]
    assert len(batches) == len(set(batches))  # one commit for each
    with closing(psycopg.connect(postgres.dsn)) as connection:
        newest = connection.execute("select id, n from newest").fetchall()
        parts = connection.execute("select part from headrace_batches where owner = 'numbers/newest'").fetchall()
    assert sorted(newest) == [(f"k{n}", 140 + n) for n in range(10)]
    assert len(parts) > 1
