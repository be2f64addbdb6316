"""`headrace plan`, `run --backfill` and `run --from`: a changed program goes on with its state."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from headrace import Admin, Consumer, Producer, serde
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.storage import open_storage
from headrace.model.ids import TopicPartition
from headrace.query.follower import Follower, view_latest
from tests.cli.commands import finished, started

PROGRAM = """
import os
from headrace import Application, StreamsBuilder, serde

builder = StreamsBuilder()
orders = builder.stream("orders", key=serde.STRING, value=serde.LONG)
orders.group_by_key().count(store="counts")
if os.environ.get("SECOND"):
    by_letter = orders.group_by(lambda key, amount: key[:1], key=serde.STRING, value=serde.LONG)
    totals = by_letter.reduce(lambda total, amount: total + amount, store="totals")
    totals.to_stream().to("totals", value=serde.LONG)
    builder.stream("returns", key=serde.STRING, value=serde.LONG).group_by_key().count(store="returns")
    builder.stream("lost", key=serde.STRING, value=serde.LONG).group_by_key().count(store="lost")
app = Application(
    "shop", builder.build(), log="file:./data", checkpoint="./checkpoint", state_dir="./state", batch_max_records=50
)
"""
RECORDS = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM, encoding="utf-8")
    with Admin(f"file:{tmp_path}/data") as admin:
        for topic in ("orders", "returns", "lost"):
            admin.create_topic(topic, partitions=2)
    return tmp_path


def produce(folder: Path, topic: str, count: int, start: int = 0) -> None:
    with Producer(f"file:{folder}/data", key=serde.STRING, value=serde.LONG) as producer:
        for number in range(start, start + count):
            producer.send(topic, f"{'abc'[number % 3]}{number % 7}", number, timestamp=1000 * number)


def totals(folder: Path, store: str) -> dict[str, int]:
    follower = Follower.open(str(folder / "checkpoint"))
    return {key: value.value for key, value in view_latest(store, follower.refresh).all()}


def sums(numbers: range) -> dict[str, int]:
    return {letter: sum(n for n in numbers if n % 3 == place) for place, letter in enumerate("abc")}


@pytest.mark.spark
@pytest.mark.slow
def test_a_new_store_is_filled_from_history_also_after_a_kill(folder: Path):
    produce(folder, "orders", RECORDS)
    for topic in ("returns", "lost"):
        produce(folder, topic, 20)
    assert finished("run", "shop:app", "--once", "--master", "local[2]", cwd=folder).code == 0
    plan = finished("plan", "shop:app", "--json", cwd=folder, SECOND="1")
    assert plan.code == 0, plan.err
    changes = {(change["subject"], change["name"]): change for change in json.loads(plan.out)["changes"]}
    history = "--backfill fills it from history: 400 records of orders, from the first one"
    assert changes["store", "totals"]["choice"] == history
    assert changes["source", "returns"]["effect"] == "auto.offset.reset says where it begins: earliest"
    before = recover_ledger(open_storage(folder / "checkpoint"), 1)
    with started("run", "shop:app", "--backfill", cwd=folder, environment={"SECOND": "1"}) as process:
        manifests = folder / "checkpoint" / "backfill" / "manifests"
        while not manifests.is_dir() or len(list(manifests.iterdir())) < 3:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
                pytest.fail(process.communicate()[1])
        process.kill()
        process.wait()
    after = recover_ledger(open_storage(folder / "checkpoint"), 1)
    assert (after.number, after.fingerprint) == (before.number, before.fingerprint)
    produce(folder, "orders", 30, start=RECORDS)
    starts = ("--from", "latest", "--from", "returns=15")
    done = finished("run", "shop:app", "--once", "--backfill", *starts, cwd=folder, SECOND="1")
    assert (done.code, "Filled lost, returns, totals from" in done.err) == (0, True), done.err
    assert totals(folder, "totals") == sums(range(RECORDS + 30))
    assert sum(totals(folder, "counts").values()) == RECORDS + 30
    assert sum(totals(folder, "lost").values()) == sum(totals(folder, "returns").values()) == 20
    assert not (folder / "checkpoint" / "backfill").exists()
    assert not (folder / "state" / "shop+backfill").exists()
    with Consumer(f"file:{folder}/data", value=serde.LONG, auto_offset_reset="earliest") as consumer:
        consumer.subscribe("totals")
        written = [record.value for record in consumer.poll(1000)]
    assert len(written) <= 30  # nothing of the backfill
    assert max(written) == max(sums(range(RECORDS + 30)).values())


MIGRATING = """
import os
from headrace import Application, Materialized, StreamsBuilder, serde

builder = StreamsBuilder()
orders = builder.stream("orders", key=serde.STRING, value=serde.LONG)
old = {"value": serde.LONG}
new = {"value": serde.DOUBLE, "migrate": lambda total: total + 0.5, "migrate_from": serde.LONG}
sums = Materialized("sums", **(new if os.environ.get("SECOND") else old))
orders.group_by_key().aggregate(lambda: 0, lambda key, amount, total: total + amount, store=sums)
app = Application("shop", builder.build(), log="file:./data", checkpoint="./checkpoint", state_dir="./state")
"""


@pytest.mark.spark
def test_values_are_migrated_when_they_are_read_and_all_on_request(headrace, folder: Path, monkeypatch):
    (folder / "shop.py").write_text(MIGRATING, encoding="utf-8")
    produce(folder, "orders", 21)
    assert finished("run", "shop:app", "--once", "--master", "local[2]", cwd=folder).code == 0
    whole = totals(folder, "sums")
    monkeypatch.chdir(folder)
    plan = finished("plan", "shop:app", "--json", cwd=folder, SECOND="1")
    changes = {(change["subject"], change["name"]): change for change in json.loads(plan.out)["changes"]}
    effect = "its values are migrated from LONG to DOUBLE when they are read"
    assert (plan.code, changes["store", "sums"]["effect"]) == (0, effect)
    produce(folder, "orders", 1)  # of one key
    ran = finished("run", "shop:app", "--once", "--master", "local[2]", cwd=folder, SECOND="1")
    assert ran.code == 0, ran.err
    outcome = headrace("query", "sums", "--checkpoint", "./checkpoint")
    assert (outcome.code, "values in an earlier form" in outcome.err) == (1, True)
    again = finished("plan", "shop:app", cwd=folder)
    assert (again.code, "has values of LONG that are not migrated to DOUBLE yet" in again.out) == (2, True)
    done = finished("state", "migrate", "shop:app", "--json", cwd=folder, SECOND="1")
    assert done.code == 0, done.err
    assert totals(folder, "sums") == {key: total + 0.5 for key, total in whole.items()}
    twice = finished("state", "migrate", "shop:app", cwd=folder, SECOND="1")
    assert (twice.code, twice.out) == (0, "")
    assert totals(folder, "sums") == {key: total + 0.5 for key, total in whole.items()}


@pytest.mark.spark
def test_a_new_source_begins_where_the_user_says(folder: Path):
    """In the words of `headrace reset`: earliest, latest, an offset, a date, a duration."""
    for topic in ("orders", "returns", "lost"):
        produce(folder, topic, 20)
    starts = ("--from", "earliest", "--from", "returns=latest", "--from", "lost=1970-01-01T00:00:12")
    plan = finished("run", "shop:app", "--once", "--master", "local[2]", *starts, cwd=folder, SECOND="1")
    assert plan.code == 0, plan.err
    assert sum(totals(folder, "counts").values()) == 20
    assert totals(folder, "returns") == {}
    assert sum(totals(folder, "lost").values()) == 8
    positions = recover_ledger(open_storage(folder / "checkpoint"), 1).positions
    assert sum(positions[TopicPartition("returns", partition)] for partition in (0, 1)) == 20


@pytest.mark.parametrize(
    "given, reason",
    [
        (("--from", "tomorrow"), "a source begins at earliest, latest, an offset"),
        (("--from", "returns=soon"), "--from returns=soon: a source begins at"),
        (("--from", "latest", "--from", "earliest"), "--from earliest: every source has a beginning already"),
    ],
)
def test_a_start_that_is_none_is_explained(headrace, folder, monkeypatch, given, reason):
    monkeypatch.chdir(folder)
    outcome = headrace("plan", "shop:app", *given)
    assert (outcome.code, reason in outcome.err) == (2, True), outcome.err
