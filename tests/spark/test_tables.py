"""Stores as DataFrames: what they hold is what a follower says."""

from __future__ import annotations

import json

import pytest

from headrace.checkpoint.storage import DiskStorage
from headrace.cli.main import exit_code
from headrace.query import Follower, UnknownStoreError, UnsuitableQueryError
from headrace.spark.session import session
from headrace.spark.store_frames import read_store, select
from tests.query.programs import THREE, every_kind, started
from tests.query.sql_attacks import FORBIDDEN

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    return session()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables") / "checkpoint"
    cluster = started(THREE, storage=DiskStorage(place), limit=2)
    cluster.run()
    cluster.close()
    return place


def rows(frame):
    return sorted(tuple(row.asDict().values()) for row in frame.drop("partition").collect())


def test_every_kind_of_store_is_a_table(spark, checkpoint):
    follower = Follower.open(checkpoint)
    counts = read_store(spark, checkpoint, "counts")
    assert counts.columns == ["key", "value", "timestamp", "partition"]
    assert rows(counts) == [(key, *value) for key, value in follower.store("counts").all()]
    assert counts.where("value > 4").count() == 2
    windows = read_store(spark, checkpoint, "windows")
    assert rows(windows) == sorted((at.key, *at.window, *value) for at, value in follower.store("windows").all())
    sessions = read_store(spark, checkpoint, "sessions", topology=every_kind())
    assert sessions.columns == ["key", "window_start", "window_end", "value", "partition"]
    versions = read_store(spark, checkpoint, "versions")
    assert rows(versions) == [(key, *record[:2]) for key, record in follower.store("versions").latest()]
    assert rows(read_store(spark, checkpoint, "plain"))[1] == ("k1", '{"value":"v29","at":290}')


def test_an_earlier_batch_is_a_table_too(spark, checkpoint):
    follower = Follower.open(checkpoint)
    before = follower.refresh().batch - 1
    earlier = read_store(spark, checkpoint, "counts", batch=before)
    assert rows(earlier) == [(key, *value) for key, value in follower.snapshot_at(before).store("counts").all()]


def test_a_store_that_is_not_there_is_told_at_once(spark, checkpoint):
    with pytest.raises(UnknownStoreError):
        read_store(spark, checkpoint, "nothing")


def test_a_table_is_asked_in_sql_by_the_name_store_or_its_own(spark, checkpoint, capsys):
    own = select(spark, checkpoint, "counts", "select sum(value) as total from `counts`")
    assert [tuple(row) for row in own.collect()] == [(30,)]
    sql = "select key from store where value > 4 order by key"
    assert exit_code(["query", "counts", "--spark", "--checkpoint", str(checkpoint), "--sql", sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"key": "k0"}, {"key": "k1"}]
    wrong = ["--sql", "select from nowhere"]
    assert exit_code(["query", "counts", "--spark", "--checkpoint", str(checkpoint), *wrong]) == 1
    assert "The table is called store" in capsys.readouterr().err


QUERIES = {
    "select count(*) from store": [(7,)],
    "with big as (select * from store where value > 4) select key from big order by key": [("k0",), ("k1",)],
    "select max(value) from store where key in (select key from `counts` where value > 4)": [(5,)],
    "from store |> where value > 4 |> aggregate count(*)": [(2,)],
    "select x from store lateral view explode(array(1, 2)) t as x group by x order by x limit 1": [(1,)],
    "select id from range(3) union select 7 order by id desc limit 1": [(7,)],
    "select k from (select key k, row_number() over (order by value desc, key) n from store) where n = 1": [("k0",)],
    "select t.n from values (1), (2) as t(n) where exists (select 1 from store where value > t.n + 3)": [(1,)],
}


@pytest.mark.parametrize("sql", QUERIES)
def test_queries_of_all_shapes_run(spark, checkpoint, sql):
    assert [tuple(row) for row in select(spark, checkpoint, "counts", sql).collect()] == QUERIES[sql]


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_sql_reads_the_store_and_neither_files_nor_writes_them(spark, checkpoint, tmp_path, sql):
    secret, out = tmp_path / "secret", tmp_path / "out"
    secret.write_text("hunter2")
    with pytest.raises(UnsuitableQueryError) as rejected:
        select(spark, checkpoint, "counts", sql.format(secret=secret, out=out)).collect()
    assert "one SELECT that reads the store" in str(rejected.value)
    assert "hunter2" not in str(rejected.value)
    assert list(tmp_path.iterdir()) == [secret]


def test_a_query_leaves_the_session_as_it_was(spark, checkpoint):
    select(spark, checkpoint, "counts", "select 1")
    assert not spark.catalog.tableExists("store")
    assert spark.conf.get("spark.sql.runSQLOnFiles") == "true"
