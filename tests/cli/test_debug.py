"""`headrace trace` and `headrace replay-batch`: batches of a checkpoint run again, without any effect."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Producer, serde
from headrace.model.ids import TopicPartition
from tests.cli.batches import run_batches
from tests.cli.commands import finished

PROGRAM = """
from headrace import Application, StreamsBuilder, TimeWindows, serde

FACTOR, CALLED = 1, []
builder = StreamsBuilder()
orders = builder.stream("orders", key=serde.STRING, value=serde.LONG, name="orders")
large = orders.filter(lambda amount: amount > 10, name="large").peek(lambda order: CALLED.append(order), name="look")
totals = (
    large.group_by(lambda customer, amount: customer[0], key=serde.STRING, value=serde.LONG, name="by-letter")
    .aggregate(
        lambda: 0, lambda letter, amount, total: total + FACTOR * amount,
        value=serde.LONG, store="totals", name="add",
    )
)
totals.to_stream(name="changes").to("totals", key=serde.STRING, value=serde.LONG, name="to-totals")
names = builder.table("names", key=serde.STRING, value=serde.STRING, store="names")
greetings = large.join(names, lambda amount, name: f"{name}: {amount}", name="greet")
greetings.to("greetings", key=serde.STRING, value=serde.STRING, name="to-greetings")
counts = orders.group_by_key().windowed_by(TimeWindows.of(100)).count(store="counts", name="count")
app = Application("shop", builder.build(), log="file:./data", config={"batch.max.records": 3, **SETTINGS})
"""
Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def load(text: str = PROGRAM, **settings: object) -> Any:
        sys.modules.pop("shop", None)
        (tmp_path / "shop.py").write_text(f"SETTINGS = {settings!r}\n{text}", encoding="utf-8")
        importlib.invalidate_caches()
        for cached in tmp_path.glob("__pycache__/*"):
            cached.unlink()
        return importlib.import_module("shop")

    yield load
    sys.modules.pop("shop", None)


def fill(orders: list[tuple[str | None, int]]) -> None:
    with Admin("file:./data") as admin, Producer("file:./data", key=serde.STRING) as producer:
        if "orders" not in admin.topics():
            for topic in ("orders", "names"):
                admin.create_topic(topic, partitions=2)
            producer.send("names", "ada", "Ada", value_serde=serde.STRING, partition=1, timestamp=0)
        for customer, amount in orders:
            producer.send("orders", customer, amount, value_serde=serde.LONG, partition=1, timestamp=amount)


ORDERS: list[tuple[str | None, int]] = [("ada", 20), ("ada", 30), ("ada", 5), ("bob", 400), ("ada", 40), (None, 7)]


@pytest.fixture
def shop(load: Load) -> Any:
    program = load(**{"checkpoint.keep.batches": 100})
    fill(ORDERS)
    program.last = run_batches(program.app)
    program.CALLED.clear()
    return program


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def trace(headrace: Any, offset: int, *options: str) -> dict[str, Any]:
    done = headrace("trace", "shop:app", "--topic", "orders", "--partition", 1, "--offset", offset, "--json", *options)
    assert done.code == 0, done.err
    return json.loads(done.out)


def steps(found: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(step["operator"], step["key"], step["value"]) for step in found["steps"]]


def step_of(found: dict[str, Any], operator: str) -> dict[str, Any]:
    return next(step for step in found["steps"] if step["operator"] == operator)


# ------------------------------------------------------------------------------------------------------------- a record
def test_a_record_is_followed_through_all_operators_in_the_state_that_it_met(headrace: Any, shop: Any, tmp_path: Path):
    before = snapshot(tmp_path / "shop-checkpoint") | snapshot(tmp_path / "data")
    found = trace(headrace, 4)
    add, join, sink = step_of(found, "add"), step_of(found, "greet"), step_of(found, "to-totals")
    # Before it, the batch and those before have added 20 and 30 for a, and 400 for b.
    assert [(s["access"], s["key"], s["value"]["$tuple"][0]) for s in add["stores"]] == [
        ("read", "a", 50),
        ("write", "a", 90),
    ]
    assert [(s["store"], s["value"]["$tuple"][0]) for s in join["stores"]] == [("names", "Ada")]
    assert (sink["key"], sink["value"], sink["written"][0]["topic"]) == ("a", 90, "totals")
    assert step_of(found, "to-greetings")["value"] == "Ada: 40"
    assert step_of(found, "add")["task"] != step_of(found, "orders")["task"]
    parent = found["steps"][step_of(found, "by-letter-repartition-source")["parent"]]
    assert (parent["kind"], parent["written"][0]["internal"]) == ("Sink", True)
    assert parent["written"][0]["partition"] is not None
    assert found["state"].startswith(f"batch {found['batch']}, as it was")
    assert shop.CALLED == []  # the function of peek has an effect
    assert step_of(found, "look")["note"] == "its function is not called"
    assert snapshot(tmp_path / "shop-checkpoint") | snapshot(tmp_path / "data") == before


def test_records_before_it_in_its_batch_count(headrace: Any, shop: Any):
    first, second = trace(headrace, 0), trace(headrace, 1)
    assert first["batch"] == second["batch"]
    assert [s["value"]["$tuple"][0] for s in step_of(second, "add")["stores"]] == [20, 50]
    # A later record of the batch changed the same key: the table lets out what that one made of it.
    assert "a later record changed this key" in step_of(first, "add")["note"]
    assert "to-totals" not in [operator for operator, _, _ in steps(first)]


def test_what_is_filtered_or_dropped_is_said(headrace: Any, shop: Any):
    small, keyless = trace(headrace, 2), trace(headrace, 5)
    assert step_of(small, "large")["note"] == "gave nothing"
    assert [drop["reason"] for drop in step_of(keyless, "count")["dropped"]] == ["null key"]
    assert "no key" in step_of(keyless, "count")["dropped"][0]["why"]


def test_the_text_names_state_operators_stores_and_topics(headrace: Any, shop: Any):
    shown = headrace("trace", "shop:app", "--topic", "orders", "--partition", 1, "--offset", 4).out
    assert "orders/1 at offset 4, traced in batch " in shown
    assert "read totals['a'] = ValueAndTimestamp(value=50, timestamp=30)" in shown
    assert "(internal)" in shown
    assert "wrote to totals/" in shown


def test_functions_of_peek_are_called_if_asked(headrace: Any, shop: Any):
    trace(headrace, 4, "--side-effects")
    assert 40 in shop.CALLED


def test_a_record_that_no_batch_has_read_meets_the_current_state(headrace: Any, shop: Any):
    fill([("ada", 60)])
    found = trace(headrace, 6)
    assert found["batch"] is None
    assert "no batch has read the record yet" in found["state"]
    assert step_of(found, "to-totals")["value"] == 150


def test_without_its_batch_a_record_is_traced_in_the_current_state_and_that_is_said(headrace: Any, load: Load):
    program = load()
    fill(ORDERS)
    run_batches(program.app, keep=1)
    fill([("bob", 600), ("bob", 700)])
    run_batches(program.app, keep=1)
    found = trace(headrace, 1)
    assert found["batch"] is None
    assert "no longer kept" in found["state"]
    assert "checkpoint.keep.batches" in found["state"]
    assert step_of(found, "to-totals")["value"] == 120  # 90, and 30 once more


def test_a_record_that_is_not_there_is_an_error(headrace: Any, shop: Any):
    def message(*options: object) -> str:
        done = headrace("trace", "shop:app", *options)
        assert done.code == 1
        return done.err

    assert "has no record at offset 99: the log has 0 to 5" in message(
        "--topic", "orders", "--partition", 1, "--offset", 99
    )
    assert "does not read 'totals' (it reads: names, orders)" in message("--topic", "totals", "--offset", 0)
    assert "orders has no partition 7" in message("--topic", "orders", "--partition", 7, "--offset", 0)


def test_a_function_that_fails_shows_where(headrace: Any, load: Load):
    program = load()
    fill(ORDERS)
    run_batches(program.app)
    load(PROGRAM.replace("total + FACTOR * amount", "total + amount / 0"))
    found = trace(headrace, 3)
    assert "ZeroDivisionError" in step_of(found, "add")["error"]
    assert found["error"].startswith("add failed on")
    assert trace(headrace, 4)["error"].startswith("another record of the batch failed")


# -------------------------------------------------------------------------------------------------------------- a batch
def test_a_batch_runs_again_as_it_was_committed(headrace: Any, shop: Any, tmp_path: Path):
    before = snapshot(tmp_path / "shop-checkpoint") | snapshot(tmp_path / "data")
    reports = []
    for number in range(1, shop.last + 1):
        done = headrace("replay-batch", "shop:app", number, "--json")
        assert done.code == 0, done.out + done.err
        reports.append(json.loads(done.out))
    assert all(report["same"] and not report["not_compared"] for report in reports)
    assert sum(row["written"] for report in reports for row in report["tasks"]) > 4
    assert sum(row["read"] for report in reports for row in report["tasks"]) >= 7
    assert shop.CALLED == []
    assert "is no batch: with it an instance took over" in headrace("replay-batch", "shop:app", 0).err
    assert "Not called: the functions of look" in headrace("replay-batch", "shop:app", 1).err
    assert snapshot(tmp_path / "shop-checkpoint") | snapshot(tmp_path / "data") == before


def test_what_differs_is_shown(headrace: Any, shop: Any, load: Load):
    load(PROGRAM.replace("FACTOR, CALLED = 1", "FACTOR, CALLED = 2"))
    found = trace(headrace, 4)
    done = headrace("replay-batch", "shop:app", found["batch"], "--json")
    assert done.code == 1
    report = json.loads(done.out)
    output = next(row for row in report["differences"] if row["what"] == "output")
    state = next(row for row in report["differences"] if row["what"] == "state")
    assert output["where"].startswith("totals/")
    assert output["committed"]["value"] != output["replayed"]["value"]
    assert state["where"] == "totals: a"
    text = headrace("replay-batch", "shop:app", found["batch"])
    assert "differences. Nothing was written." in text.err
    assert "totals/" in text.out


def test_a_batch_that_is_purged_says_what_keeps_it(headrace: Any, load: Load):
    program = load()
    fill(ORDERS)
    run_batches(program.app, keep=1)
    done = headrace("replay-batch", "shop:app", 1)
    assert done.code == 1
    assert "batch 1 cannot run again: its files are gone. The checkpoint has batches 2 to 2" in done.err
    assert "checkpoint.keep.batches, which is 10. Set it to more" in done.err
    assert "has not happened yet" in headrace("replay-batch", "shop:app", 99).err


def test_records_that_retention_removed_are_named(headrace: Any, shop: Any):
    with Admin("file:./data") as admin:
        admin.delete_records({TopicPartition("orders", 1): 3})
    done = headrace("replay-batch", "shop:app", 1)
    assert done.code == 1
    assert "retention has removed records of the batch" in done.err


def test_another_topology_is_rejected(headrace: Any, shop: Any, load: Load):
    load(PROGRAM.replace('store="totals"', 'store="sums"'))
    done = headrace("replay-batch", "shop:app", shop.last)
    assert done.code == 1
    assert "another topology than the one that wrote the checkpoint" in done.err


# ---------------------------------------------------------------------------------------------------------- a debugger
@pytest.mark.slow
def test_the_debugger_opens_before_an_operator_and_at_a_breakpoint(shop: Any, load: Load, tmp_path: Path):
    done = finished("replay-batch", "shop:app", 1, "--break-at", "add", given="p key, value\nq\n", cwd=tmp_path)
    assert "('a', 20)" in done.out
    load(PROGRAM.replace("amount > 10, name", "(breakpoint(), amount > 10)[1], name"))
    done = finished("replay-batch", "shop:app", 1, given="p amount\nq\n", cwd=tmp_path)
    assert "(Pdb) 20" in done.out
    assert (
        "no operator 'ad' (it has: orders, large"
        in finished("replay-batch", "shop:app", 1, "--break-at", "ad", cwd=tmp_path).err
    )


@pytest.mark.slow
def test_the_debugger_opens_where_a_function_fails(shop: Any, load: Load, tmp_path: Path):
    load(PROGRAM.replace("total + FACTOR * amount", "total + amount / 0"))
    done = finished("replay-batch", "shop:app", 1, "--pdb", given="p letter, amount\nq\n", cwd=tmp_path)
    assert "('a', 20)" in done.out
    assert (done.code, "ZeroDivisionError" in done.err) == (1, True)


# ------------------------------------------------------------------------------------- rows that go to an earlier task
FOREIGN = """
from headrace import Application, StreamsBuilder, serde

builder = StreamsBuilder()
left = builder.table("orders", key=serde.STRING, value=serde.LONG, name="left")
right = builder.table("names", key=serde.STRING, value=serde.STRING, name="right")
joined = left.join(right, lambda amount, name: f"{name}: {amount}", on=lambda amount: "ada")
joined.to_stream(name="changes").to("out", key=serde.STRING, value=serde.STRING, name="to-out")
app = Application("shop", builder.build(), log="file:./data", config=SETTINGS)
"""


def test_a_foreign_key_join_is_followed_into_the_batches_that_the_rows_waited_for(headrace: Any, load: Load):
    program = load(FOREIGN, **{"checkpoint.keep.batches": 100})
    fill(ORDERS[:2])
    last = run_batches(program.app)
    found = trace(headrace, 1)
    assert step_of(found, "to-out")["value"] == "Ada: 30"
    sources = [step for step in found["steps"] if step["kind"] == "Source"]
    assert [step["parent"] is None for step in sources] == [True, False, False]
    for number in range(1, last + 1):
        assert json.loads(headrace("replay-batch", "shop:app", number, "--json").out)["same"]
    fill([("ada", 60)])
    assert step_of(trace(headrace, 2), "to-out")["value"] == "Ada: 60"  # in the current state


@pytest.mark.spark
def test_batches_that_spark_ran_run_again(headrace: Any, load: Load, tmp_path: Path):
    load(**{"checkpoint.keep.batches": 100})
    fill(ORDERS)
    done = finished("run", "shop:app", "--once", "--master", "local[2]", cwd=tmp_path)
    assert done.code == 0, done.err
    found = trace(headrace, 4)
    assert step_of(found, "to-totals")["value"] == 90
    assert json.loads(headrace("replay-batch", "shop:app", found["batch"], "--json").out)["same"]
