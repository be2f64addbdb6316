"""Windowed keys that leave for a topic and come back: the reader has to know the windows' size."""

import pytest

from headrace import (
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    UnlimitedWindows,
    Window,
    Windowed,
    serde,
)
from tests.runtime.streams import TEXTS, collect, drive, pipe


def written(windows):
    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXTS).group_by_key().windowed_by(windows).count()
    counts.to_stream().to("out", value=serde.LONG)
    return builder


def test_a_windowed_serde_without_a_size_is_refused_with_the_two_ways_out():
    with pytest.raises(ValueError, match="needs the size of the windows") as caught:
        serde.windowed(serde.STRING)
    assert "windowed(STRING, size)" in str(caught.value)
    assert "session_windowed(STRING)" in str(caught.value)


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_has_a_size(size):
    with pytest.raises(ValueError, match="size"):
        serde.windowed(serde.STRING, size)


@pytest.mark.parametrize(
    "windows, key, expected",
    [
        (TimeWindows.of(10), serde.windowed(serde.STRING, 10), Window(10, 20)),
        (SlidingWindows.of(10), serde.windowed(serde.STRING, 10), Window(2, 12)),
        (UnlimitedWindows.of(start=3), serde.windowed(serde.STRING, 2**63 - 1), Window(3, 2**63 - 1)),
        (SessionWindows.of(10), serde.session_windowed(serde.STRING), Window(12, 12)),
    ],
    ids=["tumbling", "sliding", "unlimited", "session"],
)
def test_a_sink_needs_no_serde_for_windowed_keys_and_a_reader_gets_them_back(windows, key, expected):
    with drive(written(windows)) as driver:
        pipe(driver, "in", [("k", "v", 12)])
        assert driver.output_topic("out", key=key, value=serde.LONG).read_key_values() == [(Windowed("k", expected), 1)]


def test_a_table_may_be_read_from_a_topic_with_windowed_keys():
    key = serde.windowed(serde.STRING, 10)
    builder = StreamsBuilder()
    found = collect(builder.table("in", key=key, value=serde.STRING, store="rows"))
    with drive(builder) as driver:
        driver.input_topic("in", key=key, value=serde.STRING).pipe(Windowed("k", Window(10, 20)), "v", timestamp=0)
        assert driver.store("rows").get(Windowed("k", Window(10, 20))).value == "v"
    assert [record.key for record in found] == [Windowed("k", Window(10, 20))]
