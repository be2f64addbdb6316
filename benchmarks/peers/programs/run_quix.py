"""Quix Streams: `run_quix.py WORKLOAD BOOTSTRAP ROOM DIRECTORY THREADS`, until SIGTERM."""

from __future__ import annotations

import re
import sys
from typing import Any

from quixstreams import Application  # pyright: ignore[reportMissingImports]
from quixstreams.dataframe.windows import Count, Mean, Min  # pyright: ignore[reportMissingImports]
from quixstreams.models.serializers import Serializer  # pyright: ignore[reportMissingImports]

WORD = re.compile(r"\w+")
COMMIT = {"latency": 0.1}  # seconds from one transaction to the next, where 5, as it comes, are too long


class Long(Serializer):
    """Eight bytes, as Kafka's own serializer of longs."""

    def __call__(self, value: int, ctx: Any) -> bytes:
        return value.to_bytes(8, "big")


def count(_value: Any, state: Any) -> int:
    counted = state.get("count", 0) + 1
    state.set("count", counted)
    return counted


def word_count(app: Application, room: str) -> None:
    lines = app.dataframe(app.topic(f"{room}-lines", value_deserializer="string"))
    words = lines.apply(lambda line: WORD.findall(line.lower()), expand=True)
    serdes = dict.fromkeys(("key_serializer", "key_deserializer", "value_serializer", "value_deserializer"), "string")
    counts = words.group_by(lambda word: word, name="word", **serdes).apply(count, stateful=True)
    counts.to_topic(app.topic(f"{room}-out", key_serializer="string", value_serializer=Long()))


def trade(raw: str) -> dict[str, Any]:
    kind, ticker, price, size = raw.split(",")
    return {"type": kind, "ticker": ticker, "price": float(price), "size": int(size)}


def stock_statistics(app: Application, room: str) -> None:
    trades = app.dataframe(app.topic(f"{room}-trades", value_deserializer="string")).apply(trade)
    windows = trades.hopping_window(5_000, 1_000).agg(minimum=Min("price"), trades=Count(), average=Mean("price"))
    windows.current().to_topic(app.topic(f"{room}-out", value_serializer="json"))


def clickstream(app: Application, room: str) -> None:
    views, profiles, searches = (
        app.dataframe(app.topic(f"{room}-{name}")) for name in ("views", "profiles", "searches")
    )
    views.join_asof(
        profiles, how="left", on_merge=lambda view, profile: {"page": view["page"], "profile": profile}
    ).join_interval(
        searches,
        how="left",
        on_merge=lambda view, search: {**view, "search_terms": search["terms"] if search else None},
        backward_ms=1_000,
        grace_ms=1_000,
    ).to_topic(app.topic(f"{room}-out", value_serializer="json"))


def order_filter(app: Application, room: str) -> None:
    orders = app.dataframe(app.topic(f"{room}-orders", value_deserializer="json"))
    orders.filter(lambda order: order["quantity"] > 5).to_topic(app.topic(f"{room}-out", value_serializer="json"))


def count_by_key(app: Application, room: str) -> None:
    records = app.dataframe(app.topic(f"{room}-in", value_deserializer="string"))
    records.apply(count, stateful=True).to_topic(app.topic(f"{room}-out", value_serializer=Long()))


def relay(app: Application, room: str) -> None:
    records = app.dataframe(app.topic(f"{room}-in", value_deserializer="bytes"))
    records.to_topic(app.topic(f"{room}-out", value_serializer="bytes"))


PROGRAMS = {
    "W1": word_count,
    "W2": stock_statistics,
    "W3": clickstream,
    "W4": order_filter,
    "W5": count_by_key,
    "latency": count_by_key,
}


def main(workload: str, bootstrap: str, room: str, directory: str, _threads: str) -> None:
    app = Application(
        broker_address=bootstrap,
        consumer_group=room,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=COMMIT.get(workload, 5.0),
        state_dir=directory,
        loglevel="WARNING",
    )
    PROGRAMS.get(workload, relay)(app, room)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
