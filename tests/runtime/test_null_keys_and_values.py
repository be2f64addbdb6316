"""None as a key or as a value, at every kind of operator: passed on, dropped and counted, or a deletion."""

import pytest

from headrace import (
    Buffer,
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
    serde,
)
from tests.runtime.streams import AT_ONCE, TEXTS, collect, drive, dropped, outcome, pipe

NO_KEY, NO_VALUE, NEITHER = (None, "v"), ("k", None), (None, None)
WINDOWS = JoinWindows.of(10)


def both(left, right):
    return f"{left}+{right}"


# ------------------------------------------------------------------------------------------------------- stateless
@pytest.mark.parametrize(
    "program",
    [
        lambda s: s.filter(lambda k, v: True),
        lambda s: s.filter_not(lambda k, v: False),
        lambda s: s.map(lambda k, v: (k, v)),
        lambda s: s.map_values(lambda v: v),
        lambda s: s.flat_map(lambda k, v: [(k, v)]),
        lambda s: s.flat_map_values(lambda v: [v]),
        lambda s: s.select_key(lambda k, v: k),
        lambda s: s.peek(lambda k, v: None),
        lambda s: s.merge(s),
        lambda s: s.split().branch(lambda k, v: True, name="all").no_default_branch().popitem()[1],
    ],
)
def test_a_stateless_operator_passes_none_on(program):
    result = outcome(program, NO_KEY, NO_VALUE, NEITHER)
    assert result.pairs == [NO_KEY, NO_VALUE, NEITHER]
    assert result.dropped == {}


def test_a_repartition_leaves_records_without_a_key_out_without_counting_them():
    result = outcome(lambda s: s.repartition(), NO_KEY, NO_VALUE, NEITHER)
    assert result.pairs == [NO_VALUE]
    assert result.dropped == {}


def test_a_value_function_is_called_with_none():
    assert outcome(lambda s: s.map_values(lambda v: v is None), NO_VALUE).values == [True]


def test_none_goes_through_a_sink_as_null_bytes():
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).to("out")
    with drive(builder) as driver:
        pipe(driver, "in", [NO_KEY, NO_VALUE, NEITHER])
        assert driver.output_topic("out").read_key_values() == [(None, b"v"), (b"k", None), (None, None)]


# ---------------------------------------------------------------------------------------------- stream aggregates
@pytest.mark.parametrize(
    "aggregate",
    [
        lambda g: g.count(),
        lambda g: g.reduce(lambda a, b: a + b),
        lambda g: g.aggregate(lambda: 0, lambda k, v, n: n + 1, value=serde.LONG),
        lambda g: g.cogroup(lambda k, v, n: n + 1).aggregate(lambda: 0, value=serde.LONG),
        lambda g: g.windowed_by(SlidingWindows.of(10)).count(),
    ],
)
def test_an_aggregate_by_key_or_in_sliding_windows_drops_null_keys_and_values(aggregate):
    result = outcome(lambda s: aggregate(s.group_by_key()), NO_KEY, NO_VALUE, NEITHER)
    assert result.records == []
    assert result.dropped == {"null key or value": 3}


@pytest.mark.parametrize("windows", [TimeWindows.of(10), UnlimitedWindows.of(), SessionWindows.of(10)])
def test_a_windowed_count_drops_null_keys_but_counts_null_values(windows):
    result = outcome(lambda s: s.group_by_key().windowed_by(windows).count(), NO_KEY, NO_VALUE, NEITHER)
    assert result.values == [1]
    assert result.dropped == {"null key": 2}


def test_a_windowed_reduction_that_begins_with_none_emits_none_and_stores_nothing():
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXTS).group_by_key()
    found = collect(grouped.windowed_by(TimeWindows.of(10)).reduce(lambda a, b: a + b, store="reduced"))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", None), ("k", "v")])
        assert [record.value for record in found] == [None, "v"]
        assert [value.value for _, value in driver.store("reduced").all()] == ["v"]


def test_records_grouped_by_a_new_key_that_is_none_are_left_out_without_being_counted():
    result = outcome(lambda s: s.group_by(lambda k, v: v, key=serde.STRING).count(), ("k", None), ("k", "v"))
    assert result.pairs == [("v", 1)]
    assert result.dropped == {}


def test_an_aggregate_that_becomes_none_is_deleted():
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXTS).group_by_key()
    found = collect(grouped.aggregate(lambda: "", lambda k, v, a: None if v == "-" else a + v, store="texts"))
    with drive(builder) as driver:
        pipe(driver, "in", [("k", "a"), ("k", "-")])
        assert driver.store("texts").get("k") is None
        pipe(driver, "in", [("k", "b")])
    assert [record.value for record in found] == ["a", None, "b"]


# ---------------------------------------------------------------------------------------------------------- tables
@pytest.mark.parametrize("store", [None, "rows", Materialized("rows", history=100)])
def test_a_table_drops_null_keys_and_takes_null_values_as_deletions(store):
    builder = StreamsBuilder()
    found = collect(builder.table("in", store=store, **TEXTS))
    with drive(builder) as driver:
        pipe(driver, "in", [NO_KEY, NEITHER, ("k", "v"), NO_VALUE])
        assert dropped(driver) == {"null key": 2}
        if store is not None:
            assert driver.store("rows").get("k") is None
    assert [(record.key, record.value) for record in found] == [("k", "v"), ("k", None)]


def test_a_stream_made_a_table_drops_null_keys():
    result = outcome(lambda s: s.to_table(), NO_KEY, ("k", "v"), NO_VALUE)
    assert result.pairs == [("k", "v"), ("k", None)]
    assert result.dropped == {"null key": 1}


def test_functions_of_a_table_are_not_called_with_none_but_transformers_are():
    called = []

    class Transform:
        def transform(self, key, value):
            called.append(("transform", value))
            return value

    def look(name):
        return lambda v: called.append((name, v)) or True

    def program(s):
        table = s.to_table()
        return table.filter(look("filter")).map_values(look("map")).transform_values(Transform)

    assert outcome(program, NO_VALUE).pairs == [NO_VALUE]
    assert called == [("transform", None)]


def test_rows_that_are_grouped_by_none_or_as_none_are_left_out():
    def program(s):
        rows = s.to_table().group_by(
            lambda k, v: (None, v) if v == "no group" else ("g", None if v == "no value" else v), **TEXTS
        )
        return rows.reduce(lambda a, v: a + v, lambda a, v: a.replace(v, ""))

    result = outcome(program, ("a", "x"), ("b", "no group"), ("c", "no value"), ("d", "y"), ("a", "no group"))
    assert result.pairs == [("g", "x"), ("g", "xy"), ("g", "y")]
    assert result.dropped == {}


# ----------------------------------------------------------------------------------------------------------- joins
def joined_streams(method, records):
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, **TEXTS) for topic in ("left", "right"))
    found = collect(getattr(left, method)(right, both, windows=WINDOWS, other_value=serde.STRING, **TEXTS))
    with drive(builder) as driver:
        for topic, *record in records:
            pipe(driver, topic, [tuple(record)])
        return [(record.key, record.value) for record in found], dropped(driver)


@pytest.mark.parametrize(
    "method, expected, drops",
    [
        ("join", [], 2),
        ("left_join", [(None, "a+None")], 1),
        ("outer_join", [(None, "a+None"), (None, "None+b")], 0),
    ],
)
def test_a_stream_join_drops_null_keys_where_the_other_side_is_needed(method, expected, drops):
    found, counted = joined_streams(method, [("left", None, "a"), ("right", None, "b")])
    assert found == expected
    assert counted.get("null key or value", 0) == drops


@pytest.mark.parametrize("method", ["join", "left_join", "outer_join"])
def test_a_stream_join_always_drops_null_values(method):
    found, counted = joined_streams(method, [("left", "k", None), ("right", "k", None)])
    assert found == []
    assert counted == {"null key or value": 2}


@pytest.mark.parametrize("method, expected, drops", [("join", [], 2), ("left_join", [(None, "v+None")], 1)])
def test_a_stream_joined_with_a_table_keeps_null_keys_only_in_a_left_join(method, expected, drops):
    builder = StreamsBuilder()
    table = builder.table("table", **TEXTS)
    found = collect(getattr(builder.stream("in", **TEXTS), method)(table, both))
    with drive(builder) as driver:
        pipe(driver, "in", [NO_KEY, NO_VALUE])
        assert dropped(driver) == {"null key or value": drops}
    assert [(record.key, record.value) for record in found] == expected


def test_a_record_without_a_key_cannot_wait_for_a_versioned_table():
    """As in Kafka Streams, which has a NullPointerException here; an inner join drops the record."""
    builder = StreamsBuilder()
    table = builder.table("table", store=Materialized("rows", history=100, **TEXTS))
    builder.stream("in", **TEXTS).left_join(table, both, grace=10)
    with drive(builder) as driver, pytest.raises(Exception, match="without a key cannot wait"):
        pipe(driver, "in", [NO_KEY])


@pytest.mark.parametrize(
    "method, expected",
    [("join", [(None, "v+country")]), ("left_join", [(None, "v+country"), ("k", "nowhere+None")])],
)
def test_a_global_join_looks_at_the_selected_key_not_at_the_records(method, expected):
    builder = StreamsBuilder()
    table = builder.global_table("table", **TEXTS)

    def select(key, value):
        return None if value in (None, "nowhere") else "place"

    found = collect(getattr(builder.stream("in", **TEXTS), method)(table, both, on=select))
    with drive(builder) as driver:
        pipe(driver, "table", [("place", "country")])
        pipe(driver, "in", [NO_KEY, ("k", "nowhere"), NO_VALUE])
        assert dropped(driver) == {"null key or value": 3 - len(expected)}
    assert [(record.key, record.value) for record in found] == expected


@pytest.mark.parametrize(
    "method, after_right_is_gone", [("join", None), ("left_join", "a+None"), ("outer_join", "a+None")]
)
def test_a_table_join_takes_deletions_on_either_side(method, after_right_is_gone):
    builder = StreamsBuilder()
    left, right = (builder.table(topic, **TEXTS) for topic in ("left", "right"))
    found = collect(getattr(left, method)(right, both))
    with drive(builder) as driver:
        pipe(driver, "right", [("k", "b")])
        found.clear()
        pipe(driver, "left", [("k", "a")])
        pipe(driver, "right", [("k", None)])
        pipe(driver, "left", [("k", None), (None, "x")])
        assert dropped(driver) == {"null key": 1}
    expected = ["a+b", after_right_is_gone, *([] if method == "join" else [None])]
    assert [record.value for record in found] == expected


@pytest.mark.parametrize("method, expected", [("join", []), ("left_join", ["a+None"])])
def test_a_foreign_key_that_is_none_is_dropped_unless_the_join_is_a_left_join(method, expected):
    builder = StreamsBuilder()
    left, right = (builder.table(topic, **TEXTS) for topic in ("left", "right"))
    found = collect(getattr(left, method)(right, both, on=lambda value: None, store=Materialized(**TEXTS)))
    with drive(builder) as driver:
        pipe(driver, "left", [("k", "a")])
        assert dropped(driver) == ({"null foreign key": 1} if method == "join" else {})
    assert [record.value for record in found] == expected


def test_a_processor_sees_none_as_it_is():
    seen = []

    class Look:
        def process(self, record):
            seen.append((record.key, record.value))

    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Look)
    with drive(builder) as driver:
        pipe(driver, "in", [NO_KEY, NO_VALUE, NEITHER])
    assert seen == [NO_KEY, NO_VALUE, NEITHER]


def test_suppression_holds_deletions_back_like_other_updates():
    def program(s):
        return s.to_table().suppress(Suppressed.until_time_limit(10, Buffer.unbounded()))

    result = outcome(program, ("k", "v", 0), ("k", None, 5), ("other", "x", 20), config=AT_ONCE)
    assert result.pairs == [("k", None)]
