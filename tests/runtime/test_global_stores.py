"""Global tables and global stores: filled at once, read by everybody."""

import pytest

from headrace import Materialized, Stores, StreamsBuilder, Topology, TopologyError, ValueAndTimestamp
from tests.runtime.streams import TEXTS, collect, drive, dropped, pipe

ROWS = Stores.key_value("rows", **TEXTS)


class Fill:
    """Puts what it gets into the store."""

    def init(self, context):
        self.rows = context.store("rows")

    def process(self, record):
        if record.key is not None:
            self.rows.put(record.key, record.value)


class LookUp:
    """Replaces a value by the row of its key."""

    def init(self, context):
        self.rows, self.context = context.store("rows"), context

    def process(self, record):
        self.context.forward(record.with_value(self.rows.get(record.key)))


def test_a_global_table_is_there_for_a_join_by_any_key():
    builder = StreamsBuilder()
    countries = builder.global_table("countries", **TEXTS)
    people = builder.stream("people", **TEXTS)
    found = collect(people.join(countries, lambda person, country: country, on=lambda name, person: person[:2]))
    with drive(builder) as driver:
        pipe(driver, "countries", [("fr", "France"), ("de", "Germany")])
        pipe(driver, "people", [("Anne", "fr 1990"), ("Bert", "xx 1991")])
    assert [(record.key, record.value) for record in found] == [("Anne", "France")]


def test_a_global_table_has_the_last_value_whatever_its_timestamp_and_forgets_deleted_rows():
    builder = StreamsBuilder()
    builder.global_table("table", store="rows", **TEXTS)
    with drive(builder) as driver:
        pipe(driver, "table", [("a", "new", 10), ("a", "older", 5), ("b", "x", 0), ("b", None, 1), (None, "y", 2)])
        assert list(driver.store("rows").all()) == [("a", ValueAndTimestamp("older", 5))]
        assert dropped(driver) == {"null key": 1}


def test_an_update_of_a_global_table_triggers_no_join():
    builder = StreamsBuilder()
    table = builder.global_table("table", **TEXTS)
    found = collect(builder.stream("in", **TEXTS).left_join(table, lambda a, b: b, on=lambda k, v: k))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v")])
        pipe(driver, "table", [("k", "row")])
        pipe(driver, "in", [("k", "v")])
    assert [record.value for record in found] == [None, "row"]


def test_a_global_table_does_not_move_stream_time():
    builder = StreamsBuilder()
    builder.global_table("table", **TEXTS)
    times = []

    class Ask:
        def init(self, context):
            self.context = context

        def process(self, record):
            times.append(self.context.stream_time)

    builder.stream("in", **TEXTS).process(Ask)
    with drive(builder) as driver:
        pipe(driver, "table", [("k", "row", 1000)])
        pipe(driver, "in", [("k", "v", 5)])
    assert times == [5]


def test_a_global_table_may_be_named_and_kept_in_memory():
    builder = StreamsBuilder()
    table = builder.global_table("table", store=Materialized("rows", kind="memory", **TEXTS))
    assert table.queryable_store_name == "rows"
    with drive(builder) as driver:
        pipe(driver, "table", [("k", "row")])
        assert driver.store("rows").get("k").value == "row"


def test_a_processor_fills_a_global_store_and_every_processor_reads_it():
    builder = StreamsBuilder().add_global_store(ROWS, "table", Fill, **TEXTS)
    found = collect(builder.stream("in", **TEXTS).process(LookUp))
    with drive(builder) as driver:
        pipe(driver, "table", [("k", "row"), (None, "ignored")])
        pipe(driver, "in", [("k", "v"), ("l", "v")])
    assert [record.value for record in found] == ["row", None]


def test_the_same_by_hand():
    topology = Topology().add_global_store(ROWS, "table", Fill, **TEXTS)
    topology.add_source("in", "in", **TEXTS).add_processor("look", LookUp, "in").add_sink("out", "out", "look", **TEXTS)
    with drive(topology) as driver:
        pipe(driver, "table", [("k", "row")])
        pipe(driver, "in", [("k", "v")])
        assert driver.output_topic("out", **TEXTS).read_values() == ["row"]


def test_what_the_topology_writes_to_the_topic_of_a_global_store_gets_there():
    builder = StreamsBuilder().add_global_store(ROWS, "table", Fill, **TEXTS)
    builder.stream("in", **TEXTS).map_values(str.upper).to("table", **TEXTS)
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v")])
        assert driver.store("rows").get("k") == "V"


def test_a_global_store_is_not_connected_to_processors():
    builder = StreamsBuilder().add_global_store(ROWS, "table", Fill, **TEXTS)
    builder.stream("in", **TEXTS).process(LookUp, "rows", name="look")
    with pytest.raises(TopologyError, match=r"'rows' is global.*leave it out"):
        builder.build()


def test_a_topic_is_read_by_a_global_table_or_by_a_stream_not_by_both():
    builder = StreamsBuilder()
    builder.global_table("table")
    builder.stream("table")
    with pytest.raises(TopologyError, match="'table' is read"):
        builder.build()
