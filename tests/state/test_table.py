"""Tables: what a batch has changed over what is committed."""

import json

import pytest

from headrace.state.engine import MemoryEngine, Version
from headrace.state.table import Table

PREFIX = b"pref"


class CountingEngine(MemoryEngine):
    def __init__(self):
        super().__init__()
        self.gets = 0

    def get(self, key):
        self.gets += 1
        return super().get(key)


def of_lists(engine, **settings):
    settings = {"share": False, **settings}
    return Table(PREFIX, engine, lambda value: json.dumps(value).encode(), json.loads, **settings)


def of_texts(engine, **settings):
    return Table(PREFIX, engine, str.encode, bytes.decode, share=True, **settings)


def commit(table, engine, number=1):
    changes = table.changes()
    engine.commit(changes, Version(number, "x"))
    table.settle(changes)


def test_a_value_changed_in_place_after_put_does_not_reach_the_table():
    engine = MemoryEngine()
    table, value = of_lists(engine), [1]
    table.put(b"k", value)
    value.append(2)
    assert table.get(b"k") == [1]
    commit(table, engine)
    assert table.get(b"k") == table.committed(b"k") == [1]


def test_a_value_changed_in_place_after_get_does_not_reach_the_table():
    engine = MemoryEngine()
    table = of_lists(engine)
    table.put(b"k", [1])
    table.get(b"k").append(2)
    assert table.get(b"k") == [1]
    commit(table, engine)
    table.get(b"k").append(2)
    next(table.scan())[1].append(2)
    table.committed(b"k").append(2)
    assert table.get(b"k") == [1]


def test_the_holder_of_a_value_may_change_it_until_the_batch_ends():
    engine = MemoryEngine()
    table, value = of_lists(engine, hold=True), [1]
    table.put(b"k", value)
    value.append(2)
    assert table.get(b"k") is value
    commit(table, engine)
    value.append(3)
    assert table.get(b"k") == table.committed(b"k") == [1, 2]


def test_what_the_holder_only_read_is_not_changed():
    engine = MemoryEngine()
    table = of_lists(engine, hold=True)
    table.put(b"k", [1])
    commit(table, engine)
    table.get(b"k").append(2)
    assert table.get(b"k") == table.committed(b"k") == [1]
    assert table.changes() == []


def test_a_shared_value_is_one_object_from_batch_to_batch():
    engine = CountingEngine()
    table, value = of_texts(engine), "a value"
    table.put(b"k", value)
    commit(table, engine)
    engine.gets = 0
    assert table.get(b"k") is value
    assert next(table.scan())[1] is value
    assert engine.gets == 0


@pytest.mark.parametrize("make", [of_texts, of_lists])
def test_an_absent_key_is_looked_up_once(make):
    engine = CountingEngine()
    table = make(engine)
    table.put(b"z", "text")
    commit(table, engine)
    assert [table.get(b"k"), table.has(b"k"), table.committed(b"k")] == [None, False, None]
    assert engine.gets == 1


@pytest.mark.parametrize("make", [of_texts, of_lists])
def test_a_key_behind_the_last_one_is_not_looked_up(make):
    engine = CountingEngine()
    table = make(engine)
    assert table.get(b"k") is None
    table.put(b"k", "text")
    commit(table, engine)
    assert table.get(b"l") is None
    assert engine.gets == 0
    table.forget()
    assert table.get(b"k") == "text"
    assert engine.gets == 1


def test_committed_ignores_the_batch():
    engine = MemoryEngine()
    table = of_texts(engine)
    table.put(b"k", "old")
    commit(table, engine)
    table.put(b"k", "new")
    assert (table.get(b"k"), table.committed(b"k")) == ("new", "old")
    table.put(b"k", None)
    assert (table.get(b"k"), table.committed(b"k")) == (None, "old")


def test_a_key_that_was_made_and_deleted_within_a_batch_is_no_change():
    engine = MemoryEngine()
    table = of_texts(engine)
    table.put(b"stays", "1")
    commit(table, engine)
    table.put(b"comes and goes", "1")
    table.put(b"comes and goes", None)
    table.put(b"stays", None)
    assert table.changes() == [(PREFIX + b"stays", None)]


def test_changes_are_sorted_and_under_the_prefix():
    table = of_texts(MemoryEngine())
    for key in (b"b", b"a", b"\xff", b""):
        table.put(key, "v")
    assert table.changes() == [(PREFIX + key, b"v") for key in (b"", b"a", b"b", b"\xff")]


def test_a_scan_sees_neighbours_of_the_prefix_no_more_than_the_table_does():
    engine = MemoryEngine()
    engine.commit([(b"pree", b"1"), (b"pref", b"2"), (b"prefx", b"3"), (b"preg", b"4")], Version(1, "x"))
    assert list(of_texts(engine).scan()) == [(b"", "2"), (b"x", "3")]
    assert of_texts(engine).count() == 2


def test_the_last_prefix_of_all_can_be_scanned():
    engine = MemoryEngine()
    table = Table(b"\xff\xff\xff\xff", engine, str.encode, bytes.decode, share=True)
    table.put(b"\xff", "v")
    commit(table, engine)
    assert list(table.scan()) == [(b"\xff", "v")]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("make", [of_texts, of_lists])
def test_a_scan_shows_the_moment_it_was_asked_for(make, reverse):
    engine = MemoryEngine()
    table = make(engine)
    for key in (b"a", b"c", b"e"):
        table.put(key, "committed")
    commit(table, engine)
    table.put(b"b", "batch")
    table.put(b"c", None)
    scan = table.scan(reverse=reverse)
    table.put(b"a", None)
    table.put(b"b", None)
    table.put(b"d", "later")
    first = next(scan)
    table.put(b"e", "later")
    expected = [(b"a", "committed"), (b"b", "batch"), (b"e", "committed")]
    assert [first, *scan] == (expected[::-1] if reverse else expected)


def test_rollback_forgets_the_batch_and_nothing_else():
    engine = MemoryEngine()
    table = of_texts(engine)
    table.put(b"k", "old")
    commit(table, engine)
    table.put(b"k", "new")
    table.put(b"other", "new")
    list(table.scan())
    table.rollback()
    assert list(table.scan()) == [(b"k", "old")]
    assert (table.get(b"k"), table.get(b"other"), table.changes()) == ("old", None, [])


def test_what_is_remembered_of_earlier_batches_is_bounded():
    engine = CountingEngine()
    table = of_texts(engine, remembered=10)
    for number in range(1000):
        table.put(b"%d" % number, "v")
    commit(table, engine)
    for number in range(1000):
        assert table.get(b"%d" % number) == "v"
    assert len(table._clean) + len(table._older) <= 20
    engine.gets = 0
    assert table.get(b"999") == "v"
    assert engine.gets == 0


def test_a_table_forgets_when_the_engine_was_changed_underneath():
    engine = MemoryEngine()
    table = of_texts(engine)
    table.put(b"k", "old")
    commit(table, engine)
    engine.commit([(PREFIX + b"k", b"other")], Version(2, "y"))
    table.forget()
    assert table.get(b"k") == "other"
