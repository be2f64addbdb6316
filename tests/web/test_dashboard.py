"""The page in a browser: what it shows is what the API says."""

import re
import socket
from dataclasses import replace
from itertools import combinations

import pytest
from playwright.sync_api import expect

from headrace import StreamsBuilder, TimeWindows, serde
from headrace.query import Follower
from headrace.query.client import Client
from headrace.query.history import BatchLatency
from headrace.query.status import SampledRecord
from headrace.topology.describe import describe
from headrace.web import ApplicationView, Server
from tests.checkpoint.programs import Program
from tests.query.programs import feed, finished, started
from tests.web.busy_application import busy_view
from tests.web.servers import FakeApplication, ask, ends, served

pytestmark = pytest.mark.slow
TOKEN = "open sesame"  # noqa: S105
REFUSED = "net::ERR_CONNECTION_REFUSED"
GROUND = {"dark": "rgb(16, 21, 27)", "light": "rgb(244, 246, 249)"}
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


def legend(page, chart):
    """What the legend of a chart says, by the label of the series."""
    rows = page.locator(f"#{chart} .u-legend tr").all()
    return {row.locator("th").text_content(): row.locator("td").text_content() for row in rows}


def test_the_latency_charts_show_the_time_from_log_to_log_and_where_it_goes(page):
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
        has(page, "#latency-p50", "41 ms")
        has(page, "#latency-p99", "p50, and p99 140 ms")
        found = legend(page, "chart-latency")
        assert (found["p50"], found["p99"]) == ("41 ms", "140 ms")
        parts = legend(page, "chart-parts")
        del parts["time"]
        assert parts == {
            "wait": "5 ms", "plan": "2 ms", "level 0": "8 ms", "level 1": "4 ms", "exchange": "3 ms",
            "orders and receipts": "5 ms", "commit": "4 ms", "deliver": "10 ms",
        }  # fmt: skip
        [point] = [point for point in ask(server.url, "/api/history").json["points"] if point["p50"] is not None]
        assert (point["p50"], point["p99"], point["parts"]["deliver"]) == (41, 140, 10)


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
        expect(page.locator("#samples tbody tr td:nth-child(4)")).to_have_text([HOSTILE[0], "v"])
        first = page.locator("#samples tbody tr").first.locator("td").all_text_contents()
        assert first == ["2023-11-14 22:13:20.000", "lines-1 at 8", "∅", HOSTILE[0]]
        assert page.query_selector_all("#samples img") == []
        application.records = {SOURCE: [record._replace(value="newer")]}
        expect(page.locator("#samples tbody tr td:nth-child(4)")).to_have_text(["newer"])
        node(page, UPPER).click()
        expect(page.locator("#node-tasks h3")).to_have_text("records into its sub-topology, by task")
        expect(page.locator("#samples")).to_be_hidden()
        assert ask(server.url, "/api/nodes/nothing").status == 404


def test_headline_source_and_edge_agree_on_the_rate(page):
    with Server(busy_view(), insecure=True, interval=50) as server:
        live(page, server.url)
        expect(page.locator("#rate")).to_have_text(re.compile(r"[1-9]"))
        shown = page.evaluate(
            """() => {
                const text = (place) => document.querySelector(place).textContent;
                const rate = (name) => text(`#graph .node[data-name='${name}'] .rate tspan`);
                return [text("#rate"), rate("KSTREAM-SOURCE-0000000000"), rate("KSTREAM-SOURCE-0000000001"),
                        document.querySelector("#graph .edge-rate").textContent];
            }"""
        )
        headline, lines, states, edge = (float(re.sub(r"[,/s]", "", text)) for text in shown)
        assert headline == pytest.approx(lines + states, abs=1.1)
        assert edge in (lines, states)


def test_records_that_wait_are_red_only_if_that_is_a_problem(page):
    cluster = finished(limit=3)
    application = FakeApplication(
        ends={at: end + 5 for at, end in ends(cluster).items()},
        tasks={SOURCE: {"0_0": 0, "0_1": 0}},
        nodes={SOURCE: 30},
        dropped={"0_1": {"late": 2}, "0_0": {"late": 1}},
    )
    with served(cluster, application, interval=50) as server:
        live(page, server.url)  # records wait, and none was processed: it is stuck
        waiting = node(page, SOURCE).locator(".waiting")
        expect(waiting).to_have_text(re.compile("15 waiting"))
        expect(waiting).to_have_class("waiting bad")
        expect(page.locator("#graph .dropped").first).to_have_text("3 dropped")
        application.reported = replace(application.reported, paused=True)
        expect(waiting).to_have_class("waiting")


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
        expect(page.locator("#rows th")).to_have_text(["key", "window", "value", "time"])


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


# ------------------------------------------------------------------------------------------------------- 30 nodes
def boxes(page, places):
    """The rectangles of elements on the screen: left, top, right, bottom."""
    return page.evaluate(
        """(places) => [...document.querySelectorAll(places)].map((element) => {
            const { left, top, right, bottom } = element.getBoundingClientRect();
            return [left, top, right, bottom];
        })""",
        places,
    )


def overlap(one, other):
    return one[0] < other[2] - 0.5 and other[0] < one[2] - 0.5 and one[1] < other[3] - 0.5 and other[1] < one[3] - 0.5


def lies_in(inner, outer):
    return all(i >= o - 0.5 for i, o in zip(inner[:2], outer[:2], strict=True)) and all(
        i <= o + 0.5 for i, o in zip(inner[2:], outer[2:], strict=True)
    )


def check_graph(page):
    """Everything is in the frame; no node, label or name of a group covers another; texts are in their boxes, whole."""
    [frame] = boxes(page, "#graph")
    nodes, labels = boxes(page, "#graph .node .box"), boxes(page, "#graph .edge-rate:not(:empty), #graph .group-name")
    assert len(nodes) > 30
    assert [box for box in [*nodes, *labels, *boxes(page, "#graph .group")] if not lies_in(box, frame)] == []
    assert [pair for pair in combinations([*nodes, *labels], 2) if overlap(*pair)] == []
    assert [pair for pair in combinations(boxes(page, "#graph .group"), 2) if overlap(*pair)] == []
    outside = page.evaluate(
        """() => [...document.querySelectorAll("#graph .node")].filter((node) => {
            const box = node.querySelector(".box").getBoundingClientRect();
            return [...node.querySelectorAll("text")].some((text) => {
                const { left, right, top, bottom } = text.getBoundingClientRect();
                const wide = left < box.left || right > box.right, tall = top < box.top - 1 || bottom > box.bottom + 1;
                return text.textContent && (wide || tall);
            });
        }).map((node) => node.dataset.name)"""
    )
    assert outside == []
    for shape in page.query_selector_all("#graph .node"):
        name = "".join(line.text_content() for line in shape.query_selector_all(".name"))
        assert name == shape.get_attribute("data-name")


def check_page(page):
    """Nothing is wider than the screen, and every chart has its axes."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    [frame] = boxes(page, "main")
    assert [box for box in boxes(page, "main section:not([hidden])") if not lies_in(box, frame)] == []
    for chart in CHARTS:
        assert page.locator(f"#{chart} .u-axis").count() == 2
        assert drawn(page, chart)["ink"] > 100


def drawn(page, chart):
    """The picture of a chart, and how many of its pixels are not empty."""
    return page.evaluate(
        """(chart) => {
            const canvas = document.querySelector(`#${chart} canvas`);
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let ink = 0;
            for (let at = 3; at < data.length; at += 4) ink += data[at] > 0;
            return { picture: canvas.toDataURL(), ink };
        }""",
        chart,
    )


CHARTS = ["chart-rate", "chart-lag", "chart-latency", "chart-parts"]


@pytest.fixture(scope="module")
def busy():
    with Server(busy_view(), insecure=True, interval=250) as server:
        yield server.url


def open_busy(browser, url, width, height, scheme):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    live(page, url)
    expect(page.locator("#latency-p50")).to_have_text(re.compile(" ms"))
    expect(page.locator("#graph .edge-rate").first).to_have_text(re.compile("/s"))
    return page


@pytest.mark.parametrize("width, height, scheme", [(1400, 1000, "light"), (390, 844, "dark"), (820, 1180, "dark")])
def test_thirty_nodes_fit_a_screen_of_any_width(browser, busy, width, height, scheme):
    page = open_busy(browser, busy, width, height, scheme)
    check_graph(page)
    check_page(page)
    expect(page.locator("body")).to_have_css("background-color", GROUND[scheme])
    page.set_viewport_size({"width": width + 200, "height": height})  # as if a phone were turned
    expect(page.locator("#graph svg")).to_have_count(1)
    page.wait_for_function(
        "() => document.querySelector('#graph svg').clientWidth === document.getElementById('graph').clientWidth"
    )
    check_graph(page)
    page.context.close()


def test_the_graph_zooms_and_moves_and_comes_back(browser, busy):
    page = open_busy(browser, busy, 1400, 1000, "light")
    box = "#graph .node[data-name='rare'] .box"
    [at], shown = boxes(page, box), page.text_content("#zoom")
    whole = at[2] - at[0]
    for _ in range(3):
        page.click("#zoom-in")
    page.wait_for_function(f'() => document.querySelector("{box}").getBoundingClientRect().width > {2.5 * whole}')
    [frame], before = boxes(page, "#graph"), boxes(page, box)[0]
    x, y = (frame[0] + frame[2]) / 2, (frame[1] + frame[3]) / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 80, y - 40, steps=4)
    page.mouse.up()
    page.wait_for_function(f'() => document.querySelector("{box}").getBoundingClientRect().left < {before[0] - 60}')
    expect(page.locator("#node-panel")).to_be_hidden()  # to move the graph is not a click on a node
    page.click("#zoom-fit")
    has(page, "#zoom", shown)
    page.wait_for_function(
        f'() => Math.abs(document.querySelector("{box}").getBoundingClientRect().width - {whole}) < 1'
    )
    check_graph(page)
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function(f'() => document.querySelector("{box}").getBoundingClientRect().width > {1.05 * whole}')
    page.locator("#graph").focus()
    page.keyboard.press("0")
    has(page, "#zoom", shown)
    page.mouse.wheel(0, 200)  # without the key the page scrolls
    page.wait_for_function("() => scrollY > 0")
    has(page, "#zoom", shown)
    page.context.close()


def test_charts_change_when_records_flow(browser, busy):
    page = open_busy(browser, busy, 1400, 1000, "light")
    page.click("#ranges button:has-text('1 min')")
    before = {chart: drawn(page, chart)["picture"] for chart in CHARTS}
    time = legend(page, "chart-rate")["time"]
    page.wait_for_function(
        "(time) => document.querySelector('#chart-rate .u-legend td').textContent > time", arg=time
    )  # a second later
    assert [chart for chart in CHARTS if drawn(page, chart)["picture"] == before[chart]] == []
    rates, points = legend(page, "chart-rate"), ask(busy, "/api/history").json["points"]
    assert float(rates["in"].replace(",", "")) > 0
    assert points[-1]["lag"] == 24
    assert [point["at"] for point in points] == sorted({point["at"] for point in points})
    page.context.close()


def test_the_switch_chooses_light_or_dark_for_good(browser, busy):
    page = open_busy(browser, busy, 1400, 1000, "dark")
    ground = page.locator("body")
    expect(ground).to_have_css("background-color", GROUND["dark"])
    page.click("#theme")
    expect(ground).to_have_css("background-color", GROUND["light"])
    check_page(page)
    page.reload()
    expect(ground).to_have_css("background-color", GROUND["light"])
    page.click("#theme")
    expect(ground).to_have_css("background-color", GROUND["dark"])
    page.click("#theme")  # as the system says
    page.emulate_media(color_scheme="light")
    expect(ground).to_have_css("background-color", GROUND["light"])
    page.context.close()


def test_slots_sources_sinks_and_changes_are_shown(browser, busy):
    page = open_busy(browser, busy, 1400, 1000, "light")
    rows = page.locator("#slots tbody tr").all()
    assert [cell.text_content() for cell in rows[1].locator("td").all()] == [
        "1", "worker-2.example.org", "977", "0_1 1_0 1_2", "0_0 (2 batches behind) 1_1",
    ]  # fmt: skip
    has(page, "#moves", "3 tasks have moved to another slot since the start.")
    names = page.locator("#connectors td:first-child").all_text_contents()
    states = dict(zip(names, page.locator("#connectors .badge").all_text_contents(), strict=True))
    assert states == {
        "source orders-of-the-old-shop": "running", "source states": "retrying",
        "sink warehouse": "delivering", "sink search": "away",
    }  # fmt: skip
    assert "HTTP 503; 4 attempts have failed since the start" in page.text_content("#connectors")
    has(page, "#changes-title", "What the last start changed, after batch 411")
    assert page.locator("#changes li b").all_text_contents() == [
        "+ store largest-order-of-each-region-of-this-year: new",
        "~ store KSTREAM-AGGREGATE-STATE-STORE-0000000012 (was KSTREAM-AGGREGATE-STATE-STORE-0000000009): renamed",
    ]
    expect(page.locator("#dead-letters-tile")).to_be_visible()
    expect(page.locator("#drops-none")).to_contain_text("went to the dead letter topic failed-lines")
    said = page.text_content("body")
    assert "back after a loss" not in said
    assert "instance" not in said
    page.context.close()


def test_dropped_records_are_shown_with_their_operators(page):
    builder = StreamsBuilder()
    builder.table("states", key=serde.STRING, value=serde.STRING, store="states")
    lines = builder.stream("lines", key=serde.STRING, value=serde.STRING, name="lines")
    lines.group_by_key().windowed_by(TimeWindows.of(10, grace=0)).count(store="counts")
    topology = builder.build()
    cluster = started(Program(lambda: topology, {"lines": [], "states": []}, 1), [("ada", "x")] * 9)
    feed(cluster.log, [("late", "x")])
    cluster.run()
    view = ApplicationView(follower=Follower(cluster.storage, topology, cluster.config), topology=topology.describe())
    with Server(view, insecure=True, interval=50) as server:
        live(page, server.url)
        reason = page.locator("#reasons tbody td").all_text_contents()
        assert reason[:2] == ["late", "1"]
        assert "its window had closed" in reason[2]
        shown = page.locator("#drops tbody td").all_text_contents()
        assert shown[1:] == [
            "late", "KSTREAM-AGGREGATE-0000000003", "lines-0 at 9", "late", "1970-01-01 00:00:00.000",
            "1970-01-01 00:00:00.070",
        ]  # fmt: skip
        assert ask(server.url, "/api/drops").json["last"][0]["offset"] == 9


def test_a_hundred_nodes_fit_too(browser):
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
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    with Server(view, insecure=True, interval=50) as server:
        live(page, server.url)
        check_graph(page)
        node(page, "out-13").click()
        has(page, "#node-name", "out-13")
        expect(page.locator("#node-details")).to_have_text("topic: out-13")
    context.close()
