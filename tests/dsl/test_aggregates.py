"""Aggregates: their nodes, stores, names and keys."""

import pytest

from headrace import (
    EmitStrategy,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Window,
    serde,
)
from headrace.state.spec import KeyValueKind, SessionKind, StoreSpec, VersionedKind, WindowKind
from headrace.topology import nodes as n
from headrace.topology.nodes import SessionWindowedOf, WindowedOf
from tests.dsl.graphs import graph_of, names, node, nodes

LONGEST = 2**63 - 1


def add(key, value, so_far):
    return so_far + value


def reduce(so_far, value):
    return so_far + value


def merge(key, left, right):
    return left + right


@pytest.fixture
def builder():
    return StreamsBuilder()


@pytest.fixture
def grouped(builder):
    return builder.stream("a", key=serde.STRING, value=serde.LONG).group_by_key()


# --------------------------------------------------------------------------------------------------------- functions
def test_a_count_adds_one(builder, grouped):
    grouped.count()
    count = node(builder, n.StreamAggregate)
    assert count.add("k", "v", count.initialize()) == 1


def test_a_windowed_reduction_starts_with_the_first_value(builder, grouped):
    grouped.windowed_by(SessionWindows.of(5)).reduce(reduce)
    node_ = node(builder, n.SessionAggregate)
    assert node_.add("k", 3, node_.initialize()) == 3
    assert node_.add("k", 3, 4) == 7
    assert node_.merge("k", None, 4) == 4
    assert node_.merge("k", 3, 4) == 7


def test_a_grouped_table_adds_and_subtracts(builder):
    by_value = builder.table("t").group_by(lambda key, value: (value, key))
    by_value.count()
    by_value.reduce(reduce, reduce)
    by_value.aggregate(int, add, add)
    count, total = nodes(builder, n.TableAggregate)
    assert count.subtract("k", "v", count.add("k", "v", count.initialize())) == 0
    assert (total.add, total.subtract) == (add, add)
    assert node(builder, n.TableReduce).subtract is reduce


# ------------------------------------------------------------------------------------------------------------ stores
def test_a_table_by_key_has_a_timestamped_store(builder, grouped):
    table = grouped.count(store="counts")
    assert table.queryable_store_name == "counts"
    assert graph_of(builder).stores["counts"] == StoreSpec(
        "counts", KeyValueKind(timestamped=True), serde.STRING, serde.LONG, persistent=None, caching=True
    )


def test_a_store_without_name_is_generated_and_cannot_be_queried(builder, grouped):
    table = grouped.reduce(reduce)
    assert table.queryable_store_name is None
    assert list(graph_of(builder).stores) == ["KSTREAM-REDUCE-STATE-STORE-0000000001"]


def test_a_count_with_settings_but_no_name_uses_up_one_more_number(builder, grouped):
    grouped.count(store=Materialized(caching=False))
    assert names(builder)[1:] == ["KSTREAM-AGGREGATE-0000000003"]


@pytest.mark.parametrize(
    "windows, kind, key",
    [
        (TimeWindows.of(10, grace=3), WindowKind(13, 10, timestamped=True), WindowedOf(serde.STRING, 10)),
        (UnlimitedWindows.of(), WindowKind(LONGEST, LONGEST, timestamped=True), WindowedOf(serde.STRING, LONGEST)),
        (SlidingWindows.of(10, grace=3), WindowKind(23, 10, timestamped=True), WindowedOf(serde.STRING, 10)),
        (SessionWindows.of(10, grace=3), SessionKind(13), SessionWindowedOf(serde.STRING)),
    ],
)
def test_windows_are_kept_as_long_as_they_take_records(builder, grouped, windows, kind, key):
    grouped.windowed_by(windows).count(store="w").to_stream().to("out")
    assert graph_of(builder).stores["w"].kind == kind
    assert node(builder, n.Sink).key == key


@pytest.mark.parametrize(
    "windows", [TimeWindows.of(10, grace=3), SlidingWindows.of(5, grace=3), SessionWindows.of(10, 3)]
)
def test_a_retention_may_be_longer_but_not_shorter(builder, grouped, windows):
    grouped.windowed_by(windows).count(store=Materialized("w", retention=100))
    kind = graph_of(builder).stores["w"].kind
    assert isinstance(kind, WindowKind | SessionKind)
    assert kind.retention == 100
    with pytest.raises(ValueError, match="the store 'v' keeps windows for 12 ms, but they take records for 13 ms"):
        grouped.windowed_by(windows).count(store=Materialized("v", retention=12))


@pytest.mark.parametrize(
    "windows, caching", [(TimeWindows.of(10), True), (SlidingWindows.of(10), False), (SessionWindows.of(10), False)]
)
def test_on_close_only_time_windows_are_cached(builder, grouped, windows, caching):
    grouped.windowed_by(windows).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count(store="w")
    graph = graph_of(builder)
    assert graph.stores["w"].caching is caching
    (aggregate,) = [found for found in graph.nodes.values() if hasattr(found, "on_close")]
    assert getattr(aggregate, "on_close")  # noqa: B009


def test_any_object_with_windows_is_a_definition_of_windows(builder, grouped):
    class Everything:
        size, grace = 100, 0

        def windows_for(self, timestamp):
            return [Window(0, 100)]

    everything = Everything()
    grouped.windowed_by(everything).count()
    assert node(builder, n.WindowAggregate).windows is everything


def test_an_aggregate_may_be_versioned(builder, grouped):
    grouped.count(store=Materialized("v", history=5))
    assert graph_of(builder).stores["v"].kind == VersionedKind(5)


# ------------------------------------------------------------------------------------------------------ repartitions
def test_a_repartition_topic_is_named_after_the_store(builder):
    builder.stream("a").group_by(str).count(store="counts")
    assert builder.build().internal_topics == ["counts-repartition"]


def test_aggregates_of_a_named_group_share_the_topic(builder):
    group = builder.stream("a").group_by(str, name="by")
    group.count(store="counts")
    group.reduce(reduce, store="sums")
    topology = builder.build()
    assert topology.internal_topics == ["by-repartition"]
    assert len(topology.graph().children["by-repartition-source"]) == 2


def test_aggregates_of_a_group_without_name_have_one_each(builder):
    group = builder.stream("a").group_by(str)
    group.count(store="counts")
    group.reduce(reduce, store="sums")
    assert builder.build().internal_topics == ["counts-repartition", "sums-repartition"]


# ----------------------------------------------------------------------------------------------------------- cogroup
def test_a_cogroup_has_an_aggregate_per_stream_and_one_store(builder, grouped):
    other = builder.stream("b").group_by(str, name="by")
    grouped.cogroup(add).cogroup(other, merge).aggregate(int, store="sums", name="c")
    graph = graph_of(builder)
    assert graph.parents["c-cogroup-merge"] == ("c-cogroup-agg-0", "c-cogroup-agg-1")
    assert graph.nodes["c-cogroup-merge"] == n.TablePassThrough("c-cogroup-merge", "sums")
    assert graph.parents["c-cogroup-agg-1"] == ("by-repartition-source",)
    assert [found.add for found in nodes(builder, n.StreamAggregate)] == [add, merge]
    assert graph.copartitioned == (frozenset({"KSTREAM-SOURCE-0000000000", "by-repartition-source"}),)


def test_a_stream_is_cogrouped_once(builder, grouped):
    grouped.cogroup(add).cogroup(grouped, merge).aggregate(int)
    assert node(builder, n.StreamAggregate).add is merge


@pytest.mark.parametrize(
    "windows, kind",
    [
        (TimeWindows.of(5), n.WindowAggregate),
        (SlidingWindows.of(5), n.SlidingAggregate),
        (SessionWindows.of(5), n.SessionAggregate),
    ],
)
def test_a_cogroup_may_have_windows(builder, grouped, windows, kind):
    merger = {"merger": merge} if kind is n.SessionAggregate else {}
    grouped.cogroup(add).windowed_by(windows).aggregate(int, store="w", **merger).to_stream().to("out")
    assert node(builder, kind).add is add
    assert type(node(builder, n.Sink).key) in (WindowedOf, SessionWindowedOf)


def test_two_repartitions_of_a_cogroup_need_names(builder):
    one, two = builder.stream("a").group_by(str), builder.stream("b").group_by(str)
    one.cogroup(add).cogroup(two, add).aggregate(int, store="sums")
    with pytest.raises(TopologyError, match="two steps would send their records through the topic 'sums-repartition'"):
        builder.build()


# ---------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "build, error, message",
    [
        (lambda g: g.reduce(lambda a: a), TypeError, "a reducer takes 2 parameters, but .* has 1"),
        (lambda g: g.aggregate(0, add), TypeError, "an initializer must be a function, not 0"),
        (lambda g: g.aggregate(int, reduce), TypeError, "an aggregator takes 3 parameters, but 'reduce' has 2"),
        (lambda g: g.count(store=5), TypeError, "store= is a name or a Materialized, not 5"),
        (lambda g: g.windowed_by(5), TypeError, "windowed_by takes windows"),
        (
            lambda g: g.windowed_by(SessionWindows.of(5)).aggregate(int, add),
            TypeError,
            r"sessions can grow together: aggregate needs a merger=f\(key, left, right\)",
        ),
        (
            lambda g: g.windowed_by(TimeWindows.of(5)).aggregate(int, add, merger=merge),
            TypeError,
            "only session windows merge: leave out merger=",
        ),
        (
            lambda g: g.windowed_by(UnlimitedWindows.of()).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE),
            ValueError,
            "unlimited windows never close",
        ),
        (
            lambda g: g.windowed_by(TimeWindows.of(5)).count(store=Materialized("w", history=5)),
            ValueError,
            "the store 'w' is for windows and cannot have a history",
        ),
        (lambda g: g.cogroup(reduce), TypeError, "an aggregator takes 3 parameters"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(grouped, build, error, message):
    with pytest.raises(error, match=message):
        build(grouped)
