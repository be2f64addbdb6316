"""Tables: when they are kept in a store, who sends old values, and what a lookup needs."""

import pytest

from headrace import Buffer, Materialized, Stores, StreamsBuilder, Suppressed, TimeWindows, TopologyError, serde
from headrace.state.spec import BufferKind, KeyValueKind, StoreSpec, SubscriptionKind, VersionedKind
from headrace.topology import nodes as n
from headrace.topology.graph import InternalTopic
from headrace.topology.nodes import ChangeOf, ResponseOf, SubscriptionOf
from tests.dsl.graphs import by_name, graph_of, names, node, nodes


class Transform:
    def transform(self, key, value):
        return value


def first(left, right):
    return left


@pytest.fixture
def builder():
    return StreamsBuilder()


@pytest.fixture
def table(builder):
    return builder.table("prices", key=serde.STRING, value=serde.LONG, name="prices")


# ------------------------------------------------------------------------------------------------------------ stores
def test_a_table_has_no_store_unless_an_operator_needs_it(builder, table):
    table.filter(bool).to_stream().to("out")
    assert graph_of(builder).stores == {}
    assert table.queryable_store_name is None


def test_a_named_store_is_kept_and_can_be_queried(builder):
    table = builder.table("prices", key=serde.STRING, store="kept")
    assert table.queryable_store_name == "kept"
    assert graph_of(builder).stores["kept"] == StoreSpec(
        "kept", KeyValueKind(timestamped=True), serde.STRING, None, persistent=None, caching=True
    )


def test_settings_of_a_store_are_taken_over(builder):
    builder.table("prices", store=Materialized("kept", value=serde.LONG, kind="memory", logging=False, caching=False))
    spec = graph_of(builder).stores["kept"]
    assert (spec.value, spec.persistent, spec.logging, spec.caching) == (serde.LONG, False, False, False)


def test_a_history_makes_a_versioned_store_without_cache(builder):
    builder.table("prices", store=Materialized("kept", history=50))
    spec = graph_of(builder).stores["kept"]
    assert (spec.kind, spec.persistent, spec.caching) == (VersionedKind(50), True, False)


def test_a_joined_table_is_kept_under_a_generated_name(builder, table):
    builder.stream("orders").join(table, first)
    assert by_name(builder, "prices").store == "prices-STATE-STORE-0000000000"


def test_a_derived_table_is_kept_only_if_its_store_is_named(builder, table):
    assert table.filter(bool, store=Materialized(value=serde.LONG)).queryable_store_name is None
    assert table.map_values(str, store="texts").queryable_store_name == "texts"
    assert [name for name in names(builder) if name.startswith("KTABLE")] == [
        "KTABLE-FILTER-0000000004",  # a store without name has used up a number
        "KTABLE-MAPVALUES-0000000005",
    ]
    assert list(graph_of(builder).stores) == ["texts"]


def test_a_transformer_is_connected_to_its_stores(builder, table):
    builder.add_store(Stores.key_value("seen"))
    table.transform_values(Transform, "seen", store="kept", name="t")
    assert graph_of(builder).node_stores["t"] == ("kept", "seen")


def test_a_global_table_has_a_source_of_its_own(builder):
    lookup = builder.global_table("countries", value=serde.STRING)
    builder.stream("orders").join(lookup, first, on=lambda value: value)
    graph = graph_of(builder)
    assert lookup.queryable_store_name == "countries-STATE-STORE-0000000000"
    assert graph.global_stores == {"countries-STATE-STORE-0000000000": "KSTREAM-SOURCE-0000000001"}
    assert node(builder, n.GlobalJoin).store == "countries-STATE-STORE-0000000000"


# -------------------------------------------------------------------------------------------------------- old values
def test_old_values_are_sent_only_where_they_are_needed(builder, table):
    table.map_values(str).to_stream()
    assert [t.send_old for t in nodes(builder, n.TableSource) + nodes(builder, n.TableMapValues)] == [False, False]


def test_grouping_wants_old_values_from_all_above(builder, table):
    table.map_values(str).filter(bool).group_by(lambda key, value: (value, key)).count()
    assert by_name(builder, "prices") == n.TableSource("prices", "prices-STATE-STORE-0000000000", send_old=True)
    assert node(builder, n.TableMapValues).send_old
    assert node(builder, n.TableFilter).send_old


def test_old_values_come_from_the_nearest_store(builder, table):
    table.map_values(str, store="texts").group_by(lambda key, value: (value, key)).count()
    assert by_name(builder, "prices") == n.TableSource("prices", None)
    assert node(builder, n.TableMapValues).send_old


def test_a_filter_takes_old_values_where_they_cost_nothing(builder):
    builder.table("kept", store="kept", name="kept").filter(bool, name="a")
    builder.table("loose", name="loose").filter(bool, name="b")
    assert [by_name(builder, name).send_old for name in ("kept", "a", "loose", "b")] == [True, True, False, False]


@pytest.mark.parametrize(
    "verb, left_old, right_old", [("join", False, False), ("left_join", True, False), ("outer_join", True, True)]
)
def test_a_join_wants_old_values_from_sides_that_come_out_alone(builder, table, verb, left_old, right_old):
    getattr(table, verb)(builder.table("stock", name="stock"), first)
    assert (by_name(builder, "prices").send_old, by_name(builder, "stock").send_old) == (left_old, right_old)


def test_old_values_of_a_join_need_those_of_both_sides(builder, table):
    joined = table.join(builder.table("stock", name="stock"), first, name="both")
    joined.group_by(lambda key, value: (value, key)).count()
    for name in ("prices", "stock", "both-join-this", "both-join-other", "both"):
        assert by_name(builder, name).send_old


def test_suppression_takes_old_values_and_passes_them_on_if_asked(builder, table):
    held = table.suppress(Suppressed.until_time_limit(5, Buffer.unbounded()), name="held")
    assert by_name(builder, "prices").send_old
    assert not by_name(builder, "held").send_old
    held.group_by(lambda key, value: (value, key)).count()
    assert by_name(builder, "held").send_old


def test_the_aggregates_of_a_cogroup_send_old_values_together(builder):
    add = lambda key, value, so_far: so_far
    one, two = builder.stream("a").group_by_key(), builder.stream("b").group_by_key()
    table = one.cogroup(add).cogroup(two, add).aggregate(int, store="sums")
    table.group_by(lambda key, value: (value, key)).count()
    assert [aggregate.send_old for aggregate in nodes(builder, n.StreamAggregate)] == [True, True]
    assert {aggregate.store for aggregate in nodes(builder, n.StreamAggregate)} == {"sums"}


# ------------------------------------------------------------------------------------------------------------- joins
def test_a_join_of_tables_has_two_sides_and_a_merge(builder, table):
    joined = table.left_join(builder.table("stock", name="stock"), first, store="joined", name="j")
    graph = graph_of(builder)
    assert graph.nodes["j-join-this"] == n.TableJoin(
        "j-join-this", "prices", "stock", left_side=True, joiner=first, left_outer=True, right_outer=False
    )
    assert graph.nodes["j-join-other"] == n.TableJoin(
        "j-join-other", "stock", "prices", left_side=False, joiner=first, left_outer=True, right_outer=False
    )
    assert graph.nodes["j"] == n.TableJoinMerge("j", "joined")
    assert graph.parents["j"] == ("j-join-this", "j-join-other")
    assert graph.node_stores["j-join-this"] == ("stock-STATE-STORE-0000000003",)
    assert joined.queryable_store_name == "joined"


def test_a_joined_table_without_store_is_looked_up_in_its_parents(builder, table):
    joined = table.join(builder.table("stock"), first)
    builder.stream("orders").join(joined, first, name="looks-up")
    stores = graph_of(builder).node_stores["looks-up"]
    assert sorted(stores) == ["prices-STATE-STORE-0000000000", "stock-STATE-STORE-0000000003"]


def test_a_suppressed_table_is_looked_up_in_buffer_and_table(builder, table):
    held = table.suppress(Suppressed.until_time_limit(5, Buffer.max_bytes(9)), name="held")
    builder.stream("orders").join(held, first, name="looks-up")
    graph = graph_of(builder)
    assert graph.node_stores["looks-up"] == ("held-store", "prices-STATE-STORE-0000000000")
    assert graph.stores["held-store"].kind == BufferKind()
    assert graph.nodes["held"] == n.Suppress(
        "held", "held-store", final=False, wait=5, max_records=None, max_bytes=9, emit_early=True
    )


def test_a_foreign_key_join_talks_through_two_topics(builder, table):
    stock = builder.table("stock", key=serde.LONG, value=serde.JSON, name="stock")
    table.left_join(stock, first, on=lambda value: value, name="j")
    graph = graph_of(builder)
    assert list(graph.internal_topics.values()) == [
        InternalTopic("j-subscription-registration-topic"),
        InternalTopic("j-subscription-response-topic"),
    ]
    subscribe, receive = graph.nodes["j-subscription-registration-processor"], graph.nodes["j-subscription-receive"]
    assert isinstance(subscribe, n.Subscribe)
    assert (subscribe.left, subscribe.key, subscribe.foreign_key, subscribe.value) == (
        True, serde.STRING, serde.LONG, serde.LONG,
    )  # fmt: skip
    assert subscribe.on("key", 7) == 7
    assert receive == n.SubscriptionReceive("j-subscription-receive", "j-subscription-store")
    assert graph.stores["j-subscription-store"].kind == SubscriptionKind()
    sinks = [s for s in nodes(builder, n.Sink) if s.name.startswith("j-")]
    assert [s.value for s in sinks] == [SubscriptionOf(serde.STRING), ResponseOf(serde.JSON)]
    assert graph.nodes["j-foreign-join-subscription"] == n.ForeignUpdate(
        "j-foreign-join-subscription", "j-subscription-store"
    )
    assert graph.nodes["j-subscription-response-resolver"] == n.ResponseJoin(
        "j-subscription-response-resolver", "prices", first, left=True, value=serde.LONG
    )
    assert set(graph.copartitioned) == {
        frozenset({"stock-source", "j-subscription-registration-source"}),
        frozenset({"prices-source", "j-subscription-response-source"}),
    }


def test_a_grouped_table_sends_changes(builder, table):
    table.group_by(lambda key, value: (value, key), key=serde.LONG, value=serde.STRING, name="by").count()
    sink = node(builder, n.Sink)
    assert (sink.topic, sink.key, sink.value) == ("by-repartition", serde.LONG, ChangeOf(serde.STRING))


# ---------------------------------------------------------------------------------------------------------- versions
def test_operators_below_a_versioned_table_know_it(builder):
    versioned = builder.table("prices", store=Materialized("v", history=50), name="v")
    plain = builder.table("stock")
    versioned.map_values(str).filter(bool, name="below")
    versioned.filter(bool, store="kept").filter(bool, name="not-below")
    plain.join(versioned, first, name="j")
    versioned.group_by(lambda key, value: (value, key), name="by").count()
    versioned.join(plain, first, on=lambda value: value, name="fk")
    plain.join(versioned, first, on=lambda value: value, name="kf")
    graph = graph_of(builder)
    flags = {name: getattr(found, "versioned", None) for name, found in graph.nodes.items()}
    assert {name for name, flag in flags.items() if flag} == {
        "below",
        "KTABLE-FILTER-0000000007",
        "j-join-other",
        "by",
        "fk-subscription-registration-processor",
        "kf-foreign-join-subscription",
    }


def test_a_join_with_grace_has_a_buffer(builder):
    versioned = builder.table("prices", store=Materialized("v", history=50), name="v")
    builder.stream("orders", key=serde.STRING).join(versioned, first, grace=20, name="j")
    join = node(builder, n.StreamTableJoin)
    assert (join.table, join.left, join.grace, join.buffer) == ("v", False, 20, "j-Buffer")
    assert graph_of(builder).stores["j-Buffer"].key is serde.STRING


@pytest.mark.parametrize("grace, message", [(51, "a grace of 51 ms, but its table in 'v' has a history of only 50 ms")])
def test_a_grace_is_not_longer_than_the_history(builder, grace, message):
    versioned = builder.table("prices", store=Materialized("v", history=50))
    builder.stream("orders").join(versioned, first, grace=grace, name="j")
    with pytest.raises(ValueError, match=message):
        builder.build()


def test_a_grace_needs_a_versioned_table(builder, table):
    with pytest.raises(ValueError, match="the join 'j' has a grace, but the table 'prices' is not versioned: give it"):
        builder.stream("orders").join(table, first, grace=5, name="j")
    builder.stream("orders").join(table.filter(bool), first, grace=5, name="k")
    with pytest.raises(ValueError, match="the join 'k' has a grace, but its table in 'prices-STATE-STORE-0000000000'"):
        builder.build()


def test_a_versioned_table_is_not_suppressed(builder):
    versioned = builder.table("prices", store=Materialized("v", history=50))
    with pytest.raises(TopologyError, match="a versioned table cannot be held back by 'held'"):
        versioned.suppress(Suppressed.until_time_limit(5, Buffer.unbounded()), name="held")
    versioned.filter(bool).suppress(Suppressed.until_time_limit(5, Buffer.unbounded()), name="later")
    with pytest.raises(TopologyError, match="a versioned table cannot be held back by 'later'"):
        builder.build()


def test_a_global_table_is_not_versioned(builder):
    with pytest.raises(TopologyError, match="the global table of 'prices' cannot be versioned"):
        builder.global_table("prices", store=Materialized("v", history=50))


# ---------------------------------------------------------------------------------------------------------- suppress
def test_the_grace_of_the_windows_above_is_how_long_a_final_result_waits(builder):
    counts = builder.stream("a").group_by_key().windowed_by(TimeWindows.of(10, grace=7)).count()
    counts.filter(bool).suppress(Suppressed.until_window_closes(Buffer.unbounded()))
    suppress = node(builder, n.Suppress)
    assert (suppress.final, suppress.wait, suppress.safe_to_drop_tombstones) == (True, 7, True)
    assert suppress.buffer == "KTABLE-SUPPRESS-STATE-STORE-0000000005"


def test_only_windows_close(table):
    with pytest.raises(TopologyError, match="only a windowed table has windows that close, but this one comes from"):
        table.suppress(Suppressed.until_window_closes(Buffer.unbounded()))
