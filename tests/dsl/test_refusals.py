"""What the DSL refuses, beside what a single verb refuses."""

from typing import Any

import pytest

from headrace import Stores, StreamsBuilder, TopologyError


class Forward:
    def process(self, record): ...


def refused(build, message):
    def build_all():
        builder = StreamsBuilder()
        build(builder)
        builder.build()

    with pytest.raises(TopologyError, match=message):
        build_all()


@pytest.mark.parametrize(
    "read",
    [
        lambda b: (b.stream("t"), b.table("t")),
        lambda b: (b.table("t"), b.table("t")),
        lambda b: (b.table("t"), b.global_table("t")),
        lambda b: (b.stream("t"), b.stream("t", "u")),
        lambda b: (b.stream("t"), b.stream(pattern="t+")),
        lambda b: (b.stream(pattern="t+"), b.stream("t")),
    ],
)
def test_a_topic_is_read_once(read):
    refused(read, "'t'")


def test_streams_of_one_topic_start_at_one_place():
    refused(
        lambda b: (b.stream("t", offset_reset="earliest"), b.stream("t", offset_reset="latest")),
        "read the same topics: give both the same offset_reset",
    )


def test_names_are_given_once():
    refused(lambda b: b.stream("t", name="x").filter(bool, name="x"), "there is a node 'x' already")
    refused(lambda b: (b.table("t", store="s"), b.table("u", store="s")), "there is another store 's' already")


@pytest.mark.parametrize(
    "name_it",
    [
        lambda b: b.stream("t", name="a b"),
        lambda b: b.table("t", name="a b"),
        lambda b: b.table("t", store="a b"),
        lambda b: b.stream("t").filter(bool, name="a b"),
        lambda b: b.stream("t").process(Forward, name="a b"),
        lambda b: b.stream("t").repartition(name="a b"),
        lambda b: b.stream("t").group_by_key(name="a b"),
        lambda b: b.stream("t").split().branch(bool, name="a b"),
        lambda b: b.stream("t").to("out", name="a b"),
    ],
)
def test_names_are_checked_where_they_are_given(name_it):
    with pytest.raises(TopologyError, match="a b'"):
        name_it(StreamsBuilder())


def test_stores_of_processors_are_added():
    refused(
        lambda b: b.stream("t").process(Forward, "seen", name="p"), "'p' wants the store 'seen', which is not there"
    )


def test_a_store_is_added_before_it_is_used():
    refused(
        lambda b: (b.stream("t").process(Forward, "seen"), b.add_store(Stores.key_value("seen"))),
        "wants the store 'seen', which is not there: add it first",
    )


def test_a_global_store_is_not_connected():
    refused(
        lambda b: (b.global_table("g", store="g"), b.stream("t").process(Forward, "g", name="p")),
        "the store 'g' is global, 'p' may use it without being connected",
    )


def test_a_supplier_makes_a_new_processor_each_time():
    single = Forward()
    stream = StreamsBuilder().stream("t")
    table: Any = StreamsBuilder().table("t")
    with pytest.raises(ValueError, match="the supplier of 'p' hands out the same Forward twice"):
        stream.process(lambda: single, name="p")
    with pytest.raises(ValueError, match="hands out the same Forward twice"):
        table.transform_values(lambda: single)
    with pytest.raises(ValueError, match="hands out the same Forward twice"):
        StreamsBuilder().add_global_store(Stores.key_value("g"), "t", lambda: single)


@pytest.mark.parametrize(
    "use, today",
    [
        (lambda b: b.stream("t").through("u"), r"KStream has no 'through': use repartition\(name=…\)"),
        (lambda b: b.stream("t").branch(bool, bool), r"use split\(\)\.branch\(predicate"),
        (lambda b: b.stream("t").transform(Forward), r"use process\(supplier"),
        (lambda b: b.stream("t").transform_values(Forward), r"use process_values\(supplier"),
        (lambda b: b.stream("t").count_by_key(), r"use group_by_key\(\)\.count\(\)"),
        (lambda b: b.table("t").to("u"), r"KTable has no 'to': use to_stream\(\)\.to\(topic\)"),
        (lambda b: b.table("t").foreach(print), r"use to_stream\(\)\.foreach\(f\)"),
        (lambda b: b.stream("t").group_by_key().windowed(5), r"use windowed_by\(windows\)"),
        (lambda b: b.add_state_store("s"), r"StreamsBuilder has no 'add_state_store': use add_store\(spec\)"),
    ],
)
def test_retired_names_say_todays_way(use, today):
    with pytest.raises(AttributeError, match=today):
        use(StreamsBuilder())


def test_other_names_are_simply_not_there():
    with pytest.raises(AttributeError, match=r"KStream has no 'fliter'$"):
        StreamsBuilder().stream("t").fliter(bool)  # pyright: ignore[reportAttributeAccessIssue]
