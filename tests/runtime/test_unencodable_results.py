"""Results that a sink's or a store's serde cannot write, with each `production.exception.handler`."""

from typing import Any

import pytest

from headrace import Materialized, Stores, StreamsBuilder, StreamsError, serde
from headrace.errors import SerializationError
from tests.runtime.streams import TEXTS, drive, dropped, pipe

TO_DEAD_LETTERS = {"production_exception_handler": "dead_letter", "errors_dead_letter_queue_topic_name": "dead"}


def texts_as_longs():
    """A program whose sink takes numbers only; a number comes out of a text of digits."""
    builder = StreamsBuilder()
    numbers = builder.stream("in", **TEXTS).map_values(lambda text: int(text) if text.isdigit() else text)
    numbers.to("out", value=serde.LONG, name="sink")
    return builder


def test_by_default_a_result_that_cannot_be_encoded_stops_the_application():
    with drive(texts_as_longs()) as driver, pytest.raises(SerializationError) as caught:
        pipe(driver, "in", [("k", "text")])
    assert caught.value.__cause__ is not None
    for part in ("sink", "in/0 at offset 0", "the key is a str, the value a str", "Check the serdes"):
        assert part in str(caught.value)


def test_continue_leaves_the_result_out_and_counts_it():
    with drive(texts_as_longs(), production_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "1"), ("k", "text"), ("k", "2")])
        assert driver.output_topic("out", value=serde.LONG).read_values() == [1, 2]
        assert dropped(driver) == {"production error": 1}


def test_a_dead_letter_is_the_record_that_the_result_came_from():
    with drive(texts_as_longs(), **TO_DEAD_LETTERS) as driver:
        pipe(driver, "in", [("k", "1"), ("k", "text", 7)])
        (letter,) = driver.output_topic("dead", **TEXTS).read_records()
        assert dropped(driver) == {"production error": 1}
    assert (letter.key, letter.value, letter.timestamp) == ("k", "text", 7)
    assert dict(letter.headers)["__streams.errors.offset"] == b"1"


def test_a_handler_of_the_users_sees_the_result_not_the_input():
    asked = []

    def decide(failure, record, error):
        asked.append((failure.node, record.key, record.value))
        return "continue"

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).map(lambda k, v: (v, k)).to("out", key=serde.LONG, name="sink")
    with drive(builder, production_exception_handler=decide) as driver:
        pipe(driver, "in", [("k", "v")])
    assert asked == [("sink", "v", "k")]


def test_a_key_that_cannot_be_encoded_is_handled_like_a_value():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out", key=serde.LONG)
    with drive(builder, production_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "v")])
        assert dropped(driver) == {"production error": 1}


def test_the_policy_holds_at_a_repartition_too():
    builder = StreamsBuilder()
    wrong: Any = lambda k, v: 1
    builder.stream("in", **TEXTS).group_by(wrong, key=serde.STRING).count()
    with drive(builder, production_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "v")])
        assert dropped(driver) == {"production error": 1}


def test_the_other_policies_are_not_asked():
    settings = {"processing_exception_handler": "continue", "deserialization_exception_handler": "continue"}
    with drive(texts_as_longs(), **settings) as driver, pytest.raises(SerializationError):
        pipe(driver, "in", [("k", "text")])


@pytest.mark.parametrize("cache", [0, 1000])
@pytest.mark.parametrize("kind", ["memory", "persistent"])
def test_a_value_that_its_store_cannot_encode_stops_the_application_and_names_the_store(kind, cache):
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXTS).group_by_key()
    wrong: Any = serde.LONG
    grouped.aggregate(lambda: "", lambda k, v, a: v, store=Materialized("kept", kind=kind, value=wrong))
    with drive(builder, statestore_cache_max_bytes=cache) as driver, pytest.raises(StreamsError) as caught:
        pipe(driver, "in", [("k", "text")])
    assert "'kept' cannot be encoded: LONG encodes an int, not 'text'" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_processor_that_puts_what_its_store_cannot_encode_gets_a_streams_error_to_the_caller():
    class Put:
        def init(self, context):
            self.store = context.store("kept")

        def process(self, record):
            self.store.put(record.key, record.value)

    builder = StreamsBuilder().add_store(Stores.key_value("kept", key=serde.STRING, value=serde.LONG))
    builder.stream("in", **TEXTS).process(Put, "kept")
    with drive(builder) as driver, pytest.raises(StreamsError, match="LONG"):
        pipe(driver, "in", [("k", "text")])
