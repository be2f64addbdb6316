"""Window stores, by example; random calls are compared with Kafka's own stores in test_against_kafka."""

import pytest

from headrace.model.record import ValueAndTimestamp
from headrace.model.windows import LONGEST, Window, Windowed
from headrace.serde import STRING
from headrace.state import expiry
from headrace.state.engine import MemoryEngine, Version
from headrace.state.keys import decode_window, encode_window
from headrace.state.spec import StoreSpec, WindowKind
from tests.state.harness import opened_state


def windows(kind, *, persistent=True, dropped=None, engine=None):
    drops = [] if dropped is None else dropped
    spec = StoreSpec("windows", kind, STRING, STRING, persistent=persistent)
    state = opened_state(spec, engine or MemoryEngine(), dropped=lambda *drop: drops.append(drop))
    return state, state.store("windows")


def starts(entries):
    return [key.window.start for key, _ in entries]


def test_a_window_disappears_when_its_start_lies_the_retention_behind_the_largest_one():
    #  0         10        20
    #  A----------         |            retention 10: visible are starts > clock - 10
    #            B----------
    _, store = windows(WindowKind(10, 10))
    store.put("k", "A", 0)
    store.put("k", "B", 9)
    assert starts(store.all()) == [0, 9]
    store.put("k", "C", 10)
    assert starts(store.all()) == [9, 10]
    assert store.fetch("k", 0) is None


@pytest.mark.parametrize("persistent, kept", [(True, True), (False, False)])
def test_an_expired_put_is_dropped_in_memory_at_once_and_on_disk_when_its_segment_is_over(persistent, kept):
    drops = []
    _, store = windows(WindowKind(10, 10), persistent=persistent, dropped=drops)
    store.put("k", "new", 59_999)
    store.put("k", "late", 40_000)
    assert (drops == []) == kept
    assert store.fetch("k", 40_000) is None
    store.put("k", "newer", 60_010)
    store.put("k", "late", 40_000)
    assert drops[-1] == ("expired window", 1)


def test_an_update_of_an_interval_that_was_removed_is_removed_too(monkeypatch):
    monkeypatch.setattr(expiry, "LINGERING", 0)
    spec = StoreSpec("windows", WindowKind(10, 10), STRING, STRING, caching=True)
    state = opened_state(spec, MemoryEngine(), caching=True)  # so that the store keeps a late update
    store = state.store("windows")
    for number, (key, start) in enumerate([("k", 0), ("other", 200_000), ("k", 5), ("other", 400_000)]):
        store.update(store.row(key) + encode_window(b"", start)[-8:], "v", start, known=False)
        state.commit(Version(number, "a"))
    assert [decode_window(place) for place, _ in store.table.scan()] == [(b"other", 400_000)]


def test_an_update_after_a_rollback_is_removed_when_it_has_expired():
    state, store = windows(WindowKind(10, 10))
    for number, start in enumerate([0, 0, 200_000]):
        store.update(store.row("k") + encode_window(b"", start)[-8:], "v", start, known=False)
        if number == 0:
            state.rollback()
    state.commit(Version(1, "a"))
    assert [decode_window(place)[1] for place, _ in store.table.scan()] == [200_000]


def test_windows_after_the_newest_one_before_the_batch_are_only_known_to_the_batch():
    state, store = windows(WindowKind(10, 10))
    assert store.newest_before == -1
    store.put("k", "v", 5)
    assert store.newest_before == -1
    state.commit(Version(1, "a"))
    assert store.newest_before == 5


def test_duplicates_come_in_the_order_of_arrival():
    _, store = windows(WindowKind(1000, 10, retain_duplicates=True))
    for value, start in (("c", 5), ("a", 5), ("b", 4)):
        store.put("k", value, start)
    assert list(store.fetch("k", 0, 10)) == [(4, "b"), (5, "c"), (5, "a")]
    assert list(store.backward_fetch("k", 0, 10)) == [(5, "a"), (5, "c"), (4, "b")]
    assert [value for _, value in store.by_time(0, 10)] == ["b", "c", "a"]


def test_none_does_not_delete_duplicates():
    _, store = windows(WindowKind(1000, 10, retain_duplicates=True))
    store.put("k", "v", 5)
    store.put("k", None, 5)
    assert list(store.fetch("k", 0, 10)) == [(5, "v")]


def test_the_order_of_duplicates_survives_reopening():
    engine = MemoryEngine()
    for number, value in enumerate("abc"):
        state, store = windows(WindowKind(1000, 10, retain_duplicates=True), engine=engine)
        store.put("k", value, 5)
        state.commit(Version(number, "x"))
    assert [value for _, value in store.fetch("k", 0, 10)] == ["a", "b", "c"]


def test_a_duplicate_that_expires_within_its_batch_is_never_written():
    state, store = windows(WindowKind(10, 10, retain_duplicates=True))
    for start in range(1000):
        store.put("k", "v", start)
    delta = state.commit(Version(0, "x"))
    written = [key for key, _ in delta.changes if key.startswith(store.table.prefix)]
    assert len(written) == len(list(store.fetch("k", 0, 1000))) == 10


def test_windows_come_by_the_bytes_of_their_key_then_by_start():
    _, store = windows(WindowKind(1000, 10))
    for key, start in (("b", 1), ("a", 2), ("a\0", 0), ("a", 1)):
        store.put(key, "v", start)
    expected = [("a", 1), ("a", 2), ("a\0", 0), ("b", 1)]
    assert [(key.key, key.window.start) for key, _ in store.all()] == expected
    assert [(key.key, key.window.start) for key, _ in store.backward_all()] == expected[::-1]
    assert [key.key for key, _ in store.by_time(0, 10)] == ["a\0", "a", "b", "a"]


def test_a_window_without_end_ends_at_the_end_of_time():
    _, store = windows(WindowKind(LONGEST, LONGEST))
    store.put("k", "v", 5)
    assert list(store.all()) == [(Windowed("k", Window(5, LONGEST)), "v")]
    assert list(store.fetch("k", 0, LONGEST)) == [(5, "v")]


def test_expired_windows_leave_the_engine():
    engine = MemoryEngine()
    for kind in (WindowKind(10, 10), WindowKind(10, 10, by_time=True), WindowKind(10, 10, retain_duplicates=True)):
        state, store = windows(kind, engine=engine)
        for start in range(100):
            store.put("k", "v", start)
        store.put("k", "v", 1_000_000)
        state.commit(Version(0 if engine.version is None else 1, "x"))
        assert store.table.count() == 1
        state.undo()


def test_a_window_that_was_expired_when_it_was_put_leaves_the_engine_too():
    state, store = windows(WindowKind(10, 10, by_time=True))
    store.put("k", "v", 1_000)
    state.commit(Version(1, "x"))
    store.put("k", "late, but of a live segment", 5)
    state.commit(Version(2, "x"))
    assert store.table.count() == 1


def test_windows_that_an_undone_commit_had_removed_are_removed_again():
    state, store = windows(WindowKind(10, 10, by_time=True))
    store.put("k", "v", 0)
    state.commit(Version(1, "x"))
    for number in (2, 3):
        store.put("k", "v", 1_000)
        state.commit(Version(number, "x"))
        assert store.table.count() == 1
        state.undo()
        assert starts(store.all()) == [0]


def test_a_deleted_window_leaves_nothing_behind():
    state, store = windows(WindowKind(10, 10, by_time=True))
    store.put("k", "v", 0)
    store.put("k", None, 0)
    assert list(store.by_time(0, 10)) == []
    delta = state.commit(Version(1, "x"))
    assert len(delta.changes) == 1  # the clock


def test_with_caching_the_last_windows_to_expire_are_still_shown(monkeypatch):
    monkeypatch.setattr(expiry, "LINGERING", 3)
    spec = StoreSpec("windows", WindowKind(10, 10, by_time=True), STRING, STRING, caching=True)
    engine = MemoryEngine()
    state = opened_state(spec, engine, caching=True)
    store = state.store("windows")
    for start in range(0, 100, 10):
        store.put("k", "v", start)
        state.commit(Version(start, "x"))
    assert starts(store.all()) == [60, 70, 80, 90]
    state = opened_state(spec, engine, caching=True)
    store = state.store("windows")
    store.put("k", "v", 100)
    state.commit(Version(100, "x"))
    assert starts(store.all()) == [70, 80, 90, 100]


def test_with_caching_too_a_jump_of_time_is_cleaned_up_in_several_batches(monkeypatch):
    monkeypatch.setattr(expiry, "LINGERING", 3)
    monkeypatch.setattr(expiry, "AT_MOST", 5)
    spec = StoreSpec("windows", WindowKind(10, 10, by_time=True), STRING, STRING, caching=True)
    state = opened_state(spec, MemoryEngine(), caching=True)
    store = state.store("windows")
    for number in range(30):
        store.put(f"k{number:02}", "v", 0)
    state.commit(Version(1, "x"))
    store.put("k", "v", 1_000)
    sizes = []
    for number in range(10):
        state.commit(Version(2 + number, "x"))
        sizes.append(store.table.count())
    assert sizes[0] > sizes[1] > 4
    assert [key.key for key, _ in store.all()] == ["k", "k27", "k28", "k29"]


def test_a_jump_of_time_is_cleaned_up_in_several_batches(monkeypatch):
    monkeypatch.setattr(expiry, "AT_MOST", 10)
    state, store = windows(WindowKind(10, 10))
    for number in range(100):
        store.put(f"k{number}", "v", 0)
    state.commit(Version(1, "x"))
    sizes = []
    for number in range(12):
        store.put("k", "v", 1_000_000)
        state.commit(Version(2 + number, "x"))
        sizes.append(store.table.count())
        assert starts(store.all()) == [1_000_000]
    assert sizes[0] > sizes[1] > sizes[2] > 1
    assert sizes[-1] == 1


def test_windows_that_are_waited_for_stay_though_they_cannot_be_seen():
    state, store = windows(WindowKind(10, 10, by_time=True))
    store.hold_back(0)
    for start in (0, 5, 8):
        store.put("k", "v", start)
    store.put("k", "v", 1_000)
    state.commit(Version(1, "x"))
    assert starts(store.all()) == [1_000]
    assert starts(store.by_time(0, 7)) == [0, 5]
    store.hold_back(8)
    state.commit(Version(2, "x"))
    assert starts(store.by_time(0, 2_000)) == [8, 1_000]


def test_a_batch_that_is_rolled_back_does_not_let_go_of_what_is_waited_for():
    state, store = windows(WindowKind(10, 10, by_time=True))
    store.hold_back(0)
    store.put("k", "v", 0)
    store.put("k", "v", 1_000)
    state.commit(Version(1, "x"))
    store.hold_back(500)
    state.rollback()
    store.put("k", "v", 1_001)
    state.commit(Version(2, "x"))
    assert starts(store.by_time(0, 10)) == [0]


def test_a_timestamped_store_takes_values_with_timestamps_only():
    _, store = windows(WindowKind(100, 10, timestamped=True))
    store.put("k", ValueAndTimestamp("v", 3), 0)
    assert store.fetch("k", 0) == ValueAndTimestamp("v", 3)
    with pytest.raises(TypeError, match=r"'windows' is timestamped: put ValueAndTimestamp"):
        store.put("k", "v", 0)
    store.put("k", ValueAndTimestamp(None, 4), 0)
    assert store.fetch("k", 0) is None


@pytest.mark.parametrize(
    "method, args", [("put", ("v", 0)), ("fetch", (0,)), ("fetch", (0, 1)), ("backward_fetch", (0, 1))]
)
def test_no_key_is_an_error_that_names_the_store_and_the_method(method, args):
    _, store = windows(WindowKind(100, 10))
    with pytest.raises(TypeError, match=f"^{method} of store 'windows' was given None as a key"):
        getattr(store, method)(None, *args)
