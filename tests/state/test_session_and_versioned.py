"""Session and versioned stores, by example; random calls are compared with Kafka's own in test_against_kafka."""

import pytest

from headrace.model.record import VersionedRecord
from headrace.model.windows import Window, Windowed
from headrace.serde import STRING
from headrace.state.engine import MemoryEngine, Version
from headrace.state.spec import SessionKind, StoreSpec, VersionedKind
from headrace.state.versioned import LATEST, NOT_PUT
from tests.state.harness import opened_state


def opened(kind, *, persistent=True, dropped=None):
    drops = [] if dropped is None else dropped
    spec = StoreSpec("store", kind, STRING, STRING, persistent=persistent)
    state = opened_state(spec, MemoryEngine(), dropped=lambda *drop: drops.append(drop))
    return state, state.store("store")


def session(key, start, end):
    return Windowed(key, Window(start, end))


def test_a_session_disappears_when_its_end_lies_the_retention_behind_the_largest_one():
    #  0    5         15
    #  [----]          |       retention 10: visible are ends > clock - 10
    _, store = opened(SessionKind(10))
    store.put(session("k", 0, 5), "v")
    store.put(session("other", 14, 14), "w")
    assert list(store.fetch("k")) == [(session("k", 0, 5), "v")]
    store.put(session("other", 14, 15), "w")
    assert list(store.fetch("k")) == []
    assert store.fetch_session("k", 0, 5) is None


@pytest.mark.parametrize("persistent, starts", [(True, [0, 3]), (False, [3, 0])])
def test_sessions_with_one_end_come_by_start_on_disk_and_the_other_way_round_in_memory(persistent, starts):
    _, store = opened(SessionKind(100), persistent=persistent)
    store.put(session("k", 0, 5), "v")
    store.put(session("k", 3, 5), "v")
    assert [found.window.start for found, _ in store.find_sessions("k", 0, 10)] == starts


def test_only_sessions_that_touch_the_range_are_found():
    _, store = opened(SessionKind(1_000))
    for start, end in ((0, 5), (10, 20), (30, 40)):
        store.put(session("k", start, end), f"{start}")
    assert [value for _, value in store.find_sessions("k", 5, 10)] == ["0", "10"]
    assert [value for _, value in store.backward_find_sessions("k", 6, 40)] == ["30", "10"]
    assert [value for _, value in store.backward_fetch("k")] == ["30", "10", "0"]


def test_sessions_that_are_waited_for_stay_though_they_cannot_be_seen():
    state, store = opened(SessionKind(10))
    store.hold_back(0)
    store.put(session("b", 0, 5), "v")
    store.put(session("a", 0, 5), "v")
    store.put(session("a", 1, 4), "v")
    store.put(session("k", 1_000, 1_000), "v")
    state.commit(Version(1, "x"))
    assert [(found.key, *found.window) for found, _ in store.by_end(0, 9)] == [("a", 1, 4), ("a", 0, 5), ("b", 0, 5)]
    store.hold_back(1_000)
    state.commit(Version(2, "x"))
    assert store.table.count() == 1


@pytest.mark.parametrize(
    "method, args",
    [("find_sessions", (0, 1)), ("backward_find_sessions", (0, 1)), ("fetch", ()), ("fetch_session", (0, 1))],
)
def test_no_key_is_an_error_of_a_session_store(method, args):
    _, store = opened(SessionKind(10))
    with pytest.raises(TypeError, match=f"^{method} of store 'store' was given None as a key"):
        getattr(store, method)(None, *args)
    for write in (lambda: store.put(session(None, 0, 1), "v"), lambda: store.remove(session(None, 0, 1))):
        with pytest.raises(TypeError, match="was given None as a key"):
            write()


def test_a_version_is_valid_until_the_next_one():
    #  10      20      30
    #  a-------b-------c------>
    _, store = opened(VersionedKind(100))
    assert store.put("k", "a", 10) == LATEST
    assert store.put("k", "c", 30) == LATEST
    assert store.put("k", "b", 20) == 30
    assert store.get("k") == store.get("k", 31) == VersionedRecord("c", 30)
    assert store.get("k", 29) == VersionedRecord("b", 20)
    assert store.get("k", 9) is None
    assert list(store.history("k", 15, 25)) == [VersionedRecord("a", 10, 20), VersionedRecord("b", 20, 30)]


def test_a_deletion_is_a_version_without_value():
    _, store = opened(VersionedKind(100))
    store.put("k", "a", 10)
    assert store.delete("k", 20) == VersionedRecord("a", 10)
    assert store.get("k") is None
    assert store.get("k", 19) == VersionedRecord("a", 10)
    assert store.put("k", "b", 15) == 20
    assert list(store.history("k", 0, 100)) == [VersionedRecord("a", 10, 15), VersionedRecord("b", 15, 20)]


def test_a_version_older_than_the_history_is_not_put_and_counted():
    drops = []
    _, store = opened(VersionedKind(100), dropped=drops)
    store.put("k", "new", 200)
    assert store.put("k", "old", 99) == NOT_PUT == -(2**63)
    assert store.delete("k", 99) is None
    assert drops == [("expired version", 1)] * 2
    assert store.put("k", "old enough", 100) == 200


def test_the_latest_version_never_expires_and_older_ones_leave_the_engine():
    state, store = opened(VersionedKind(100))
    store.put("k", "a", 1)
    store.put("k", "b", 2)
    store.put("other", "c", 1_000_000)
    state.commit(Version(1, "x"))
    assert store.get("k") == store.get("k", 5) == VersionedRecord("b", 2)
    assert store.get("k", 1) is None
    assert list(store.history("k", 0, 2_000_000)) == [VersionedRecord("b", 2)]
    assert store._past.count() == 0


def test_a_version_that_ended_when_the_history_begins_is_still_part_of_it():
    state, store = opened(VersionedKind(6_000))
    store.put("k", "a", 1_000)
    store.put("k", "b", 2_000)
    store.put("other", "c", 8_000)  # the history begins at 2000, and so does a segment
    state.commit(Version(1, "x"))
    assert list(store.history("k", 0, 9_000)) == [VersionedRecord("a", 1_000, 2_000), VersionedRecord("b", 2_000)]
    store.put("other", "c", 9_999)
    state.commit(Version(2, "x"))
    assert len(list(store.history("k", 0, 9_999))) == 2
    store.put("other", "c", 10_000)
    state.commit(Version(3, "x"))
    assert list(store.history("k", 0, 10_000)) == [VersionedRecord("b", 2_000)]
    assert len(list(store.history("other", 0, 10_000))) == 3
    assert store._past.count() == 2


def test_as_in_kafka_a_deletion_at_the_time_of_the_only_version_leaves_no_trace():
    _, store = opened(VersionedKind(100))
    assert store.put("k", "a", 10) == LATEST
    assert store.put("k", None, 10) == LATEST
    assert store.put("k", "earlier", 5) == LATEST
    assert store.get("k") == VersionedRecord("earlier", 5)


@pytest.mark.parametrize("method, args", [("put", ("v", 0)), ("delete", (0,)), ("get", ()), ("history", (0, 1))])
def test_no_key_is_an_error_of_a_versioned_store(method, args):
    _, store = opened(VersionedKind(10))
    with pytest.raises(TypeError, match=f"^{method} of store 'store' was given None as a key"):
        getattr(store, method)(None, *args)
