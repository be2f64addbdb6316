"""Faust: `run_faust.py WORKLOAD BOOTSTRAP ROOM DIRECTORY THREADS`, until SIGTERM."""

from __future__ import annotations

import re
import sys
from typing import Any

import faust  # pyright: ignore[reportMissingImports]

WORD = re.compile(r"\w+")
WINDOW, ADVANCE = 5_000, 1_000


def raw(app: faust.App, name: str, **options: Any) -> Any:
    serializers = {"key_serializer": "raw", "value_serializer": "raw"}
    return app.topic(name, key_type=bytes, value_type=bytes, partitions=4, **serializers, **options)


def json(app: faust.App, name: str) -> Any:
    return app.topic(name, key_type=bytes, key_serializer="raw", value_serializer="json", partitions=4)


def word_count(app: faust.App, room: str) -> None:
    words, out = raw(app, f"{room}-words", internal=True), raw(app, f"{room}-out")
    counts = app.Table("counts", default=int, partitions=4)

    @app.agent(raw(app, f"{room}-lines"))
    async def split(lines: Any) -> None:
        async for line in lines:
            for word in WORD.findall(line.decode().lower()):
                await words.send(key=word.encode(), value=b"")

    @app.agent(words)
    async def count(stream: Any) -> None:
        async for key, _ in stream.items():  # noqa: PERF102 - it is no dict
            word = key.decode()
            counts[word] += 1
            await out.send(key=key, value=counts[word].to_bytes(8, "big"))


def stock_statistics(app: faust.App, room: str) -> None:
    """A plain table by ticker and start: Faust's windowed tables do not say which windows a record has changed."""
    out = json(app, f"{room}-out")
    windows = app.Table("windows", default=list, partitions=4)

    @app.agent(raw(app, f"{room}-trades"))
    async def add(trades: Any) -> None:
        async for event in trades.events():
            price, now = float(event.value.split(b",")[2]), int(event.message.timestamp * 1000)
            for start in range((now - WINDOW + ADVANCE) // ADVANCE * ADVANCE, now + 1, ADVANCE):
                place = f"{event.key.decode()}@{start}"
                low, count, total = windows[place] or (price, 0, 0.0)
                low, count, total = min(low, price), count + 1, total + price
                windows[place] = [low, count, total]
                value = {"start": start, "minimum": low, "trades": count, "total": total, "average": total / count}
                await out.send(key=event.key, value=value)


def order_filter(app: faust.App, room: str) -> None:
    out = json(app, f"{room}-out")

    @app.agent(json(app, f"{room}-orders"))
    async def keep(orders: Any) -> None:
        async for key, order in orders.items():
            if order["quantity"] > 5:
                await out.send(key=key, value=order)


def count_by_key(app: faust.App, room: str) -> None:
    out = raw(app, f"{room}-out")
    counts = app.Table("counts", default=int, partitions=4)

    @app.agent(raw(app, f"{room}-in"))
    async def count(stream: Any) -> None:
        async for key, _ in stream.items():  # noqa: PERF102 - it is no dict
            name = key.decode()
            counts[name] += 1
            await out.send(key=key, value=counts[name].to_bytes(8, "big"))


def relay(app: faust.App, room: str) -> None:
    out = raw(app, f"{room}-out")

    @app.agent(raw(app, f"{room}-in"))
    async def send(stream: Any) -> None:
        async for key, value in stream.items():
            await out.send(key=key, value=value)


PROGRAMS = {
    "W1": word_count,
    "W2": stock_statistics,
    "W4": order_filter,
    "W5": count_by_key,
    "latency": count_by_key,
}


def main(workload: str, bootstrap: str, room: str, directory: str, _threads: str) -> None:
    app = faust.App(
        room,
        broker=f"kafka://{bootstrap}",
        datadir=directory,
        store="memory://",
        topic_partitions=4,
        processing_guarantee=GUARANTEE,
        consumer_auto_offset_reset="earliest",
        web_enabled=False,
    )
    PROGRAMS.get(workload, relay)(app, room)
    sys.argv = ["faust", "worker", "--loglevel", "warn", "--without-web"]
    app.main()


GUARANTEE = "exactly_once"

if __name__ == "__main__":
    main(*sys.argv[1:])
