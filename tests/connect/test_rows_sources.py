"""Files and SQL tables as sources: what is in them is in the topic, each row once, whatever crashes."""

from __future__ import annotations

import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy

from headrace.connect import FileSource, SqlSource
from headrace.errors import ConfigError
from headrace.testing import check_source

pytestmark = pytest.mark.slow

ROWS = [{"order": str(number), "city": city} for number, city in enumerate(["Rome", "Oslo", "Lima", "Rome", "Bonn"])]


def write(directory, kind):
    """Two files of five rows, and some that are not for the source."""
    first, second = directory / "a", directory / "b"
    (directory / ".hidden").write_text("x")
    (directory / "c.tmp").write_text("x")
    parts = ((first, ROWS[:3]), (second, ROWS[3:]))
    for file, rows in parts:
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), file)
        elif kind == "json":
            file.write_bytes(
                b"".join(b'{"order": "%s", "city": "%s"}\n' % (r["order"].encode(), r["city"].encode()) for r in rows)
            )
        elif kind == "csv":
            file.write_text("order,city\r\n" + "".join(f'{row["order"]},"{row["city"]}"\r\n' for row in rows))
        else:
            file.write_text("\n".join(row["city"] for row in rows))


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_every_row_of_every_file_is_written_once(tmp_path, kind):
    write(tmp_path, kind)
    check_source(lambda: FileSource(str(tmp_path), format=kind, key_of="order"), [(row["order"], row) for row in ROWS])


def test_lines_from_a_bucket(tmp_path):
    write(tmp_path, "lines")
    check_source(lambda: FileSource(f"file://{tmp_path}/*"), [(None, row["city"]) for row in ROWS])


def test_files_are_deleted_when_the_log_has_them(tmp_path):
    write(tmp_path, "csv")
    source = FileSource(f"{tmp_path}/[ab]", format="csv", after="delete")
    reader = source.open(None)
    batch = reader.read(2, 0)
    assert batch is not None
    reader.acknowledge(batch.position)
    assert (tmp_path / "a").exists()
    while (batch := reader.read(2, 0)) is not None:
        reader.acknowledge(batch.position)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".hidden", "c.tmp"]
    (tmp_path / "a").write_text("order,city\n9,Kiel\n")  # a new file under an old name
    batch = reader.read(2, 0)
    assert batch is not None
    assert [record.value for record in batch.records] == [{"order": "9", "city": "Kiel"}]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a").write_text("{")
    with pytest.raises(ConfigError, match=r"a cannot be read as json: .* Remove it, or give another format="):
        FileSource(str(tmp_path), format="json").open(None).read(10, 0)
    with pytest.raises(ConfigError, match="format is one of"):
        FileSource(str(tmp_path), format="xml")  # pyright: ignore[reportArgumentType]
    (tmp_path / "a").write_text("order\n1\n")
    with pytest.raises(ConfigError, match="key_of='city': there is no such field"):
        FileSource(str(tmp_path), format="csv", key_of="city").open(None).read(10, 0)


def test_the_rows_of_a_table_of_sqlite(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table orders (id integer primary key, city text, price numeric(8, 2), day date)")
        database.executemany(
            "insert into orders values (?, ?, 1.5, '2026-11-17')", [(3, "Rome"), (1, "Oslo"), (2, "Lima")]
        )
    database.close()
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    cities = {1: "Oslo", 2: "Lima", 3: "Rome"}
    check_source(
        lambda: SqlSource(url, "orders", column="id", key_of="id"),
        [(n, {"id": n, "city": c, "price": "1.50", "day": "2026-11-17"}) for n, c in cities.items()],
    )
    with pytest.raises(ConfigError, match="no table 'returns'"):
        SqlSource(url, "returns", column="id").open(None)
    with pytest.raises(ConfigError, match="no column 'number'"):
        SqlSource(url, "orders", column="number").open(None)


@pytest.mark.slow
def test_the_rows_of_a_table_of_mariadb_by_a_time(mariadb):
    engine = sqlalchemy.create_engine(mariadb.url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table visits (at datetime(6) primary key, city text)"))
        for second in range(3):
            row = {"at": f"2026-11-17 08:00:0{second}.5"}
            connection.execute(sqlalchemy.text("insert into visits values (:at, 'Rome')"), row)
    engine.dispose()
    rows = [{"at": f"2026-11-17T08:00:0{second}.500000", "city": "Rome"} for second in range(3)]
    check_source(lambda: SqlSource(mariadb.url, "visits", column="at"), [(None, row) for row in rows])
