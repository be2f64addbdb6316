"""How many partitions internal topics get, and what is said when topics that meet do not agree."""

from typing import Any

import pytest

from headrace import JoinWindows, Materialized, StreamsBuilder, TopologyError, serde
from headrace.topology.subtopologies import partition_counts, plan, task_counts

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
STREAMS: dict[str, Any] = {"windows": JoinWindows.of(10), "other_value": serde.STRING, **TEXTS}


def both(left, right):
    return left


def again(stream, name, partitions=None):
    return stream.select_key(lambda k, v: v).repartition(name=name, partitions=partitions, **TEXTS)


def counts(builder, **known):
    """Partition counts of internal topics, by name without "-repartition"."""
    graph = builder.build().graph()
    found = partition_counts(graph, plan(graph), known)
    return {topic.removesuffix("-repartition"): count for topic, count in found.items()}


# ------------------------------------------------------------------------------------------------- by themselves
def test_a_repartition_topic_has_as_many_partitions_as_its_source():
    builder = StreamsBuilder()
    again(builder.stream("source", **TEXTS), "topic")
    assert counts(builder, source=6) == {"topic": 6}


def test_of_several_sources_the_largest_counts():
    builder = StreamsBuilder()
    one, two = builder.stream("one", **TEXTS), builder.stream("two", **TEXTS)
    again(one.merge(two), "topic")
    assert counts(builder, one=2, two=5) == {"topic": 5}


def test_a_repartition_topic_inherits_through_others():
    builder = StreamsBuilder()
    again(again(builder.stream("source", **TEXTS), "first"), "second")
    assert counts(builder, source=3) == {"first": 3, "second": 3}


def test_a_count_that_was_asked_for_is_kept_and_inherited():
    builder = StreamsBuilder()
    again(again(builder.stream("source", **TEXTS), "first", partitions=8), "second")
    assert counts(builder, source=3) == {"first": 8, "second": 8}


def test_a_source_topic_that_is_not_there_is_named():
    builder = StreamsBuilder()
    again(builder.stream("source", **TEXTS), "topic")
    with pytest.raises(TopologyError, match="the source topic 'source' does not exist; create it"):
        counts(builder)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_topic_has_at_least_one_partition(wrong):
    with pytest.raises(ValueError, match="at least one partition"):
        StreamsBuilder().stream("in").repartition(partitions=wrong)


# ------------------------------------------------------------------------------------------------------ joined topics
def joined(how, builder, left, right):
    match how:
        case "streams":
            return builder.stream(left, **TEXTS).join(builder.stream(right, **TEXTS), both, **STREAMS)
        case "stream and table":
            return builder.stream(left, **TEXTS).join(builder.table(right, **TEXTS), both)
        case "tables":
            return builder.table(left, **TEXTS).join(builder.table(right, **TEXTS), both)


@pytest.mark.parametrize("how", ["streams", "stream and table", "tables"])
def test_joined_topics_that_do_not_agree_are_named_with_their_counts_and_the_remedy(how):
    builder = StreamsBuilder()
    joined(how, builder, "left", "right")
    with pytest.raises(TopologyError) as caught:
        counts(builder, left=2, right=3)
    for part in ("left has 2", "right has 3", "repartition()"):
        assert part in str(caught.value)


@pytest.mark.parametrize("how", ["streams", "stream and table", "tables"])
def test_joined_topics_that_agree_are_fine(how):
    builder = StreamsBuilder()
    joined(how, builder, "left", "right")
    assert counts(builder, left=2, right=2) == {}


def test_topics_that_only_a_merge_brings_together_need_not_agree():
    builder = StreamsBuilder()
    builder.stream("one").merge(builder.stream("two"))
    assert counts(builder, one=2, two=3) == {}


def test_a_global_table_need_not_agree():
    builder = StreamsBuilder()
    table = builder.global_table("table", **TEXTS)
    builder.stream("in", **TEXTS).join(table, both, on=lambda k, v: k)
    assert counts(builder, **{"in": 2, "table": 1}) == {}


def test_a_foreign_key_join_needs_no_agreement():
    builder = StreamsBuilder()
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    left.join(right, both, on=lambda v: v, store=Materialized(**TEXTS))
    found = counts(builder, left=2, right=3)
    assert {count for topic, count in found.items() if "REGISTRATION" in topic} == {3}
    assert {count for topic, count in found.items() if "RESPONSE" in topic} == {2}


def test_a_repartition_topic_follows_the_topic_that_it_is_joined_with():
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    again(left, "topic").join(right, both, **STREAMS)
    assert counts(builder, left=8, right=3) == {"topic": 3}


def test_two_repartition_topics_that_meet_take_the_larger_count():
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    again(left, "one").join(again(right, "two"), both, **STREAMS)
    assert counts(builder, left=2, right=5) == {"one": 5, "two": 5}


def test_a_repartition_topic_without_a_wish_follows_one_that_has_it():
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    again(left, "one", partitions=4).join(again(right, "two"), both, **STREAMS)
    assert counts(builder, left=2, right=7) == {"one": 4, "two": 4}


def test_a_wish_that_does_not_agree_with_the_other_side_is_refused():
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    again(left, "topic", partitions=4).join(right, both, **STREAMS)
    with pytest.raises(TopologyError, match="right has 3"):
        counts(builder, left=2, right=3)


def test_two_wishes_that_do_not_agree_are_refused_when_the_topology_is_built():
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    again(left, "one", partitions=4).join(again(right, "two", partitions=5), both, **STREAMS)
    with pytest.raises(TopologyError, match="one-repartition: 4, two-repartition: 5"):
        builder.build()


def test_counts_are_inherited_before_joins_make_topics_agree_as_in_kafka_streams():
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    met = again(left, "one").join(right, both, **STREAMS)
    again(met, "two")
    assert counts(builder, left=8, right=3) == {"one": 3, "two": 8}


# -------------------------------------------------------------------------------------------------------------- tasks
def test_a_stage_runs_as_one_task_for_each_partition_of_its_largest_topic():
    builder = StreamsBuilder()
    one, two = builder.stream("one", **TEXTS), builder.stream("two", **TEXTS)
    again(one.merge(two), "topic", partitions=7).to("out")
    graph = builder.build().graph()
    found = plan(graph)
    known = {"one": 2, "two": 5}
    assert task_counts(found, known, partition_counts(graph, found, known)) == {0: 5, 1: 7}
