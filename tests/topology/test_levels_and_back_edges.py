"""A topology cut at its internal topics: stages on levels, and the edges that close a circle."""

import re
from typing import Any

from headrace import Materialized, StreamsBuilder, Topology, serde
from headrace.topology.subtopologies import plan

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}


def planned(builder, optimize=None):
    return plan(builder.build(optimize=optimize).graph())


def edges(found):
    return {(edge.topic, edge.origin, edge.target) for edge in found.edges}


def back_edges(found):
    return tuple(edge for edge in found.edges if edge.back)


def again(stream, name):
    return stream.select_key(lambda k, v: v).repartition(name=name, **TEXTS)


def test_a_topology_without_internal_topics_is_one_stage():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).filter(lambda v: v).to("out")
    found = planned(builder)
    assert found.levels == ((0,),)
    assert found.edges == ()
    stage = found.stages[0]
    assert (stage.topics, stage.inputs, stage.outputs, stage.stores) == (("in",), (), (), ())


def test_an_empty_topology_has_no_stages():
    found = plan(Topology().graph())
    assert (found.stages, found.edges, found.levels) == ({}, (), ())


def test_a_repartition_makes_two_levels():
    #  in ─ [0] ─ again-repartition ─ [1]
    builder = StreamsBuilder()
    again(builder.stream("in", **TEXTS), "again").group_by_key().count(store="counts")
    found = planned(builder)
    assert found.levels == ((0,), (1,))
    assert edges(found) == {("again-repartition", 0, 1)}
    assert back_edges(found) == ()
    assert found.stages[0].outputs == found.stages[1].inputs == ("again-repartition",)
    assert found.stages[1].stores == ("counts",)
    assert found.stages[1].topics == ()


def test_programs_that_share_nothing_are_stages_on_one_level():
    builder = StreamsBuilder()
    builder.stream("a").to("x")
    builder.stream("b").to("y")
    assert planned(builder).levels == ((0, 1),)


def test_a_store_that_two_processors_share_makes_them_one_stage():
    builder = StreamsBuilder()
    table = builder.table("table", **TEXTS)
    builder.stream("in", **TEXTS).join(table, lambda a, b: a)
    found = planned(builder)
    assert len(found.stages) == 1
    assert set(found.stages[0].topics) == {"table", "in"}


def test_a_stage_lies_below_the_lowest_of_those_that_feed_it():
    #  in ─ [0] ─ one ─ [1] ─ two ─ [2]        [2] reads from levels 0 and 1
    #          └──────── three ───────┘
    builder = StreamsBuilder()
    first = builder.stream("in", **TEXTS)
    second = again(first, "one")
    again(second, "two").merge(again(first, "three")).to("out")
    found = planned(builder)
    last = next(number for number, stage in found.stages.items() if len(stage.inputs) == 2)
    assert [len(level) for level in found.levels] == [1, 1, 1]
    assert found.level_of(last) == 2
    assert back_edges(found) == ()


def test_every_edge_that_is_not_a_back_edge_leads_to_a_later_level():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    left.join(right, lambda a, b: a, on=lambda v: v, store=Materialized(**TEXTS))
    again(again(stream, "one"), "two").merge(again(stream, "three"))
    found = planned(builder)
    for edge in found.edges:
        assert edge.back or found.level_of(edge.origin) < found.level_of(edge.target)
    assert sorted(number for level in found.levels for number in level) == sorted(found.stages)


def test_the_answers_of_a_foreign_key_join_come_back():
    #  left ─ [0] ── subscriptions ──▶ [1] ─ right
    #          ◀────── responses ──────┘            closes a circle
    builder = StreamsBuilder()
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    left.join(right, lambda a, b: a, on=lambda v: v, store=Materialized(**TEXTS))
    found = planned(builder)
    assert len(found.stages) == 2
    (back,) = back_edges(found)
    assert "RESPONSE" in back.topic
    there = next(edge for edge in found.edges if not edge.back)
    assert "REGISTRATION" in there.topic
    assert (there.origin, there.target) == (back.target, back.origin)
    assert found.level_of(there.origin) < found.level_of(there.target)


def test_two_foreign_key_joins_in_a_row_have_two_back_edges():
    builder = StreamsBuilder()
    left, middle, right = (builder.table(topic, **TEXTS) for topic in ("left", "middle", "right"))
    joined = left.join(middle, lambda a, b: b, on=lambda v: v, store=Materialized(**TEXTS))
    joined.join(right, lambda a, b: b, on=lambda v: v, store=Materialized(**TEXTS))
    found = planned(builder)
    assert len(back_edges(found)) == 2
    assert all("RESPONSE" in edge.topic for edge in back_edges(found))


def test_a_stream_joined_with_its_own_regrouped_aggregate_makes_a_circle_of_one_stage():
    #  in ─ [0: re-key] ─ again ─▶ [0: count, join]      the join puts both into one stage, which feeds itself
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    counts = stream.group_by(lambda k, v: v, name="again", **TEXTS).count()
    stream.join(counts, lambda value, count: count, **TEXTS)
    found = planned(builder)
    assert found.levels == ((0,),)
    (back,) = back_edges(found)
    assert (back.topic, back.origin, back.target) == ("again-repartition", 0, 0)


def test_a_circle_is_entered_where_it_reads_the_log():
    #  in ─ [a] ─ one ─ [b] ─ two ─▶ [a]       [a] reads the log, so the way back is from [b]
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS)
    middle = again(stream, "one")
    table = again(middle, "two").to_table(store=Materialized("rows", **TEXTS))
    stream.join(table, lambda a, b: a, **TEXTS)
    found = planned(builder)
    (back,) = back_edges(found)
    assert back.topic == "two-repartition"
    assert "in" in found.stages[back.target].topics
    assert found.levels[0] == (back.target,)


def test_what_fills_global_stores_is_no_stage():
    builder = StreamsBuilder()
    table = builder.global_table("table", **TEXTS)
    builder.stream("in", **TEXTS).join(table, lambda a, b: a, on=lambda k, v: k)
    found = planned(builder)
    assert len(found.stages) == 1
    assert found.stages[0].topics == ("in",)
    assert len(found.global_nodes) == 2
    assert not set(found.global_nodes) & set(found.stages[0].nodes)


def test_two_global_stores_are_each_listed_once():
    builder = StreamsBuilder()
    builder.global_table("one", **TEXTS)
    builder.global_table("two", **TEXTS)
    found = planned(builder)
    assert found.stages == {}
    assert len(found.global_nodes) == len(set(found.global_nodes)) == 4


def test_patterns_are_kept_as_texts():
    builder = StreamsBuilder()
    builder.stream(pattern=re.compile("logs-.*")).to("out")
    stage = planned(builder).stages[0]
    assert (stage.topics, stage.patterns) == ((), ("logs-.*",))


def test_a_sink_that_chooses_its_topic_writes_no_internal_topic():
    builder = StreamsBuilder()
    builder.stream("in").to(lambda key, value, context: "out")
    assert planned(builder).stages[0].outputs == ()


def test_merged_repartition_topics_make_one_edge():
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS).select_key(lambda k, v: v)
    stream.group_by_key(**TEXTS).count()
    stream.group_by_key(**TEXTS).reduce(lambda a, b: b)
    assert len(planned(builder, optimize="all").edges) == 1
