"""An application on Spark whose slots write to PostgreSQL and Delta Lake; it is stopped, and goes on."""

from __future__ import annotations

import json
import logging
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from headrace import Admin, Application, Producer, StreamsBuilder, serde
from headrace.checkpoint.sink_delivery import PartWriter
from headrace.connect import DeltaSink, PostgresSink
from headrace.errors import RecordsRejectedError
from headrace.query import Follower
from headrace.topology.builder import Topology
from headrace.web import ApplicationView, Server
from tests.cli.conftest import headrace
from tests.connect.test_sink_delivery import lines_above_debug
from tests.web.servers import ask

__all__ = ["headrace"]

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


def test_slots_write_every_record_once_to_a_lake_and_a_database(postgres, tmp_path: Path, monkeypatch):
    def write_here(*_):
        raise AssertionError("the driver has read records of a batch that slots have to write")

    monkeypatch.setattr(PartWriter, "write", write_here)  # in this process, which is the driver
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


def await_that(is_so) -> None:
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_database_that_is_stopped_is_visible_and_gets_the_rest_when_it_is_back(postgres, tmp_path, headrace):
    log, checkpoint = f"file:{tmp_path}/log", str(tmp_path / "checkpoint")
    Admin(log).create_topic("numbers", partitions=2)
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serde.STRING, value=serde.JSON)
    numbers.sink(PostgresSink(postgres.dsn, "stopped", key="id", create=COLUMNS))
    send(log, 0, 50)
    app = Application(
        "numbers", builder.build(), log, checkpoint=checkpoint, state_dir=str(tmp_path / "state"),
        sink_retry_backoff_max_ms=200,
    )  # fmt: skip
    with app, Server(ApplicationView(follower=Follower.open(checkpoint), application=app), insecure=True) as server:
        app.drain(120_000)
        postgres.stop()
        try:
            send(log, 50, 100)
            await_that(lambda: app.report().sinks[0].failures > 2)  # it is asked again and again
            (sink,) = app.report().sinks
            assert sink.is_away
            assert sink.waiting >= 1
            await_that(lambda: b'headrace_sink_away{sink="stopped"} 1.0' in ask(server.url, "/metrics").body)

            def shown() -> dict:
                return json.loads(headrace("status", "--checkpoint", checkpoint, "--json").out)

            await_that(lambda: any(sink["error"] is not None for sink in shown()["sinks"]))  # with the next heartbeat
            status = shown()
            assert not status["healthy"]
            assert status["verdict"].startswith("Waiting for stopped")
            assert "PostgreSQL" in status["sinks"][0]["error"]
        finally:
            postgres.start()
        app.drain(120_000)
        (sink,) = app.report().sinks
        assert (sink.records, sink.waiting, sink.error) == (100, 0, None)
    with closing(psycopg.connect(postgres.dsn)) as connection:
        assert sorted(connection.execute("select n from stopped").fetchall()) == [(n,) for n in range(100)]


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
@pytest.mark.parametrize("writer", ["driver", "slots"])
def test_a_record_that_a_database_rejects_is_neither_in_the_log_nor_in_the_health(
    postgres, tmp_path, caplog, writer, trigger
):
    caplog.set_level(logging.DEBUG, "headrace")
    log, checkpoint = f"file:{tmp_path}/log", str(tmp_path / "checkpoint")
    Admin(log).create_topic("numbers", partitions=1)
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serde.STRING, value=serde.JSON)
    table = f"rejecting_{writer}_{trigger.replace('-', '_')}"
    numbers.sink(PostgresSink(postgres.dsn, table, key="id", create=COLUMNS))
    with Producer(log) as producer:
        producer.send("numbers", "a", {"n": "4111-1111"}, key_serde=serde.STRING, value_serde=serde.JSON)
    app = Application(
        "numbers", builder.build(), log, checkpoint=checkpoint, state_dir=str(tmp_path / "state"), trigger=trigger,
        delivery_job_min_bytes=1 if writer == "slots" else 1 << 30,
    )  # fmt: skip
    view = ApplicationView(follower=Follower.open(checkpoint), application=app)
    with app, Server(view, insecure=True) as server:
        await_that(lambda: app.state in {app.State.PENDING_ERROR, app.State.ERROR})
        answer = ask(server.url, "/health")
        assert answer.status == 503
        assert b"4111" not in answer.body
        assert "4111-1111" in (app.report().error or "")
        with pytest.raises(RecordsRejectedError, match="4111-1111"):
            app.drain()
    said = lines_above_debug(caplog)
    assert f"numbers has stopped: the sink '{table}' rejects 1 of 1 records of batch" in said
    assert "4111" not in said
