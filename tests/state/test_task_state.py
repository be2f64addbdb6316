"""All state of a task: opening, batches, versions."""

import sys

import pytest

from headrace.errors import InvalidStateStoreError, SerializationError, TopologyError
from headrace.model.windows import Window, Windowed
from headrace.serde import LONG, STRING
from headrace.serde.protocol import serde_of
from headrace.state.delta import apply
from headrace.state.engine import MemoryEngine, Version
from headrace.state.key_value import KeyValues
from headrace.state.lmdb import LmdbEngine
from headrace.state.spec import BufferKind, KeyValueKind, SessionKind, StoreSpec, VersionedKind, WindowKind
from headrace.state.task_state import TaskState
from tests.state.harness import contents

SPECS = [
    StoreSpec("totals", KeyValueKind()),
    StoreSpec("windows", WindowKind(100, 10)),
    StoreSpec("sessions", SessionKind(100)),
    StoreSpec("versions", VersionedKind(100)),
    StoreSpec("waiting", BufferKind()),
]
ONE, TWO = Version(1, "a"), Version(2, "b")


@pytest.fixture(params=["memory", "disk"])
def engine(request, tmp_path):
    engine = MemoryEngine() if request.param == "memory" else LmdbEngine(tmp_path)
    yield engine
    engine.close()


def opened(engine, *specs, **settings):
    by_name = {spec.name: spec for spec in specs or SPECS}
    settings = {"key": STRING, "value": STRING, "dropped": lambda _, __: None, **settings}
    return TaskState.open(by_name, engine, **settings)


def fill(state, value):
    state.store("totals").put("k", value)
    state.store("windows").put("k", value, 10)
    state.store("sessions").put(Windowed("k", Window(1, 5)), value)
    state.store("versions").put("k", value, len(value))
    state.table("waiting").put(b"k", value.encode())
    state.cell("operator/stream time", -1).value = len(value)


def seen(state):
    return (
        state.store("totals").get("k"),
        list(state.store("windows").all()),
        list(state.store("sessions").all()),
        state.store("versions").get("k"),
        list(state.table("waiting").scan()),
        state.cell("operator/stream time", -1).value,
    )


def test_a_version_is_the_whole_of_what_a_batch_changed(engine):
    state = opened(engine)
    nothing = seen(state)
    fill(state, "one")
    one = seen(state)
    state.commit(ONE)
    assert seen(state) == seen(opened(engine)) == one
    fill(state, "three")
    three = seen(state)
    assert three != one
    state.rollback()
    assert seen(state) == one
    fill(state, "three")
    state.commit(TWO)
    assert seen(state) == three
    state.undo()
    assert seen(state) == seen(opened(engine)) == one
    assert engine.version == ONE
    state = opened(engine)
    assert nothing[0] is None


def test_a_delta_brings_another_engine_to_the_same_version(engine):
    state, other = opened(engine), MemoryEngine()
    fill(state, "one")
    apply(state.commit(ONE), other)
    fill(state, "three")
    delta = state.commit(TWO)
    apply(delta, other)
    assert contents(other) == contents(engine)
    assert other.version == engine.version == TWO
    assert list(delta.changes) == sorted(delta.changes)


def test_everything_is_a_delta_that_leads_there_from_nothing(engine):
    state = opened(engine)
    fill(state, "first")
    state.commit(ONE)
    fill(state, "second")
    state.commit(TWO)
    other = opened(MemoryEngine())
    other.apply(state.everything())
    assert (other.version, seen(other)) == (TWO, seen(state))


def test_everything_is_all_that_is_logged(engine):
    state = opened(engine, StoreSpec("kept", KeyValueKind()), StoreSpec("lost", KeyValueKind(), logging=False))
    state.store("kept").put("k", "v")
    state.store("lost").put("k", "v")
    assert state.commit(ONE) == state.everything()


def test_the_delta_of_another_attempt_can_take_the_place_of_the_last_version(engine):
    mine, theirs = opened(engine), opened(MemoryEngine())
    for state in (mine, theirs):
        fill(state, "one")
        state.commit(ONE)
    fill(mine, "mine")
    mine.commit(TWO)
    fill(theirs, "theirs")
    delta = theirs.commit(Version(2, "winner"))
    mine.undo()
    mine.apply(delta)
    assert seen(mine) == seen(theirs)
    assert engine.version == Version(2, "winner")


def test_a_store_without_logging_is_kept_but_not_in_the_delta(engine):
    unlogged = StoreSpec("windows", WindowKind(100, 10), logging=False)
    state = opened(engine, unlogged, StoreSpec("totals", KeyValueKind()))
    state.store("windows").put("k", "v", 1000)
    state.store("totals").put("k", "v")
    delta, other = state.commit(ONE), MemoryEngine()
    apply(delta, other)
    restored = opened(other, unlogged, StoreSpec("totals", KeyValueKind()))
    assert list(restored.store("totals").all()) == [("k", "v")]
    assert list(restored.store("windows").all()) == []
    restored.store("windows").put("k", "v", 10)  # its clock is new as well, or this would be too old to be seen
    assert len(list(restored.store("windows").all())) == 1
    assert len(list(opened(engine, unlogged).store("windows").all())) == 1


def test_an_unchanged_cell_is_not_written(engine):
    state = opened(engine)
    cell = state.cell("operator/stream time", -1)
    cell.value = 5
    cell.value = -1
    assert state.commit(ONE).changes == ()
    cell.value = None
    assert len(state.commit(TWO).changes) == 1
    assert opened(engine).cell("operator/stream time", -1).value is None


def test_a_cell_is_one_object_however_often_it_is_asked_for(engine):
    state = opened(engine)
    assert state.cell("c", b"") is state.cell("c", b"")
    assert state.table("t") is state.table("t")


def test_an_unknown_store_is_named_with_those_that_are_there(engine):
    with pytest.raises(InvalidStateStoreError, match=r"no store 'total'.*totals, versions, windows"):
        opened(engine).store("total")


def test_serdes_that_a_spec_leaves_open_are_the_defaults(engine):
    state = opened(engine, StoreSpec("a", KeyValueKind()), StoreSpec("b", KeyValueKind(), LONG, LONG))
    assert isinstance(state.store("a"), KeyValues)
    state.store("a").put("k", "v")
    state.store("b").put(1, 2)
    values = {value for _, value in state.commit(ONE).changes}
    assert values == {b"v", LONG.encode(2)}


def test_whether_a_store_is_in_memory_is_the_configurations_choice_if_the_spec_leaves_it_open(engine):
    spec, drops = StoreSpec("windows", WindowKind(10, 10), persistent=None), []
    state = opened(engine, spec, persistent=False, dropped=lambda reason, count: drops.append((reason, count)))
    state.store("windows").put("k", "v", 100)
    state.store("windows").put("k", "v", 1)
    assert drops == [("expired window", 1)]


def test_a_value_that_cannot_be_encoded_fails_the_commit_and_names_the_store(engine):
    state = opened(engine)
    state.store("totals").put("good", "v")
    state.store("totals").put("bad", 5)
    with pytest.raises(SerializationError, match="'totals'"):
        state.commit(ONE)
    assert engine.version is None
    state.rollback()
    state.store("totals").put("good", "v")
    state.commit(ONE)
    assert list(state.store("totals").all()) == [("good", "v")]


def test_a_state_notices_that_its_engine_was_changed_underneath(engine):
    state = opened(engine)
    engine.commit([], ONE)
    with pytest.raises(InvalidStateStoreError, match="call refresh"):
        state.commit(TWO)
    state.refresh()
    state.commit(TWO)


def test_names_with_the_same_prefix_are_refused(engine, monkeypatch):
    class SameForAll:
        def __init__(self, *_, **__):
            pass

        def digest(self):
            return b"same"

    monkeypatch.setattr(sys.modules[TaskState.__module__], "blake2b", SameForAll)
    with pytest.raises(TopologyError, match="rename one store"):
        opened(engine)


@pytest.mark.parametrize("caching, expected", [(True, ["a", "b"]), (False, ["a"])])
def test_what_happens_to_a_value_after_put_counts_only_where_a_cache_holds_it(engine, caching, expected):
    words = serde_of(lambda some: " ".join(some).encode(), lambda raw: raw.decode().split())
    state = opened(engine, StoreSpec("totals", KeyValueKind(), STRING, words, caching=True), caching=caching)
    value = ["a"]
    state.store("totals").put("k", value)
    value.append("b")
    state.commit(ONE)
    value.append("c")
    assert state.store("totals").get("k") == expected
