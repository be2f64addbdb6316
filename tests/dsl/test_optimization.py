"""Optimization: fewer topics and stores, the same results."""

import pytest

from headrace import JoinWindows, StreamsBuilder, TopologyError
from headrace.topology import nodes as n
from tests.dsl.graphs import graph_of, names, node, nodes


def pair(left, right):
    return (left, right)


@pytest.fixture
def builder():
    return StreamsBuilder()


def two_aggregates(builder):
    words = builder.stream("lines").select_key(str)
    words.group_by_key().count(store="counts")
    words.filter(bool).group_by_key().reduce(max, store="largest")


def test_nothing_is_merged_unasked(builder):
    two_aggregates(builder)
    assert builder.build().internal_topics == ["counts-repartition", "largest-repartition"]


@pytest.mark.parametrize("optimize", ["all", "merge.repartition.topics", {"merge.repartition.topics"}])
def test_repartitions_of_one_change_of_keys_become_one(builder, optimize):
    two_aggregates(builder)
    topology = builder.build(optimize)
    assert topology.internal_topics == ["counts-repartition"]
    assert topology.graph().parents["counts-repartition-filter"] == ("KSTREAM-KEY-SELECT-0000000001",)
    assert len(topology.graph().children["counts-repartition-source"]) == 2


@pytest.mark.parametrize("optimize", [None, "none", set(), "reuse.ktable.source.topics", "single.store.self.join"])
def test_other_optimizations_leave_repartitions_alone(builder, optimize):
    two_aggregates(builder)
    assert len(builder.build(optimize).internal_topics) == 2


def test_a_change_of_values_in_between_keeps_them_apart(builder):
    words = builder.stream("lines").select_key(str)
    words.group_by_key().count(store="counts")
    words.map_values(str).group_by_key().count(store="others")
    assert builder.build("all").internal_topics == ["counts-repartition", "others-repartition"]


def test_a_repartition_that_was_asked_for_stays(builder):
    words = builder.stream("lines").select_key(str)
    words.repartition(name="mine").group_by_key().count(store="counts")
    words.group_by_key().count(store="others")
    assert builder.build("all").internal_topics == ["mine-repartition", "others-repartition"]


def test_merged_streams_are_repartitioned_once(builder):
    one, two = builder.stream("a").select_key(str), builder.stream("b").select_key(str)
    merged = one.merge(two, name="both")
    merged.group_by_key().count(store="counts")
    merged.group_by_key().reduce(max, store="largest")
    topology = builder.build("all")
    assert topology.internal_topics == ["counts-repartition"]
    assert topology.graph().parents["counts-repartition-filter"] == ("both",)


def test_joined_sources_stay_copartitioned(builder):
    words = builder.stream("lines").select_key(str)
    words.group_by_key().count(store="counts")
    words.join(builder.table("t", name="t"), pair, name="j")
    assert graph_of(builder, "all").copartitioned == (frozenset({"counts-repartition-source", "t-source"}),)


def test_repartitions_on_one_branch_cannot_be_merged(builder):
    branch = builder.stream("lines").select_key(str, name="by").filter(bool)
    branch.group_by_key().count(store="counts")
    branch.left_join(builder.table("t"), pair)
    with pytest.raises(TopologyError, match="the repartitions below 'by' share a branch and cannot be made one"):
        builder.build("all")


def test_a_join_of_a_stream_with_itself_has_one_store(builder):
    stream = builder.stream("a")
    stream.join(stream, pair, windows=JoinWindows.of(5), name="j")
    assert len(graph_of(builder).stores) == 2
    graph = graph_of(builder, "single.store.self.join")
    assert list(graph.stores) == ["KSTREAM-JOINTHIS-0000000003-store"]
    join = node(builder, n.SelfJoin, "single.store.self.join")
    assert (join.name, join.store) == ("j-merge", "KSTREAM-JOINTHIS-0000000003-store")
    assert graph.parents["j-merge"] == ("j-this-windowed",)


def test_two_streams_of_one_topic_are_one_stream(builder):
    builder.stream("a").join(builder.stream("a"), pair, windows=JoinWindows.of(5))
    assert len(nodes(builder, n.SelfJoin, "all")) == 1


def test_an_optimized_topology_can_be_built_again(builder):
    stream = builder.stream("a")
    stream.join(stream, pair, windows=JoinWindows.of(5))
    two_aggregates(builder)
    assert names(builder, "all") == names(builder, "all")


@pytest.mark.parametrize("optimize", ["some", {"all", "merge.repartition.topics"}, "all,none"])
def test_an_unknown_optimization_is_refused(builder, optimize):
    with pytest.raises(ValueError, match=r"optimize is 'none', 'all' or some of merge\.repartition\.topics, "):
        builder.build(optimize)
