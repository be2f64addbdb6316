"""The page in a browser: what it shows is what the API says."""

import re
import socket
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from headrace import StreamsBuilder, serde
from headrace.query import Follower
from headrace.query.client import Client
from headrace.query.history import BatchLatency
from headrace.query.status import SampledRecord
from headrace.topology.describe import describe
from headrace.web import ApplicationView, Server
from tests.checkpoint.programs import Program
from tests.query.programs import feed, finished
from tests.web.servers import FakeApplication, ask, ends, served

pytestmark = pytest.mark.slow
TOKEN = "open sesame"  # noqa: S105
REFUSED = "net::ERR_CONNECTION_REFUSED"
GROUND = {"dark": "rgb(20, 24, 29)", "light": "rgb(251, 252, 253)"}
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\u202edesrever",
    "&lt;b&gt;",
    "{{1+1}}",
]


@pytest.fixture
def page(browser):
    """A page that has said nothing wrong by its end.

    Its server is closed before it, so at the end it may find nobody who answers.
    """
    context = browser.new_context(viewport={"width": 1400, "height": 1100})
    page, said = context.new_page(), list[str]()
    page.expected = [REFUSED]
    page.on("console", lambda message: said.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}") or dialog.dismiss())
    yield page
    context.close()
    assert [words for words in said if not any(part in words for part in page.expected)] == []


def has(page, place, text):
    expect(page.locator(place)).to_have_text(text)


def live(page, url):
    page.goto(url)
    has(page, "#connection", "live")


def report_of(cluster, **more):
    nodes = {node.name: 30 for group in _description(cluster) for node in group.nodes}
    return FakeApplication(
        ends=ends(cluster), nodes=nodes, phases={4: {"plan": 4.0, "tasks": 61.5, "commit": 12.0}}, **more
    )


def _description(cluster):
    return describe(cluster.graph).subtopologies


def test_the_numbers_on_the_page_are_those_of_the_api(page):
    cluster = finished(limit=3)
    with served(cluster, report_of(cluster), interval=50) as server:
        live(page, server.url)
        status = ask(server.url, "/api/status").json
        assert page.text_content("#application") == status["application"]
        assert page.text_content("#batch") == str(status["batch"])
        assert page.text_content("#state") == status["state"] == "RUNNING"
        assert page.text_content("#verdict") == status["verdict"]
        assert page.text_content("#lag") == "0"
        with Client(server.url) as client:
            entries = {store["name"]: store["entries"] for store in client.stores()}
        assert {
            b.get_attribute("data-name"): int(b.query_selector(".entries").text_content())
            for b in page.query_selector_all("#stores button")
        } == entries
        assert "plan 4 ms" in page.text_content("#strip-text")
        feed(cluster.log, [("new", "x")] * 3)
        cluster.run()
        number = cluster.coordinator.ledger.number
        has(page, "#batch", f"{number}")
        has(page, "#stores [data-name=counts] .entries", "8")


def test_every_node_is_in_the_graph_and_shows_its_stores(page):
    cluster = finished(limit=3)
    with served(cluster, report_of(cluster), interval=50) as server:
        live(page, server.url)
        names = {node.name for group in _description(cluster) for node in group.nodes}
        assert {node.get_attribute("data-name") for node in page.query_selector_all("#graph .node")} == names
        page.click("#graph .node:has-text('counts')")
        assert "counts" in page.text_content("#node-details")
        page.click("#node-stores button")
        page.wait_for_selector("#rows td")
        assert page.text_content("#rows tbody tr td") == "k0"
        page.click("#node-close")
        expect(page.locator("#node-panel")).to_be_hidden()


def test_the_latency_chart_shows_the_time_from_log_to_log_and_where_it_goes(page):
    cluster = finished(limit=3)
    numbers = range(100)
    phases = {"plan": 2.0, "run": 20.0, "level 0": 8.0, "level 1": 4.0, "exchange": 3.0, "commit": 4.0, "deliver": 10.0}
    application = FakeApplication(
        ends=ends(cluster),
        phases=dict.fromkeys(numbers, phases),
        latencies={number: BatchLatency(wait=5, p50=31, p99=31 + number) for number in numbers},
    )
    with served(cluster, application, interval=50) as server:
        live(page, server.url)
        for _ in range(3):
            feed(cluster.log, [("new", "x")])
            cluster.run()
            has(page, "#batch", f"{cluster.coordinator.ledger.number}")
        last = ask(server.url, "/api/batches").json["batches"][-1]
        assert last["latency"] == {"wait": 5, "p50": 41.0, "p99": 41.0 + last["number"]}
        has(page, "#latency-p50", "41 ms")
        has(page, "#latency-p99", f"{41 + last['number']} ms")
        points = {name: page.get_attribute(f"#latency-chart .{name}", "points").split() for name in ("p50", "p99")}
        assert len(points["p50"]) == len(points["p99"]) == 4
        heights = [float(point.split(",")[1]) for point in points["p99"]]
        assert heights == sorted(heights, reverse=True)  # it takes longer and longer, and down is short
        parts = {
            at.get_attribute("data-part"): at.text_content() for at in page.query_selector_all("#latency-legend span")
        }
        assert parts == {
            "wait": "wait 5.0 ms", "plan": "plan 2.0 ms", "level 0": "level 0 8.0 ms", "level 1": "level 1 4.0 ms",
            "exchange": "exchange 3.0 ms", "orders and receipts": "orders and receipts 5.0 ms",
            "commit": "commit 4.0 ms", "deliver": "deliver 10 ms",
        }  # fmt: skip
        assert page.locator("#latency-parts .part").count() == len(parts)
        shown = page.text_content("#strip-text")
        assert "run 20 ms" in shown
        assert "level" not in shown, "the strip would show the time of levels twice"


def test_without_latencies_there_is_no_chart_of_them(page):
    cluster = finished(limit=3)
    with served(cluster, report_of(cluster), interval=50) as server:
        live(page, server.url)
        expect(page.locator("#latency-panel")).to_be_hidden()


SOURCE, UPPER, SINK = "KSTREAM-SOURCE-0000000000", "KSTREAM-MAPVALUES-0000000007", "KSTREAM-SINK-0000000008"


def node(page, name):
    return page.locator(f"#graph .node[data-name='{name}']")


def test_a_node_shows_its_tasks_and_its_last_records(page):
    cluster = finished(limit=3)
    application = report_of(cluster, tasks={SOURCE: {"0_0": 10, "0_1": 4, "0_2": 16}})
    record = SampledRecord("lines", 1, 7, 1_700_000_000_000, "k", "v")
    application.records = {SOURCE: [record, record._replace(offset=8, key=None, value=HOSTILE[0])]}
    with served(cluster, application, interval=50) as server:
        live(page, server.url)
        node(page, SOURCE).click()
        expect(page.locator("#node-tasks [data-task]")).to_have_text(["0_010", "0_14", "0_216"])
        shown = ask(server.url, f"/api/nodes/{SOURCE}").json
        assert [task["records"] for task in shown["tasks"]] == [10, 4, 16]
        assert page.text_content("#node-records").startswith(f"{shown['records']} records")
        expect(page.locator("#samples tbody tr td:nth-child(2)")).to_have_text([HOSTILE[0], "v"])
        assert page.text_content("#samples tbody td") == "∅"
        expect(page.locator("#samples tbody td:nth-child(3)").first).to_contain_text("lines-1 · offset 8")
        assert page.query_selector_all("#samples img") == []
        application.records = {SOURCE: [record._replace(value="newer")]}
        expect(page.locator("#samples tbody tr td:nth-child(2)")).to_have_text(["newer"])
        node(page, UPPER).click()
        expect(page.locator("#node-tasks h3")).to_have_text("records into its sub-topology, by task")
        expect(page.locator("#samples")).to_be_hidden()
        assert ask(server.url, "/api/nodes/nothing").status == 404


class Growing(FakeApplication):
    """Has read more whenever it is looked at."""

    def report(self):
        count = self.reported.nodes[SOURCE] + 100
        self.reported = replace(self.reported, nodes={SOURCE: count}, edges={(SOURCE, UPPER): count})
        return self.reported


def test_rates_are_live_on_nodes_and_edges_and_what_waits_or_was_dropped_is_shown(page):
    cluster = finished(limit=3)
    application = Growing(
        ends={at: end + 5 for at, end in ends(cluster).items()},
        nodes={SOURCE: 0},
        tasks={SOURCE: {"0_0": 0, "0_1": 0}},
        dropped={"0_1": {"late": 2}, "0_0": {"late": 1}},
    )
    with served(cluster, application, interval=50) as server:
        live(page, server.url)
        expect(node(page, SOURCE).locator(".lag")).to_have_text("15 wait")
        expect(page.locator("#graph .dropped").first).to_have_text("dropped 3 (late)")
        moving = re.compile(r"[1-9][\d,.]*/s")
        expect(page.locator("#graph .edge-rate").filter(has_text=moving)).to_have_count(1)
        expect(node(page, SOURCE).locator(".rate")).to_contain_text(moving)


def test_a_store_can_be_looked_through(page):
    cluster = finished(rows=[(f"key {n:03}", "x") for n in range(150)], limit=100)
    with served(cluster, interval=50) as server:
        live(page, server.url)
        page.click("#stores [data-name=counts]")
        page.wait_for_selector("#rows td")
        assert len(page.query_selector_all("#rows tbody tr")) == 100
        page.click("#browse-next")
        expect(page.locator("#rows tbody tr")).to_have_count(150)
        page.fill("#browse-key", "key 077")
        page.click("#browse button[type=submit]")
        expect(page.locator("#rows tbody tr")).to_have_count(1)
        assert page.text_content("#rows td") == "key 077"
        page.fill("#browse-key", "absent")
        page.click("#browse button[type=submit]")
        expect(page.locator("#browse-batch")).to_contain_text("nothing there")
        page.fill("#browse-key", "")
        page.click("#stores [data-name=windows]")
        expect(page.locator("#rows th")).to_have_text(["key", "window", "value", "timestamp"])


def test_hostile_texts_stay_texts(page):
    builder = StreamsBuilder()
    builder.table("states", key=serde.STRING, value=serde.STRING, store="versions")
    builder.stream("lines", key=serde.STRING, value=serde.STRING).group_by_key().count(store="counts")
    program = Program(builder.build, {"lines": [], "states": []}, 1)
    cluster = finished(program, [(text, text) for text in HOSTILE])
    application = FakeApplication(state="RUNNING", error=HOSTILE[0])
    with Server(
        ApplicationView(follower=Follower(cluster.storage), application=application), insecure=True, interval=50
    ) as server:
        live(page, server.url)
        page.click("#stores [data-name=versions]")
        page.wait_for_selector("#rows td")
        keys = [row.query_selector("td").text_content() for row in page.query_selector_all("#rows tbody tr")]
        assert sorted(keys) == sorted(HOSTILE)
        assert HOSTILE[0] in page.text_content("#verdict")
        assert page.query_selector_all("#rows img, #rows script, #verdict img") == []


def test_the_page_comes_back_when_the_server_does(page):
    page.expected = ["Failed to load resource", "ERR_", "net::"]
    cluster = finished(limit=3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with served(cluster, interval=50, port=port) as server:
        live(page, server.url)
    expect(page.locator("#connection")).not_to_have_text("live")
    feed(cluster.log, [("new", "x")] * 3)
    cluster.run()
    with served(cluster, interval=50, port=port):
        has(page, "#connection", "live")
        assert page.text_content("#batch") == str(cluster.coordinator.ledger.number)


def test_with_a_token_the_page_asks_for_it_and_then_can_act(page):
    page.expected = [REFUSED, "401"]
    cluster, application = finished(limit=3), FakeApplication()
    with served(cluster, application, token=TOKEN, interval=50) as server:
        page.goto(server.url)
        page.wait_for_selector("#login:not([hidden])")
        assert "counts" not in page.text_content("body")
        page.fill("#token", "wrong")
        page.click("#login button")
        has(page, "#login-failed", "That is not the token.")
        page.fill("#token", TOKEN)
        page.click("#login button")
        has(page, "#connection", "live")
        with page.expect_response("**/actions/pause") as answered:
            page.click("#actions button:has-text('pause')")
        assert answered.value.status == 200
        has(page, "#acted", "pause: done")
        page.click("#actions button:has-text('snapshot')")
        has(page, "#acted", "snapshot: done")
    assert application.actions == ["pause", "snapshot"]


def test_the_link_opens_the_page_with_one_click_and_leaves_no_token_in_the_address_bar(page):
    cluster, application = finished(limit=3), FakeApplication()
    with served(cluster, application, insecure=False, interval=50) as server:
        asked = list[str]()
        page.on("request", lambda request: asked.append(request.url))
        live(page, server.link)
        assert page.url == f"{server.url}/"
        assert page.text_content("#buttons") == "pauseresumesnapshotstop"
        assert [url for url in asked if (server.token or "") in url.partition("#")[0]] == []
        page.reload()
        has(page, "#connection", "live")


def test_a_link_of_an_earlier_start_asks_for_the_token(page):
    page.expected = [REFUSED, "401"]
    with served(finished(limit=3), insecure=False, interval=50) as server:
        page.goto(f"{server.url}/#token=old")
        page.wait_for_selector("#login:not([hidden])")
        has(page, "#login-failed", "That is not the token.")
        page.goto(server.link)  # the same page: only what is behind the # changes
        has(page, "#connection", "live")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_hundred_nodes_can_be_read_in_both_schemes(browser, scheme):
    builder = StreamsBuilder()
    stream = builder.stream("lines", key=serde.STRING, value=serde.STRING)
    builder.table("states", key=serde.STRING, value=serde.STRING)
    for branch in range(14):
        step = stream
        for _ in range(7):
            step = step.map_values(str.upper, name=None)
        step.to(f"out-{branch}" if branch else "out", name=f"out-{branch}")
    topology = builder.build()
    cluster = finished(Program(lambda: topology, {"lines": [], "states": []}, 1), [])
    view = ApplicationView(follower=Follower(cluster.storage, topology, cluster.config), topology=topology.describe())
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    with Server(view, insecure=True, interval=50) as server:
        live(page, server.url)
        nodes = page.query_selector_all("#graph .node .box")
        assert len(nodes) >= 100
        boxes = [node.bounding_box() for node in nodes]
        assert min(box["width"] for box in boxes) >= 150
        corners = [(box["x"], box["y"]) for box in boxes]
        assert len(set(corners)) == len(corners)
        expect(page.locator("body")).to_have_css("background-color", GROUND[scheme])
        node(page, "out-13").click()  # it is scrolled to
        has(page, "#node-name", "out-13")
        expect(page.locator("#node-details")).to_have_text("topic: out-13")
    context.close()
