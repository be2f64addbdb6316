"""`headrace connect`: sources of a pipeline file, and a real Kafka Connect worker with Debezium."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from headrace import serde
from headrace.connect.pipeline import parse_pipeline
from headrace.errors import ConfigError
from headrace.log.open import open_log
from headrace.model.ids import TopicPartition
from tests.cli.commands import finished
from tests.cli.conftest import headrace
from tests.kafka.fixtures import broker_address

__all__ = ["broker_address", "headrace"]
connect: Any = psycopg.connect
DEBEZIUM = "io.debezium:debezium-connector-postgres:3.3.1.Final"
PIPELINE = """
name = "shop"
log = "file:{directory}/log"

[[source]]
type = "FileSource"
files = "${{SHOP}}/*.csv"
format = "csv"
topic = "orders"
key_of = "id"
key = "STRING"
"""


def test_a_pipeline_reads_what_is_there_once(tmp_path, headrace, monkeypatch):
    monkeypatch.setenv("SHOP", str(tmp_path))
    (tmp_path / "a.csv").write_text("id,item\n1,tea\n2,jam\n")
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(directory=tmp_path))
    first = headrace("connect", "run", tmp_path / "pipeline.toml", "--once", "--json")
    assert first.code == 0, first.err
    (report,) = json.loads(first.out)
    assert (report["topic"], report["state"], report["records"]) == ("orders", "STOPPED", 2)
    assert json.loads(headrace("connect", "run", tmp_path / "pipeline.toml", "--once", "--json").out)[0]["records"] == 0
    with closing(open_log(f"file:{tmp_path}/log")) as log:
        rows = [row for chunk in log.read(TopicPartition("orders", 0), 0) for row in chunk.rows()]
    assert [(row[1], serde.JSON.decode(row[2])) for row in rows if row[2]] == [
        (b"1", {"id": "1", "item": "tea"}), (b"2", {"id": "2", "item": "jam"})
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source, message",
    [
        ({}, "needs a type"),
        ({"type": "Files"}, "no source 'Files'.*FileSource"),
        ({"type": "FileSink"}, "no source 'FileSink'"),
        ({"type": "no_such_module:Source"}, "no_such_module.* cannot be imported"),
        ({"type": "FileSource", "files": "x", "options": {"region": "${NO_SUCH_VARIABLE}"}}, "NO_SUCH_VARIABLE"),
        ({"type": "FileSource", "file": "x"}, "FileSource: .*file"),
        ({"type": "FileSource", "files": "x", "key": "TEXT"}, "no serde 'TEXT'.*STRING"),
        ({"type": "FileSource", "files": "${NO_SUCH_VARIABLE}"}, "no variable NO_SUCH_VARIABLE"),
    ],
)
def test_mistakes_in_a_pipeline_are_explained(source, message):
    with pytest.raises(ConfigError, match=message):
        parse_pipeline({"name": "shop", "source": [source]})


@pytest.mark.kafka
@pytest.mark.slow
def test_a_connect_worker_runs_debezium(tmp_path, postgres, broker_address):
    """The changes of a table arrive in a topic, as `serde.debezium` reads them."""
    with connect(postgres.dsn, autocommit=True) as database:
        database.execute("create table parts (id int primary key, name text)")
        database.execute("insert into parts values (1, 'nut')")
    config = {
        "name": "parts",
        "config": {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput", "slot.name": "debezium_parts", "publication.name": "debezium_parts",
            "database.hostname": "127.0.0.1", "database.port": postgres.port, "database.user": "postgres",
            "database.password": "none", "database.dbname": "postgres", "topic.prefix": "debezium",
            "table.include.list": "public.parts", "publication.autocreate.mode": "filtered",
        },
    }  # fmt: skip
    (tmp_path / "parts.json").write_text(json.dumps(config))
    place = ["--directory", tmp_path / "worker"]
    start = ["connect", "start", "--log", broker_address, "--plugin", DEBEZIUM, *place]
    try:
        started = finished(*start, "--config", tmp_path / "parts.json", "--json")
        assert started.code == 0, started.err
        assert json.loads(started.out)["connectors"] == ["parts"]
        with closing(open_log(broker_address)) as log:
            await_rows(log, [{"id": 1, "name": "nut"}])
            status = json.loads(finished("connect", "status", "--json", *place).out)
            assert [(c["name"], c["state"], c["tasks"]) for c in status["connectors"]] == [
                ("parts", "RUNNING", ["RUNNING"])
            ]
            with connect(postgres.dsn, autocommit=True) as database:
                database.execute("insert into parts values (2, 'bolt')")
            await_rows(log, [{"id": 1, "name": "nut"}, {"id": 2, "name": "bolt"}])
        again = finished(*start, "--port", "1")
        assert (again.code, again.out) == (0, f"{status['url']}\n")
        other = finished("connect", "start", "--log", "kafka://127.0.0.1:1", *place)
        assert "a worker runs in" in other.err
    finally:
        ended = finished("connect", "stop", *place)
        with connect(postgres.dsn, autocommit=True) as database:
            database.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
                "where slot_name = 'debezium_parts' and not active"
            )
    assert ended.code == 0, ended.err
    assert finished("connect", "status", *place).code == 1


def await_rows(log, expected):
    rows, end = [], time.monotonic() + 120
    while rows != expected:
        assert time.monotonic() < end, f"{rows} is not {expected}"
        if "debezium.public.parts" in log.topics():
            chunks = log.read(TopicPartition("debezium.public.parts", 0), 0)
            rows = [serde.debezium().decode(row[2]) for chunk in chunks for row in chunk.rows() if row[2] is not None]
        time.sleep(0.2)
