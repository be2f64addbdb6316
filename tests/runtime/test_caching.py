"""With a cache a table says once a batch what became of a key; in the driver a batch is one record."""

import pytest

from headrace import Materialized, SessionWindows, StreamsBuilder, TimeWindows, serde
from tests.runtime.streams import TEXTS, collect, drive, pipe

CACHE = {"statestore_cache_max_bytes": 10_000_000}
WITH_AND_WITHOUT = pytest.mark.parametrize("settings, cached", [({}, False), (CACHE, True)], ids=["without", "with"])


def pairs(found):
    return [(record.key, record.value) for record in found]


def counted_words(builder, store):
    """Counts of words, directly below a flat map that does not change the key: all in one batch."""
    words = builder.stream("in", **TEXTS).flat_map_values(str.split)
    return collect(words.group_by_key().count(store=store))


@WITH_AND_WITHOUT
def test_updates_of_a_key_by_one_record_collapse(settings, cached):
    builder = StreamsBuilder()
    found = counted_words(builder, "counts")
    with drive(builder, **settings) as driver:
        pipe(driver, "in", [("k", "a b c"), ("k", "d")])
        assert driver.store("counts").get("k").value == 4
    assert pairs(found) == ([("k", 3), ("k", 4)] if cached else [("k", 1), ("k", 2), ("k", 3), ("k", 4)])


def test_a_table_without_caching_says_everything_though_there_is_a_cache():
    builder = StreamsBuilder()
    found = counted_words(builder, Materialized("counts", caching=False))
    with drive(builder, **CACHE) as driver:
        pipe(driver, "in", [("k", "a b c")])
    assert pairs(found) == [("k", 1), ("k", 2), ("k", 3)]


@WITH_AND_WITHOUT
def test_behind_a_repartition_every_record_is_a_batch_of_its_own(settings, cached):
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXTS).flat_map_values(str.split)
    found = collect(words.group_by(lambda k, v: v, **TEXTS).count())
    with drive(builder, **settings) as driver:
        pipe(driver, "in", [("k", "a b a")])
    assert pairs(found) == [("a", 1), ("b", 1), ("a", 2)]


class Times:
    """Forwards a record once for every time in its value."""

    def init(self, context):
        self.context = context

    def process(self, record):
        for time in record.value.split():
            self.context.forward(record.with_timestamp(int(time)))


def test_keys_come_out_in_the_order_of_their_last_update():
    #  0        10        20
    #  [--5-------)[--15----)     then 7 again in the first window: it goes to the end
    builder = StreamsBuilder()
    times = builder.stream("in", **TEXTS).process_values(Times)
    found = collect(times.group_by_key(**TEXTS).windowed_by(TimeWindows.of(10, grace=100)).count())
    with drive(builder, **CACHE) as driver:
        pipe(driver, "in", [("k", "5 15 7")])
    assert [(record.key.window.start, record.value) for record in found] == [(10, 1), (0, 2)]


def test_what_appears_and_disappears_within_a_batch_is_not_mentioned():
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXTS).flat_map_values(str.split).group_by_key()
    found = collect(grouped.aggregate(lambda: "", lambda k, v, a: None if v == "-" else a + v, store="texts"))
    with drive(builder, **CACHE) as driver:
        pipe(driver, "in", [("new", "a -"), ("kept", "a"), ("kept", "b -")])
    assert pairs(found) == [("kept", "a"), ("kept", None)]


def test_a_result_has_the_timestamp_and_headers_of_the_last_update():
    builder = StreamsBuilder()
    found = counted_words(builder, "counts")
    with drive(builder, **CACHE) as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "a b", timestamp=7, headers=[("h", b"1")])
    assert [(record.timestamp, record.headers) for record in found] == [(7, (("h", b"1"),))]


def test_an_aggregate_below_a_cached_table_subtracts_what_was_said_before():
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXTS).flat_map_values(str.split)
    counts = words.group_by_key().count(store=Materialized("counts", key=serde.STRING, value=serde.LONG))
    grouped = counts.group_by(lambda key, count: ("all", count), key=serde.STRING, value=serde.LONG)
    found = collect(grouped.reduce(lambda a, b: a + b, lambda a, b: a - b))
    with drive(builder, **CACHE) as driver:
        pipe(driver, "in", [("k", "a b c"), ("l", "a"), ("k", "d e")])
    assert pairs(found) == [("all", 3), ("all", 4), ("all", 6)]


def test_windows_are_cached_each_by_itself():
    #  0         10        20
    #  [--a--b----)[--c-----)     hopping by 5: [0, 10), [5, 15) …
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXTS).flat_map_values(str.split)
    found = collect(words.group_by_key().windowed_by(TimeWindows.of(10, advance=5)).count())
    with drive(builder, **CACHE) as driver:
        pipe(driver, "in", [("k", "a b", 7)])
    assert [(*record.key.window, record.value) for record in found] == [(0, 10, 2), (5, 15, 2)]


def test_a_session_that_grows_is_retracted_under_its_old_bounds():
    builder = StreamsBuilder()
    found = collect(builder.stream("in", **TEXTS).group_by_key().windowed_by(SessionWindows.of(10)).count())
    with drive(builder, **CACHE) as driver:
        pipe(driver, "in", [("k", "v", 0), ("k", "v", 5)])
    assert [(*record.key.window, record.value) for record in found] == [(0, 0, 1), (0, 0, None), (0, 5, 2)]


def test_a_versioned_table_is_not_cached():
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXTS).flat_map_values(str.split)
    found = collect(words.to_table(store=Materialized("rows", history=100, **TEXTS)))
    with drive(builder, **CACHE) as driver:
        pipe(driver, "in", [("k", "a b")])
    assert pairs(found) == [("k", "a"), ("k", "b")]


@pytest.mark.parametrize("logging", [True, False])
@WITH_AND_WITHOUT
def test_logging_has_no_say_in_what_comes_out(settings, cached, logging):
    builder = StreamsBuilder()
    found = counted_words(builder, Materialized("counts", logging=logging))
    with drive(builder, **settings) as driver:
        pipe(driver, "in", [("k", "a b")])
        assert driver.store("counts").get("k").value == 2
    assert found[-1].value == 2
    assert len(found) == (1 if cached else 2)
