"""Descriptions: Kafka Streams' text, data, and diagrams."""

import json
from textwrap import dedent

from headrace import Stores, StreamsBuilder, Topology, serde


class Forward:
    def process(self, record): ...


class Router:
    def __call__(self, key, value, context):
        return "out"


def by_value(key, value, context):
    return value


def two_stages():
    builder = StreamsBuilder()
    lines = builder.stream("lines")
    lines.group_by(lambda value: value, name="words").count(store="counts").to_stream().to("out")
    return builder.build()


def test_sub_topologies_are_numbered_and_nodes_with_most_below_come_first():
    assert str(two_stages().describe()) == dedent("""\
        Topologies:
           Sub-topology: 0
            Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
              --> words
            Processor: words (stores: [])
              --> words-repartition-filter
              <-- KSTREAM-SOURCE-0000000000
            Processor: words-repartition-filter (stores: [])
              --> words-repartition-sink
              <-- words
            Sink: words-repartition-sink (topic: words-repartition)
              <-- words-repartition-filter

          Sub-topology: 1
            Source: words-repartition-source (topics: [words-repartition])
              --> KSTREAM-AGGREGATE-0000000002
            Processor: KSTREAM-AGGREGATE-0000000002 (stores: [counts])
              --> KTABLE-TOSTREAM-0000000006
              <-- words-repartition-source
            Processor: KTABLE-TOSTREAM-0000000006 (stores: [])
              --> KSTREAM-SINK-0000000007
              <-- KSTREAM-AGGREGATE-0000000002
            Sink: KSTREAM-SINK-0000000007 (topic: out)
              <-- KTABLE-TOSTREAM-0000000006

        """)


def test_an_empty_topology_has_a_heading_only():
    assert str(Topology().describe()) == "Topologies:\n "


def test_a_global_store_makes_no_tasks():
    topology = Topology().add_global_store(Stores.key_value("g"), "all", Forward).add_source("s", "lines")
    assert str(topology.describe()) == dedent("""\
        Topologies:
           Sub-topology: 0 for global store (will not generate tasks)
            Source: g-source (topics: [all])
              --> g-processor
            Processor: g-processor (stores: [g])
              --> none
              <-- g-source
          Sub-topology: 1
            Source: s (topics: [lines])
              --> none

        """)


def test_a_pattern_is_shown_as_it_is():
    assert "Source: s (topics: lines-[0-9]+)\n" in str(Topology().add_source("s", pattern="lines-[0-9]+").describe())


def test_topics_and_stores_are_shown_in_the_order_of_a_hash_set():
    topology = Topology().add_source("s", "q", "b", "a").add_processor("p", Forward, "s")
    for name in ("store-2", "store-1"):
        topology.add_store(Stores.key_value(name), "p")
    text = str(topology.describe())
    assert "(topics: [q, a, b])" in text
    assert "(stores: [store-1, store-2])" in text


def test_a_topic_extractor_is_named():
    topology = Topology().add_source("s", "a").add_sink("f", by_value, "s").add_sink("r", Router(), "s")
    text = str(topology.describe())
    assert f"Sink: f (extractor class: {__name__}.by_value)" in text
    assert f"Sink: r (extractor class: {__name__}.Router)" in text


def test_the_same_as_data():
    data = two_stages().describe().as_dict()
    assert json.loads(json.dumps(data)) == data
    assert [s["id"] for s in data["subtopologies"]] == [0, 1]
    assert data["subtopologies"][1]["nodes"][1] == {
        "kind": "Processor",
        "name": "KSTREAM-AGGREGATE-0000000002",
        "details": "stores: [counts]",
        "to": ["KTABLE-TOSTREAM-0000000006"],
        "from": ["words-repartition-source"],
    }


def test_the_same_as_a_diagram():
    topology = Topology().add_source("s", "a", key=serde.STRING).add_processor("p", Forward, "s")
    assert topology.describe().mermaid() == dedent("""\
        flowchart TD
          subgraph s0[Sub-topology 0]
            n0(["s<br/>topics: [a]"])
            n1["p<br/>stores: []"]
          end
          n0 --> n1""")


def test_many_paths_are_described_in_no_time():
    builder = StreamsBuilder()
    stream = builder.stream("a")
    for _ in range(40):
        stream = stream.filter(bool).merge(stream)  # every one doubles the number of paths
    assert str(builder.build().describe()).count("Processor: KSTREAM-MERGE-") == 40
