"""The limit: the same by hand, in one process. `run_bare.py WORKLOAD BOOTSTRAP ROOM DIRECTORY THREADS`, until SIGTERM.

Every 100 ms what has changed is written, in one transaction with the offsets. The state is in dicts.
"""

from __future__ import annotations

import gc
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson
from confluent_kafka import Consumer, Producer

INTERVAL = 0.1  # seconds from one transaction to the next
CHUNK = 20_000  # records of one call
WINDOW, ADVANCE, SEARCH_BEFORE_VIEW = 5_000, 1_000, 1_000
WORD = re.compile(r"\w+")

Take = Callable[[list[Any]], None]
Record = tuple[bytes, bytes, int]  # key, value, timestamp
Flush = Callable[[], list[Record]]  # what is to be written, and forgets it


def counting(words: Callable[[Any], Any]) -> tuple[Take, Flush]:
    counts: dict[Any, int] = {}
    changed: dict[Any, int] = {}

    def take(messages: list[Any]) -> None:
        for message in messages:
            timestamp = message.timestamp()[1]
            for word in words(message):
                counts[word] = counts.get(word, 0) + 1
                changed[word] = timestamp

    def flush() -> list[Record]:
        made = [(word, counts[word].to_bytes(8, "big"), timestamp) for word, timestamp in changed.items()]
        changed.clear()
        return made

    return take, flush


def stock_statistics() -> tuple[Take, Flush]:
    windows: dict[tuple[bytes, int], tuple[float, int, float]] = {}
    changed: dict[tuple[bytes, int], int] = {}

    def take(messages: list[Any]) -> None:
        for message in messages:
            ticker, timestamp = message.key(), message.timestamp()[1]
            price = float(message.value().split(b",")[2])
            earliest = (timestamp - WINDOW + ADVANCE) // ADVANCE * ADVANCE
            for start in range(earliest, timestamp + 1, ADVANCE):
                place = (ticker, start)
                low, count, total = windows.get(place, (price, 0, 0.0))
                windows[place] = min(low, price), count + 1, total + price
                changed[place] = timestamp

    def flush() -> list[Record]:
        made = []
        for place, timestamp in changed.items():
            low, count, total = windows[place]
            value = orjson.dumps({"minimum": low, "trades": count, "total": total, "average": total / count})
            made.append((place[0] + place[1].to_bytes(8, "big"), value, timestamp))
        changed.clear()
        return made

    return take, flush


def clickstream(room: str) -> tuple[Take, Flush]:
    """Merges views and searches of a partition by time; what has nothing beside it waits until nothing comes."""
    profiles: dict[bytes, Any] = {}
    recent: dict[bytes, deque[tuple[int, str]]] = {}
    waiting: dict[int, tuple[deque[Any], deque[Any]]] = {}  # searches and views of each partition
    taken = 0

    def take(messages: list[Any]) -> None:
        nonlocal taken
        taken += len(messages)
        for message in messages:
            if message.topic() == f"{room}-profiles":
                profiles[message.key()] = orjson.loads(message.value())
            else:
                sides = waiting.setdefault(message.partition(), (deque(), deque()))
                side = sides[message.topic() == f"{room}-views"]
                side.append((message.timestamp()[1], message.key(), orjson.loads(message.value())))

    def view(timestamp: int, user: bytes, it: dict[str, Any], made: list[Record]) -> None:
        found = recent.get(user)
        while found and found[0][0] < timestamp - SEARCH_BEFORE_VIEW:
            found.popleft()
        for terms in [terms for at, terms in found or () if at <= timestamp] or [None]:
            value = {"page": it["page"], "profile": profiles.get(user), "search_terms": terms}
            made.append((user, orjson.dumps(value), timestamp))

    def flush() -> list[Record]:
        nonlocal taken
        made: list[Record] = []
        for searches, views in waiting.values():
            while (searches and views) or (not taken and (searches or views)):
                if searches and (not views or searches[0][0] <= views[0][0]):
                    timestamp, user, search = searches.popleft()
                    recent.setdefault(user, deque()).append((timestamp, search["terms"]))
                else:
                    timestamp, user, it = views.popleft()
                    view(timestamp, user, it, made)
        taken = 0
        return made

    return take, flush


def order_filter() -> tuple[Take, Flush]:
    made: list[Record] = []

    def take(messages: list[Any]) -> None:
        for message in messages:
            order = orjson.loads(message.value())
            if order["quantity"] > 5:
                made.append((message.key(), orjson.dumps(order), message.timestamp()[1]))

    def flush() -> list[Record]:
        given = made.copy()
        made.clear()
        return given

    return take, flush


def relay() -> tuple[Take, Flush]:
    made: list[Record] = []

    def take(messages: list[Any]) -> None:
        made.extend((it.key(), it.value(), it.timestamp()[1]) for it in messages)

    def flush() -> list[Record]:
        given = made.copy()
        made.clear()
        return given

    return take, flush


def program(workload: str, room: str) -> tuple[list[str], Take, Flush]:
    match workload:
        case "W1":
            words = counting(lambda message: [word.encode() for word in WORD.findall(message.value().decode().lower())])
            return ["lines"], *words
        case "W2":
            return ["trades"], *stock_statistics()
        case "W3":
            return ["profiles", "views", "searches"], *clickstream(room)
        case "W4":
            return ["orders"], *order_filter()
        case "W5" | "latency":
            return ["in"], *counting(lambda message: (message.key(),))
        case _:
            return ["in"], *relay()


def write(producer: Producer, topic: str, records: list[Record]) -> None:
    """One by one, for `produce_batch` takes no timestamps."""
    produce = producer.produce
    for key, value, timestamp in records:
        while True:
            try:
                produce(topic, value, key, timestamp=timestamp)
                break
            except BufferError:
                producer.poll(0.01)


def main(workload: str, bootstrap: str, room: str, _directory: str, _threads: str) -> None:
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, end)
    gc.disable()
    inputs, take, flush = program(workload, room)
    shared = {"bootstrap.servers": bootstrap}
    consumer = Consumer(
        shared
        | {
            "group.id": room,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    producer = Producer(
        shared
        | {
            "transactional.id": room,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 524_288,
            "retry.backoff.ms": 5,
        }
    )
    producer.init_transactions(60)
    consumer.subscribe([f"{room}-{name}" for name in inputs])
    is_new, last = False, time.monotonic()
    while not over:
        messages = [message for message in consumer.consume(CHUNK, 0.01) if message.error() is None]
        take(messages)
        is_new = is_new or bool(messages)
        if time.monotonic() - last >= INTERVAL:
            last = time.monotonic()
            made = flush()
            if not made and not is_new:
                continue
            producer.begin_transaction()
            write(producer, f"{room}-out", made)
            positions = [at for at in consumer.position(consumer.assignment()) if at.offset >= 0]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)
            is_new = False
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
