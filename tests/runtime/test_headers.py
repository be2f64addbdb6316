"""Which headers a result carries: those of the record that triggered it, with a few exceptions."""

import pytest

from headrace import (
    Buffer,
    EmitStrategy,
    JoinWindows,
    Materialized,
    Punctuation,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serde,
)
from tests.runtime.streams import TEXTS, collect, drive


def headers(number):
    return (("number", str(number).encode()),)


def numbers_of(found):
    """The numbers in the headers of records, None for a record without headers."""
    return [int(record.headers[0][1]) if record.headers else None for record in found]


def pipe_numbered(driver, *records):
    """Pipes (topic, key, value, timestamp); the n-th record has the number n in its headers."""
    for number, (topic, key, value, timestamp) in enumerate(records):
        driver.input_topic(topic, **TEXTS).pipe(key, value, timestamp=timestamp, headers=headers(number))


def run(program, *timestamps):
    builder = StreamsBuilder()
    found = collect(program(builder.stream("in", **TEXTS)))
    with drive(builder) as driver:
        pipe_numbered(driver, *(("in", "k", "v", timestamp) for timestamp in timestamps))
    return numbers_of(found)


@pytest.mark.parametrize(
    "program",
    [
        lambda s: s.map(lambda k, v: (v, k)),
        lambda s: s.flat_map_values(lambda v: [v]),
        lambda s: s.select_key(lambda k, v: v).repartition(**TEXTS),
        lambda s: s.to_table().to_stream(),
        lambda s: s.to_table(store="rows").map_values(lambda v: v, store="mapped"),
        lambda s: s.group_by_key().count(),
        lambda s: s.group_by(lambda k, v: v, **TEXTS).reduce(lambda a, b: b),
        lambda s: s.group_by_key().windowed_by(TimeWindows.of(10)).count(),
        lambda s: s.group_by_key().windowed_by(SlidingWindows.of(10)).count(),
        lambda s: s.to_table().group_by(lambda k, v: (v, k), **TEXTS).count(),
    ],
)
def test_a_result_has_the_headers_of_the_record_that_triggered_it(program):
    assert run(program, 100)[-1] == 0


def test_headers_may_repeat_a_name_and_may_be_none():
    given = (("a", b"1"), ("a", None), ("b", b""))
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out", **TEXTS)
    with drive(builder) as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "v", timestamp=0, headers=iter(given))
        assert driver.output_topic("out", **TEXTS).read_record().headers == given


def test_headers_go_through_a_repartition_topic():
    builder = StreamsBuilder()
    found = collect(builder.stream("in", **TEXTS).repartition())
    with drive(builder) as driver:
        pipe_numbered(driver, ("in", "k", "v", 0))
    assert numbers_of(found) == [0]


def test_updates_of_sessions_and_their_retractions_have_none():
    assert run(lambda s: s.group_by_key().windowed_by(SessionWindows.of(10)).count(), 0, 5) == [None, None, None]


@pytest.mark.parametrize("windows", [TimeWindows.of(10), SessionWindows.of(5), SlidingWindows.of(5)], ids=repr)
def test_results_on_window_close_have_those_of_the_record_that_closed_the_window(windows):
    def program(s):
        return s.group_by_key().windowed_by(windows).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()

    assert run(program, 20, 100) == [1]


def test_suppressed_results_keep_their_own():
    def program(s):
        return s.to_table().suppress(Suppressed.until_time_limit(10, Buffer.unbounded()))

    builder = StreamsBuilder()
    found = collect(program(builder.stream("in", **TEXTS)))
    with drive(builder) as driver:
        pipe_numbered(driver, ("in", "k", "v", 0), ("in", "k", "w", 5), ("in", "l", "x", 10))
    assert [(record.value, record.headers) for record in found] == [("w", headers(1))]


def test_what_a_punctuation_makes_has_none():
    class Tick:
        def init(self, context):
            context.schedule(10, Punctuation.STREAM_TIME, lambda at: context.forward(Record("k", "tick", at)))

        def process(self, record):
            pass

    assert run(lambda s: s.process(Tick), 5) == [None]


def joined(method, **options):
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, **TEXTS) for topic in ("left", "right"))
    windows = JoinWindows.of(10)
    join = getattr(left, method)
    found = collect(join(right, lambda a, b: f"{a}+{b}", windows=windows, other_value=serde.STRING, **TEXTS))
    return builder, found


def test_a_join_has_the_headers_of_the_record_that_came_last():
    builder, found = joined("join")
    with drive(builder) as driver:
        pipe_numbered(driver, ("left", "k", "a", 0), ("right", "k", "b", 5))
    assert numbers_of(found) == [1]


def test_an_unmatched_record_comes_out_with_the_headers_of_the_record_that_let_it_out():
    builder, found = joined("left_join")
    with drive(builder) as driver:
        pipe_numbered(driver, ("left", "k", "a", 0), ("left", "other", "b", 50))
    assert [(record.value, record.timestamp, record.headers) for record in found] == [("a+None", 0, headers(1))]


def test_a_join_with_a_table_has_the_streams_headers():
    builder = StreamsBuilder()
    table = builder.table("table", **TEXTS)
    found = collect(builder.stream("in", **TEXTS).join(table, lambda a, b: a))
    with drive(builder) as driver:
        pipe_numbered(driver, ("table", "k", "row", 0), ("in", "k", "v", 5))
    assert numbers_of(found) == [1]


def test_a_join_that_waited_for_its_table_has_its_own_headers():
    builder = StreamsBuilder()
    table = builder.table("table", store=Materialized("rows", history=100, **TEXTS))
    found = collect(builder.stream("in", **TEXTS).join(table, lambda a, b: a, grace=10))
    with drive(builder) as driver:
        pipe_numbered(driver, ("table", "k", "row", 0), ("in", "k", "v", 5), ("in", "other", "w", 20))
    assert [(record.value, record.headers) for record in found] == [("v", headers(1))]


def test_a_foreign_key_join_has_the_headers_of_the_side_that_changed():
    builder = StreamsBuilder()
    left, right = (builder.table(topic, **TEXTS) for topic in ("left", "right"))
    found = collect(left.join(right, lambda a, b: a, on=lambda v: v, store=Materialized(**TEXTS)))
    with drive(builder) as driver:
        pipe_numbered(driver, ("right", "x", "one", 0), ("left", "k", "x", 1), ("right", "x", "two", 2))
    assert numbers_of(found) == [1, 2]


def test_a_processor_may_change_them():
    class Mark:
        def init(self, context):
            self.context = context

        def process(self, record):
            self.context.forward(record.with_headers([*record.headers, ("mark", b"x")]))

    builder = StreamsBuilder()
    found = collect(builder.stream("in", **TEXTS).process(Mark))
    with drive(builder) as driver:
        pipe_numbered(driver, ("in", "k", "v", 0))
    assert found[0].headers == (*headers(0), ("mark", b"x"))
