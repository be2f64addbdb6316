"""Bytes that a source's serde cannot read, with each `deserialization.exception.handler`."""

import logging

import pytest

from headrace import StreamsBuilder, StreamsError, serde
from headrace.errors import SerializationError
from headrace.testing import TopologyTestDriver
from tests.runtime.streams import AT_ONCE, collect, dropped

GOOD, BAD = (5).to_bytes(8, "big"), b"not eight bytes"
HANDLER = "deserialization.exception.handler"
TO_DEAD_LETTERS = {HANDLER: "dead_letter", "errors.dead.letter.queue.topic.name": "dead"}


def numbers():
    """A topology that reads longs and writes them as texts."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serde.STRING, value=serde.LONG, name="numbers")
    stream.map_values(str).to("out", value=serde.STRING)
    return builder.build()


def driver_with(config):
    return TopologyTestDriver(numbers(), config=AT_ONCE | config)


def failure_of_the_second():
    with driver_with({}) as driver:
        driver.input_topic("in").pipe(b"k", GOOD, timestamp=0)
        with pytest.raises(StreamsError) as caught:
            driver.input_topic("in").pipe(b"k", BAD, timestamp=1)
    return caught.value


def read(driver):
    return driver.output_topic("out", value=serde.STRING).read_values()


def test_by_default_an_undecodable_record_stops_the_application():
    error = failure_of_the_second()
    assert isinstance(error, SerializationError)
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("part", ["numbers", "the value", "in/0 at offset 1", "Check the serde"])
def test_the_error_names_the_source_the_part_the_place_and_the_remedy(part):
    assert part in str(failure_of_the_second())


def test_an_undecodable_key_is_told_from_an_undecodable_value():
    builder = StreamsBuilder()
    builder.stream("in", key=serde.LONG)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(StreamsError, match="the key of in/0 at offset 0"),
    ):
        driver.input_topic("in").pipe(BAD, b"v", timestamp=0)


def test_a_string_is_always_decodable_as_in_java():
    builder = StreamsBuilder()
    found = collect(builder.stream("in", value=serde.STRING))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in").pipe(b"caf\xe9", timestamp=0)
    assert [record.value for record in found] == ["caf\ufffd"]


def test_continue_leaves_the_record_out_counts_it_and_says_so(caplog):
    with driver_with({HANDLER: "continue"}) as driver, caplog.at_level(logging.WARNING):
        for value in (GOOD, BAD, GOOD):
            driver.input_topic("in").pipe(b"k", value, timestamp=0)
        assert read(driver) == ["5", "5"]
        assert dropped(driver) == {"deserialization error": 1}
    assert "in/0 at offset 1" in caplog.text


def test_a_record_that_is_left_out_does_not_move_stream_time():
    builder = StreamsBuilder()
    times = []

    class Look:
        def init(self, context):
            self.context = context

        def process(self, record):
            times.append(self.context.stream_time)

    builder.stream("in", value=serde.LONG).process(Look)
    with TopologyTestDriver(builder.build(), config={HANDLER: "continue"}) as driver:
        driver.input_topic("in").pipe(b"k", BAD, timestamp=1000)
        driver.input_topic("in").pipe(b"k", GOOD, timestamp=10)
    assert times == [10]


def test_a_dead_letter_has_the_bytes_as_they_came_and_the_cause_in_headers():
    with driver_with(TO_DEAD_LETTERS) as driver:
        driver.input_topic("in").pipe(b"k", GOOD, timestamp=0)
        driver.input_topic("in").pipe(b"k", BAD, timestamp=7, headers=[("own", b"1")])
        (letter,) = driver.output_topic("dead").read_records()
        assert read(driver) == ["5"]
        assert dropped(driver) == {"deserialization error": 1}
    assert (letter.key, letter.value, letter.timestamp) == (b"k", BAD, 7)
    headers = dict(letter.headers)
    assert headers["own"] == b"1"
    assert headers["__streams.errors.exception"] == b"builtins.ValueError"
    assert b"LONG" in (headers["__streams.errors.message"] or b"")
    assert b"Traceback" in (headers["__streams.errors.stacktrace"] or b"")
    assert headers["__streams.errors.topic"] == b"in"
    assert headers["__streams.errors.partition"] == b"0"
    assert headers["__streams.errors.offset"] == b"1"


def test_dead_letters_without_a_topic_are_refused_when_the_driver_is_made():
    with pytest.raises(ValueError, match=r"errors\.dead\.letter\.queue\.topic\.name"):
        driver_with({HANDLER: "dead_letter"})


def test_a_handler_of_the_users_gets_place_record_and_error():
    asked = []

    def decide(failure, record, error):
        asked.append((failure, record, error))
        return "continue"

    with driver_with({HANDLER: decide}) as driver:
        driver.input_topic("in").pipe(b"k", BAD, timestamp=7)
        assert dropped(driver) == {"deserialization error": 1}
    ((failure, record, error),) = asked
    assert (failure.node, failure.topic, failure.partition, failure.offset) == ("numbers", "in", 0, 0)
    assert (record.key, record.value, record.timestamp) == (b"k", BAD, 7)
    assert isinstance(error, ValueError)


def test_a_handler_of_the_users_may_choose_to_fail():
    with driver_with({HANDLER: lambda failure, record, error: "fail"}) as driver, pytest.raises(SerializationError):
        driver.input_topic("in").pipe(b"k", BAD, timestamp=0)


def test_a_handler_that_fails_itself_stops_the_application_with_its_own_error():
    def broken(failure, record, error):
        raise KeyError("oops")

    with driver_with({HANDLER: broken}) as driver, pytest.raises(StreamsError, match="handler itself failed") as caught:
        driver.input_topic("in").pipe(b"k", BAD, timestamp=0)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_handler_that_answers_something_else_is_told_what_it_may_answer():
    with driver_with({HANDLER: lambda *_: "ignore"}) as driver, pytest.raises(StreamsError, match="'ignore'"):
        driver.input_topic("in").pipe(b"k", BAD, timestamp=0)


def test_kafkas_class_names_mean_the_same():
    name = "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler"
    with driver_with({HANDLER: name}) as driver:
        driver.input_topic("in").pipe(b"k", BAD, timestamp=0)
        assert dropped(driver) == {"deserialization error": 1}


@pytest.mark.parametrize("policy", ["continue", "dead_letter"])
def test_the_policy_holds_for_global_tables_too(policy):
    builder = StreamsBuilder()
    table = builder.global_table("table", key=serde.STRING, value=serde.LONG, store="rows")
    builder.stream("in", key=serde.STRING).join(table, lambda a, b: b, on=lambda k, v: k)
    config = TO_DEAD_LETTERS | {HANDLER: policy}
    with TopologyTestDriver(builder.build(), config=config) as driver:
        driver.input_topic("table").pipe(b"k", BAD, timestamp=0)
        driver.input_topic("table").pipe(b"k", GOOD, timestamp=0)
        assert driver.store("rows").get("k").value == 5
        assert dropped(driver) == {"deserialization error": 1}
        assert len(driver.output_topic("dead").read_records()) == (policy == "dead_letter")
