"""A function of the user's that raises, with each `processing.exception.handler`."""

import sys

import pytest

from headrace import (
    JoinWindows,
    Materialized,
    Punctuation,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    Windowed,
    serde,
)
from headrace.errors import ProcessingError
from headrace.testing import TopologyTestDriver
from tests.runtime.streams import AT_ONCE, TEXTS, collect, drive, dropped, pipe

HANDLER = "processing.exception.handler"
TO_DEAD_LETTERS = {"processing_exception_handler": "dead_letter", "errors_dead_letter_queue_topic_name": "dead"}


class Boom(Exception):  # noqa: N818 -- short, it is everywhere
    """What the user's function raises."""


def fails(*args):
    """Raises for the value "bad", is the last argument otherwise."""
    if "bad" in args:
        raise Boom("no luck")
    return args[-1]


def holds(key, value):
    return fails(value) is not None


def add(key, value, total):
    fails(value)
    return total + value


# Every place where a function of the user's runs while records are processed: a stream with it, named "node".
PLACES = {
    "filter": lambda s: s.filter(holds, name="node"),
    "filter_not": lambda s: s.filter_not(lambda k, v: not holds(k, v), name="node"),
    "map": lambda s: s.map(lambda k, v: (k, fails(v)), name="node"),
    "map_values": lambda s: s.map_values(fails, name="node"),
    "flat_map": lambda s: s.flat_map(lambda k, v: [(k, fails(v))], name="node"),
    "flat_map_values": lambda s: s.flat_map_values(lambda v: [fails(v)], name="node"),
    "select_key": lambda s: s.select_key(lambda k, v: fails(v) and k, name="node"),
    "peek": lambda s: s.peek(lambda k, v: fails(v), name="node"),
    "branch": lambda s: s.split(name="node").branch(holds, name="x").no_default_branch()["nodex"],
    "reduce": lambda s: s.group_by_key().reduce(lambda a, b: fails(b), name="node"),
    "aggregate": lambda s: s.group_by_key().aggregate(lambda: "", add, name="node"),
    "windowed": lambda s: s.group_by_key().windowed_by(TimeWindows.of(9)).aggregate(lambda: "", add, name="node"),
    "sliding": lambda s: s.group_by_key().windowed_by(SlidingWindows.of(9)).aggregate(lambda: "", add, name="node"),
    "sessions": lambda s: (
        s.group_by_key()
        .windowed_by(SessionWindows.of(9))
        .aggregate(lambda: "", add, merger=lambda k, a, b: b, name="node")
    ),
    "table filter": lambda s: s.to_table().filter(holds, name="node"),
    "table map_values": lambda s: s.to_table().map_values(fails, name="node"),
    "table group_by": lambda s: (
        s.to_table().group_by(lambda k, v: (k, fails(v)), name="node", **TEXTS).reduce(lambda a, b: b, lambda a, b: a)
    ),
}  # fmt: skip
PLACE = pytest.mark.parametrize("place", PLACES)


def program(place):
    builder = StreamsBuilder()
    return builder, collect(PLACES[place](builder.stream("in", **TEXTS)))


@PLACE
def test_by_default_the_error_reaches_the_caller_with_its_cause_and_its_place(place):
    builder, _ = program(place)
    with drive(builder) as driver, pytest.raises(StreamsError) as caught:
        pipe(driver, "in", [("k", "good"), ("k", "bad")])
    assert isinstance(caught.value, ProcessingError)
    assert isinstance(caught.value.__cause__, Boom)
    for part in ("node", "in/0 at offset 1", "Boom", "no luck"):
        assert part in str(caught.value)


@PLACE
def test_continue_leaves_the_record_out_and_counts_it(place):
    builder, found = program(place)
    with drive(builder, processing_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "good"), ("k", "bad"), ("l", "fine")])
        assert dropped(driver) == {"processing error": 1}
    last = found[-1].key
    assert (last.key if isinstance(last, Windowed) else last) == "l"


@PLACE
def test_a_dead_letter_is_the_record_as_it_was_read(place):
    builder, _ = program(place)
    with drive(builder, **TO_DEAD_LETTERS) as driver:
        pipe(driver, "in", [("k", "good"), ("k", "bad")])
        (letter,) = driver.output_topic("dead", **TEXTS).read_records()
        assert dropped(driver) == {"processing error": 1}
    assert (letter.key, letter.value) == ("k", "bad")
    headers = dict(letter.headers)
    assert (headers["__streams.errors.exception"] or b"").endswith(b"Boom")
    assert headers["__streams.errors.message"] == b"no luck"
    assert headers["__streams.errors.offset"] == b"1"


def test_the_siblings_of_a_node_that_fails_go_on():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    before = collect(stream.map_values(lambda v: f"first {v}"))
    failing = collect(stream.map_values(fails))
    after = collect(stream.map_values(lambda v: f"last {v}"))
    with drive(builder, processing_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "bad")])
    assert [record.value for record in before + failing + after] == ["first bad", "last bad"]


def test_what_was_forwarded_before_the_failure_has_gone_on():
    def one_then_fail(value):
        yield value
        raise Boom

    builder = StreamsBuilder()
    found = collect(builder.stream("in", **TEXTS).flat_map_values(one_then_fail))
    with drive(builder, processing_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "v")])
        assert dropped(driver) == {"processing error": 1}
    assert [record.value for record in found] == ["v"]


def test_the_node_that_fails_is_named_not_the_one_above_it():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS).map_values(lambda v: v, name="above")
    stream.map_values(fails, name="culprit").map_values(lambda v: v, name="below")
    with drive(builder) as driver, pytest.raises(StreamsError, match=r"^culprit"):
        pipe(driver, "in", [("k", "bad")])


def test_a_failure_behind_a_repartition_names_the_topic_it_was_read_from():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS).repartition(name="again")
    stream.map_values(fails, name="culprit")
    with drive(builder) as driver, pytest.raises(StreamsError, match="test-again-repartition/0 at offset 0"):
        pipe(driver, "in", [("k", "bad")])


def test_a_failed_record_leaves_no_trace_in_the_stores_when_the_application_stops():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    stream.group_by_key().count(store="counts")
    stream.foreach(lambda k, v: fails(v))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "good")])
        with pytest.raises(StreamsError):
            pipe(driver, "in", [("k", "bad")])
        assert driver.store("counts").get("k").value == 1


def test_below_a_cache_the_record_whose_update_failed_is_named():
    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXTS).group_by_key().count()
    counts.to_stream().map_values(lambda count: 1 // (2 - count), name="node")
    with drive(builder, statestore_cache_max_bytes=1000) as driver, pytest.raises(StreamsError) as caught:
        pipe(driver, "in", [("k", "v"), ("k", "v")])
    assert "node failed on in/0 at offset 1" in str(caught.value)


def test_a_handler_of_the_users_decides_record_by_record():
    def decide(failure, record, error):
        assert failure.node == "node"
        assert isinstance(error, Boom)
        return "continue" if record.key == "forgiven" else "fail"

    builder, _ = program("map_values")
    with TopologyTestDriver(builder.build(), config=AT_ONCE | {HANDLER: decide}) as driver:
        pipe(driver, "in", [("forgiven", "bad")])
        with pytest.raises(ProcessingError):
            pipe(driver, "in", [("k", "bad")])


def test_an_interrupt_is_not_an_error_of_the_program_and_is_not_handled():
    def interrupted(value):
        raise KeyboardInterrupt

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).map_values(interrupted)
    with drive(builder, processing_exception_handler="continue") as driver, pytest.raises(KeyboardInterrupt):
        pipe(driver, "in", [("k", "v")])


def test_a_function_that_calls_exit_has_failed():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).map_values(lambda value: sys.exit(3), name="leaves")
    with drive(builder) as driver, pytest.raises(ProcessingError, match=r"leaves failed on in/0 at offset 0.*exit"):
        pipe(driver, "in", [("k", "v")])
    with drive(builder, processing_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "v")])
        assert driver.metrics()["dropped-records-total/processing error"] == 1


# ------------------------------------------------------------------------------------------- joiners and processors
def joined(how):
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    match how:
        case "stream":
            other = builder.stream("other", **TEXTS)
            options = {"windows": JoinWindows.of(10), "other_value": serde.STRING, **TEXTS}
            stream.join(other, fails, name="node", **options)
        case "table":
            stream.join(builder.table("other", **TEXTS), fails, name="node")
        case "global":
            stream.join(builder.global_table("other", **TEXTS), fails, on=lambda k, v: k, name="node")
        case "tables":
            stream.to_table().join(builder.table("other", **TEXTS), fails, name="node")
        case "foreign key":
            table = stream.to_table(store=Materialized(**TEXTS))
            other = builder.table("other", **TEXTS)
            table.join(other, fails, on=lambda value: "k", store=Materialized(**TEXTS), name="node")
    return builder


JOINS = pytest.mark.parametrize("how", ["stream", "table", "global", "tables", "foreign key"])


@JOINS
def test_a_joiner_that_raises_stops_the_application(how):
    with drive(joined(how)) as driver:
        pipe(driver, "other", [("k", "x")])
        with pytest.raises(ProcessingError) as caught:
            pipe(driver, "in", [("k", "bad")])
    assert isinstance(caught.value.__cause__, Boom)


@JOINS
def test_a_joiner_that_raises_is_passed_over_with_continue(how):
    with drive(joined(how), processing_exception_handler="continue") as driver:
        pipe(driver, "other", [("k", "x")])
        pipe(driver, "in", [("k", "bad"), ("k", "good")])
        assert dropped(driver) == {"processing error": 1}


def ticking(punctuation):
    """A program whose processor fails in its punctuation."""

    class Tick:
        def init(self, context):
            context.schedule(10, punctuation, self.tick)

        def process(self, record):
            pass

        def tick(self, timestamp):
            raise Boom("in time")

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Tick, name="ticker")
    return builder


def let_time_pass(driver):
    pipe(driver, "in", [("k", "v", 100)])
    driver.advance_wall_clock(100)


@pytest.mark.parametrize("punctuation", Punctuation)
def test_a_punctuation_that_raises_stops_the_application(punctuation):
    with drive(ticking(punctuation)) as driver, pytest.raises(ProcessingError, match="ticker") as caught:
        let_time_pass(driver)
    assert isinstance(caught.value.__cause__, Boom)


@pytest.mark.parametrize("punctuation", Punctuation)
def test_a_punctuation_that_raises_is_passed_over_with_continue_and_comes_again(punctuation):
    with drive(ticking(punctuation), processing_exception_handler="continue") as driver:
        let_time_pass(driver)
        pipe(driver, "in", [("k", "v", 200)])
        driver.advance_wall_clock(100)
        assert dropped(driver) == {"processing error": 2}


def test_an_extractor_of_timestamps_that_raises_stops_the_application_whatever_the_policy():
    def extract(record, partition_time):
        raise Boom("no time")

    builder = StreamsBuilder()
    builder.stream("in", timestamp=extract, name="source", **TEXTS)
    settings = {"processing_exception_handler": "continue", "deserialization_exception_handler": "continue"}
    with drive(builder, **settings) as driver, pytest.raises(StreamsError, match=r"source.*in/0 at offset 0") as caught:
        pipe(driver, "in", [("k", "v")])
    assert isinstance(caught.value.__cause__, Boom)
    assert "Boom: no time. If it returns a negative number, the record is dropped" in str(caught.value)
    assert caught.value.summary == "source: the timestamp extractor failed on in/0 at offset 0: Boom"


@pytest.mark.parametrize("through", ["directly", "below a node"])
def test_a_topic_extractor_that_raises_reaches_the_caller_as_a_streams_error(through):
    def choose(key, value, context):
        raise Boom

    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    stream = stream if through == "directly" else stream.peek(lambda v: None)
    stream.to(choose, name="sink")
    with drive(builder) as driver, pytest.raises(StreamsError, match="sink") as caught:
        pipe(driver, "in", [("k", "v")])
    assert isinstance(caught.value.__cause__, Boom)


def test_a_partitioner_that_raises_reaches_the_caller_as_a_streams_error():
    def choose(topic, key, value, partitions):
        raise Boom

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out", partitioner=choose, name="sink")
    with drive(builder) as driver, pytest.raises(StreamsError, match="sink") as caught:
        pipe(driver, "in", [("k", "v")])
    assert isinstance(caught.value.__cause__, Boom)


def test_after_a_failure_closing_raises_no_second_error():
    class Broken:
        def process(self, record):
            raise Boom

        def close(self):
            raise Boom("on closing")

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Broken)
    with pytest.raises(ProcessingError), drive(builder) as driver:
        pipe(driver, "in", [("k", "v")])
