"""The example `top_products` from end to end: PostgreSQL, clicks in Avro, PostgreSQL and Delta Lake, and two kills.

Orders are inserted, changed and deleted, and clicks are written, all the time while `headrace run` is killed by SIGKILL
and started again. In the end both targets have, row for row, what a query of the orders and a count of the clicks find.
HEADRACE_FAULTS says how many kills there are.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from examples.top_products import APPLICATION, CLICKS, LENGTH, PRODUCT_NAMES, Click
from headrace import Admin, Producer, serde

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("HEADRACE_FAULTS", "2"))
ORDERS_OF_A_LIFE, CLICKS_OF_A_LIFE = 60, 150
PATIENCE = 300.0  # seconds: the machine may be busy
EXPECTED = """
    select row_number() over (order by sum(o.cents) desc, o.product), o.product, count(*), sum(c.clicks)::bigint,
           sum(o.cents)::bigint
    from orders o join clicks_of_orders c on c.id = o.id
    group by o.product order by 1 limit %s
"""


class Shop:
    """The people of the shop: they write orders to the database, and click."""

    def __init__(self, dsn: str, log: str, registry: str) -> None:
        self.chance = random.Random(16)  # noqa: S311
        self.database = psycopg.connect(dsn, autocommit=True)
        self.database.execute(
            "create table orders (id bigint primary key, product text not null, cents bigint not null)"
        )
        value = serde.avro(Click, subject="record", registry=registry)
        self.producer = Producer(log, key=serde.JSON, value=value)
        self.clicks = Counter[int]()
        self.last = 0

    def work(self) -> None:
        for _ in range(ORDERS_OF_A_LIFE):
            self.change_orders()
            for _ in range(CLICKS_OF_A_LIFE // ORDERS_OF_A_LIFE):
                order = self.chance.randint(1, self.last)
                self.clicks[order] += 1
                self.producer.send(CLICKS, order, Click(f"/page/{self.chance.randint(1, 9)}"))
        self.producer.flush()

    def change_orders(self) -> None:
        """One transaction: new orders, a correction, sometimes a cancellation."""
        product, cents = self.chance.choice(PRODUCT_NAMES), self.chance.randint(1, 5_000)
        with self.database.transaction():
            for _ in range(self.chance.randint(1, 3)):
                self.last += 1
                self.database.execute("insert into orders values (%s, %s, %s)", (self.last, product, cents))
            changed = self.chance.randint(1, self.last)
            self.database.execute("update orders set cents = cents + 7, product = %s where id = %s", (product, changed))
            if self.chance.random() < 0.3:
                self.database.execute("delete from orders where id = %s", (self.chance.randint(1, self.last),))

    def expected(self) -> list[tuple[Any, ...]]:
        """What the database itself says, given the number of clicks that were written."""
        with self.database.transaction(force_rollback=True), self.database.cursor() as cursor:
            cursor.execute("create table clicks_of_orders (id bigint primary key, clicks bigint)")
            cursor.executemany("insert into clicks_of_orders values (%s, %s)", list(self.clicks.items()))
            return cursor.execute(EXPECTED, (LENGTH,)).fetchall()

    def found(self) -> list[tuple[Any, ...]]:
        if self.database.execute("select to_regclass('top_products')").fetchone() == (None,):
            return []
        columns = "rank, product, orders, clicks, cents"
        return self.database.execute(f"select {columns} from top_products order by rank").fetchall()  # noqa: S608

    def close(self) -> None:
        self.producer.close()
        self.database.close()


def lake_rows(lake: Path) -> list[tuple[Any, ...]]:
    if not lake.joinpath("_delta_log").exists():
        return []
    rows = DeltaTable(str(lake)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row[name] for name in ("rank", "product", "orders", "clicks", "cents")) for row in rows)


def await_true(is_true: Callable[[], bool], process: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not is_true():
        assert process.poll() is None, f"the application ended: {output.read_text()[-3000:]}"
        if time.monotonic() > end:
            break  # the caller compares, and shows the difference
        time.sleep(0.1)


def test_orders_and_clicks_are_in_both_targets_row_for_row_after_two_kills(postgres, schema_registry, tmp_path: Path):
    log, lake, output = f"file:{tmp_path}/log", tmp_path / "lake", tmp_path / "output"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "SHOP_DATABASE": postgres.dsn,
        "SHOP_LAKE": str(lake),
        "HEADRACE_SCHEMA_REGISTRY_URL": schema_registry.url,
    }
    command = [
        sys.executable, "-m", "headrace", "run", "examples.top_products:build", "--application-id", APPLICATION,
        "--log", log, "--checkpoint", str(tmp_path / "checkpoint"), "--state-dir", str(tmp_path / "state"),
    ]  # fmt: skip
    with Admin(log) as admin:
        admin.create_topic(CLICKS, partitions=2)
    lives = list[int]()
    with closing(Shop(postgres.dsn, log, schema_registry.url)) as shop, output.open("ab") as to:
        for life in range(KILLS + 1):
            before = shop.found()
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=to, stderr=to)
            try:
                shop.work()
                if life < KILLS:
                    # The first life ends in the middle of its work, when it has begun to change the table.
                    await_true(lambda: shop.found() != before, process, output)  # noqa: B023
                    shop.work()
                else:
                    await_true(lambda: shop.found() == shop.expected() == lake_rows(lake), process, output)
                    assert shop.found() == shop.expected()
                    assert lake_rows(lake) == shop.expected()
            finally:
                process.send_signal(signal.SIGKILL if life < KILLS else signal.SIGTERM)
                lives.append(process.wait(PATIENCE))
        assert lives == [-signal.SIGKILL] * KILLS + [0]
        assert len(shop.expected()) == LENGTH
