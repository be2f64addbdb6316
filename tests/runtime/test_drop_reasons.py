"""Records that are dropped are counted, under the reason for which they were."""

import pytest

from headrace import (
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Window,
    Windowed,
    serde,
    timestamps,
)
from tests.runtime.streams import TEXTS, collect, drive, dropped, outcome, pipe


def windowed(windows):
    return lambda s: s.group_by_key().windowed_by(windows).count()


@pytest.mark.parametrize(
    "program, records, expected",
    [
        (lambda s: s.group_by_key().count(), [(None, "v"), ("k", None)], {"null key or value": 2}),
        (lambda s: s.to_table(), [(None, "v")], {"null key": 1}),
        (windowed(TimeWindows.of(10)), [(None, "v")], {"null key": 1}),
        (windowed(TimeWindows.of(10)), [("k", "v", 50), ("k", "v", 5)], {"late": 1}),
        (windowed(TimeWindows.of(10, advance=5)), [("k", "v", 50), ("k", "v", 7)], {"late": 2}),
        (windowed(SlidingWindows.of(10)), [("k", "v", 50), ("k", "v", 5)], {"late": 1}),
        (windowed(SessionWindows.of(10)), [("k", "v", 50), ("k", "v", 5)], {"late": 1}),
        (
            lambda s: s.join(s, lambda a, b: a, windows=JoinWindows.of(1), other_value=serde.STRING, **TEXTS),
            [(None, "v")],
            {"null key or value": 2},
        ),
    ],
)
def test_an_operator_counts_what_it_drops(program, records, expected):
    assert outcome(program, *records).dropped == expected


def test_the_edge_of_lateness():
    #  0        10   15
    #  [---------)----|     grace 5: the window takes records until stream time is 15
    assert outcome(windowed(TimeWindows.of(10, grace=5)), ("k", "v", 14), ("k", "v", 9)).dropped == {}
    assert outcome(windowed(TimeWindows.of(10, grace=5)), ("k", "v", 15), ("k", "v", 9)).dropped == {"late": 1}


def test_sources_count_negative_timestamps():
    builder = StreamsBuilder()
    builder.stream("in", timestamp=timestamps.LOG_AND_SKIP, **TEXTS)
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v", -1)])
        assert dropped(driver) == {"negative timestamp": 1}


def test_a_versioned_table_counts_what_is_older_than_its_history():
    builder = StreamsBuilder()
    builder.table("in", store=Materialized("rows", history=10, **TEXTS))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "new", 1_000_000), ("k", "old", 5)])
        assert dropped(driver) == {"expired version": 1}


def test_a_join_of_tables_counts_versions_that_are_not_the_latest():
    builder = StreamsBuilder()
    versions = builder.table("in", store=Materialized("rows", history=100, **TEXTS))
    versions.join(builder.table("other", **TEXTS), lambda a, b: a)
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "new", 50), ("k", "out of order", 20)])
        assert dropped(driver) == {"older version": 1}


def joined_on_itself(builder):
    """Words of a record, one after the other, as the row of its key; joined on the row with a table of words."""
    rows = builder.stream("in", **TEXTS).flat_map_values(str.split).to_table(store=Materialized("rows", **TEXTS))
    words = builder.table("words", **TEXTS)
    return collect(rows.join(words, lambda row, word: word, on=lambda row: row, store=Materialized(**TEXTS)))


def test_a_foreign_key_join_counts_null_foreign_keys():
    builder = StreamsBuilder()
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    found = collect(left.join(right, lambda a, b: a, on=lambda v: None, store=Materialized(**TEXTS)))
    with drive(builder) as driver:
        pipe(driver, "left", [("k", "v")])
        assert dropped(driver) == {"null foreign key": 1}
    assert found == []


def test_a_foreign_key_join_counts_answers_that_come_when_the_row_has_changed():
    #  k becomes "one", then "two", before the answer to "one" is back
    builder = StreamsBuilder()
    found = joined_on_itself(builder)
    with drive(builder) as driver:
        pipe(driver, "words", [("one", "eins"), ("two", "zwei")])
        pipe(driver, "in", [("k", "one two")])
        assert dropped(driver) == {"stale response": 1}
    assert [record.value for record in found] == ["zwei"]


@pytest.mark.parametrize("kind", ["window", "session"])
def test_a_store_in_memory_counts_what_is_put_after_it_has_expired(kind):
    class Put:
        def init(self, context):
            self.store = context.store("kept")

        def process(self, record):
            at = record.timestamp
            if kind == "window":
                self.store.put(record.key, record.value, at)
            else:
                self.store.put(Windowed(record.key, Window(at, at)), record.value)

    spec = Stores.window("kept", 10, 5, **TEXTS) if kind == "window" else Stores.session("kept", 10, **TEXTS)
    builder = StreamsBuilder().add_store(spec.memory())
    builder.stream("in", **TEXTS).process(Put, "kept")
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v", 1000), ("k", "v", 5)])
        assert dropped(driver) == {f"expired {kind}": 1}


def test_reasons_add_up_to_the_total():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    stream.group_by_key().count()
    stream.group_by_key().windowed_by(TimeWindows.of(10)).count()
    with drive(builder) as driver:
        pipe(driver, "in", [(None, "v"), ("k", "v", 50), ("k", None, 5)])
        assert dropped(driver) == {"late": 1, "null key": 1, "null key or value": 2}
        assert driver.metrics()["dropped-records-total"] == 4
