"""Sources of an application on Spark: a table of PostgreSQL is a live table, joined with orders from files."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace import Application, StreamsBuilder, serde
from headrace.connect import FileSource, PostgresChanges
from headrace.log.open import open_log
from headrace.model.ids import TopicPartition
from tests.connect.servers import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]
connect: Any = psycopg.connect


def application(directory: Path, dsn: str, slot: str) -> Application:
    builder = StreamsBuilder()
    customers = builder.table(source=PostgresChanges(dsn, "people", slot=slot), key=serde.LONG, store="people")
    orders = builder.stream(
        source=FileSource(str(directory / "in"), format="json", key_of="customer"), topic="orders", key=serde.LONG
    )
    orders.join(customers, lambda order, customer: [order["item"], customer["name"]]).to("named", value=serde.JSON)
    return Application(
        "shop", builder.build(), f"file:{directory}/log",
        checkpoint=str(directory / "checkpoint"), state_dir=str(directory / "state"), num_partitions=2,
    )  # fmt: skip


def people(app: Application) -> dict[int, str]:
    return {key: found.value["name"] for key, found in app.store("people").all()}


def execute(postgres: PostgresServer, *queries: str) -> None:
    with connect(postgres.dsn, autocommit=True) as database:
        for query in queries:
            database.execute(query)


def test_a_table_of_postgresql_is_a_live_table(tmp_path: Path, postgres: PostgresServer):
    (tmp_path / "in").mkdir()
    execute(postgres, "create table people (id int primary key, name text)")
    execute(postgres, "insert into people values (1, 'Ada'), (2, 'Bob')")
    with application(tmp_path, postgres.dsn, "live_table") as app:
        app.drain(120_000)
        assert people(app) == {1: "Ada", 2: "Bob"}
        postgres.kill()  # the source waits, and the status says so
        end = time.monotonic() + 60
        while app.report().sources[0].state != "RETRYING":
            assert time.monotonic() < end
        postgres.start()
    execute(postgres, "update people set name = 'Eve' where id = 1", "delete from people where id = 2")
    with application(tmp_path, postgres.dsn, "live_table") as app:
        app.drain(120_000)
        assert people(app) == {1: "Eve"}
        (tmp_path / "in" / "orders").write_text('{"customer": 1, "item": "tea"}\n{"customer": 2, "item": "jam"}\n')
        end = time.monotonic() + 60
        while app.report().sources[1].records < 2:
            assert time.monotonic() < end
        app.drain(120_000)
        assert app.report().sent == {"named": 1}
        # A tombstone and an update: no row came twice.
        assert [source[:4] for source in app.report().sources] == [
            ("people", "people", "RUNNING", 2), ("in", "orders", "RUNNING", 2)
        ]  # fmt: skip
    with closing(open_log(f"file:{tmp_path}/log")) as log:
        ends = log.ends([TopicPartition("named", 0), TopicPartition("named", 1)])
        assert sum(ends.values()) == 1
    PostgresChanges(postgres.dsn, "people", slot="live_table").drop()
