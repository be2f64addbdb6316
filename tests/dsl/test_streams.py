"""Streams: which nodes each verb becomes, and which serdes it knows."""

import io
import re
from datetime import timedelta

import pytest

from headrace import Stores, StreamsBuilder, TopologyError, serde
from headrace.topology import nodes as n
from headrace.topology.graph import InternalTopic
from tests.dsl.graphs import graph_of, names, node, nodes


class Forward:
    def process(self, record): ...


@pytest.fixture
def builder():
    return StreamsBuilder()


@pytest.fixture
def lines(builder):
    return builder.stream("lines", key=serde.STRING, value=serde.LONG)


def sink_of(builder):
    *_, sink = nodes(builder, n.Sink)
    return sink.key, sink.value


# --------------------------------------------------------------------------------------------------- record by record
def test_every_verb_is_a_node_with_kafkas_name(builder, lines):
    both = lambda key, value: (key, value)
    lines.filter(both).filter_not(both).map(both).map_values(both).flat_map(both).flat_map_values(both).select_key(
        both
    ).peek(both).foreach(both)
    assert [re.sub(r"-\d+$", "", name) for name in names(builder)] == [
        "KSTREAM-SOURCE",
        "KSTREAM-FILTER",
        "KSTREAM-FILTER",
        "KSTREAM-MAP",
        "KSTREAM-MAPVALUES",
        "KSTREAM-FLATMAP",
        "KSTREAM-FLATMAPVALUES",
        "KSTREAM-KEY-SELECT",
        "KSTREAM-PEEK",
        "KSTREAM-FOREACH",
    ]


def test_naming_one_operator_does_not_rename_the_ones_after_it(builder, lines):
    lines.filter(bool, name="full").peek(print)
    assert names(builder) == ["KSTREAM-SOURCE-0000000000", "full", "KSTREAM-PEEK-0000000002"]


def test_a_filter_that_drops_is_a_negated_one(builder, lines):
    lines.filter_not(bool)
    assert node(builder, n.Filter).negate


def test_a_named_processor_uses_up_no_number(builder, lines):
    lines.process(Forward, name="mine").process_values(Forward).process(Forward)
    assert names(builder)[1:] == ["mine", "KSTREAM-PROCESSVALUES-0000000001", "KSTREAM-PROCESSOR-0000000002"]
    assert [process.fixed_key for process in nodes(builder, n.Process)] == [False, True, False]


def test_a_processor_is_connected_to_its_stores(builder, lines):
    builder.add_store(Stores.key_value("seen"))
    lines.process(Forward, "seen", name="mine")
    assert graph_of(builder).node_stores["mine"] == ("seen",)


def test_printing_has_a_node_that_prints(builder, lines):
    file = io.StringIO()
    lines.print(label="here", to=file)
    printing = node(builder, n.Foreach)
    assert printing.name == "KSTREAM-PRINTER-0000000001"
    printing.look("k", 1)
    assert file.getvalue() == "[here]: k, 1\n"


def test_the_label_is_the_streams_name_if_none_is_given(builder, lines, capsys):
    lines.print()
    node(builder, n.Foreach).look("k", 1)
    assert capsys.readouterr().out == "[KSTREAM-SOURCE-0000000000]: k, 1\n"


# ------------------------------------------------------------------------------------------------------------ serdes
@pytest.mark.parametrize(
    "change, known",
    [
        (lambda s: s, (serde.STRING, serde.LONG)),
        (lambda s: s.filter(bool).peek(print), (serde.STRING, serde.LONG)),
        (lambda s: s.map_values(str), (serde.STRING, None)),
        (lambda s: s.flat_map_values(str), (serde.STRING, None)),
        (lambda s: s.select_key(str), (None, serde.LONG)),
        (lambda s: s.map(lambda k, v: (k, v)), (None, None)),
        (lambda s: s.process(Forward), (None, None)),
        (lambda s: s.process_values(Forward), (serde.STRING, None)),
        (lambda s: s.merge(s.filter(bool)), (serde.STRING, serde.LONG)),
        (lambda s: s.merge(s.map_values(str)), (serde.STRING, None)),
        (lambda s: s.split().default_branch()["KSTREAM-BRANCH-00000000010"], (serde.STRING, serde.LONG)),
        (lambda s: s.to_table().to_stream(), (serde.STRING, serde.LONG)),
        (lambda s: s.to_table().to_stream(str), (None, serde.LONG)),
        (lambda s: s.group_by_key().count().to_stream(), (serde.STRING, serde.LONG)),
        (lambda s: s.group_by(str, key=serde.LONG).count().to_stream(), (serde.LONG, serde.LONG)),
        (lambda s: s.group_by_key().aggregate(int, lambda k, v, a: a).to_stream(), (serde.STRING, None)),
        (
            lambda s: s.group_by_key().aggregate(int, lambda k, v, a: a, value=serde.JSON).to_stream(),
            (serde.STRING, serde.JSON),
        ),
    ],
)
def test_serdes_are_inherited_as_far_as_they_still_fit(builder, lines, change, known):
    change(lines).to("out")
    assert sink_of(builder) == known


def test_serdes_that_are_given_win(builder, lines):
    lines.to("out", key=serde.JSON, value=serde.BYTES)
    assert sink_of(builder) == (serde.JSON, serde.BYTES)


def test_a_repartition_topic_has_the_streams_serdes(builder, lines):
    lines.repartition(name="again", value=serde.JSON)
    assert sink_of(builder) == (serde.STRING, serde.JSON)
    assert graph_of(builder).nodes["again-repartition-source"] == n.Source(
        "again-repartition-source", ("again-repartition",), key=serde.STRING, value=serde.JSON
    )


# ------------------------------------------------------------------------------------------------ topics and branches
def test_a_stream_reads_several_topics_or_a_pattern(builder):
    builder.stream("a", "b", "a", timestamp=lambda record, time: 5, offset_reset=timedelta(seconds=1))
    builder.stream(pattern="c.*")
    several, matching = nodes(builder, n.Source)
    assert (several.topics, several.offset_reset) == (("a", "b"), 1000)
    assert several.timestamp("record", 0) == 5
    assert matching.pattern == re.compile("c.*")


def test_two_streams_of_the_same_topics_are_read_once(builder):
    one, two = builder.stream("a", "b"), builder.stream("b", "a")
    one.to("x")
    two.to("y")
    graph = graph_of(builder)
    assert graph.children["KSTREAM-SOURCE-0000000000"] == ("KSTREAM-SINK-0000000002", "KSTREAM-SINK-0000000003")
    assert "KSTREAM-SOURCE-0000000001" not in graph.nodes


def test_a_sink_may_choose_its_topic(builder, lines):
    lines.to(lambda key, value: key)
    assert node(builder, n.Sink).topic("there", 1, None) == "there"


def test_a_repartition_topic_may_have_its_own_partitions(builder, lines):
    lines.repartition(name="again", partitions=4, partitioner=lambda topic, key, value, count: 0)
    graph = graph_of(builder)
    assert graph.internal_topics == {"again-repartition": InternalTopic("again-repartition", 4)}
    assert node(builder, n.Sink).partitioner("t", "k", 1, 4) == 0


def test_a_split_has_a_child_per_branch(builder, lines):
    branches = (
        lines.split(name="by-size-")
        .branch(lambda value: value > 9, name="large")
        .branch(lambda key, value: value > 5)
        .default_branch(name="rest")
    )
    assert list(branches) == ["by-size-large", "by-size-2", "by-size-rest"]
    branch = node(builder, n.Branch)
    assert branch.branches == tuple(branches)
    assert [keep("k", 7) for keep in branch.predicates] == [False, True]
    assert all(isinstance(graph_of(builder).nodes[name], n.PassThrough) for name in branches)


def test_what_a_branch_becomes_takes_its_place(builder, lines):
    branches = (
        lines.split(name="s-")
        .branch(bool, name="a", then=lambda branch: branch.map_values(str, name="mapped"))
        .branch(bool, name="b", then=lambda branch: branch.to("out"))
        .no_default_branch()
    )
    assert list(branches) == ["s-a"]
    assert branches["s-a"].place.name == "mapped"


def test_records_without_key_travel_only_for_joins_that_want_them(builder, lines):
    table = builder.table("table")
    rekeyed = lines.select_key(str)
    rekeyed.join(table, lambda left, right: left, name="inner")
    rekeyed.left_join(table, lambda left, right: left, name="left")
    graph = graph_of(builder)
    dropping, passing = graph.nodes["inner-repartition-filter"], graph.nodes["left-repartition-filter"]
    assert isinstance(dropping, n.Filter)
    assert not dropping.keep(None, 1)
    assert isinstance(passing, n.PassThrough)


def test_sources_whose_records_meet_are_copartitioned(builder, lines):
    other = builder.stream("others").select_key(str).repartition(name="again")
    lines.merge(other).left_join(builder.table("table", name="t"), lambda left, right: left)
    assert graph_of(builder).copartitioned == (
        frozenset({"KSTREAM-SOURCE-0000000000", "again-repartition-source", "t-source"}),
    )


def test_building_again_has_what_is_new(builder, lines):
    lines.to("out")
    topology = builder.build()
    lines.filter(bool, name="more").to("more")
    assert "more" in names(builder)
    assert "more" not in topology.graph().nodes


def test_a_topic_has_a_partition(lines):
    with pytest.raises(ValueError, match="a topic has at least one partition, not 0"):
        lines.repartition(partitions=0)


def test_a_stream_needs_a_topic(builder):
    with pytest.raises(TopologyError, match="reads no topic"):
        builder.stream()
