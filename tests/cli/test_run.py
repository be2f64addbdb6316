"""`headrace run`: applications in processes of their own, started, refused, stopped and reset."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace import Application, StreamsBuilder, serde
from headrace.cli import options
from headrace.clients import Producer
from headrace.log import open_log
from tests.cli.commands import finished, records, started

SHOP = """
from headrace import Application, StreamsBuilder, serde

def build():
    builder = StreamsBuilder()
    names = builder.global_table("names", key=serde.STRING, value=serde.STRING)
    orders = builder.stream("orders", key=serde.STRING, value=serde.STRING)
    named = orders.join(names, lambda item, name: f"{name} {item}", on=lambda customer, item: customer)
    counts = named.group_by_key(key=serde.STRING, value=serde.STRING).count(store="counts")
    counts.to_stream().to("counts", value=serde.LONG)
    return builder.build()

def app():
    return Application("shop", build(), "file:log", checkpoint="checkpoint", state_dir="state")

def broken():
    builder = StreamsBuilder()
    builder.stream("orders", key=serde.STRING, value=serde.STRING).map_values(lambda item: 1 // 0).to("out")
    return builder.build()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with a program and a log."""
    (tmp_path / "shop.py").write_text(SHOP)
    log = open_log(f"file:{tmp_path}/log")
    for topic in ("names", "orders", "counts"):
        log.create_topic(topic, 2)
    log.close()
    order(tmp_path, "names", ada="Ada", bob="Bob")
    order(tmp_path, "orders", ada="lamp", bob="desk")
    return tmp_path


def order(shop: Path, topic: str, **pairs: str) -> None:
    with Producer(f"file:{shop}/log", key=serde.STRING, value=serde.STRING) as producer:
        for key, value in pairs.items():
            producer.send(topic, key, value)


def counts(shop: Path, many: int) -> list[tuple[str, int]]:
    found = records(f"file:{shop}/log", "counts", many)
    return sorted((record.key.decode(), serde.LONG.decode(record.value)) for record in found)


@pytest.mark.spark
def test_it_runs_alone_until_it_is_told_to_stop(shop):
    with started("run", "shop:app", "--master", "local[2]", cwd=shop) as running:
        assert counts(shop, 2) == [("ada", 1), ("bob", 1)]
        second = finished("run", "shop:app", cwd=shop)
        assert (second.code, second.out) == (1, "")
        assert second.err.startswith("headrace: another instance runs on the directory")  # not "is running" before
        assert "One instance runs an application; to scale out, give Spark more executors" in second.err
        reset = finished(
            "reset", "--application-id", "shop", "--log", "file:log", "--checkpoint", "checkpoint", cwd=shop
        )
        assert (reset.code, "another instance runs" in reset.err) == (1, True)
        order(shop, "orders", ada="bulb")
        assert counts(shop, 3) == [("ada", 1), ("ada", 2), ("bob", 1)]
        begun = time.monotonic()
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "")
    assert err == (
        "shop is running. Ctrl-C ends it.\n"
        "shop is stopping: it ends the running batch, and delivers what it can. Ctrl-C ends it now.\n"
        "shop has stopped.\n"
    )
    assert time.monotonic() - begun < 20


@pytest.mark.spark
def test_it_processes_what_is_there_and_begins_again_after_a_reset(shop):
    settings = ("--application-id", "shop", "--log", "file:log", "--checkpoint", "checkpoint", "--state-dir", "state")
    once = ("run", "shop:build", "--once", *settings, "--set", "num.stream.threads=2")
    assert finished(*once, cwd=shop) == (0, "", "")
    assert counts(shop, 2) == [("ada", 1), ("bob", 1)]
    assert (shop / "state/shop").exists()
    outcome = finished("reset", "--input-topics", "orders", *settings, cwd=shop)
    assert (outcome.code, outcome.err.splitlines()[-1]) == (0, "shop was reset.")
    assert Counter(line.split()[2] for line in outcome.out.splitlines()[1:]) == {"input": 2, "global": 2}
    assert not (shop / "state/shop").exists()
    order(shop, "orders", ada="bulb")
    assert finished(*once, cwd=shop) == (0, "", "")
    assert counts(shop, 4) == [("ada", 1), ("ada", 2), ("bob", 1), ("bob", 1)]  # one update of a key in a batch


@pytest.mark.spark
def test_what_a_function_raises_is_one_sentence_and_exit_code_1(shop):
    settings = ("--application-id", "shop", "--log", "file:log", "--checkpoint", "checkpoint", "--state-dir", "state")
    outcome = finished("run", "shop:broken", "--once", *settings, cwd=shop)
    assert (outcome.code, outcome.out) == (1, "")
    place = "KSTREAM-MAPVALUES-0000000001 failed on orders/0 at offset 0"
    assert outcome.err == (
        f"headrace: {place}: ZeroDivisionError: integer division or modulo by zero\n"
        "`headrace --debug …` shows where in the code.\n"
    )


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["build"], "is a Topology: give --application-id (and --checkpoint), too"),
        (["build", "--application-id", "shop"], "is a Topology: give --log (and --checkpoint), too"),
        (["app", "--checkpoint", "c"], "is an Application, which has its own settings: leave --checkpoint out"),
        (["app", "--set", "state.dir"], "--set takes key=value, not 'state.dir'"),
    ],
)
def test_what_is_missing_or_too_much_is_said(headrace, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "shop", raising=False)
    (tmp_path / "shop.py").write_text(SHOP)
    attribute, *more = arguments
    outcome = headrace("run", f"shop:{attribute}", *more)
    assert (outcome.code, sentence in outcome.err) == (2, True)


def test_settings_of_an_application_are_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builder = StreamsBuilder()
    builder.stream("orders").to("copies")
    seen = list[Application.State]()
    app = Application("shop", builder.build(), "file:log", commit_interval=500, num_partitions=3, trigger="micro-batch")
    app.on_state_change(lambda state, before: seen.append(state))
    monkeypatch.setattr(options, "load", lambda target: app)
    pairs = ["commit.interval.ms=100", "processing.trigger=real-time", "num.stream.threads=2", "sasl.username=ada"]
    other = options.load_application("shop:app", {"--set": pairs, "--config": None})
    config = other.setup.config
    assert (config.commit_interval_ms, config.processing_trigger, config.num_stream_threads) == (100, "real-time", 2)
    assert (config.num_partitions, config.client_settings["sasl.username"]) == (3, "ada")
    assert (other.setup.checkpoint, other.setup.log) == (app.setup.checkpoint, app.setup.log)
    other._become(Application.State.RUNNING)
    assert seen == [Application.State.RUNNING]
