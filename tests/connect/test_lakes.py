"""Delta Lake and Iceberg: one commit for each batch, and every record once after kills at every step."""

from __future__ import annotations

from contextlib import closing

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headrace.connect import DeltaSink, IcebergSink
from headrace.testing import check_sink
from headrace.testing.sinks import sample_batches
from tests.connect.test_databases import COLUMNS, latest

pytestmark = pytest.mark.slow


def all_rows() -> list[tuple]:
    return sorted(
        ((record.key, record.value and record.value["n"]) for some in sample_batches() for record in some), key=repr
    )


def as_tuples(rows: list[dict]) -> list[tuple]:
    return sorted(((row["id"], row["n"]) for row in rows), key=repr)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_delta_table_has_every_record_once_after_kills_at_every_step(tmp_path, mode):
    def read(name):
        return DeltaTable(str(tmp_path / name)).to_pyarrow_table().to_pylist()

    def make(name):
        sink = DeltaSink(str(tmp_path / name), key="id", mode=mode, create=COLUMNS)
        return sink, lambda: read(name)

    killed = check_sink(make)
    assert killed["before sink token"] == killed["after sink token"] == 2
    assert as_tuples(read("undisturbed")) == (all_rows() if mode == "append" else latest())
    commits = DeltaTable(str(tmp_path / "undisturbed")).history()
    assert [commit.get("headrace.batch") for commit in reversed(commits)] == [None, "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_an_iceberg_table_has_every_record_once_after_kills_at_every_step(tmp_path, mode):
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}

    def read(name):
        with closing(load_catalog("default", **catalog)) as opened:
            return opened.load_table(f"shop.{name}").scan().to_arrow().to_pylist()

    def make(name):
        sink = IcebergSink(catalog, f"shop.{name}", key="id", mode=mode, create=COLUMNS)
        return sink, lambda: read(name)

    killed = check_sink(make)
    assert killed["before sink token"] == 2
    assert as_tuples(read("undisturbed")) == (all_rows() if mode == "append" else latest())
