"""PostgreSQL, MariaDB and SQLite: what is in the table equals what was delivered, whatever happens on the way."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from headrace import Record
from headrace.checkpoint.sink_delivery import SinkTarget
from headrace.checkpoint.storage import open_storage
from headrace.connect import DeltaSink, FileSink, PostgresSink, Sink, SqlSink, list_files
from headrace.errors import RecordsRejectedError, SinkUnavailableError, StreamsError, summarize
from headrace.log.open import open_log
from headrace.model.ids import TopicPartition
from headrace.model.sink import SinkBatch, SinkContext, SinkPart
from headrace.serde.internal import ROW
from headrace.testing import check_sink
from headrace.testing.sinks import deliver, sample_batches
from tests.connect.test_sink_delivery import Host, lines_above_debug

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_column_that_the_table_does_not_have_is_named(postgres, mode):
    sink = PostgresSink(postgres.dsn, f"counts_{mode}", key="id", mode=mode, create={"id": str, "count": int})
    with (
        closing(sink.open(context("counts"))) as writer,
        pytest.raises(
            StreamsError, match=r"has no column 'value'; it has id, count\. A value without fields is in"
        ) as caught,
    ):
        writer.write(batch(1, Record("a", 7, 0)))
    assert not caught.value.retriable


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


def make_strict(kind: str, request: pytest.FixtureRequest, tmp_path: Path, table: str) -> tuple[Sink, Callable]:
    """A sink whose target rejects a row, and a function that returns the rows of the target."""
    if kind == "postgres":
        server = request.getfixturevalue(kind)
        connect: Any = psycopg.connect
        with closing(connect(server.dsn, autocommit=True)) as connection:
            connection.execute(f"create table {table} (id text, n bigint not null)")
        return PostgresSink(server.dsn, table, key="id"), lambda: rows(server, f"select n from {table}")  # noqa: S608
    if kind == "mariadb":
        engine = sa.create_engine(request.getfixturevalue(kind).url)
        with engine.begin() as connection:
            connection.execute(sa.text(f"create table {table} (id varchar(9), n bigint not null)"))

        def read() -> list:
            with engine.connect() as connection:
                return [tuple(row) for row in connection.execute(sa.text(f"select n from {table}"))]  # noqa: S608

        return SqlSink(request.getfixturevalue(kind).url, table, key="id"), read
    lake = str(tmp_path / table)
    if kind == "delta":
        schema = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int64(), nullable=False)])
        return DeltaSink(lake, key="id", create=schema), lambda: [
            (row["n"],) for row in DeltaTable(lake).to_pyarrow_table().to_pylist()
        ]
    return FileSink(lake, format="json", key="id", schema={"id": str, "n": int}), lambda: [
        (json.loads(line)["n"],) for file in list_files(lake) for line in Path(lake, file).read_text().splitlines()
    ]


@pytest.mark.parametrize("policy", ["fail", "continue", "dead_letter"])
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "delta", "files"])
def test_a_rejected_record_goes_where_the_policy_says(request, tmp_path, kind, policy):
    bad = "many" if kind == "files" else None  # no number, or a null where none may be
    sink, read = make_strict(kind, request, tmp_path, f"policy_{policy}")
    target = SinkTarget(name="s", sink=sink, node="s", key=ROW, value=ROW, on_rejected=policy, dead_letter_topic="dead")
    batches = [Record("a", {"n": 1}, 0), Record("b", {"n": bad}, 0)], [Record("c", {"n": 3}, 0)]
    with closing(open_log(f"file:{tmp_path}/log", {})) as log:
        host = Host(open_storage("memory:///"), log, {"s": target}, max_undelivered=0)
        if policy == "fail":
            with pytest.raises(RecordsRejectedError, match=r"reject|does not fit"):
                host.commit(*batches[0])
            assert sorted(read()) in ([], [(1,)])  # of a batch of two parts, that of the other may be there
            host.coordinator.abandon()
            return
        for records in batches:
            host.commit(*records)
        (report,) = host.coordinator.sinks.reports()
        assert (report.records, report.rejected, report.error) == (2, 1, None)
        host.coordinator.close()
        assert sorted(read()) == [(1,), (3,)]
        letters = [] if policy == "continue" else next(iter(log.read(TopicPartition("dead", 0), 0))).rows()
        assert [ROW.decode(letter[2] or b"") for letter in letters] == [{"n": bad}] * (policy == "dead_letter")


@pytest.mark.parametrize("policy", ["fail", "continue", "dead_letter"])
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "files"])
def test_the_message_of_a_target_which_quotes_a_record_is_not_in_the_log(request, tmp_path, caplog, kind, policy):
    caplog.set_level(logging.DEBUG, "headrace")
    table, card = f"quoting_{policy}", "4111-1111"
    records = [Record(card, {"n": 1}, 0), Record(card, {"n": 2}, 0)]  # a key that is there
    if kind == "postgres":
        connect: Any = psycopg.connect
        dsn = request.getfixturevalue(kind).dsn
        with closing(connect(dsn, autocommit=True)) as connection:
            connection.execute(f"create table {table} (id text primary key, n bigint)")
        sink, named = PostgresSink(dsn, table, key="id"), "duplicate key value violates unique constraint"
    elif kind == "mariadb":
        url = request.getfixturevalue(kind).url
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text(f"create table {table} (id varchar(20) primary key, n bigint)"))
        engine.dispose()
        sink, named = SqlSink(url, table, key="id"), "IntegrityError 1062"
    else:
        records = [Record("a", {"n": card}, 0)]
        sink = FileSink(str(tmp_path / table), format="json", key="id", schema={"id": str, "n": int})
        named = "does not fit the schema"
    target = SinkTarget(name="s", sink=sink, node="s", key=ROW, value=ROW, on_rejected=policy, dead_letter_topic="dead")
    with closing(open_log(f"file:{tmp_path}/log", {})) as log:
        host = Host(open_storage("memory:///"), log, {"s": target}, max_undelivered=0)
        if policy == "fail":
            with pytest.raises(RecordsRejectedError, match=card) as raised:
                host.commit(*records)
            host.coordinator.abandon()
            said = summarize(raised.value)
        else:
            host.commit(*records)
            host.coordinator.close()
            assert card in caplog.text  # at DEBUG
            said = lines_above_debug(caplog)
    assert named in said
    assert card not in said + lines_above_debug(caplog)


def test_a_value_of_another_type_is_not_in_the_log(postgres):
    sink = PostgresSink(postgres.dsn, "typed_wrongly", key="id", create=COLUMNS)
    with (
        closing(sink.open(context("typed_wrongly"))) as writer,
        pytest.raises(RecordsRejectedError, match="4111-1111") as raised,
    ):
        writer.write(batch(1, Record("a", {"n": "4111-1111"}, 0)))
    assert summarize(raised.value) == (
        "the table typed_wrongly of PostgreSQL rejects a record: InvalidTextRepresentation"
    )


def test_a_connection_that_is_lost_while_rows_are_copied_does_not_quote_them_in_the_log(postgres):
    sink = PostgresSink(postgres.dsn, "lost", key="id", create=COLUMNS)
    connect: Any = psycopg.connect
    with closing(sink.open(context("lost"))) as writer, closing(connect(postgres.dsn, autocommit=True)) as connection:
        connection.execute(
            "create function end_it() returns trigger language plpgsql as "
            "'begin perform pg_terminate_backend(pg_backend_pid()); return new; end'"
        )
        connection.execute("create trigger ending before insert on lost for each row execute function end_it()")
        with pytest.raises(SinkUnavailableError) as raised:
            writer.write(batch(1, Record("4111-1111", {"n": 1}, 0)))
    assert "terminating connection" in summarize(raised.value)
    assert "4111-1111" not in summarize(raised.value)


def test_a_server_that_is_not_there_is_said_to_be_away():
    with pytest.raises(SinkUnavailableError, match="does not answer"):
        PostgresSink("postgresql://nobody@127.0.0.1:1/none", "t").open(context("t"))
