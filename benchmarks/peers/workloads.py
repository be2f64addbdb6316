"""What is to be done: the data of each workload, the same every time, and the truth that its output must show."""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

import orjson

from benchmarks.peers.clickstream import clickstream
from benchmarks.peers.truths import Judge, Latest, Multiset, Statistics
from benchmarks.peers.workload import BEFORE, PARTITIONS, WARM, Given, Workload, warm_keys
from examples.events import START

WINDOW, ADVANCE = 5_000, 1_000


# ------------------------------------------------------------------------------------------------- W1: word count
def zipf_lines(lines: int, vocabulary: int, words: int = 10) -> Iterator[list[str]]:
    chance = random.Random(1)
    names = [f"word{rank}" for rank in range(vocabulary)]
    weights = list(accumulate(1 / rank for rank in range(1, vocabulary + 1)))
    for _ in range(lines):
        yield chance.choices(names, cum_weights=weights, k=words)


def word_count(scale: float) -> Workload:
    lines, vocabulary = int(200_000 * scale), 50_000

    def backlog() -> Iterator[Given]:
        for i, words in enumerate(zipf_lines(lines, vocabulary)):
            yield Given("lines", None, " ".join(words).encode(), START + i, i % PARTITIONS)

    def judge() -> Judge:
        counts: dict[bytes, int] = defaultdict(int)
        for words in zipf_lines(lines, vocabulary):
            for word in words:
                counts[word.encode()] += 1
        return Latest(counts, WARM)

    def first() -> list[Given]:
        return [Given("lines", None, WARM, BEFORE, partition) for partition in range(PARTITIONS)]

    return Workload("W1", "word count", f"{lines:,} lines of ten words", ("lines",), lines, first, backlog, judge)


# ------------------------------------------------------------------------------------------ W2: stock statistics
def trades_of(trades: int) -> Iterator[tuple[str, float, int, int]]:
    """Ticker, price, size, time: a thousand trades a second."""
    chance = random.Random(2)
    for i in range(trades):
        yield (
            f"T{chance.randrange(1000):03}",
            chance.randrange(1_000, 20_000) / 100,
            chance.randrange(1, 100),
            START + i,
        )


def stock_statistics(scale: float) -> Workload:
    trades = int(1_000_000 * scale)

    def encoded(ticker: bytes, price: float, size: int, timestamp: int) -> Given:
        return Given("trades", ticker, b"ASK,%s,%s,%d" % (ticker, str(price).encode(), size), timestamp)

    def backlog() -> Iterator[Given]:
        for ticker, price, size, timestamp in trades_of(trades):
            yield encoded(ticker.encode(), price, size, timestamp)

    def judge() -> Judge:
        truth: dict[tuple[bytes, int], tuple[float, int, float]] = {}
        for ticker, price, _, timestamp in trades_of(trades):
            earliest = (timestamp - WINDOW + ADVANCE) // ADVANCE * ADVANCE
            for start in range(earliest, timestamp + 1, ADVANCE):
                place = (ticker.encode(), start)
                low, count, total = truth.get(place, (price, 0, 0.0))
                truth[place] = min(low, price), count + 1, total + price
        return Statistics(truth, WARM)

    def first() -> list[Given]:
        return [encoded(key, 1.5, 1, BEFORE) for key in warm_keys()]

    return Workload("W2", "stock statistics", f"{trades:,} trades", ("trades",), trades, first, backlog, judge)


# ----------------------------------------------------------------------------------------------- W4: order filter
PRODUCTS = ("lamp", "desk", "chair", "shelf", "bulb")
MINIMUM = 5


def orders_of(orders: int) -> Iterator[tuple[bytes, int, bytes]]:
    """Key, quantity, JSON."""
    chance = random.Random(4)
    for i in range(orders):
        quantity = chance.randint(1, 10)
        value = b'{"product":"%s","quantity":%d,"customer":"customer-%d"}'
        yield b"order-%d" % i, quantity, value % (PRODUCTS[i % 5].encode(), quantity, chance.randint(1, 20))


def said_order(key: bytes, value: bytes) -> bytes | None:
    it = orjson.loads(value)
    if key.startswith(WARM):
        return None
    return b'%s{"product":"%s","quantity":%d,"customer":"%s"}' % (
        key,
        it["product"].encode(),
        it["quantity"],
        it["customer"].encode(),
    )


def order_filter(scale: float) -> Workload:
    orders = int(2_000_000 * scale)

    def backlog() -> Iterator[Given]:
        for i, (key, _, value) in enumerate(orders_of(orders)):
            yield Given("orders", key, value, START + i)

    def judge() -> Judge:
        return Multiset((key + value for key, quantity, value in orders_of(orders) if quantity > MINIMUM), said_order)

    def first() -> list[Given]:
        order = b'{"product":"lamp","quantity":9,"customer":"warm"}'
        return [Given("orders", key, order, BEFORE) for key in warm_keys()]

    return Workload("W4", "order filter", f"{orders:,} JSON orders", ("orders",), orders, first, backlog, judge)


# ----------------------------------------------------------------------------------------------- W5: count by key
def keys_of(records: int, keys: int) -> Iterator[bytes]:
    chance = random.Random(5)
    for _ in range(records):
        yield b"key-%d" % chance.randrange(keys)


def count_by_key(scale: float) -> Workload:
    records, keys = int(2_000_000 * scale), max(1, int(100_000 * scale))

    def backlog() -> Iterator[Given]:
        for i, key in enumerate(keys_of(records, keys)):
            yield Given("in", key, b"x", START + i)

    def judge() -> Judge:
        counts: dict[bytes, int] = defaultdict(int)
        for key in keys_of(records, keys):
            counts[key] += 1
        return Latest(counts, WARM)

    def first() -> list[Given]:
        return [Given("in", key, b"x", BEFORE) for key in warm_keys()]

    return Workload(
        "W5", "count by key", f"{records:,} records, {keys:,} keys", ("in",), records, first, backlog, judge
    )


# ------------------------------------------------------------------------------------------------- sizes of records
SIZES = {100: 1_000_000, 1_000: 200_000, 10_000: 20_000, 100_000: 2_000}  # bytes of a value: how many of them


def relay(scale: float, size: int) -> Workload:
    """Records go from topic to topic as they are."""
    records = max(PARTITIONS, int(SIZES[size] * scale))
    filling = random.Random(6).randbytes(size + 1_000)

    def sent() -> Iterator[tuple[bytes, bytes]]:
        for i in range(records):
            yield b"%d" % i, filling[i % 1_000 : i % 1_000 + size]

    def said(key: bytes, value: bytes) -> bytes | None:
        return None if key.startswith(WARM) else b"%s %d %d" % (key, len(value), zlib.crc32(value[:100]))

    def backlog() -> Iterator[Given]:
        for i, (key, value) in enumerate(sent()):
            yield Given("in", key, value, START + i)

    def judge() -> Judge:
        return Multiset((said(key, value) or b"" for key, value in sent()), said)

    def first() -> list[Given]:
        return [Given("in", key, b"x", BEFORE) for key in warm_keys()]

    return Workload(
        f"S{size}",
        f"relay of {size:,} B",
        f"{records:,} records",
        ("in",),
        records,
        first,
        backlog,
        judge,
        record_bytes=size,
    )


NAMES = ("W1", "W2", "W3", "W4", "W5", *(f"S{size}" for size in SIZES))


def workload(name: str, scale: float) -> Workload:
    if name.startswith("S"):
        return relay(scale, int(name[1:]))
    made = {"W1": word_count, "W2": stock_statistics, "W3": clickstream, "W4": order_filter, "W5": count_by_key}
    return made[name](scale)
