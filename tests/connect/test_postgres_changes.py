"""Change capture from a real PostgreSQL: the topic has every row and every change once, whatever crashes."""

from __future__ import annotations

import itertools
import os
import random
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from headrace.connect import PostgresChanges
from headrace.connect.source import SourceRunner
from headrace.errors import ConfigError
from headrace.log.embedded.file_log import FileLog
from headrace.testing.source_check import read_pairs
from headrace.topology.connectors import SourceSpec
from tests.connect.servers import PostgresServer

pytestmark = pytest.mark.slow
_numbers = itertools.count()
connect: Any = psycopg.connect  # it takes queries of any str then
RUNS = int(os.environ.get("HEADRACE_FAULTS", "2"))


class Killed(BaseException):
    pass


@pytest.fixture
def database(postgres: PostgresServer):
    """A connection with an empty table `customers` in a schema of its own."""
    schema = f"shop{next(_numbers)}"
    with connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
        connection.execute(f"set search_path to {schema}")
        connection.execute("create table customers (id int primary key, name text, balance numeric, active bool)")
        yield connection, f"{schema}.customers", f"{schema}_slot"


def source_of(postgres, table, slot):
    return PostgresChanges(postgres.dsn, table, slot=slot)


def runner_of(log, source, **options):
    spec = SourceSpec(source=source, topic="customers", key=source.key, value=source.value)
    options = {"max_records": 3, "read_timeout": 0.0, **options}
    return SourceRunner("shop-customers-source", spec, log, **options), spec


def run_to_end(runner):
    while not runner.is_caught_up:
        runner.advance()
    runner.close()


@contextmanager
def new_log(directory):
    with closing(FileLog(directory)) as log:
        yield log


def row(number, name: str | None = "a", balance: str | None = "1.50", active=True):
    return (number, {"id": number, "name": name, "balance": balance, "active": active})


def test_rows_then_changes_each_once(postgres, database, tmp_path):
    connection, table, slot = database
    connection.execute("insert into customers select n, 'a', 1.50, true from generate_series(1, 5) n")
    source = source_of(postgres, table, slot)
    with new_log(tmp_path) as log:
        runner, spec = runner_of(log, source)
        run_to_end(runner)
        connection.execute("update customers set name = 'b' where id = 1")
        with connection.transaction():
            connection.execute("delete from customers where id = 2")
            connection.execute("insert into customers values (6, null, null, false)")
        connection.execute("update customers set id = 7 where id = 3")
        run_to_end(runner_of(log, source)[0])
        assert read_pairs(log, spec) == [
            *map(row, range(1, 6)), row(1, "b"), (2, None), row(6, None, None, False), (3, None), row(7)
        ]  # fmt: skip
        held = connection.execute(
            "select confirmed_flush_lsn > '0/0' from pg_replication_slots where slot_name = %s", [slot]
        )
        assert held.fetchone() == (True,)
    source.drop()


def test_a_transaction_that_the_snapshot_has_seen_is_not_repeated(postgres, database, tmp_path):
    """A transaction is open while the slot is made, and one commits between the slot and the snapshot."""
    connection, table, slot = database
    connection.execute("insert into customers values (1, 'a', 1.50, true)")
    source = source_of(postgres, table, slot)
    with new_log(tmp_path) as log:
        runner, spec = runner_of(log, source, max_records=1)
        runner.advance()  # takes over
        connection.execute(f"create publication {slot} for table customers")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        connection.execute("insert into customers values (2, 'a', 1.50, true)")  # in the slot, and in the snapshot
        runner.advance()  # begins the snapshot
        connection.execute("insert into customers values (3, 'a', 1.50, true)")  # only in the slot
        connection.execute("update customers set name = 'late' where id = 2")
        run_to_end(runner)
        assert read_pairs(log, spec) == [row(1), row(2), row(3), row(2, "late")]
    source.drop()


def test_an_interrupted_snapshot_continues_and_changes_between_are_not_lost(postgres, database, tmp_path):
    connection, table, slot = database
    connection.execute("insert into customers select n, 'a', 1.50, true from generate_series(1, 6) n")
    source = source_of(postgres, table, slot)
    with new_log(tmp_path) as log:
        runner, spec = runner_of(log, source)
        for _ in range(3):  # takes over, opens, and writes the first three rows
            runner.advance()
        runner.close()
        connection.execute("update customers set name = 'b' where id in (2, 5)")  # before and behind the boundary
        connection.execute("delete from customers where id in (3, 6)")
        run_to_end(runner_of(log, source)[0])
        # What lies before the boundary comes as a change, what lies behind is in the second snapshot already.
        assert read_pairs(log, spec) == [
            row(1), row(2), row(3), row(4), row(5, "b"), row(2, "b"), (3, None)
        ]  # fmt: skip
    source.drop()


def test_a_large_transaction_is_written_in_parts(postgres, database, tmp_path):
    connection, table, slot = database
    source = source_of(postgres, table, slot)
    with new_log(tmp_path) as log:
        run_to_end(runner_of(log, source)[0])
        connection.execute("insert into customers select n, 'a', 1.50, true from generate_series(1, 10) n")
        runner, spec = runner_of(log, source)
        for _ in range(4):  # takes over, opens, and writes two parts
            runner.advance()
        runner.close()
        assert len(read_pairs(log, spec)) == 6
        run_to_end(runner_of(log, source)[0])
        assert read_pairs(log, spec) == [*map(row, range(1, 11))]
    source.drop()


def test_large_values_that_an_update_leaves_alone_are_complete(postgres, database, tmp_path):
    connection, _, slot = database
    connection.execute('create table notes (id int, part text collate "C", body text, primary key (id, part))')
    connection.execute("alter table notes alter body set storage external")
    connection.execute("insert into notes values (1, 'x', repeat('long', 4000))")
    schema = connection.execute("show search_path").fetchone()[0]
    source = source_of(postgres, f"{schema}.notes", slot)
    with new_log(tmp_path) as log:
        run_to_end(runner_of(log, source)[0])
        connection.execute("update notes set part = 'y'")
        runner, spec = runner_of(log, source)
        run_to_end(runner)
        body = "long" * 4000
        assert read_pairs(log, spec) == [
            ({"id": 1, "part": "x"}, {"id": 1, "part": "x", "body": body}),
            ({"id": 1, "part": "x"}, None),
            ({"id": 1, "part": "y"}, {"id": 1, "part": "y", "body": body}),
        ]
    source.drop()


def test_what_cannot_be_captured_is_refused(postgres, database, tmp_path):
    connection, table, slot = database
    connection.execute("create table heap (id int)")
    schema = connection.execute("show search_path").fetchone()[0]
    for missing, message in (("heap", "no primary key"), ("nothing", "no table")):
        with pytest.raises(ConfigError, match=message):
            source_of(postgres, f"{schema}.{missing}", slot).open(None)
    source = source_of(postgres, table, slot)
    with new_log(tmp_path) as log:
        run_to_end(runner_of(log, source)[0])
        source.drop()
        with pytest.raises(ConfigError, match=r"slot .* is gone"):
            run_to_end(runner_of(log, source)[0])


class Shop:
    """Commits transactions at random, each change with a version, until there are a hundred changes."""

    def __init__(self, dsn, table, chance):
        self._dsn, self._table, self._chance, self.versions = dsn, table, chance, 0

    @property
    def is_closed(self):
        return self.versions >= 100

    def change(self):
        with connect(self._dsn) as connection:
            for _ in range(self._chance.randint(1, 5)):
                self.versions += 1
                number = self._chance.randint(1, 30)
                connection.execute(
                    f"delete from {self._table} where id = %s"  # noqa: S608
                    if self._chance.random() < 0.3
                    else f"insert into {self._table} values (%s, 'a', 1, true, {self.versions}) on conflict (id) "  # noqa: S608
                    "do update set version = excluded.version",
                    [number],
                )

    def rows(self):
        with connect(self._dsn) as connection:
            return dict(connection.execute(f"select id, version from {self._table}").fetchall())  # noqa: S608


@pytest.mark.parametrize("seed", range(RUNS))
def test_crashes_at_random_steps_and_a_server_that_is_killed(seed, postgres, database, tmp_path):
    connection, table, slot = database
    chance = random.Random(f"{os.environ.get('HEADRACE_SEED', '')}-{seed}")  # noqa: S311
    connection.execute("alter table customers add column version int")
    connection.execute("insert into customers select n, 'a', 1, true, 0 from generate_series(1, 20) n")
    source, shop = source_of(postgres, table, slot), Shop(postgres.dsn, table, chance)
    is_server_due = True

    def disturb(moment):
        nonlocal is_server_due
        if is_server_due and shop.versions > 50:
            postgres.kill()
            postgres.start()
            is_server_due = False
        if not shop.is_closed:
            if chance.random() < 0.5:
                shop.change()
            if chance.random() < 0.15:
                raise Killed

    with new_log(tmp_path) as log:
        while True:
            runner, spec = runner_of(log, source, max_records=chance.randint(1, 5), at_step=disturb)
            try:
                while not (shop.is_closed and runner.is_caught_up):
                    runner.advance()
                break
            except Killed:
                continue
            finally:
                runner.close()
        found = read_pairs(log, spec)
    # Every version of a row is there once, in order, and the table of the topic is the table of the database.
    for number in range(1, 31):
        versions = [value["version"] for key, value in found if key == number and value is not None]
        assert versions == sorted(set(versions)), f"row {number} came twice or out of order"
    assert {key: value["version"] for key, value in dict(found).items() if value is not None} == shop.rows()
    source.drop()
