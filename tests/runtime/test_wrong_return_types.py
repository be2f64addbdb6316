"""A function of the user's that returns what it should not: said so, with the node and what was expected."""

from typing import Any

import pytest

from headrace import StreamsBuilder, StreamsError, serde
from tests.runtime.streams import TEXTS, collect, drive, dropped, outcome, pipe

RECORD = ("k", "v")


def failure(program, *records):
    with pytest.raises(StreamsError) as caught:
        outcome(program, *(records or [RECORD]))
    return caught.value


@pytest.mark.parametrize("returned", [None, "kv", ("only one",), ("one", "too", "many"), ["k", "v"], {"k": 1, "v": 2}])
def test_a_function_given_to_map_returns_a_pair(returned):
    error = failure(lambda s: s.map(lambda k, v: returned, name="node"))
    assert isinstance(error.__cause__, TypeError)
    assert "node: a function given to map returns a (key, value) pair" in str(error)


@pytest.mark.parametrize("returned", [["kv"], [("only one",)], ["ab"], [None]])
def test_a_function_given_to_flat_map_returns_pairs(returned):
    error = failure(lambda s: s.flat_map(lambda k, v: returned, name="node"))
    assert isinstance(error.__cause__, TypeError)
    assert "node: a function given to flat_map returns (key, value) pairs" in str(error)


@pytest.mark.parametrize("verb", ["flat_map", "flat_map_values"])
@pytest.mark.parametrize("returned", [None, 5])
def test_what_is_given_to_a_flat_map_returns_something_to_go_through(verb, returned):
    error = failure(lambda s: getattr(s, verb)(lambda v: returned, name="node"))
    assert isinstance(error.__cause__, TypeError)
    assert "node" in str(error)


@pytest.mark.parametrize("verb", ["flat_map", "flat_map_values"])
def test_what_is_given_to_a_flat_map_may_return_any_iterable(verb):
    def pieces(key, value):
        yield from ((piece, piece) if verb == "flat_map" else piece for piece in value)

    assert outcome(lambda s: getattr(s, verb)(pieces), ("k", "xy")).values == ["x", "y"]


@pytest.mark.parametrize("returned", [None, "kv", ("only one",), ("one", "too", "many")])
def test_a_function_given_to_group_by_of_a_table_returns_a_pair(returned):
    error = failure(lambda s: s.to_table().group_by(lambda k, v: returned, name="node", **TEXTS).count())
    assert isinstance(error.__cause__, TypeError)
    assert "a function given to a table's group_by returns a (key, value) pair" in str(error)


@pytest.mark.parametrize("returned", [1.5, "1", None, True], ids=repr)
def test_an_extractor_of_timestamps_returns_an_int(returned):
    builder = StreamsBuilder()
    builder.stream("in", timestamp=lambda record, partition_time: returned, name="source", **TEXTS)
    with (
        drive(builder) as driver,
        pytest.raises(StreamsError, match="source: a timestamp extractor returns milliseconds"),
    ):
        pipe(driver, "in", [RECORD])


@pytest.mark.parametrize("returned", [None, 5, "", b"out"], ids=repr)
@pytest.mark.parametrize("above", [lambda s: s, lambda s: s.peek(lambda v: None)], ids=["source", "node"])
def test_a_topic_extractor_returns_the_name_of_a_topic(returned, above):
    builder = StreamsBuilder()
    above(builder.stream("in", **TEXTS)).to(lambda key, value, context: returned, name="sink")
    with (
        drive(builder) as driver,
        pytest.raises(StreamsError, match="sink: a topic extractor returns the name") as caught,
    ):
        pipe(driver, "in", [RECORD])
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("truth", [1, "yes", [0]])
@pytest.mark.parametrize("lie", [0, "", [], None])
def test_a_predicate_may_return_anything_that_is_true_or_false(truth, lie):
    def answer(value):
        return truth if value == "a" else lie

    records = [("k", "a"), ("k", "b")]
    assert outcome(lambda s: s.filter(answer), *records).values == ["a"]
    assert outcome(lambda s: s.filter_not(answer), *records).values == ["b"]
    assert outcome(lambda s: s.to_table().filter(answer), *records).values == ["a", None]
    assert outcome(lambda s: s.to_table().filter_not(answer), *records).values == [None, "b"]
    assert outcome(lambda s: s.split().branch(answer, name="x").no_default_branch().popitem()[1], *records).values == [
        "a"
    ]


@pytest.mark.parametrize("returned", ["0", 1.0], ids=repr)
def test_a_partitioner_returns_partitions_by_number(returned):
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out", partitioner=lambda topic, k, v, n: returned, name="sink")
    with drive(builder) as driver, pytest.raises(StreamsError, match="sink") as caught:
        pipe(driver, "in", [RECORD])
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("chosen", [-1, 1, [0, 7]], ids=repr)
def test_a_partitioner_chooses_partitions_that_there_are(chosen):
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out", partitioner=lambda topic, k, v, n: chosen, name="sink")
    with drive(builder) as driver, pytest.raises(StreamsError, match="sink: the partitioner chose partition"):
        pipe(driver, "in", [RECORD])


def test_a_partitioner_may_return_none_one_or_several_partitions():
    written = {"none": None, "one": 0, "several": [0, 0], "nowhere": []}
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    for topic, chosen in written.items():
        stream.to(topic, partitioner=lambda topic, k, v, n, chosen=chosen: chosen)
    with drive(builder) as driver:
        pipe(driver, "in", [RECORD])
        counts = {topic: len(driver.output_topic(topic).read_records()) for topic in written}
    assert counts == {"none": 1, "one": 1, "several": 2, "nowhere": 0}


def test_a_wrong_type_is_handled_by_the_processing_policy():
    builder = StreamsBuilder()
    wrong: Any = lambda k, v: v if v == "bad" else (k, v)
    found = collect(builder.stream("in", **TEXTS).map(wrong))
    with drive(builder, processing_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "bad"), ("k", "good")])
        assert dropped(driver) == {"processing error": 1}
    assert [record.value for record in found] == ["good"]


def test_an_aggregate_of_another_type_than_its_serde_is_an_error():
    error = failure(lambda s: s.group_by_key().aggregate(lambda: 0, lambda k, v, a: v, value=serde.LONG))
    assert "LONG" in str(error)
