"""What users ask for, and views of what they get."""

from datetime import timedelta

import pytest

from headrace.errors import InvalidStateStoreError, TopologyError
from headrace.model.record import ValueAndTimestamp
from headrace.model.windows import Window, Windowed
from headrace.serde import LONG, STRING
from headrace.state.engine import MemoryEngine
from headrace.state.protocols import KeyValueStore, SessionStore, VersionedStore, WindowStore
from headrace.state.read_only import open_view
from headrace.state.spec import KeyValueKind, LruKind, SessionKind, Stores, VersionedKind, WindowKind
from tests.state.harness import opened_state

ALL = [
    (Stores.key_value("s"), KeyValueKind(), KeyValueStore),
    (Stores.timestamped_key_value("s"), KeyValueKind(timestamped=True), KeyValueStore),
    (Stores.lru("s", 3), LruKind(3), KeyValueStore),
    (Stores.window("s", timedelta(minutes=1), 10, retain_duplicates=True), WindowKind(60_000, 10, True), WindowStore),
    (Stores.session("s", 10), SessionKind(10), SessionStore),
    (Stores.versioned("s", timedelta(days=1)), VersionedKind(86_400_000), VersionedStore),
]


def view_of(spec, store):
    return open_view(spec, lambda: [store], "it is global")


def promised_by(protocol):
    return {name for base in protocol.__mro__[:2] for name in vars(base) if not name.startswith("_")}


@pytest.mark.parametrize("spec, kind, protocol", ALL)
def test_a_spec_says_what_was_asked_for_and_its_store_has_all_that_is_promised(spec, kind, protocol):
    assert (spec.name, spec.kind, spec.persistent, spec.logging, spec.caching) == ("s", kind, True, True, False)
    promised = promised_by(protocol)
    assert promised <= set(dir(opened_state(spec, MemoryEngine()).store("s")))


def test_serdes_and_settings_are_part_of_the_spec():
    spec = Stores.key_value("s", key=STRING, value=LONG).memory().without_logging().with_caching()
    assert (spec.key, spec.value, spec.persistent, spec.logging, spec.caching) == (STRING, LONG, False, False, True)


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda: Stores.window("w", -1, 0), "the retention of store 'w'"),
        (lambda: Stores.window("w", 10, -1), "the window size of store 'w'"),
        (lambda: Stores.window("w", 10, 11), "keeps windows of 11 ms for 10 ms only"),
        (lambda: Stores.session("s", timedelta(seconds=-1)), "the retention of store 's'"),
        (lambda: Stores.versioned("v", -1), "the history of store 'v'"),
        (lambda: Stores.lru("l", 0), "at least 1 entry"),
    ],
)
def test_what_cannot_be_is_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a\n"])
def test_names_are_made_of_letters_digits_dots_underscores_and_dashes(name):
    with pytest.raises(TopologyError, match="a store cannot be called"):
        Stores.key_value(name)
    assert Stores.key_value("a.B_c-9").name == "a.B_c-9"


@pytest.mark.parametrize("spec, kind, protocol", ALL)
def test_a_view_reads_and_does_not_write(spec, kind, protocol):
    view = view_of(spec, opened_state(spec, MemoryEngine()).store("s"))
    assert promised_by(protocol) <= set(dir(view))
    for method in {name for name in vars(protocol) if not name.startswith("_")}:
        with pytest.raises(InvalidStateStoreError, match="store 's' is read-only here: it is global"):
            getattr(view, method)("k", "v")
    with pytest.raises(AttributeError, match="store 's' has no 'hold_back'"):
        view.hold_back(0)


def test_views_give_what_their_stores_have():
    spec = Stores.timestamped_key_value("s")
    store = opened_state(spec, MemoryEngine()).store("s")
    store.put("k", ValueAndTimestamp("v", 1))
    view = view_of(spec, store)
    assert (view.name, view.get("k"), view.approximate_size) == ("s", ValueAndTimestamp("v", 1), 1)
    spec = Stores.session("s", 10)
    sessions = opened_state(spec, MemoryEngine()).store("s")
    sessions.put(Windowed("k", Window(0, 1)), "v")
    assert list(view_of(spec, sessions).all()) == list(sessions.all()) != []


def test_to_look_at_an_lru_store_is_not_to_use_it():
    spec = Stores.lru("s", 2)
    store = opened_state(spec, MemoryEngine()).store("s")
    for key in "ab":
        store.put(key, "v")
    assert view_of(spec, store).get("a") == "v"
    store.put("c", "v")
    assert [key for key, _ in store.all()] == ["b", "c"]


@pytest.mark.parametrize("spec", [Stores.key_value("s"), Stores.lru("s", 3)], ids=["key value", "lru"])
def test_no_key_is_an_error_of_a_key_value_store(spec):
    store = opened_state(spec, MemoryEngine()).store("s")
    for method, *args in (("get",), ("put", "v"), ("put_if_absent", "v"), ("delete",), ("prefix_scan",)):
        with pytest.raises(TypeError, match=f"^{method} of store 's' was given None as a key"):
            getattr(store, method)(None, *args)
    with pytest.raises(TypeError, match="put_all of store 's' was given None"):
        store.put_all([("a", "v"), (None, "v")])
    assert list(store.all()) == []
    store.put_all([("b", "1"), ("a", "2"), ("b", None)])
    assert list(store.all()) == [("a", "2")]


def test_a_timestamped_store_says_what_it_takes():
    store = opened_state(Stores.timestamped_key_value("s"), MemoryEngine()).store("s")
    with pytest.raises(
        TypeError, match=r"store 's' is timestamped: put ValueAndTimestamp\(value, timestamp\), not 'v'"
    ):
        store.put("k", "v")
    store.put("k", ValueAndTimestamp("v", 1))
    store.put("k", ValueAndTimestamp(None, 2))
    assert store.get("k") is None


def test_negative_longs_come_after_positive_ones_because_bytes_decide():
    store = opened_state(Stores.key_value("s", key=LONG, value=STRING), MemoryEngine()).store("s")
    for key in (-1, 1, 0, -2):
        store.put(key, "v")
    assert [key for key, _ in store.all()] == [0, 1, -2, -1]
    assert list(store.range(-1, 1)) == []


def test_a_prefix_may_have_a_serde_of_its_own():
    store = opened_state(Stores.key_value("s", key=LONG, value=STRING), MemoryEngine()).store("s")
    store.put(1, "v")
    store.put(-1, "v")
    assert [key for key, _ in store.prefix_scan("\0\0", STRING)] == [1]
