"""Topologies put together by hand."""

import re
from datetime import timedelta

import pytest

from headrace import Stores, Topology, TopologyError, serde
from headrace.topology.nodes import Process, Sink, Source


class Forward:
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record)


def lines():
    return Topology().add_source("source", "lines")


def copied():
    return lines().add_processor("copy", Forward, "source")


def counts():
    return Stores.key_value("counts", key=serde.STRING, value=serde.LONG)


# ---------------------------------------------------------------------------------------------------------- graphs
def test_a_graph_has_nodes_edges_and_stores():
    topology = copied().add_store(counts(), "copy").add_sink("sink", "copies", "copy", key=serde.STRING)
    graph = topology.graph()
    assert graph.nodes["source"] == Source("source", ("lines",))
    assert graph.nodes["copy"] == Process("copy", Forward)
    assert graph.nodes["sink"] == Sink("sink", "copies", serde.STRING)
    assert graph.parents == {"source": (), "copy": ("source",), "sink": ("copy",)}
    assert graph.children == {"source": ("copy",), "copy": ("sink",), "sink": ()}
    assert graph.node_stores["copy"] == ("counts",)
    assert graph.stores["counts"].value is serde.LONG


def test_children_come_in_the_order_in_which_they_were_added():
    topology = lines().add_processor("z", Forward, "source").add_processor("a", Forward, "source")
    assert topology.graph().children["source"] == ("z", "a")


def test_a_graph_does_not_change_when_the_topology_does():
    topology = lines()
    graph = topology.graph()
    topology.add_processor("copy", Forward, "source")
    assert list(graph.nodes) == ["source"]


def test_nodes_that_share_a_store_are_in_one_group():
    topology = copied().add_source("other", "others").add_processor("count", Forward, "other")
    assert topology.graph().groups == (("source", "copy"), ("other", "count"))
    topology.add_store(counts(), "copy", "count")
    assert topology.graph().groups == (("source", "copy", "other", "count"),)


def test_a_store_can_be_connected_later():
    topology = copied().add_store(counts()).connect("copy", "counts")
    assert topology.graph().node_stores["copy"] == ("counts",)


def test_a_supplier_may_bring_its_stores():
    class Counting(Forward):
        stores = (counts(),)

    graph = lines().add_processor("count", Counting, "source").graph()
    assert graph.node_stores["count"] == ("counts",)


def test_a_global_store_has_a_source_and_a_processor():
    graph = Topology().add_global_store(counts(), "all-counts", Forward, key=serde.STRING).graph()
    assert graph.global_stores == {"counts": "counts-source"}
    assert graph.nodes["counts-source"] == Source("counts-source", ("all-counts",), key=serde.STRING)
    assert graph.parents["counts-processor"] == ("counts-source",)


def test_a_read_only_store_is_filled_from_a_topic():
    graph = Topology().add_read_only_store(counts(), "all-counts", Forward).graph()
    assert graph.nodes["counts-source"] == Source("counts-source", ("all-counts",), offset_reset="earliest")
    assert graph.node_stores["counts-processor"] == ("counts",)


def test_a_source_may_have_a_pattern():
    topology = Topology().add_source("source", pattern="lines-.*")
    assert topology.graph().nodes["source"] == Source("source", pattern=re.compile("lines-.*"))


@pytest.mark.parametrize("reset, known", [("latest", "latest"), (timedelta(seconds=1), 1000), (5, 5), (None, None)])
def test_where_to_start_is_a_word_or_a_duration(reset, known):
    source = Topology().add_source("source", "lines", offset_reset=reset).graph().nodes["source"]
    assert isinstance(source, Source)
    assert source.offset_reset == known


# -------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: lines().add_source("source", "b"), "there is a node 'source' already"),
        (lambda: copied().add_processor("copy", Forward, "source"), "there is a node 'copy' already"),
        (lambda: lines().add_source("b"), "the source 'b' reads no topic"),
        (lambda: lines().add_source("b", "lines"), "the topic 'lines' is read by 'source' already: read it once"),
        (lambda: lines().add_source("b", "a", "a"), "the topic 'a' is read by 'b' already"),
        (lambda: lines().add_source("b", pattern="l.*"), r"the pattern 'l\.\*' matches 'lines', which 'source' reads"),
        (
            lambda: Topology().add_source("a", pattern="l.*").add_source("b", "lines"),
            r"the topic 'lines' matches the pattern 'l\.\*' of 'a': narrow the pattern",
        ),
        (lambda: lines().add_processor("p", Forward), "'p' has no parents: name the nodes"),
        (lambda: lines().add_sink("s", "out"), "'s' has no parents"),
        (lambda: lines().add_processor("p", Forward, "p"), "'p' is its own parent"),
        (lambda: lines().add_processor("p", Forward, "q"), r"the parent 'q' of 'p' is unknown: .*there are: source"),
        (
            lambda: lines().add_sink("s", "o", "source").add_processor("p", Forward, "s"),
            "the parent 's' of 'p' is a sink",
        ),
        (
            lambda: lines().add_sink("s", lambda k, v, c: "o", "source").add_processor("p", Forward, "s"),
            "the parent 's' of 'p' is a sink",
        ),
        (lambda: lines().add_store(counts(), "p"), "the store 'counts' is for 'p', which is not there"),
        (lambda: lines().add_store(counts(), "source"), "'source' is a source or a sink and cannot have the store"),
        (lambda: copied().connect("copy", "counts"), "'copy' wants the store 'counts', which is not there: add it"),
        (lambda: copied().connect("copy"), "no store is named to connect to 'copy'"),
        (lambda: copied().add_store(counts()).add_store(counts()), "there is another store 'counts' already"),
        (
            lambda: Topology().add_global_store(counts(), "t", Forward).add_store(counts()),
            "there is a global store 'counts' already",
        ),
        (
            lambda: copied().add_store(counts()).add_global_store(counts(), "t", Forward),
            "there is a store 'counts' already: give the global one another name",
        ),
        (
            lambda: copied().add_global_store(counts(), "t", Forward).connect("copy", "counts"),
            "the store 'counts' is global, 'copy' may use it without being connected",
        ),
        (lambda: lines().add_global_store(counts(), "lines", Forward), "the topic 'lines' is read by 'source' already"),
        (
            lambda: Topology().add_global_store(counts(), "t", Forward, source="s", processor="s"),
            "the source and the processor of a global store are both named 's'",
        ),
    ],
)
def test_a_topology_that_cannot_be_is_refused(build, message):
    with pytest.raises(TopologyError, match=message):
        build()


def test_the_same_spec_may_be_added_twice():
    spec = counts()
    assert copied().add_store(spec, "copy").add_store(spec).graph().stores == {"counts": spec}


def test_a_supplier_makes_a_new_processor_every_time():
    single = Forward()
    with pytest.raises(ValueError, match="the supplier of 'p' hands out the same Forward twice: give the class itself"):
        lines().add_processor("p", lambda: single, "source")


def test_a_supplier_can_be_called():
    with pytest.raises(TypeError, match="'p' needs a class or a function that makes a processor"):
        lines().add_processor("p", Forward(), "source")  # pyright: ignore[reportArgumentType]


def test_topics_and_a_pattern_are_one_too_many():
    with pytest.raises(ValueError, match="the source 'a' has topics and a pattern"):
        Topology().add_source("a", "lines", pattern="l.*")


def test_topics_are_given_one_by_one():
    with pytest.raises(TypeError, match="given as str, one argument each"):
        Topology().add_source("a", ["lines"])  # pyright: ignore[reportArgumentType]


def test_an_unknown_place_to_start_is_refused():
    with pytest.raises(ValueError, match="offset_reset is 'earliest', 'latest', 'none' or a duration, not 'first'"):
        Topology().add_source("a", "lines", offset_reset="first")
