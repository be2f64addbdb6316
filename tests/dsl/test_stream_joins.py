"""Joins of streams: their nodes, stores and repartitions."""

import pytest

from headrace import JoinWindows, Materialized, StreamsBuilder, TopologyError, serde
from headrace.state.spec import BufferKind, StoreSpec, WindowKind
from headrace.topology import nodes as n
from tests.dsl.graphs import graph_of, names, node, nodes

WINDOWS = JoinWindows.of(5, grace=3).after(2)


def keyed(key, left, right):
    return (key, left, right)


@pytest.fixture
def builder():
    return StreamsBuilder()


@pytest.fixture
def left(builder):
    return builder.stream("left", key=serde.STRING, value=serde.LONG)


@pytest.fixture
def right(builder):
    return builder.stream("right", value=serde.JSON)


def test_an_inner_join_keeps_both_sides_in_windows(builder, left, right):
    left.join(right, keyed, windows=WINDOWS, name="j")
    graph = graph_of(builder)
    this, other = "KSTREAM-JOINTHIS-0000000004-store", "KSTREAM-JOINOTHER-0000000005-store"
    assert graph.stores[this] == StoreSpec(
        this, WindowKind(10, 7, retain_duplicates=True), serde.STRING, serde.LONG, persistent=None
    )
    assert graph.stores[other].value is serde.JSON
    assert graph.nodes["j-this-windowed"] == n.JoinWindow("j-this-windowed", this)
    assert graph.nodes["j-this-join"] == n.StreamJoin(
        "j-this-join", True, other, None, WINDOWS, keyed, outer=False, join="j-merge"
    )
    assert graph.nodes["j-other-join"] == n.StreamJoin(
        "j-other-join", False, this, None, WINDOWS, keyed, outer=False, join="j-merge"
    )
    assert graph.parents["j-merge"] == ("j-this-join", "j-other-join")


@pytest.mark.parametrize(
    "verb, outer, store",
    [
        ("left_join", [True, False], "KSTREAM-OUTERSHARED-0000000004-store"),
        ("outer_join", [True, True], "KSTREAM-OUTERSHARED-0000000004-store"),
    ],
)
def test_what_finds_no_partner_waits_in_a_store_of_both_sides(builder, left, right, verb, outer, store):
    getattr(left, verb)(right, keyed, windows=WINDOWS)
    joins = nodes(builder, n.StreamJoin)
    assert [join.outer for join in joins] == outer
    assert {join.outer_store for join in joins} == {store}
    assert graph_of(builder).stores[store].kind == BufferKind()


@pytest.mark.parametrize(
    "verb, stores",
    [
        ("join", ["mine-this-join-store", "mine-other-join-store"]),
        ("left_join", ["mine-this-join-store", "mine-outer-other-join-store", "mine-left-shared-join-store"]),
        ("outer_join", ["mine-outer-this-join-store", "mine-outer-other-join-store", "mine-outer-shared-join-store"]),
    ],
)
def test_stores_may_be_named(builder, left, right, verb, stores):
    getattr(left, verb)(right, keyed, windows=WINDOWS, store=Materialized("mine", kind="memory", logging=False))
    specs = graph_of(builder).stores
    assert sorted(specs) == sorted(stores)
    assert {(spec.persistent, spec.logging) for spec in specs.values()} == {(False, False)}


def test_a_joiner_may_leave_the_key_out(builder, left, right):
    left.join(right, lambda left, right: (left, right), windows=WINDOWS)
    assert nodes(builder, n.StreamJoin)[0].joiner("k", 1, 2) == (1, 2)


def test_rekeyed_sides_are_repartitioned(builder, left, right):
    left.select_key(str).join(right.select_key(str), keyed, windows=WINDOWS, name="j")
    topology = builder.build()
    assert topology.internal_topics == ["j-left-repartition", "j-right-repartition"]
    assert topology.graph().copartitioned == (frozenset({"j-left-repartition-source", "j-right-repartition-source"}),)


def test_joins_without_name_share_the_topic_of_a_stream(builder, left, right):
    rekeyed = left.select_key(str, name="by")
    rekeyed.join(right, keyed, windows=WINDOWS)
    rekeyed.join(builder.table("table"), keyed)
    assert builder.build().internal_topics == ["by-repartition"]


def test_a_join_with_a_table_looks_it_up(builder, left):
    left.left_join(builder.table("table", name="t"), keyed, name="j")
    assert node(builder, n.StreamTableJoin) == n.StreamTableJoin("j", "t", keyed, left=True)
    assert graph_of(builder).node_stores["j"] == ("table-STATE-STORE-0000000001",)


def test_a_join_with_a_global_table_selects_a_key(builder, left):
    left.join(builder.global_table("all", store="all"), keyed, on=lambda value: value + 1)
    join = node(builder, n.GlobalJoin)
    assert (join.name, join.store, join.left) == ("KSTREAM-LEFTJOIN-0000000003", "all", False)
    assert join.on("k", 1) == 2


def test_both_sides_may_be_the_same_stream(builder, left):
    left.join(left, keyed, windows=WINDOWS)
    assert len(nodes(builder, n.JoinWindow)) == 2


@pytest.mark.parametrize(
    "join, error, message",
    [
        (lambda b, s: s.join(s, keyed), TypeError, r"needs windows=JoinWindows\.of\(difference\), not None"),
        (lambda b, s: s.join(s, keyed, windows=WINDOWS, grace=1), TypeError, "a join with a stream has no grace="),
        (lambda b, s: s.join(b.table("t"), keyed, windows=WINDOWS), TypeError, "a join with a table has no windows="),
        (lambda b, s: s.join(b.global_table("g"), keyed), TypeError, "a join with a global table needs on="),
        (lambda b, s: s.outer_join(b.table("t"), keyed), TypeError, "an outer join only with another stream"),
        (lambda b, s: s.join("t", keyed), TypeError, "joined with a KStream, a KTable or a GlobalKTable, not with 't'"),
        (lambda b, s: s.join(s, lambda v: v, windows=WINDOWS), TypeError, "a joiner takes 2 or 3 parameters"),
        (lambda b, s: s.join(s, keyed, windows=WINDOWS, name="a b"), TopologyError, "the name 'a b'"),
        (lambda b, s: b.table("t").join(b.table("u"), keyed), TypeError, "the joiner of two tables takes 2 parameters"),
        (lambda b, s: b.table("t").join(s, max), TypeError, "a table is joined with a KTable"),
        (lambda b, s: b.table("t").outer_join(b.table("u"), max, on=str), TypeError, "no outer join on a foreign key"),
        (
            lambda b, s: b.table("t").join(b.table("u"), max, partitioner=print),
            TypeError,
            "partitioner= is for foreign-key joins",
        ),
    ],
)
def test_a_join_that_cannot_be_is_refused(builder, left, join, error, message):
    with pytest.raises(error, match=message):
        join(builder, left)


def test_topics_that_are_joined_need_equally_many_partitions(builder, left, right):
    two, three = left.repartition(name="two", partitions=2), right.repartition(name="three", partitions=3)
    two.join(three, keyed, windows=WINDOWS)
    with pytest.raises(TopologyError, match=r"three-repartition: 3, two-repartition: 2\): use one number"):
        builder.build()


def test_names_follow_each_other(builder, left, right):
    left.outer_join(right, keyed, windows=WINDOWS)
    assert names(builder)[2:] == [
        "KSTREAM-WINDOWED-0000000002",
        "KSTREAM-WINDOWED-0000000003",
        "KSTREAM-OUTERTHIS-0000000004",
        "KSTREAM-OUTEROTHER-0000000005",
        "KSTREAM-MERGE-0000000006",
    ]
