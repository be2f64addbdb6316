"""The `TopologyTestDriver`: what a test can pipe, read, look at and advance."""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from headrace import (
    InvalidStateStoreError,
    Record,
    Stores,
    StreamsBuilder,
    StreamsError,
    Topology,
    ValueAndTimestamp,
    serde,
)
from headrace.testing import TopologyTestDriver

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}


def copying(**config):
    """A driver of a topology that copies texts from "in" to "out"."""
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out", **TEXTS)
    return TopologyTestDriver(builder.build(), config={name.replace("_", "."): value for name, value in config.items()})


def counting(**options):
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).group_by_key().count(store="counts").to_stream().to("out", value=serde.LONG)
    return TopologyTestDriver(builder.build(), **options)


# ------------------------------------------------------------------------------------------------------------- piping
def test_a_value_is_piped_alone_or_with_its_key():
    with copying() as driver:
        lines, copies = driver.input_topic("in", **TEXTS), driver.output_topic("out", **TEXTS)
        lines.pipe("v", timestamp=0)
        lines.pipe("k", "v", timestamp=0)
        lines.pipe(None, timestamp=0)
        lines.pipe("k", None, timestamp=0)
        assert copies.read_key_values() == [(None, "v"), ("k", "v"), (None, None), ("k", None)]


@pytest.mark.parametrize("given", [(), ("k", "v", 5)], ids=len)
def test_anything_else_is_refused(given):
    with copying() as driver, pytest.raises(TypeError, match="a value, or a key and a value"):
        driver.input_topic("in", **TEXTS).pipe(*given)


def test_a_record_has_the_timestamp_and_the_headers_that_it_was_piped_with():
    with copying() as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "v", timestamp=7, headers=[("h", b"1"), ("n", None)])
        assert driver.output_topic("out", **TEXTS).read_record() == Record("k", "v", 7, (("h", b"1"), ("n", None)))


def test_without_a_timestamp_a_record_has_the_wall_clocks_time():
    with copying() as driver:
        driver.advance_wall_clock(1500)
        driver.input_topic("in", **TEXTS).pipe("v")
        assert driver.output_topic("out").read_record().timestamp == 1500


def test_a_timestamp_may_be_an_aware_datetime_but_not_a_naive_one():
    with copying() as driver:
        lines = driver.input_topic("in", **TEXTS)
        lines.pipe("v", timestamp=datetime(1970, 1, 1, 1, 0, 2, tzinfo=timezone(timedelta(hours=1))))
        assert driver.output_topic("out").read_record().timestamp == 2000
        with pytest.raises(ValueError, match="without an offset from UTC"):
            lines.pipe("v", timestamp=datetime(2026, 1, 1))  # noqa: DTZ001 -- that is the point


def test_records_are_piped_together_and_read_together():
    records = [Record("a", "1", 5), Record("b", "2", 3, (("h", b"x"),))]
    with copying() as driver:
        driver.input_topic("in", **TEXTS).pipe_all(records)
        assert driver.output_topic("out", **TEXTS).read_records() == records


def times(driver):
    return [record.timestamp for record in driver.output_topic("out").read_records()]


def test_an_input_topic_advances_time_by_itself():
    with copying() as driver:
        start = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        lines = driver.input_topic("in", **TEXTS, start=start, advance=timedelta(milliseconds=10))
        lines.pipe_all(["a", "b"])
        lines.pipe("c", timestamp=5)
        lines.pipe_key_values([("k", "d")])
        assert times(driver) == [1000, 1010, 5, 1020]
        lines.advance_time(timedelta(seconds=1))
        lines.pipe("e")
        assert times(driver) == [2030]


def test_an_advance_without_a_start_begins_at_the_wall_clock():
    with copying() as driver:
        driver.advance_wall_clock(timedelta(seconds=7))
        lines = driver.input_topic("in", **TEXTS, advance=1)
        driver.advance_wall_clock(500)
        lines.pipe_all(["a", "b"])
        assert times(driver) == [7000, 7001]


def test_an_advance_is_not_negative():
    with copying() as driver, pytest.raises(ValueError, match="the advance of the input topic 'in'"):
        driver.input_topic("in", advance=-1)


def test_values_and_records_are_piped_together():
    with copying() as driver:
        driver.input_topic("in", **TEXTS).pipe_all(["a", Record("k", "b", 9), None])
        copied = driver.output_topic("out", **TEXTS).read_records()
        assert [(record.key, record.value, record.timestamp) for record in copied] == [
            (None, "a", 0), ("k", "b", 9), (None, None, 0),
        ]  # fmt: skip


def test_an_input_topic_that_no_source_reads_is_refused():
    with copying() as driver, pytest.raises(ValueError, match="no source of the topology reads the topic 'inn'"):
        driver.input_topic("inn").pipe(b"v")


def test_a_topic_may_be_read_by_its_pattern():
    builder = StreamsBuilder()
    builder.stream(pattern=re.compile("logs-.*")).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("logs-a").pipe(b"1")
        driver.input_topic("logs-b").pipe(b"2")
        assert driver.output_topic("out").read_values() == [b"1", b"2"]
        with pytest.raises(ValueError, match="metrics-a"):
            driver.input_topic("metrics-a").pipe(b"3")


def test_serdes_that_are_not_given_are_the_configured_defaults():
    config = {
        "default_key_serde": serde.LONG,
        "default_value_serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    }
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("out")
    with TopologyTestDriver(builder.build(), config=config) as driver:
        driver.input_topic("in").pipe(5, "v")
        assert driver.output_topic("out").read_key_values() == [(5, "V")]


def test_without_any_serde_records_are_bytes():
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in").pipe(b"k", b"v")
        assert driver.output_topic("out").read_key_values() == [(b"k", b"v")]


# ------------------------------------------------------------------------------------------------------------ reading
def test_reading_takes_records_off_the_topic_however_often_it_is_opened():
    with copying() as driver:
        for value in ("1", "2", "3"):
            driver.input_topic("in", **TEXTS).pipe(value)
        assert driver.output_topic("out", **TEXTS).read_record().value == "1"
        assert driver.output_topic("out", **TEXTS).read_values() == ["2", "3"]
        assert driver.output_topic("out", **TEXTS).read_values() == []


def test_a_topic_that_nothing_was_produced_to_reads_as_empty():
    with copying() as driver:
        nothing = driver.output_topic("out")
        assert nothing.read_records() == nothing.read_values() == nothing.read_key_values() == []
        assert nothing.read_table() == {}
        with pytest.raises(StreamsError, match="nothing is left to read in the topic 'out'"):
            nothing.read_record()


def test_a_topic_that_no_sink_writes_is_an_error_that_names_those_that_exist():
    with copying() as driver:
        wrong = driver.output_topic("outt")
        for read in (
            wrong.read_record,
            wrong.read_values,
            wrong.read_table,
            lambda: wrong.size,
            lambda: wrong.is_empty,
        ):
            with pytest.raises(ValueError, match=r"writes the topic 'outt': did you mean 'out'\? \(it writes: out\)"):
                read()


def test_a_topic_that_an_extractor_may_choose_reads_as_empty():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to(lambda key, value, context: value)
    with TopologyTestDriver(builder.build()) as driver:
        assert driver.output_topic("later").is_empty
        driver.input_topic("in", **TEXTS).pipe("later")
        assert driver.output_topic("later", value=serde.STRING).read_values() == ["later"]


def test_the_dead_letter_topic_and_internal_topics_exist():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).select_key(lambda v: v).repartition(name="again", **TEXTS).foreach(
        lambda k, v: 1 / int(v)
    )
    config = {"errors.dead.letter.queue.topic.name": "dead", "processing.exception.handler": "dead_letter"}
    with TopologyTestDriver(builder.build(), config=config) as driver:
        assert driver.output_topic("dead").is_empty
        assert driver.output_topic("test-again-repartition").size == 0
        driver.input_topic("in", **TEXTS).pipe_all(["1", "0"])
        assert driver.output_topic("test-again-repartition").size == 2
        assert driver.output_topic("dead", value=serde.STRING).read_values() == ["0"]


def test_size_and_is_empty_do_not_take_records_off():
    with copying() as driver:
        driver.input_topic("in", **TEXTS).pipe_all(["1", "2"])
        copies = driver.output_topic("out", **TEXTS)
        assert (copies.size, copies.is_empty, copies.size) == (2, False, 2)
        copies.read_record()
        assert (copies.size, copies.read_values(), copies.is_empty) == (1, ["2"], True)


def test_a_topic_read_as_a_table_has_the_last_value_of_every_key():
    with copying() as driver:
        for key, value in [("a", "1"), ("b", "2"), ("a", "3"), ("b", None)]:
            driver.input_topic("in", **TEXTS).pipe(key, value)
        assert driver.output_topic("out", **TEXTS).read_table() == {"a": "3"}


def test_produced_topics_are_all_that_were_written_to_internal_ones_too():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    stream.to(lambda key, value, context: f"out-{value}")
    stream.group_by(lambda k, v: v, name="words", **TEXTS).count()
    with TopologyTestDriver(builder.build(), config={"application.id": "app"}) as driver:
        assert driver.produced_topics == set()
        driver.input_topic("in", **TEXTS).pipe("k", "v")
        assert driver.produced_topics == {"out-v", "app-words-repartition"}
        driver.output_topic("out-v").read_records()
        assert "out-v" in driver.produced_topics


# ------------------------------------------------------------------------------------------------------------- stores
def test_stores_are_there_by_name():
    with counting() as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "v", timestamp=7)
        assert driver.store("counts").get("k") == ValueAndTimestamp(1, 7)
        assert list(driver.stores) == ["counts"]


def test_a_store_that_is_not_there_is_told_from_those_that_are():
    with counting() as driver, pytest.raises(InvalidStateStoreError, match=r"no store 'count' \(it has: counts\)"):
        driver.store("count")


def test_global_stores_are_among_the_stores():
    builder = StreamsBuilder()
    builder.global_table("table", store="rows", **TEXTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("table", **TEXTS).pipe("k", "v", timestamp=3)
        assert driver.store("rows").get("k") == ValueAndTimestamp("v", 3)
        assert list(driver.stores) == ["rows"]


def test_a_test_may_fill_a_store_before_the_first_record():
    class Look:
        def init(self, context):
            self.store, self.context = context.store("limits"), context

        def process(self, record):
            self.context.forward(record.with_value(self.store.get(record.key)))

    builder = StreamsBuilder().add_store(Stores.key_value("limits", **TEXTS))
    builder.stream("in", **TEXTS).process(Look, "limits").to("out", **TEXTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.store("limits").put("k", "100")
        driver.input_topic("in", **TEXTS).pipe("k", "v")
        assert driver.output_topic("out", **TEXTS).read_values() == ["100"]


# ---------------------------------------------------------------------------------------------------------- the clock
def test_the_wall_clock_starts_where_the_test_says():
    assert counting().wall_clock == 0
    assert counting(wall_clock=5).wall_clock == 5
    assert counting(wall_clock=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).wall_clock == 1000


def test_a_naive_datetime_is_refused():
    with pytest.raises(ValueError, match=r"wall_clock.*without an offset"):
        counting(wall_clock=datetime(2026, 1, 1))  # noqa: DTZ001 -- that is the point


def test_the_clock_is_advanced_by_milliseconds_or_a_timedelta():
    with counting() as driver:
        driver.advance_wall_clock(5)
        driver.advance_wall_clock(timedelta(seconds=2))
        driver.advance_wall_clock(0)
        assert driver.wall_clock == 2005


@pytest.mark.parametrize("wrong", [-1, timedelta(seconds=-1)], ids=str)
def test_the_clock_does_not_go_back(wrong):
    with counting() as driver, pytest.raises(ValueError, match="the advance of the wall clock"):
        driver.advance_wall_clock(wrong)


@pytest.mark.parametrize("wrong", [1.5, "10", None], ids=repr)
def test_the_clock_is_not_advanced_by_anything_else(wrong):
    with counting() as driver, pytest.raises(TypeError, match="the advance of the wall clock"):
        driver.advance_wall_clock(wrong)


# ------------------------------------------------------------------------------------------------------- going round
def test_everything_that_a_record_causes_has_happened_when_pipe_returns():
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXTS).flat_map_values(str.split).group_by(lambda k, v: v, **TEXTS)
    counts = words.count().to_stream().map(lambda k, v: (str(v), k)).repartition(**TEXTS)
    counts.to("out", **TEXTS)
    with TopologyTestDriver(builder.build(), config={"statestore.cache.max.bytes": 0}) as driver:
        driver.input_topic("in", **TEXTS).pipe("a b a")
        assert driver.output_topic("out", **TEXTS).read_key_values() == [("1", "a"), ("1", "b"), ("2", "a")]


def test_a_topic_that_the_topology_writes_and_reads_goes_round_at_once():
    builder = StreamsBuilder()
    shorter = builder.stream("in", **TEXTS).map_values(lambda v: v[1:]).filter(lambda v: v)
    shorter.to("in", **TEXTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "abcd")
        assert driver.output_topic("in", **TEXTS).read_values() == ["bcd", "cd", "d"]


def test_a_table_that_is_written_by_the_same_topology_is_up_to_date_for_the_next_record():
    builder = StreamsBuilder()
    builder.stream("rows", **TEXTS).map_values(str.upper).to("table", **TEXTS)
    table = builder.table("table", **TEXTS)
    builder.stream("in", **TEXTS).join(table, lambda a, b: a + b).to("out", **TEXTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("rows", **TEXTS).pipe("k", "row")
        driver.input_topic("in", **TEXTS).pipe("k", "v-")
        assert driver.output_topic("out", **TEXTS).read_values() == ["v-ROW"]


def test_what_waits_is_processed_by_its_timestamp():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    order = []
    for name, shift in (("later", 100), ("sooner", 0)):
        shifted = stream.process(lambda shift=shift: Shift(shift)).repartition(name=name, **TEXTS)
        shifted.foreach(lambda k, v, name=name: order.append(name))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "v", timestamp=0)
    assert order == ["sooner", "later"]


class Shift:
    """Forwards records with a later timestamp."""

    def __init__(self, shift):
        self.shift = shift

    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.with_timestamp(record.timestamp + self.shift))


# ---------------------------------------------------------------------------------------------------- metrics, closing
def test_metrics_count_dropped_records_in_all_and_by_reason():
    with counting() as driver:
        assert driver.metrics() == {"dropped-records-total": 0}
        driver.input_topic("in", **TEXTS).pipe("v")
        driver.input_topic("in", **TEXTS).pipe("k", None)
        assert driver.metrics() == {"dropped-records-total": 2, "dropped-records-total/null key or value": 2}


def test_after_an_error_the_driver_closes_quietly_with_or_without_with():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).foreach(lambda v: 1 / 0)
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(StreamsError):
        driver.input_topic("in", **TEXTS).pipe("v")
    driver.close()
    driver.close()


def test_after_an_error_what_came_before_can_still_be_read():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).map_values(lambda v: str(10 // int(v))).to("out", **TEXTS)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", **TEXTS).pipe("5")
        with pytest.raises(StreamsError):
            driver.input_topic("in", **TEXTS).pipe("0")
        driver.input_topic("in", **TEXTS).pipe("2")
        assert driver.output_topic("out", **TEXTS).read_values() == ["2", "5"]


def test_an_empty_topology_runs():
    with TopologyTestDriver(Topology()) as driver:
        driver.advance_wall_clock(10)
        assert driver.stores == {}


def test_the_configuration_may_be_a_properties_file(tmp_path):
    path = tmp_path / "app.properties"
    path.write_text("application.id=from-file\n")
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).repartition(name="again")
    with TopologyTestDriver(builder.build(), config=path) as driver:
        driver.input_topic("in", **TEXTS).pipe("k", "v")
        assert driver.produced_topics == {"from-file-again-repartition"}


def test_nodes_can_be_added_below_named_ones_of_the_dsl():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).map_values(str.upper, name="upper")
    topology = builder.build().add_sink("sink", "out", "upper", **TEXTS)
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", **TEXTS).pipe("v")
        assert driver.output_topic("out", **TEXTS).read_values() == ["V"]


# ------------------------------------------------------------------------------------------------------- wrong names
@pytest.mark.parametrize(
    "use, right",
    [
        (lambda d: d.create_input_topic, "input_topic(topic, key=, value=)"),
        (lambda d: d.createOutputTopic, "output_topic(topic, key=, value=)"),
        (lambda d: d.getStateStore, "store(name)"),
        (lambda d: d.get_key_value_store, "store(name)"),
        (lambda d: d.advanceWallClockTime, "advance_wall_clock(duration)"),
        (lambda d: d.advance_wall_clock_time, "advance_wall_clock(duration)"),
        (lambda d: d.producedTopicNames, "produced_topics"),
        (lambda d: d.input_topic("in").pipeInput, "pipe(value) or pipe(key, value)"),
        (lambda d: d.input_topic("in").pipe_input, "pipe(value) or pipe(key, value)"),
        (lambda d: d.input_topic("in").pipeKeyValueList, "pipe_key_values(pairs)"),
        (lambda d: d.output_topic("out").readKeyValuesToList, "read_key_values()"),
        (lambda d: d.output_topic("out").read_key_values_to_map, "read_table()"),
        (lambda d: d.output_topic("out").getQueueSize, "size"),
    ],
)
def test_javas_names_get_pythons(use, right):
    with copying() as driver, pytest.raises(AttributeError) as raised:
        use(driver)
    assert str(raised.value).endswith(f"use {right}")


def test_an_unknown_option_lists_the_options():
    with copying() as driver, pytest.raises(TypeError, match=r"did you mean value=\? \(options: key=, value=, start="):
        driver.input_topic("in", value_serde=serde.STRING)  # pyright: ignore[reportCallIssue]
