"""PostgreSQL, MariaDB and SQLite: what is in the table equals what was delivered, whatever happens on the way."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import pytest
import sqlalchemy as sa

from headrace import Record
from headrace.checkpoint.storage import open_storage
from headrace.connect import PostgresSink, SqlSink
from headrace.errors import RecordsRejectedError, SinkUnavailableError
from headrace.log.open import open_log
from headrace.model.sink import SinkBatch, SinkContext, SinkPart
from headrace.testing import check_sink
from headrace.testing.sinks import deliver, sample_batches

COLUMNS = {"id": str, "n": int}


def batch(number: int, *records: Record, part: str = "0_0") -> SinkBatch:
    return SinkBatch(number, (SinkPart(part, 0, records, [(i,) for i in range(len(records))]),))


def context(sink: str, checkpoint: str = "c1") -> SinkContext:
    return SinkContext(application="shop", sink=sink, checkpoint=checkpoint)


def latest() -> list[tuple[str, int]]:
    """The rows that an upsert of the sample batches leaves."""
    rows: dict[str, dict] = {}
    for record in (record for some in sample_batches() for record in some):
        rows[record.key] = record.value
    return sorted((key, value["n"]) for key, value in rows.items() if value is not None)


# ------------------------------------------------------------------------------------------------- killed at every step
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_postgres_has_every_record_once_after_kills_at_every_step(postgres, mode):
    def make(name):
        table = f"{mode}_{name}"
        sink = PostgresSink(postgres.dsn, table, key="id", mode=mode, create=COLUMNS)
        return sink, lambda: rows(postgres, f"select id, n from {table}")  # noqa: S608

    killed = check_sink(make)
    assert killed["before sink token"] == killed["after sink token"] == killed["before sink commit"] == 2
    found = sorted(rows(postgres, f"select id, n from {mode}_undisturbed"), key=repr)  # noqa: S608
    every = [(record.key, record.value and record.value["n"]) for some in sample_batches() for record in some]
    assert found == (latest() if mode == "upsert" else sorted(every, key=repr))


def rows(postgres, query):
    with closing(psycopg.connect(postgres.dsn)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_other_databases_have_every_record_once_after_kills_at_every_step(request, tmp_path, kind, mode):
    url = f"sqlite:///{tmp_path}/db" if kind == "sqlite" else request.getfixturevalue("mariadb").url

    def read(table):
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            found = [tuple(row) for row in connection.execute(sa.text(f"select id, n from {table}"))]  # noqa: S608
        engine.dispose()
        return found

    def make(name):
        table = f"{mode}_{name}"
        return SqlSink(url, table, key="id", mode=mode, create=COLUMNS), lambda: read(table)

    killed = check_sink(make)
    assert killed["before sink token"] == 2
    if mode == "upsert":
        assert sorted(read("upsert_undisturbed")) == latest()


# ---------------------------------------------------------------------------------------------- a server that goes away
def test_a_server_that_is_killed_in_the_middle_gets_the_rest_when_it_is_back(postgres, tmp_path, caplog):
    batches, seen = sample_batches(), []

    def at_step(moment):
        if moment == "before sink token":
            seen.append(moment)
            if len(seen) == 3:
                postgres.kill()  # in the middle of a transaction
        if moment == "before sink write" and len(seen) == 3:
            postgres.start()
            seen.append("started")

    sink = PostgresSink(postgres.dsn, "outage", key="id", create=COLUMNS)
    with closing(open_log(f"file:{tmp_path}/log", {})) as log:
        deliver(open_storage("memory:///"), log, sink, "outage", batches, at_step)
    assert "started" in seen
    assert "asked again" in caplog.text
    every = [(record.key, record.value and record.value["n"]) for some in batches for record in some]
    assert sorted(rows(postgres, "select id, n from outage"), key=repr) == sorted(every, key=repr)


# --------------------------------------------------------------------------------------------------------------- tokens
def test_a_part_that_the_target_has_is_left_out_and_another_is_written(postgres):
    sink = PostgresSink(postgres.dsn, "two_parts", key="id", create=COLUMNS)
    with closing(sink.open(context("two_parts"))) as writer:
        writer.write(batch(7, Record("a", {"n": 1}, 0), part="0_0"))
        both = (*batch(7, Record("a", {"n": 1}, 0)).parts, *batch(7, Record("b", {"n": 2}, 0), part="0_1").parts)
        writer.write(SinkBatch(7, both))
        writer.write(SinkBatch(6, both))
    assert sorted(rows(postgres, "select id, n from two_parts")) == [("a", 1), ("b", 2)]


def test_batches_of_another_checkpoint_do_not_count(postgres):
    sink = PostgresSink(postgres.dsn, "reset", key="id", create=COLUMNS)
    for checkpoint in ("old", "old", "new"):
        with closing(sink.open(context("reset", checkpoint))) as writer:
            writer.write(batch(7, Record("a", {"n": 1}, 0)))
    assert rows(postgres, "select id, n from reset") == [("a", 1)] * 2


# ---------------------------------------------------------------------------------------------------------------- types
@dataclass
class Order:
    product: str
    price: Decimal
    tags: list[str]
    details: dict[str, int]
    at: datetime


def test_a_table_is_made_of_a_type(postgres):
    order = Order("tea", Decimal("2.50"), ["green", 'a "b"'], {"grams": 100}, datetime(2026, 1, 2, tzinfo=UTC))
    sink = PostgresSink(postgres.dsn, "typed", key="id", timestamp="written", create=Order)
    with closing(sink.open(context("typed"))) as writer:
        writer.write(batch(1, Record("k", order, 1_000)))
    ((key, product, price, tags, details, at, written),) = rows(postgres, "select * from typed")
    assert (key, product, price, tags) == ("k", "tea", Decimal("2.50"), ["green", 'a "b"'])
    assert details == {"grams": 100}
    assert at == order.at
    assert written == datetime.fromtimestamp(1, UTC)


# ------------------------------------------------------------------------------------------------------------- rejected
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_the_records_that_a_table_rejects_are_found_and_nothing_is_written(request, kind):
    server = request.getfixturevalue(kind)
    if kind == "postgres":
        sink = PostgresSink(server.dsn, "strict", key="id", create=COLUMNS)
        with closing(psycopg.connect(server.dsn, autocommit=True)) as connection:
            connection.execute("create table strict (id text primary key, n bigint not null check (n >= 0))")
    else:
        sink = SqlSink(server.url, "strict", key="id")
        engine = sa.create_engine(server.url)
        with engine.begin() as connection:
            connection.execute(sa.text("create table strict (id varchar(9) primary key, n bigint not null)"))
        engine.dispose()
    bad = [Record("b", {"n": None}, 0), Record("a", {"n": 4}, 0)]  # no value, and a key that is there
    records = [Record("a", {"n": 1}, 0), bad[0], Record("c", {"n": 3}, 0), bad[1]]
    with closing(sink.open(context("strict"))) as writer:
        with pytest.raises(RecordsRejectedError) as raised:
            writer.write(batch(1, *records))
        assert [record for record, _ in raised.value.records] == bad
    with closing(sink.open(context("strict"))) as writer:
        writer.write(batch(1, records[0], records[2]))
        writer.write(batch(2, Record("d", {"n": 5}, 0)))


def test_a_server_that_is_not_there_is_said_to_be_away():
    with pytest.raises(SinkUnavailableError, match="does not answer"):
        PostgresSink("postgresql://nobody@127.0.0.1:1/none", "t").open(context("t"))
