"""`headrace run --web`: a real application on Spark, whose pages and metrics tell the truth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from headrace import serde
from headrace.clients import Producer
from headrace.log import open_log
from tests.cli.commands import Here, records, started
from tests.web.servers import ask
from tests.web.test_prometheus import samples

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TOKEN = "open sesame"  # noqa: S105
HOSTILE = "<img src=x onerror=alert(1)>"
PATIENCE = 120.0
PROGRAM = """
from headrace import StreamsBuilder, serde

def build():
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serde.STRING, value=serde.JSON, name="orders")
    orders.filter(lambda key, order: order["amount"] > 1, name="large").to("large", value=serde.JSON, name="tell-large")
    counts = orders.group_by(lambda key, order: order["item"], key=serde.STRING, value=serde.JSON).count(store="counts")
    counts.to_stream().to("counts", value=serde.LONG, name="tell-counts")
    return builder.build()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM)
    log = open_log(f"file:{tmp_path}/log")
    log.create_topic("orders", 2)
    log.close()
    return tmp_path


def produce(shop: Path, many: int) -> None:
    """Orders of which half are large; and one that is no order."""
    with Producer(f"file:{shop}/log", key=serde.STRING, value=serde.JSON) as producer:
        for number in range(many):
            item = HOSTILE if number == many - 1 else f"item {number % 3}"
            producer.send("orders", f"customer {number % 5}", {"item": item, "amount": 1 + number % 2})
        producer.send("orders", "nobody", b"{no JSON", value_serde=serde.BYTES)


def eventually(what: Callable[[], Any]) -> Any:
    """Asks until there is an answer that is not empty."""
    end, pause = time.monotonic() + PATIENCE, threading.Event()
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        pause.wait(0.05)
    raise AssertionError("it was never so")


def status(url: str) -> dict[str, Any]:
    answer = ask(url, "/api/status", authorization=f"Bearer {TOKEN}")
    return answer.json if answer.status == 200 else {}


def waiting(url: str) -> int | None:
    lag = status(url).get("lag")
    return None if lag is None else sum(lag.values())


def metrics(url: str) -> dict[Any, float]:
    return samples(ask(url, "/metrics", authorization=f"Bearer {TOKEN}"))


def address(running: Any) -> str:
    line = running.stderr.readline()
    while "See http" not in line:
        assert line, "it has ended"
        line = running.stderr.readline()
    return line.partition("See ")[2].strip()


def test_pages_and_metrics_of_an_application_that_runs_tell_the_truth(
    shop: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
):
    produce(shop, 100)
    options = [
        *("--application-id", "shop", "--log", "file:log", "--checkpoint", "checkpoint", "--state-dir", "state"),
        *("--set", "deserialization.exception.handler=continue"),
    ]
    environment = {"HEADRACE_TOKEN": TOKEN}
    with started("run", "shop:build", *options, "--web", "--port", "0", cwd=shop, environment=environment) as running:
        url = address(running)
        eventually(lambda: waiting(url) == 0)
        tallied = eventually(lambda: (found := metrics(url)).get(("headrace_records_out_total", "large")) and found)
        check_metrics(tallied, shop)
        check_actions(Here(capsys), shop, url)
        check_page(browser, url)
        assert ask(url, "/actions/stop", method="POST", authorization=f"Bearer {TOKEN}").status == 200
        running.communicate(timeout=60)
    assert running.returncode == 0


def check_metrics(found: dict[Any, float], shop: Path) -> None:
    def total(name: str, *labels: str) -> float:
        return sum(count for key, count in found.items() if key[0] == name and set(labels) <= set(key[1:]))

    assert total("headrace_records_in_total") == total("headrace_node_records_total", "orders") == 101
    assert total("headrace_records_out_total", "large") == total("headrace_node_records_total", "tell-large") == 50
    written = records(f"file:{shop}/log", "counts", int(total("headrace_records_out_total", "counts")))
    assert sum({r.key: serde.LONG.decode(r.value or b"") for r in written}.values()) == 100
    assert total("headrace_node_records_total", "tell-counts") == len(written)
    assert total("headrace_dropped_records_total") == 1
    assert total("headrace_lag_records") == 0
    assert found["headrace_end_to_end_latency_seconds_count",] == 101
    assert found["headrace_end_to_end_latency_seconds_bucket", "+Inf"] == 101
    assert total("headrace_store_entries", "counts") == 4
    assert found["headrace_state", "RUNNING"] == 1
    assert {key[1] for key in found if key[0] == "headrace_batch_phase_seconds"} >= {"plan", "run", "commit"}


def check_actions(command: Here, shop: Path, url: str) -> None:
    file = shop / "token"
    file.write_text(f"{TOKEN}\n")
    refused, given = command("pause", "--url", url), ("--url", url, "--token-file", file)
    assert (refused.code, "give the token" in refused.err) == (1, True)
    paused = command("pause", *given)
    assert (paused.code, paused.err.startswith("Paused")) == (0, True)
    assert status(url)["state"] == "PAUSED"
    before = status(url)["batch"]
    produce(shop, 10)
    eventually(lambda: waiting(url) == 11)
    assert status(url)["batch"] == before
    assert command("resume", *given).code == 0
    eventually(lambda: waiting(url) == 0)
    assert command("snapshot", *given).code == 0
    eventually(lambda: {path.parent.name for path in (shop / "checkpoint" / "snapshots").glob("*/*")} >= {"1_0", "1_1"})


def check_history(url: str) -> None:
    """The charts have the rates, the lag and the latency of the records that went through, and where the time went."""

    def read_points() -> list[dict[str, Any]]:
        points = ask(url, "/api/history", authorization=f"Bearer {TOKEN}").json["points"]
        return points if any(point["read"] for point in points) else []

    points = eventually(read_points)  # there is a point a second, with what was read since the one before
    assert points[-1]["lag"] == 0
    [timed, *_] = [point for point in points if point["p50"] is not None]
    assert 0 < timed["p50"] <= timed["p99"]
    assert {"wait", "plan", "level 0", "level 1", "commit", "deliver"} <= timed["parts"].keys()


def check_page(browser: Browser, url: str) -> None:
    with browser.new_page() as page:
        said = list[str]()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message) or dialog.dismiss())
        page.goto(url)
        page.fill("#token", TOKEN)
        page.click("#login button")
        expect(page.locator("#connection")).to_have_text("live")
        assert page.text_content("#lag") == "0"
        assert page.text_content("#dropped") == "2"
        page.click("#graph .node[data-name='orders']")
        expect(page.locator("#node-records")).to_contain_text("112 records")
        assert (
            sum(int(row.split("_")[1][1:]) for row in page.locator("#node-tasks [data-task]").all_text_contents())
            == 112
        )
        expect(page.locator("#samples")).to_contain_text(HOSTILE)
        assert page.locator("#slots tbody tr").count() >= 1
        check_history(url)
        assert page.query_selector_all("#samples img") == []
        assert said == []
