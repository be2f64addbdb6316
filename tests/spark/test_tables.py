"""Stores as DataFrames: what they hold is what a follower says."""

from __future__ import annotations

import json

import pytest

from headrace.checkpoint.storage import DiskStorage
from headrace.cli.main import exit_code
from headrace.query import Follower, UnknownStoreError
from headrace.spark.session import session
from headrace.spark.store_frames import read_store, select
from tests.query.programs import THREE, every_kind, started

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
    assert exit_code(["query", "counts", "--checkpoint", str(checkpoint), "--sql", sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"key": "k0"}, {"key": "k1"}]
    assert exit_code(["query", "counts", "--checkpoint", str(checkpoint), "--sql", "select from nowhere"]) == 1
    assert "The table is called store" in capsys.readouterr().err
