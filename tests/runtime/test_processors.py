"""Processors of the user's: what they are given, and what is said when something about them is wrong."""

import pytest

from headrace import (
    InvalidStateStoreError,
    Record,
    Stores,
    StreamsBuilder,
    StreamsError,
    Topology,
    TopologyError,
    serde,
)
from tests.runtime.streams import TEXTS, collect, drive, dropped, pipe

COUNTS = Stores.key_value("counts", key=serde.STRING, value=serde.LONG)


class Forward:
    """Passes on what it gets."""

    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record)


def one_processor(supplier, *stores):
    builder = StreamsBuilder()
    return builder, collect(builder.stream("in", **TEXTS).process(supplier, *stores, name="node"))


def process_one(supplier):
    builder, found = one_processor(supplier)
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v")])
    return found


# -------------------------------------------------------------------------------------------------- how they are made
def test_only_process_is_needed():
    class Silent:
        def process(self, record):
            pass

    assert process_one(Silent) == []


def test_a_processor_without_process_is_refused_with_its_node_and_type():
    class Idle:
        pass

    builder, _ = one_processor(Idle)
    with pytest.raises(TopologyError, match="node: the supplier made a Idle, which has no process"):
        drive(builder)


@pytest.mark.parametrize("verb", ["process", "process_values"])
def test_a_supplier_that_hands_out_the_same_processor_twice_is_refused(verb):
    only = Forward()
    stream = StreamsBuilder().stream("in", **TEXTS)
    with pytest.raises(ValueError, match="'node' hands out the same Forward twice"):
        getattr(stream, verb)(lambda: only, name="node")


def test_the_same_is_refused_in_a_topology_and_for_transformers_and_global_stores():
    only = Forward()
    topology = Topology().add_source("in", "in")
    with pytest.raises(ValueError, match="the same Forward twice"):
        topology.add_processor("node", lambda: only, "in")
    with pytest.raises(ValueError, match="the same Forward twice"):
        topology.add_global_store(COUNTS, "counts", lambda: only)
    with pytest.raises(ValueError, match="the same Forward twice"):
        StreamsBuilder().table("in").transform_values(lambda: only)  # pyright: ignore[reportArgumentType]


def test_a_processor_instead_of_its_supplier_is_refused():
    with pytest.raises(TypeError, match="a class or a function that makes a processor"):
        StreamsBuilder().stream("in").process(Forward())  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_init_that_raises_is_reported_with_its_node():
    class Broken(Forward):
        def init(self, context):
            raise RuntimeError("no connection")

    builder, _ = one_processor(Broken)
    with pytest.raises(StreamsError, match="node: init of Broken failed: RuntimeError: no connection") as caught:
        drive(builder)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_close_that_raises_is_reported_after_the_others_are_closed():
    closed = []

    class Broken(Forward):
        def close(self):
            raise RuntimeError("stuck")

    class Fine(Forward):
        def close(self):
            closed.append("fine")

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Broken).process(Fine)
    with pytest.raises(StreamsError, match="close of Broken failed: RuntimeError: stuck"), drive(builder):
        pass
    assert closed == ["fine"]


def test_processors_start_from_the_source_down_and_are_closed_once():
    events = []

    def logged(name):
        class Logged(Forward):
            def init(self, context):
                super().init(context)
                events.append(f"init {name}")

            def close(self):
                events.append(f"close {name}")

        return Logged

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(logged("first")).process(logged("second"))
    with drive(builder) as driver:
        driver.close()
    assert events == ["init first", "init second", "close first", "close second"]


# ------------------------------------------------------------------------------------------------------------- stores
class Count(Forward):
    """Counts records by key."""

    def init(self, context):
        super().init(context)
        self.counts = context.store("counts")

    def process(self, record):
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(count))


def test_a_connected_store_is_there():
    builder = StreamsBuilder().add_store(COUNTS)
    found = collect(builder.stream("in", **TEXTS).process(Count, "counts"))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v"), ("k", "v")])
        assert driver.store("counts").get("k") == 2
    assert [record.value for record in found] == [1, 2]


def test_a_supplier_may_bring_its_stores_along():
    class Bringing(Count):
        stores = [COUNTS]

    builder = StreamsBuilder()
    found = collect(builder.stream("in", **TEXTS).process(Bringing))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v")])
    assert [record.value for record in found] == [1]


def test_a_store_that_is_not_connected_is_named_with_the_remedy():
    builder = StreamsBuilder().add_store(COUNTS)
    builder.stream("in", **TEXTS).process(Count, name="node")
    with pytest.raises(InvalidStateStoreError) as caught:
        drive(builder)
    for part in ("node has no store 'counts'", "it has: none", "topology.connect('node', 'counts')"):
        assert part in str(caught.value)


def test_a_store_of_another_processor_is_not_there():
    builder = StreamsBuilder().add_store(COUNTS).add_store(Stores.key_value("own", key=serde.STRING))
    stream = builder.stream("in", **TEXTS)
    stream.process(Count, "counts")
    stream.process(Count, "own", name="node")
    with pytest.raises(InvalidStateStoreError, match="it has: own"):
        drive(builder)


def test_a_store_that_was_not_added_is_refused_when_the_topology_is_built():
    builder = StreamsBuilder()
    builder.stream("in").process(Count, "counts")
    with pytest.raises(TopologyError, match="counts"):
        builder.build()


def test_two_processors_may_share_a_store():
    builder = StreamsBuilder().add_store(COUNTS)
    stream = builder.stream("in", **TEXTS)
    first, second = collect(stream.process(Count, "counts")), collect(stream.process(Count, "counts"))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v")])
    assert [record.value for record in first + second] == [1, 2]


# --------------------------------------------------------------------------------------------------------- forwarding
@pytest.mark.parametrize("wrong", [("k", "v"), "v", None, {"key": 1}], ids=repr)
def test_only_records_can_be_forwarded(wrong):
    class Wrong(Forward):
        def process(self, record):
            self.context.forward(wrong)

    with pytest.raises(StreamsError, match=r"node forwards a .*make it a Record") as caught:
        process_one(Wrong)
    assert isinstance(caught.value.__cause__, TypeError)


def routing(to):
    class Route(Forward):
        def process(self, record):
            self.context.forward(record, to=to)

    topology = Topology().add_source("in", "in", **TEXTS).add_processor("route", Route, "in")
    return topology.add_sink("left", "left", "route", **TEXTS).add_sink("right", "right", "route", **TEXTS)


def test_a_record_goes_to_all_children_or_to_the_one_named():
    for to, expected in [(None, [1, 1]), ("left", [1, 0]), ("right", [0, 1])]:
        with drive(routing(to)) as driver:
            pipe(driver, "in", [("k", "v")])
            assert [len(driver.output_topic(topic).read_records()) for topic in ("left", "right")] == expected


def test_an_unknown_child_is_named_with_those_there_are():
    with drive(routing("middle")) as driver, pytest.raises(StreamsError, match=r"no child 'middle'.*left, right"):
        pipe(driver, "in", [("k", "v")])


def test_an_error_in_forward_is_not_blamed_on_the_processor_above():
    class Fail(Forward):
        def process(self, record):
            raise RuntimeError("below")

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Forward, name="above").process(Fail, name="below")
    with drive(builder) as driver, pytest.raises(StreamsError, match=r"^below failed"):
        pipe(driver, "in", [("k", "v")])


def test_with_continue_a_processor_does_not_notice_that_a_child_failed():
    went_on = []

    class Above(Forward):
        def process(self, record):
            self.context.forward(record)
            went_on.append(record.value)

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Above).map_values(int)
    with drive(builder, processing_exception_handler="continue") as driver:
        pipe(driver, "in", [("k", "not a number")])
        assert dropped(driver) == {"processing error": 1}
    assert went_on == ["not a number"]


def test_a_record_cannot_be_changed_only_copied():
    record = Record("k", "v", 5, (("h", b"1"),))
    changed = record.with_key("l").with_value("w").with_timestamp(6).with_headers([("i", None)])
    assert changed == Record("l", "w", 6, (("i", None),))
    assert record == Record("k", "v", 5, (("h", b"1"),))
    with pytest.raises(AttributeError):
        record.key = "x"  # pyright: ignore[reportAttributeAccessIssue]


def test_process_values_keeps_the_key():
    class Rename(Forward):
        def process(self, record):
            assert not hasattr(record, "with_key")
            self.context.forward(record.with_value(record.value.upper()))

    builder = StreamsBuilder()
    found = collect(builder.stream("in", **TEXTS).process_values(Rename))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "v")])
    assert [(record.key, record.value) for record in found] == [("k", "V")]


def test_a_value_transformer_cannot_forward():
    class Wrong(Forward):
        def transform(self, key, value):
            self.context.forward(Record(key, value, 0))

    builder = StreamsBuilder()
    builder.table("in", **TEXTS).transform_values(Wrong).to_stream()
    with drive(builder) as driver, pytest.raises(StreamsError, match="returns its result and cannot forward"):
        pipe(driver, "in", [("k", "v")])


# ------------------------------------------------------------------------------------------------ what it can ask for
def test_the_context_tells_where_and_when():
    told = []

    class Ask(Forward):
        def process(self, record):
            context = self.context
            told.append((*context.record_metadata, context.stream_time, context.wall_clock))

    builder, _ = one_processor(Ask)
    with drive(builder) as driver:
        driver.advance_wall_clock(1000)
        pipe(driver, "in", [("k", "v", 7), ("k", "v", 5)])
        assert str(told[0][:3]) == "('in', 0, 0)"
    assert told == [("in", 0, 0, 7, 1000), ("in", 0, 1, 7, 1000)]


def test_before_the_first_record_there_is_no_stream_time_and_no_metadata():
    told = []

    class Ask(Forward):
        def init(self, context):
            told.append((context.stream_time, context.record_metadata, str(context.task_id)))

    builder, _ = one_processor(Ask)
    with drive(builder):
        assert told == [(-1, None, "0_0")]


def test_behind_a_repartition_the_metadata_is_that_of_the_internal_topic():
    told = []

    class Ask(Forward):
        def process(self, record):
            told.append(self.context.record_metadata.topic)

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).repartition(name="again").process(Ask)
    with drive(builder, application_id="app") as driver:
        pipe(driver, "in", [("k", "v")])
    assert told == ["app-again-repartition"]


def test_commit_may_be_asked_for_at_any_time_and_changes_nothing_in_a_driver():
    class Commit(Forward):
        def process(self, record):
            self.context.commit()
            self.context.forward(record)
            self.context.commit()

    assert [record.value for record in process_one(Commit)] == ["v"]
