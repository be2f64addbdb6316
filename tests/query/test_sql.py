"""SQL on a store, without Spark: queries of all shapes run, and everything else is rejected."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headrace import Application, UnsuitableQueryError
from headrace.checkpoint.storage import DiskStorage
from headrace.cli import options
from headrace.cli.main import exit_code
from headrace.query.export import Column
from headrace.query.follower import Follower
from headrace.query.sql import run_query, select
from tests.query.programs import THREE, every_kind, started
from tests.query.sql_attacks import FORBIDDEN, SQLITE


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    place = tmp_path_factory.mktemp("sql") / "checkpoint"
    cluster = started(THREE, storage=DiskStorage(place), limit=2)
    cluster.run()
    cluster.close()
    return place


def asked(checkpoint, sql, store="counts", topology=None):
    follower = Follower.open(checkpoint, topology)
    return select(follower, follower.refresh(), store, sql)


QUERIES = {
    "select count(*) from store": [(7,)],
    'select sum(value) as total from "counts"': [(30,)],
    "select sum(value) as total from `counts`": [(30,)],
    "SELECT max(Value) FROM Store WHERE key IN (SELECT key FROM Counts WHERE value > 4)": [(5,)],
    "with big as (select * from store where value > 4) select key from big order by key": [("k0",), ("k1",)],
    "with recursive n(x) as (select 1 union all select x + 1 from n where x < 3) select sum(x) from n": [(6,)],
    "select k from (select key k, row_number() over (order by value desc, key) n from store) where n = 1": [("k0",)],
    "with t(n) as (values (1), (2)) select n from t where false union select 7 limit 1": [(7,)],
    "values (1), (2)": [(1,), (2,)],
    "-- a comment\nselect json_extract('{\"a\": 5}', '$.a')": [(5,)],
    "select sum(value) from json_each('[1, 2]')": [(3,)],
}


@pytest.mark.parametrize("sql", QUERIES)
def test_queries_of_all_shapes_run(checkpoint, sql):
    assert asked(checkpoint, sql).rows == QUERIES[sql]


def test_every_kind_of_store_is_a_table_with_all_its_entries(checkpoint):
    follower = Follower.open(checkpoint)
    windows = asked(checkpoint, "select * from store", "windows")
    assert windows.columns == ["key", "window_start", "window_end", "value", "timestamp", "partition"]
    expected = [(at.key, *at.window, *value) for at, value in follower.store("windows").all()]
    assert sorted(row[:-1] for row in windows.rows) == sorted(expected)
    sessions = asked(checkpoint, "select key, window_start from store", "sessions", every_kind())
    assert len(sessions.rows) == len(list(follower.store("sessions").all()))
    assert asked(checkpoint, "select value ->> 'value' from store where key = 'k1'", "plain").rows == [("v29",)]


def test_types_survive_and_columns_of_one_name_are_told_apart():
    columns = [Column("key", "binary"), Column("value", "boolean"), Column("timestamp", "bigint")]
    found = run_query("select key, value, value, timestamp from store", "s", columns, [(b"\0", True, 1 << 62)])
    assert found.columns == ["key", "value", "value_2", "timestamp"]
    assert found.rows == [(b"\0", True, True, 1 << 62)]


@pytest.mark.parametrize("sql", [*FORBIDDEN, *SQLITE])
def test_sql_reads_the_store_and_neither_files_nor_writes_them(checkpoint, tmp_path, sql):
    secret, out = tmp_path / "secret", tmp_path / "out"
    secret.write_text("hunter2")
    with pytest.raises(UnsuitableQueryError) as rejected:
        asked(checkpoint, sql.format(secret=secret, out=out))
    assert "one SELECT that reads the store" in str(rejected.value)
    assert "hunter2" not in str(rejected.value)
    assert list(tmp_path.iterdir()) == [secret]


def test_the_command_prints_columns_under_their_names(checkpoint, capsys):
    wanted = ["query", "windows", "--checkpoint", str(checkpoint), "--sql"]
    assert exit_code([*wanted, "select window_start, value from store order by 1 limit 1"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["window_start", "value"]
    assert exit_code([*wanted, "select count(*) as n from store", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["n"] > 0
    assert exit_code([*wanted, "select from nowhere"]) == 1
    assert "The table is called store" in capsys.readouterr().err
    assert exit_code(["query", "windows", "--checkpoint", str(checkpoint), "--spark"]) == 2


@pytest.mark.slow
def test_sql_needs_no_spark(checkpoint):
    """A process that cannot import PySpark runs it."""
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "from headrace.cli.main import exit_code\n"
        f"sys.exit(exit_code(['query', 'counts', '--checkpoint', {str(checkpoint)!r}, '--sql', 'select 6 * 7 as n']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["n", "42"]), done.stderr


def test_an_application_names_its_checkpoint(checkpoint, monkeypatch, capsys, tmp_path):
    app = Application("every-kind", every_kind(), log=f"file:{tmp_path}/log", checkpoint=str(checkpoint))
    monkeypatch.setattr(options, "load", lambda program: app)
    assert exit_code(["query", "counts", "k0", "--topology", "shop:app", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"key": "k0", "value": 5}]
    monkeypatch.setattr(options, "load", lambda program: every_kind())
    monkeypatch.delenv("HEADRACE_CHECKPOINT", raising=False)
    assert exit_code(["query", "counts", "k0", "--topology", "shop:build"]) == 2
    assert "name an Application" in capsys.readouterr().err
