"""Every question to every kind of store, from the topology and from the checkpoint alone."""

import pytest

from headrace import StreamsBuilder, ValueAndTimestamp, VersionedRecord, Window, Windowed, serde
from headrace.checkpoint.fingerprint import StoreShape, compute_fingerprint
from headrace.config import Config
from headrace.errors import InvalidStateStoreError
from headrace.model.windows import UnlimitedWindows
from headrace.query import (
    Follower,
    KeyQuery,
    MultiVersionedKeyQuery,
    PrefixQuery,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    UnknownStoreError,
    UnsuitableQueryError,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from headrace.query.catalog import (
    catalog_from_checkpoint,
    catalog_from_topology,
    parse_kind,
    parse_serde,
    parse_store,
)
from headrace.query.replica import DiskReplica
from headrace.state.spec import WindowKind
from headrace.topology.subtopologies import plan
from tests.checkpoint.programs import CONFIG, Program
from tests.query.programs import ONE, THREE, every_kind, finished

CACHED = Config.of({"application.id": "app"}, default_key_serde=serde.STRING)


@pytest.fixture(params=["one task", "three tasks", "on disk", "checkpoint alone"], scope="module")
def follower(request, tmp_path_factory):
    cluster = finished(ONE if request.param == "one task" else THREE, limit=4, config=CACHED)
    topology = None if request.param == "checkpoint alone" else every_kind()
    replica = DiskReplica(tmp_path_factory.mktemp("replica"), map_size=1 << 24) if request.param == "on disk" else None
    follower = Follower(cluster.storage, topology, CACHED, replica=replica)
    yield follower
    follower.close()


def ask(follower, store, query):
    found = follower.query(store, query).result
    return list(found) if hasattr(found, "__next__") else found


def test_a_key_has_its_value_and_on_demand_its_timestamp(follower):
    assert ask(follower, "counts", KeyQuery.with_key("k1")) == 5
    assert ask(follower, "counts", TimestampedKeyQuery.with_key("k1")) == ValueAndTimestamp(5, 290)
    assert ask(follower, "counts", KeyQuery("absent")) is None
    assert ask(follower, "plain", KeyQuery("k1")) == {"value": "v29", "at": 290}


def test_a_range_is_in_the_order_of_the_keys_over_all_tasks(follower):
    assert ask(follower, "counts", RangeQuery.with_range("k2", "k4")) == [("k2", 4), ("k3", 4), ("k4", 4)]
    assert ask(follower, "counts", RangeQuery.with_lower_bound("k5").with_descending_keys()) == [("k6", 4), ("k5", 4)]
    assert ask(follower, "counts", RangeQuery.with_upper_bound("k1")) == [("k0", 5), ("k1", 5)]
    assert ask(follower, "counts", TimestampedRangeQuery("k6")) == [("k6", ValueAndTimestamp(4, 270))]
    assert [key for key, _ in ask(follower, "counts", RangeQuery.with_no_bounds())] == [f"k{n}" for n in range(7)]


def test_a_prefix_finds_all_keys_that_begin_with_it(follower):
    assert len(ask(follower, "counts", PrefixQuery("k"))) == 7
    assert ask(follower, "counts", PrefixQuery("k3")) == [("k3", 4)]
    assert ask(follower, "counts", PrefixQuery("x")) == []


def test_windows_of_a_key_and_of_all_keys(follower):
    query = WindowKeyQuery.with_key_and_window_start_range("k1", 50, 200)
    assert ask(follower, "windows", query) == [(50, 1), (150, 1), (200, 1)]
    assert ask(follower, "windows", WindowKeyQuery("k1", 50, 200, descending=True)) == [(200, 1), (150, 1), (50, 1)]
    found = ask(follower, "windows", WindowRangeQuery.with_window_start_range(250, 250))
    assert [at.key for at, _ in found] == ["k0", "k1", "k4", "k5", "k6"]
    assert found[0] == (Windowed("k0", Window(250, 300)), 1)
    assert ask(follower, "windows", WindowRangeQuery(250, 250, descending=True)) == found[::-1]


def test_sessions_of_a_key_and_of_all_keys(follower):
    assert ask(follower, "sessions", WindowRangeQuery.with_key("k1")) == [
        (Windowed("k1", Window(at, at)), 1) for at in (10, 80, 150, 220, 290)
    ]
    assert len(ask(follower, "sessions", SessionKeyQuery("k1", earliest_end=150, latest_start=220))) == 2
    assert ask(follower, "sessions", SessionKeyQuery("k1", 280, descending=True))[0][0].window.start == 290
    assert len(ask(follower, "sessions", SessionRangeQuery())) == 30


def test_versions_of_a_key(follower):
    assert ask(follower, "versions", VersionedKeyQuery.with_key("k1")) == VersionedRecord("v29", 290)
    assert ask(follower, "versions", VersionedKeyQuery.with_key("k1").as_of(100)) == VersionedRecord("v8", 80)
    query = MultiVersionedKeyQuery.with_key("k1").from_time(100).to_time(160)
    expected = [VersionedRecord("v8", 80, 150), VersionedRecord("v15", 150, 220)]
    assert ask(follower, "versions", query) == expected
    assert ask(follower, "versions", query.with_descending_timestamps()) == expected[::-1]


def test_a_question_that_a_store_cannot_answer_is_refused(follower):
    with pytest.raises(UnsuitableQueryError, match="'windows' is a timestamped window store"):
        ask(follower, "windows", KeyQuery("k1"))
    with pytest.raises(UnsuitableQueryError):
        ask(follower, "plain", TimestampedKeyQuery("k1"))
    with pytest.raises(UnsuitableQueryError, match="not logged"):
        ask(follower, "fleeting", KeyQuery("k1"))


@pytest.mark.parametrize("name", ["nothing", "../counts", "counts/../../etc/passwd", ""])
def test_a_store_that_is_not_there_is_unknown_and_no_name_becomes_a_path(follower, name):
    with pytest.raises(UnknownStoreError, match="there is: counts"):
        follower.query(name, KeyQuery("k1"))


def test_the_views_have_the_methods_of_the_stores(follower):
    counts, windows, sessions = (follower.store(name) for name in ("counts", "windows", "sessions"))
    assert counts.get("k1") == ValueAndTimestamp(5, 290)
    assert [key for key, _ in counts.reverse_all()] == [f"k{n}" for n in range(6, -1, -1)]
    assert counts.approximate_size == 7
    assert windows.fetch("k1", 50).value == 1
    assert [start for start, _ in windows.backward_fetch("k1", 0, 100)] == [50, 0]
    assert len(list(windows.all())) == len(list(windows.backward_all())) == 30
    assert sessions.fetch_session("k1", 80, 80) == 1
    assert len(list(sessions.fetch("k1"))) == len(list(sessions.backward_fetch("k1"))) == 5
    assert follower.store("versions").get("k1", 100) == VersionedRecord("v8", 80)
    assert len(list(follower.store("versions").latest())) == 7
    with pytest.raises(InvalidStateStoreError, match="'counts' is read-only here: this is a copy for reading"):
        counts.put("k1", ValueAndTimestamp(1, 1))


def test_to_look_at_a_store_is_not_to_use_it(follower):
    before = [key for key, _ in follower.store("recent").all()]
    for key in before:
        assert follower.store("recent").get(key) is not None
    assert [key for key, _ in follower.store("recent").all()] == before


def test_a_key_is_found_wherever_the_application_has_put_it():
    cluster = finished(Program(every_kind, {"lines": [("k1", "a"), ("k1", "b"), ("k1", "c")], "states": []}, 3), [])
    follower = Follower(cluster.storage)
    assert follower.store("counts").get("k1").value == 1  # one of three, none of them lost
    assert len(list(follower.store("windows").all())) == 3


def test_a_global_store_is_asked_as_any_other():
    builder = StreamsBuilder()
    builder.global_table("names", key=serde.STRING, value=serde.STRING, store="all-names")
    builder.stream("lines", key=serde.STRING, value=serde.STRING).to("out")
    graph = builder.build().graph()
    planned = plan(graph)
    fingerprint = compute_fingerprint(graph, planned, CONFIG, tasks=dict.fromkeys(planned.stages, 1), partitions={})
    for catalog in (catalog_from_checkpoint(fingerprint), catalog_from_topology(graph, CONFIG, fingerprint)):
        store = catalog.describe("all-names")
        assert store.is_global
        assert store.tasks == ((len(planned.stages), 0),)


# ------------------------------------------------------------------------------------------ words of a checkpoint
@pytest.mark.parametrize(
    "name",
    [
        "STRING",
        "LONG",
        "JSON",
        "UNDECLARED",
        "list_of(list_of(LONG))",
        "windowed(STRING, 10)",
        "session_windowed(UUID)",
    ],
)
def test_a_serde_comes_back_from_its_name(name):
    found = parse_serde(name)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "words",
    ["", "custom", "__import__('os').system('true')", "list_of(mine)", "a b", "(" * 500, "lambda: 1", "windowed(X, 1)"],
)
def test_other_words_are_no_serde_and_no_kind_and_nothing_is_run(words):
    assert parse_serde(words) is None
    assert parse_kind(words) is None


def test_of_a_serde_that_is_not_known_the_bytes_are_shown():
    spec = parse_store(StoreShape("s", "KeyValueKind(timestamped=False)", "mine", "json_of(Trade)", logged=True))
    assert spec is not None
    assert (spec.key, spec.value) == (serde.BYTES, serde.JSON)


def test_windows_of_a_definition_come_back_if_their_words_suffice():
    found = parse_kind("WindowKind(window_size=UnlimitedWindows(start=5, size=9223372036854775807), by_time=True)")
    assert isinstance(found, WindowKind)
    assert found.window_size == UnlimitedWindows.of(5)
    assert parse_kind("WindowKind(window_size=DailyWindows(zone=ZoneInfo), by_time=True)") is None
