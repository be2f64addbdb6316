"""Stores over HTTP say what they say in the process."""

import threading
from urllib.parse import quote

import pytest

from headrace import StreamsBuilder, VersionedRecord, serde
from headrace.errors import SerializationError
from headrace.query import (
    BatchNotKeptError,
    Follower,
    PositionNotReachedError,
    StoreNotReadyError,
    UnknownStoreError,
    UnsuitableQueryError,
)
from headrace.query.client import Client, RemoteError
from headrace.query.json_values import from_json, to_json
from headrace.query.queries import RangeQuery
from headrace.web import ApplicationView, Server
from headrace.web.dashboard_json import Limits
from headrace.web.paging import PageToken, encode_token, make_page, read_rows
from tests.checkpoint.programs import Program
from tests.query.programs import SHOWN, feed, finished, started
from tests.web.servers import ask, lines_of, served

HOSTILE = [
    "", " ", "/", "..", "../../etc/passwd", "a/b?c#d&e=f", "%2e%2e%2f", "<script>alert(1)</script>", "\u202egnp", "💧",
    "a\x00b", "'; drop table x; --", "{{7*7}}", "x" * 3000,
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    return finished(limit=3)


@pytest.fixture(scope="module")
def server(cluster):
    with served(cluster) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def follower(cluster, server):
    return server._view.follower


def test_all_stores_are_listed_with_what_they_are(client):
    stores = client.stores()
    assert [store["name"] for store in stores] == SHOWN
    assert stores[0] == {
        "name": "counts", "kind": "timestamped key-value", "key": "STRING", "value": "LONG", "global": False,
        "tasks": ["0_0", "0_1", "0_2"], "entries": 7,
    }  # fmt: skip
    assert client.store("windows")["kind"] == "timestamped window"


def test_a_key_is_what_the_store_says_with_its_position(client, follower):
    value, position = client.get_with_position("counts", "k1")
    assert value == follower.store("counts").get("k1")
    assert position == follower.snapshot.position
    assert client.get("counts", "absent") is None
    assert client.get("plain", "k1") == {"value": "v29", "at": 290}


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_pages_put_together_are_the_whole(client, follower, limit):
    assert list(client.range("counts", limit=limit)) == list(follower.store("counts").all())
    assert list(client.range("counts", "k2", "k4", limit=limit)) == list(follower.store("counts").range("k2", "k4"))
    down = list(client.range("counts", "k2", "k4", limit=limit, descending=True))
    assert down == list(follower.store("counts").reverse_range("k2", "k4"))
    assert list(client.prefix("counts", "k", limit=limit)) == list(follower.store("counts").prefix_scan("k"))
    assert list(client.windows("windows", limit=limit)) == list(follower.store("windows").all())
    assert list(client.windows("sessions", limit=limit)) == list(follower.store("sessions").all())
    assert list(client.range("versions", limit=limit)) == list(follower.store("versions").latest())
    latest = [(key, version) for key, version in follower.store("versions").latest() if "k2" <= key <= "k4"]
    assert list(client.range("versions", "k2", "k4", limit=limit)) == latest


def test_windows_and_versions_of_a_key(client, follower):
    (window,) = client.windows("windows", "k1", start=250, end=250)
    assert window[0].window == (250, 300)
    assert list(client.windows("sessions", "k1")) == list(follower.store("sessions").fetch("k1"))
    assert list(client.versions("versions", "k1", limit=2)) == list(
        follower.store("versions").history("k1", 0, 2**63 - 1)
    )
    assert client.get("versions", "k1", time=100) == VersionedRecord("v8", 80)


@pytest.mark.parametrize("moment", ["1970-01-01T00:00:00.250Z", "1970-01-01T01:00:00.25%2B01:00", "250"])
def test_times_are_milliseconds_or_iso_8601(server, moment):
    answer = ask(server.url, f"/stores/windows/windows?key=k1&from={moment}&to={moment}")
    assert [row["window"]["start"] for row in answer.json["rows"]] == [250]


def test_lines_carry_all_rows_and_the_batch(server, follower):
    answer = ask(server.url, "/stores/counts/range", accept="application/x-ndjson")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["headrace-batch"] == str(follower.snapshot.batch)
    rows = list(lines_of(answer))
    assert [(row["key"], row["value"]) for row in rows] == [(k, v.value) for k, v in follower.store("counts").all()]
    assert len(list(lines_of(ask(server.url, "/stores/counts/range?format=ndjson&limit=3")))) == 3


@pytest.mark.parametrize(
    "path, status, error",
    [
        ("/stores/nothing", 404, "UnknownStoreError"),
        ("/stores/..%2f..%2fetc%2fpasswd", 404, None),
        ("/stores/../../etc/passwd", 404, None),
        ("/stores/fleeting/range", 400, "UnsuitableQueryError"),
        ("/stores/windows/keys/k1", 400, "UnsuitableQueryError"),
        ("/stores/counts/windows", 400, "UnsuitableQueryError"),
        ("/stores/counts/prefix", 400, "UnsuitableQueryError"),
        ("/stores/counts/range?limit=many", 400, "UnsuitableQueryError"),
        ("/stores/windows/windows?from=2026-11-17T08:00", 400, "UnsuitableQueryError"),  # without an offset from UTC
        ("/stores/counts/range?next=nonsense", 400, "UnsuitableQueryError"),
        ("/stores/counts/range?next=" + encode_token(PageToken(1, ())), 400, "UnsuitableQueryError"),
        ("/stores/windows/windows?next=" + encode_token(PageToken(1, (1, b"x"))), 400, "UnsuitableQueryError"),
        ("/stores/counts/prefix?prefix=k&descending=true", 400, "UnsuitableQueryError"),
        ("/stores/sessions/windows?descending=true", 400, "UnsuitableQueryError"),
        ("/stores/versions/range?descending=true", 400, "UnsuitableQueryError"),
        ("/stores/versions/versions?key=k1&descending=true", 400, "UnsuitableQueryError"),
        ("/stores/counts/keys/k1?as_of=99999", 410, "BatchNotKeptError"),
        ("/stores/counts/keys/k1?at_least=99999", 503, "PositionNotReachedError"),
        ("/nowhere", 404, "NotFound"),
    ],
)
def test_what_goes_wrong_has_a_status_and_a_name(server, path, status, error):
    answer = ask(server.url, path)
    assert answer.status == status
    assert error is None or answer.json["error"] == error
    assert (answer.headers["retry-after"] is not None) == (status == 503)


def test_the_client_raises_errors_of_the_same_kind(client):
    with pytest.raises(UnknownStoreError, match="there is no store 'nothing'"):
        client.store("nothing")
    with pytest.raises(UnsuitableQueryError, match="a session store"):
        client.get("sessions", "k1")
    with pytest.raises(BatchNotKeptError, match="has not happened"):
        client.get("counts", "k1", as_of=99_999)
    with pytest.raises(PositionNotReachedError) as caught:
        client.get("counts", "k1", at_least=99_999)
    assert caught.value.retriable
    with pytest.raises(RemoteError, match=r"cannot be reached|does not answer"):
        Client("http://127.0.0.1:9").stores()


def test_before_the_first_batch_nothing_is_ready():
    cluster = started(limit=1)
    for name in cluster.storage.names():
        cluster.storage.delete(name)
    follower = Follower(cluster.storage)
    with Server(ApplicationView(follower=follower), insecure=True) as server:
        answer = ask(server.url, "/stores")
        assert (answer.status, answer.json["error"]) == (503, StoreNotReadyError.__name__)
        assert ask(server.url, "/health").status == 503


def test_a_page_that_goes_on_after_new_batches_repeats_and_leaves_out_no_key():
    cluster = finished(rows=[(f"key {n:03}", "x") for n in range(50)])
    with served(cluster) as server, Client(server.url) as client:
        pages = client.range("counts", limit=7)
        seen = [next(pages)[0]]
        for _ in range(15):
            feed(cluster.log, [("key 999", "x"), ("key 000", "y")])
            cluster.run()
            assert server._view.follower.wait_for(cluster.coordinator.ledger.number, 5000)
            seen += [key for key, _ in [entry for entry in [next(pages, None)] if entry]]
        seen += [key for key, _ in pages]
        assert [key for key in seen if key != "key 999"] == [f"key {n:03}" for n in range(50)]


def test_an_earlier_batch_can_be_asked_for():
    cluster = started(limit=1)
    cluster.run(5)
    with served(cluster) as server, Client(server.url) as client:
        before, position = client.get_with_position("counts", "k1")
        cluster.run()
        assert server._view.follower.wait_for(cluster.coordinator.ledger.number, 5000)
        assert client.get("counts", "k1").value > before.value
        assert client.get("counts", "k1", as_of=position.batch) == before


def test_answers_under_load_are_never_torn():
    """Every batch counts every key once: all counts in one answer are equal, whichever batch it is of."""
    keys = [f"k{number}" for number in range(12)]
    cluster = finished(rows=[(key, "x") for key in keys], limit=100)
    torn, over = list[object](), threading.Event()
    with served(cluster) as server:

        def read() -> None:
            with Client(server.url) as client:
                while not over.is_set():
                    counts = {value.value for _, value in client.range("counts", limit=100)}
                    if len(counts) != 1:
                        torn.append(counts)

        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(15):
            feed(cluster.log, [(key, "x") for key in keys])
            cluster.run()
        over.set()
        thread.join()
    assert torn == []


# -------------------------------------------------------------------------------------------------- keys and values
@pytest.fixture(scope="module")
def hostile():
    builder = StreamsBuilder()
    builder.table("states", key=serde.STRING, value=serde.STRING, store="versions")
    builder.stream("lines", key=serde.STRING, value=serde.STRING).group_by_key().count(store="counts")
    program = Program(builder.build, {"lines": [], "states": []}, 3)
    cluster = finished(program, [(key, key) for key in HOSTILE])
    with Server(ApplicationView(follower=Follower(cluster.storage)), insecure=True) as server:
        yield server


@pytest.mark.parametrize("key", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_keys_and_values_stay_what_they_are(hostile, key):
    with Client(hostile.url) as client:
        assert client.get("versions", key).value == key
    answer = ask(hostile.url, f"/stores/versions/keys/{quote(key, safe='')}")
    assert (answer.status, answer.json["value"]) == (200, key)
    assert answer.headers["content-type"] == "application/json"


def test_a_key_of_another_type_is_refused_with_what_to_give():
    builder = StreamsBuilder()
    builder.table("states", key=serde.LONG, value=serde.STRING, store="numbers")
    program = Program(builder.build, {"lines": [], "states": []}, 1)
    cluster = finished(program, [])
    with (
        Server(ApplicationView(follower=Follower(cluster.storage)), insecure=True) as server,
        Client(server.url) as client,
    ):
        answer = ask(server.url, "/stores/numbers/keys/abc")
        assert (answer.status, answer.json["error"]) == (400, "SerializationError")
        with pytest.raises(SerializationError, match="LONG: give JSON"):
            client.get("numbers", "abc")
        assert client.get("numbers", 5) is None


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 2**53 + 1, -(2**60), 1.5, float("inf"), "x", b"\x00\xff", (1, (2, b"")), [1, [None]],
     {"a": {"b": 1}}, {1: 2, b"k": "v"}, {"$bytes": "eA=="}, {"$x": 1}, {"$dict": []}],
)  # fmt: skip
def test_every_value_comes_back_from_its_json(value):
    assert from_json(to_json(value)) == value


# -------------------------------------------------------------------------------------------------------------- limits
def test_a_page_has_no_more_rows_and_bytes_than_it_may(cluster, follower):
    with served(cluster, view={"limits": Limits(rows=3)}) as server:
        answer = ask(server.url, "/stores/counts/range?limit=1000000").json
        assert len(answer["rows"]) == 3
        assert answer["next"]
    snapshot = follower.snapshot
    rows = read_rows(snapshot, snapshot.catalog.describe("counts"), RangeQuery(), None)
    assert 1 <= len(make_page(rows, Limits(page_bytes=100), 1000, 1)["rows"]) < 7


def test_time_and_bytes_of_an_answer_are_bounded(follower):
    snapshot = follower.snapshot
    rows = read_rows(snapshot, snapshot.catalog.describe("counts"), RangeQuery(), None)
    assert len(make_page(rows, Limits(seconds=-1), 1000, 1)["rows"]) == 1
    many = finished(rows=[(f"key {n}", "v" * 100) for n in range(1500)], limit=2000)
    with served(many, view={"limits": Limits(stream_bytes=1000)}) as server:
        rows = list(lines_of(ask(server.url, "/stores/plain/range?format=ndjson")))
        assert rows[-1]["error"] == "Truncated"
        assert len(rows) < 1500


def test_a_key_has_no_more_characters_than_it_may(server):
    assert ask(server.url, f"/stores/counts/keys/{'x' * 20_000}").status == 400
    assert ask(server.url, f"/stores/counts/range?from={'x' * 20_000}").status == 400
