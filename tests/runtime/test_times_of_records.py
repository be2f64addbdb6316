"""Which time a record has: extractors, negative timestamps and those of the far future."""

import pytest

from headrace import (
    EmitStrategy,
    JoinWindows,
    Materialized,
    Punctuation,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    UnlimitedWindows,
    serde,
    timestamps,
)
from headrace.testing import TopologyTestDriver
from tests.runtime.streams import AT_ONCE, TEXTS, collect, drive, dropped, pipe

FAR = 2**62  # milliseconds: the year 146 million
EXTRACTOR = "default.timestamp.extractor"


def times(records, extractor=None, config=(), wall_clock=0):
    """The timestamps with which records come out, and what was dropped."""
    builder = StreamsBuilder()
    found = collect(builder.stream("in", timestamp=extractor, **TEXTS))
    with TopologyTestDriver(builder.build(), config=AT_ONCE | dict(config), wall_clock=wall_clock) as driver:
        pipe(driver, "in", [("k", "v", at) for at in records])
        return [record.timestamp for record in found], dropped(driver)


# ---------------------------------------------------------------------------------------------- negative timestamps
def test_by_default_a_negative_timestamp_stops_the_application():
    with pytest.raises(StreamsError, match=r"timestamps\.LOG_AND_SKIP"):
        times([5, -1])


def test_log_and_skip_drops_negative_timestamps():
    assert times([5, -1, 7], timestamps.LOG_AND_SKIP) == ([5, 7], {"negative timestamp": 1})


def test_partition_time_stands_in_for_negative_timestamps():
    assert times([5, 3, -1, 7], timestamps.PARTITION_TIME) == ([5, 3, 5, 7], {})


def test_partition_time_has_nothing_to_give_to_the_first_record():
    with pytest.raises(StreamsError, match="no record before it"):
        times([-1], timestamps.PARTITION_TIME)


def test_the_wall_clock_does_not_look_at_the_record():
    assert times([5, -1, FAR], timestamps.WALL_CLOCK, wall_clock=100) == ([100, 100, 100], {})


def test_a_negative_result_of_an_extractor_of_the_users_drops_the_record():
    assert times([5, 6], lambda record, partition_time: 5 - record.timestamp) == ([0], {"negative timestamp": 1})


def test_a_dropped_record_does_not_become_the_partitions_time():
    seen = []

    def extract(record, partition_time):
        seen.append(partition_time)
        return -1 if record.timestamp == 50 else record.timestamp

    times([10, 50, 5, 20], extract)
    assert seen == [-1, 10, 10, 10]


@pytest.mark.parametrize(
    "setting",
    [
        timestamps.LOG_AND_SKIP,
        "LogAndSkipOnInvalidTimestamp",
        "org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp",
    ],
    ids=str,
)
def test_the_default_extractor_is_configured_as_an_object_or_by_kafkas_class_name(setting):
    assert times([-1, 7], config={EXTRACTOR: setting}) == ([7], {"negative timestamp": 1})


def test_the_extractor_of_a_source_wins_over_the_default():
    assert times([-1, 7], lambda record, partition_time: 3, config={EXTRACTOR: timestamps.RECORD}) == ([3, 3], {})


def test_an_extractor_is_not_asked_again_behind_a_repartition():
    calls = []

    def extract(record, partition_time):
        calls.append(record.value)
        return record.timestamp + 100

    builder = StreamsBuilder()
    found = collect(builder.stream("in", timestamp=extract, **TEXTS).select_key(lambda k, v: v).repartition(**TEXTS))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v", 5)])
    assert [record.timestamp for record in found] == [105]
    assert calls == ["v"]


def test_a_processor_cannot_send_a_negative_timestamp_to_a_topic():
    class Back:
        def init(self, context):
            self.context = context

        def process(self, record):
            self.context.forward(record.with_timestamp(-5))

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Back).to("out", name="sink", **TEXTS)
    with drive(builder) as driver, pytest.raises(StreamsError, match=r"sink.*negative timestamp -5"):
        pipe(driver, "in", [("k", "v")])


# --------------------------------------------------------------------------------------------------- a field's time
def field_times(values):
    builder = StreamsBuilder()
    found = collect(builder.stream("in", value=serde.JSON, timestamp=timestamps.field("at")))
    with TopologyTestDriver(builder.build(), config=AT_ONCE) as driver:
        for value in values:
            driver.input_topic("in", value=serde.JSON).pipe(value, timestamp=1)
        return [record.timestamp for record in found], dropped(driver)


def test_a_field_may_hold_milliseconds_or_a_time_with_its_offset():
    values = [{"at": 5}, {"at": "1970-01-01T00:00:02Z"}, {"at": "1970-01-01T01:00:03+01:00"}, {"at": 7.9}]
    assert field_times(values) == ([5, 2000, 3000, 7], {})


def test_a_negative_field_drops_the_record():
    assert field_times([{"at": -5}, {"at": 5}]) == ([5], {"negative timestamp": 1})


@pytest.mark.parametrize(
    "value, said",
    [
        ({"other": 5}, "no field 'at'"),
        ({"at": None}, "None"),
        ({"at": "yesterday"}, "yesterday"),
        ({"at": "1970-01-01T00:00:02"}, "without an offset"),
        ({"at": True}, "True"),
        (None, "no field 'at'"),
        ("text", "no field 'at'"),
    ],
    ids=repr,
)
def test_a_field_without_a_time_stops_the_application(value, said):
    with pytest.raises(StreamsError) as caught:
        field_times([value])
    assert said in str(caught.value.__cause__)


# ---------------------------------------------------------------------------------------------------- the far future
@pytest.mark.parametrize(
    "extractor",
    [None, timestamps.LOG_AND_SKIP, timestamps.PARTITION_TIME, lambda record, partition_time: record.timestamp],
    ids=["RECORD", "LOG_AND_SKIP", "PARTITION_TIME", "function"],
)
def test_a_timestamp_of_the_far_future_is_kept(extractor):
    assert times([FAR, 5], extractor) == ([FAR, 5], {})


@pytest.mark.parametrize("kind", ["memory", "persistent"])
@pytest.mark.parametrize(
    "windows",
    [TimeWindows.of(10), TimeWindows.of(10, advance=3), SlidingWindows.of(10), SessionWindows.of(10)],
    ids=["tumbling", "hopping", "sliding", "session"],
)
def test_windows_in_the_far_future_work_and_make_all_that_follows_late(windows, kind):
    #  5 …………………………………………………… 2^62
    #  [1)                                [1)     6 is late by then
    builder = StreamsBuilder()
    windowed = builder.stream("in", **TEXTS).group_by_key().windowed_by(windows)
    found = collect(windowed.count(store=Materialized("counts", kind=kind)))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v", 5), ("k", "v", FAR), ("k", "v", 6)])
        assert set(dropped(driver)) == {"late"}
        assert all(key.window.start > 5 for key, _ in driver.store("counts").all())
    assert {record.value for record in found} == {1}
    assert max(record.key.window.end for record in found) >= FAR


@pytest.mark.parametrize(
    "windows", [TimeWindows.of(10), SlidingWindows.of(10), SessionWindows.of(10)], ids=["time", "sliding", "session"]
)
def test_a_jump_to_the_far_future_closes_what_was_open(windows):
    builder = StreamsBuilder()
    windowed = builder.stream("in", **TEXTS).group_by_key().windowed_by(windows)
    found = collect(windowed.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count())
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v", 15), ("k", "v", FAR)])
    assert [(record.key.window.start < 16, record.value) for record in found] == [(True, 1)]


def test_an_unlimited_window_takes_every_time():
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXTS).group_by_key().windowed_by(UnlimitedWindows.of(start=10))
    found = collect(grouped.count())
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v", 9), ("k", "v", 10), ("k", "v", FAR)])
        assert dropped(driver) == {}
    assert [record.value for record in found] == [1, 2]


@pytest.mark.parametrize("method", ["join", "left_join", "outer_join"])
def test_streams_are_joined_in_the_far_future(method):
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, **TEXTS) for topic in ("left", "right"))
    join = getattr(left, method)
    options = {"windows": JoinWindows.of(10), "other_value": serde.STRING, **TEXTS}
    found = collect(join(right, lambda a, b: (a, b), **options))
    with drive(builder) as driver:
        pipe(driver, "left", [("k", "a", FAR)])
        pipe(driver, "right", [("k", "b", FAR + 10)])
    assert [record.value for record in found] == [("a", "b")]


def test_a_versioned_table_has_a_far_future():
    builder = StreamsBuilder()
    builder.table("in", store=Materialized("rows", history=100, **TEXTS))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "old", 5), ("k", "new", FAR)])
        assert driver.store("rows").get("k").value == "new"
        assert driver.store("rows").get("k", as_of=FAR - 1).value == "old"
        pipe(driver, "in", [("k", "too old", 6)])
        assert set(dropped(driver)) == {"expired version"}


def test_stream_time_punctuation_jumps_to_the_far_future_in_one_call():
    fired = []

    class Tick:
        def init(self, context):
            context.schedule(10, Punctuation.STREAM_TIME, fired.append)

        def process(self, record):
            pass

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Tick)
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v", 5), ("k", "v", FAR)])
    assert fired == [5, FAR]
