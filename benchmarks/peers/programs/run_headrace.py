"""Headrace: `run_headrace.py WORKLOAD BOOTSTRAP ROOM DIRECTORY THREADS`, until SIGTERM."""

from __future__ import annotations

import sys
from collections.abc import Callable

from examples.clickstream import (
    ACTIVITY_VALUE,
    PROFILE,
    SEARCH,
    SEARCH_BEFORE_VIEW,
    USER,
    VIEW,
    with_profile,
    with_search,
)
from examples.order_filter import ORDER, is_large
from examples.stock_statistics import STATISTICS_VALUE, TRADE, WINDOWED_TICKER, WINDOWS, Statistics, add_trade
from examples.word_count import words_of
from headrace import Application, StreamsBuilder, serde


def word_count(builder: StreamsBuilder, room: str) -> None:
    (
        builder.stream(f"{room}-lines", key=serde.STRING, value=serde.STRING)
        .flat_map_values(words_of)
        .group_by(lambda word: word, key=serde.STRING, value=serde.STRING)
        .count(store="counts")
        .to_stream()
        .to(f"{room}-out", key=serde.STRING, value=serde.LONG)
    )


def stock_statistics(builder: StreamsBuilder, room: str) -> None:
    (
        builder.stream(f"{room}-trades", key=serde.STRING, value=TRADE)
        .group_by_key()
        .windowed_by(WINDOWS)
        .aggregate(Statistics, add_trade, store="statistics", value=STATISTICS_VALUE)
        .to_stream()
        .to(f"{room}-out", key=WINDOWED_TICKER, value=STATISTICS_VALUE)
    )


def clickstream(builder: StreamsBuilder, room: str) -> None:
    profiles = builder.table(f"{room}-profiles", key=USER, value=PROFILE, store="profiles")
    views = builder.stream(f"{room}-views", key=USER, value=VIEW)
    searches = builder.stream(f"{room}-searches", key=USER, value=SEARCH)
    (
        views.left_join(profiles, with_profile)
        .left_join(searches, with_search, windows=SEARCH_BEFORE_VIEW, value=ACTIVITY_VALUE)
        .to(f"{room}-out", key=USER, value=ACTIVITY_VALUE)
    )


def order_filter(builder: StreamsBuilder, room: str) -> None:
    orders = builder.stream(f"{room}-orders", key=serde.STRING, value=ORDER)
    orders.filter(is_large).to(f"{room}-out", key=serde.STRING, value=ORDER)


def count_by_key(builder: StreamsBuilder, room: str) -> None:
    grouped = builder.stream(f"{room}-in", key=serde.STRING, value=serde.STRING).group_by_key()
    grouped.count(store="counts").to_stream().to(f"{room}-out", key=serde.STRING, value=serde.LONG)


def counts_counted_again(builder: StreamsBuilder, room: str) -> None:
    """Two repartitions."""
    (
        builder.stream(f"{room}-lines", key=serde.STRING, value=serde.STRING)
        .flat_map_values(words_of)
        .group_by(lambda word: word, key=serde.STRING, value=serde.STRING)
        .count(store="counts")
        .to_stream()
        .group_by(lambda word, count: word, key=serde.STRING, value=serde.LONG)
        .count(store="changes")
        .to_stream()
        .to(f"{room}-out", key=serde.STRING, value=serde.LONG)
    )


def relay(builder: StreamsBuilder, room: str) -> None:
    builder.stream(f"{room}-in", key=serde.BYTES, value=serde.BYTES).to(
        f"{room}-out", key=serde.BYTES, value=serde.BYTES
    )


PROGRAMS: dict[str, Callable[[StreamsBuilder, str], None]] = {
    "W1": word_count,
    "W2": stock_statistics,
    "W3": clickstream,
    "W4": order_filter,
    "W5": count_by_key,
    "latency": count_by_key,
    "latency-1": word_count,
    "latency-2": counts_counted_again,
}


def main(workload: str, bootstrap: str, room: str, directory: str, threads: str) -> None:
    builder = StreamsBuilder()
    PROGRAMS.get(workload, relay)(builder, room)
    app = Application(
        room,
        builder.build(),
        f"kafka://{bootstrap}",
        checkpoint=f"{directory}/checkpoint",
        state_dir=f"{directory}/state",
        guarantee="exactly_once_v2",
        num_stream_threads=int(threads),
    )
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
