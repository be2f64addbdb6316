"""Every atomic sink, for tests that kill its process: how it is made, and how its target is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, NamedTuple

import obstore
import psycopg
import sqlalchemy as sa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from headrace import Record
from headrace.checkpoint.storage import open_storage, parse_object_url
from headrace.connect import (
    DeltaSink,
    FileSink,
    IcebergSink,
    LogSink,
    PostgresSink,
    Sink,
    SqlSink,
    list_files,
)
from headrace.connect.file_sink import open_store
from headrace.connect.parquet import read_parquet
from headrace.log.open import open_log
from headrace.serde.internal import ROW
from headrace.testing.sinks import deliver
from tests.connect.lives import KillAt

connect: Any = psycopg.connect
COLUMNS = {"id": str, "n": int}
Rows = list[tuple[Any, Any]]


class SinkCase(NamedTuple):
    """`make` gets the address of the target, the name of a table, and the mode; `read` returns its rows."""

    make: Callable[[str, str, Any], Sink]
    read: Callable[[str, str], Rows]
    server: str | None = None  # a fixture: the address is its `place`
    modes: tuple[str, ...] = ("append", "upsert")


def sample(batches: int) -> list[list[Record]]:
    """Batches of records; some delete a key. In all of them no number comes twice."""
    found: list[list[Record]] = [
        [Record(f"k{(7 * n + i) % 5}", {"n": 10 * n + i}, 1000 * n + i) for i in range(1 + n % 6)]
        for n in range(batches)
    ]
    for n in range(2, batches, 4):
        found[n].append(Record(f"k{n % 5}", None, 1000 * n + 999))
    return found


def expected_rows(batches: Iterable[Iterable[Record]], mode: str) -> Rows:
    records = [record for batch in batches for record in batch]
    if mode == "append":
        return in_order((record.key, record.value and record.value["n"]) for record in records)
    last = {record.key: record.value for record in records}
    return in_order((key, value["n"]) for key, value in last.items() if value is not None)


def in_order(rows: Iterable[tuple[Any, Any]]) -> Rows:
    return sorted(rows, key=repr)


# ------------------------------------------------------------------------------------------------------- how it is read
def read_postgres(dsn: str, table: str) -> Rows:
    with closing(connect(dsn)) as connection:
        return in_order(connection.execute(f"select id, n from {table}").fetchall())  # noqa: S608


def read_sql(url: str, table: str) -> Rows:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = [(row[0], row[1]) for row in connection.execute(sa.text(f"select id, n from {table}"))]  # noqa: S608
    engine.dispose()
    return in_order(found)


def below(place: str, name: str) -> str:
    """The address of something inside a directory or a bucket."""
    address, query, options = place.partition("?")
    return f"{address}/{name}{query}{options}"


def read_delta(place: str, table: str) -> Rows:
    address, options = below(place, table), None
    if "://" in place:
        address, options = parse_object_url(address, {})
    return in_order(
        (row["id"], row["n"]) for row in DeltaTable(address, storage_options=options).to_pyarrow_table().to_pylist()
    )


def read_files(place: str, table: str) -> Rows:
    directory = below(place, table)
    store = open_store(directory)
    files = [read_parquet(bytes(obstore.get(store, name).bytes())) for name in list_files(directory)]
    return in_order((row["id"], row["n"]) for file in files for row in file.to_pylist())


def catalog(place: str) -> dict[str, str]:
    dsn, _, folder = place.rpartition(" ")
    uri = dsn.replace("postgresql:", "postgresql+psycopg:") or f"sqlite:///{folder}/catalog.db"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/lake"}


def read_iceberg(place: str, table: str) -> Rows:
    with closing(load_catalog("default", **catalog(place))) as opened:
        try:
            rows = opened.load_table(f"shop.{table}").scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
    return in_order((row["id"], row["n"]) for row in rows)


def read_log(place: str, topic: str) -> Rows:
    address = place if place.startswith("kafka:") else f"file:{place}/other"
    with closing(open_log(address)) as log:
        rows = [row for at in log.extents([topic]) for chunk in log.read(at, 0) for row in chunk.rows()]
    return in_order((ROW.decode(row[1]), row[2] and ROW.decode(row[2])["n"]) for row in rows if row[1])


def make_log(place: str, topic: str, _mode: str) -> Sink:
    return LogSink(place if place.startswith("kafka:") else f"file:{place}/other", topic, partitions=2)


def make_postgres(dsn: str, table: str, mode: Any) -> Sink:
    return PostgresSink(dsn, table, key="id", mode=mode, create=COLUMNS)


def make_sql(url: str, table: str, mode: Any) -> Sink:
    return SqlSink(url, table, key="id", mode=mode, create=COLUMNS)


def make_delta(place: str, table: str, mode: Any) -> Sink:
    return DeltaSink(below(place, table), key="id", mode=mode, create=COLUMNS)


def make_iceberg(place: str, table: str, mode: Any) -> Sink:
    return IcebergSink(catalog(place), f"shop.{table}", key="id", mode=mode, create=COLUMNS)


def make_files(place: str, table: str, _mode: str) -> Sink:
    return FileSink(below(place, table), key="id", schema=COLUMNS)


SINKS = {
    "postgres": SinkCase(make_postgres, read_postgres, "postgres"),
    "mariadb": SinkCase(make_sql, read_sql, "mariadb"),
    "delta": SinkCase(make_delta, read_delta),
    "delta-s3": SinkCase(make_delta, read_delta, "s3"),
    "iceberg": SinkCase(make_iceberg, read_iceberg),
    "iceberg-postgres": SinkCase(make_iceberg, read_iceberg, "postgres"),
    "files": SinkCase(make_files, read_files, modes=("append",)),
    "files-s3": SinkCase(make_files, read_files, "s3", modes=("append",)),
    "log": SinkCase(make_log, read_log, modes=("append",)),
    "log-kafka": SinkCase(make_log, read_log, "kafka", modes=("append",)),
}


# ------------------------------------------------------------------------------------------------------------- one life
def deliver_batches(
    kind: str, place: str, address: str, table: str, mode: str, batches: int, moment: str | None = None, nth: int = 1,
    hold: str | None = None,
) -> None:  # fmt: skip
    """Goes on behind the last batch that was committed. `place` has the checkpoint and a log."""
    sink = SINKS[kind].make(address, table, mode)
    with closing(open_log(f"file:{place}/log", {})) as log:
        deliver(open_storage(f"{place}/checkpoint"), log, sink, table, sample(batches), KillAt(moment, nth, hold))
