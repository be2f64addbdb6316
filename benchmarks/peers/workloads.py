"""What is to be done: the data of each workload, the same every time, and the truth that its output must show."""

from __future__ import annotations

import heapq
import random
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import orjson

from benchmarks.peers.truths import Judge, Latest, Multiset, Statistics
from examples.events import START
from headrace.model.partitioner import partition_of

PARTITIONS = 4
WARM = b"warm"  # how keys of records begin that only show that a system has started
BEFORE = START - 3_600_000  # the time of such records
WINDOW, ADVANCE = 5_000, 1_000
SEARCH_BEFORE_VIEW = 1_000


class Given(NamedTuple):
    """A record for an input topic; without a partition its key says where it goes."""

    topic: str
    key: bytes | None
    value: bytes
    timestamp: int
    partition: int | None = None


@dataclass(frozen=True)
class Workload:
    """Input topics, the records that are there before (`first`), the backlog, and who judges the output."""

    name: str
    title: str
    detail: str
    topics: tuple[str, ...]
    size: int  # records of the backlog that are counted
    first: Callable[[], Iterable[Given]]
    backlog: Callable[[], Iterable[Given]]
    judge: Callable[[], Judge]
    ticks: Callable[[int], Iterable[Given]] | None = None  # records that let time go on after the backlog
    record_bytes: int | None = None  # of a value, where MB/s are asked for


def keys_of_partitions(name: Callable[[int], bytes]) -> list[bytes]:
    """A key for each partition, the first ones of those that `name` gives."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < PARTITIONS:
        found.setdefault(partition_of(name(number), PARTITIONS) or 0, name(number))
        number += 1
    return [found[partition] for partition in range(PARTITIONS)]


def warm_keys() -> list[bytes]:
    return keys_of_partitions(lambda number: WARM + b"-%d" % number)


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


# ------------------------------------------------------------------------------------------------ W3: clickstream
class Click(NamedTuple):
    """A search, or the view of a page."""

    user: int
    terms: str | None
    page: str | None
    timestamp: int


def clicks_of(views: int, searches: int, users: int) -> Iterator[Click]:
    """An event each millisecond; who searches views a page 100 to 1,500 ms later, the other views are anyone's."""
    chance = random.Random(3)
    due: list[tuple[int, int]] = []
    now, left_views, left_searches = START, views, searches
    while left_views or left_searches:
        if left_searches and (not left_views or chance.random() * (left_views + left_searches) < left_searches):
            user = chance.randint(1, users)
            yield Click(user, f"good {chance.randrange(1000)}", None, now)
            heapq.heappush(due, (now + chance.randint(100, 1_500), user))
            left_searches -= 1
        else:
            user = heapq.heappop(due)[1] if due and due[0][0] <= now else chance.randint(1, users)
            yield Click(user, None, f"/page/{chance.randrange(500)}", now)
            left_views -= 1
        now += 1


def user_key(user: int) -> bytes:
    return user.to_bytes(4, "big", signed=True)


def has_profile(user: int) -> bool:
    return user > 0 and user % 5 != 0


def age_of(user: int) -> int:
    return 18 + user % 60


def activity(user: int, page: str, terms: str | None) -> bytes:
    """What is compared: everything that an output says, in one order."""
    age = age_of(user) if has_profile(user) else None
    return f"{user}|{page}|{age}|{terms}".encode()


def said_activity(key: bytes, value: bytes) -> bytes | None:
    user = int.from_bytes(key, "big", signed=True)
    if user < 0:
        return None
    it = orjson.loads(value)
    age = it["profile"]["age"] if it.get("profile") else None
    return f"{user}|{it['page']}|{age}|{it.get('search_terms')}".encode()


def joined(clicks: Iterable[Click]) -> Iterator[bytes]:
    """Every view with each search of the second before, or alone."""
    searches: dict[int, deque[tuple[int, str]]] = defaultdict(deque)
    for user, terms, page, timestamp in clicks:
        recent = searches[user]
        while recent and recent[0][0] < timestamp - SEARCH_BEFORE_VIEW:
            recent.popleft()
        if terms is not None:
            recent.append((timestamp, terms))
        elif page is not None:
            found = [terms for _, terms in recent] or [None]
            yield from (activity(user, page, terms) for terms in found)


def clickstream(scale: float) -> Workload:
    profiles, views, searches = int(50_000 * scale), int(1_000_000 * scale), int(200_000 * scale)
    users = profiles * 5 // 4  # one in five has no profile
    waking = keys_of_partitions(lambda number: user_key(-1 - number))

    def pair(key: bytes, timestamp: int) -> Iterator[Given]:
        yield Given("searches", key, b'{"terms":"warm"}', timestamp)
        yield Given("views", key, b'{"page":"/warm"}', timestamp + 100)

    def first() -> Iterator[Given]:
        for user in filter(has_profile, range(1, users + 1)):
            profile = {"age": age_of(user), "gender": "fmx"[user % 3], "interests": ["cycling", "hiking"]}
            yield Given("profiles", user_key(user), orjson.dumps(profile), BEFORE)
        for key in waking:
            yield from pair(key, BEFORE + 1)

    def backlog() -> Iterator[Given]:
        for user, terms, page, timestamp in clicks_of(views, searches, users):
            if terms is not None:
                yield Given("searches", user_key(user), b'{"terms":"%s"}' % terms.encode(), timestamp)
            elif page is not None:
                yield Given("views", user_key(user), b'{"page":"%s"}' % page.encode(), timestamp)

    def ticks(number: int) -> Iterator[Given]:
        for key in waking:
            yield from pair(key, START + views + searches + 10_000 * (number + 1))

    def judge() -> Judge:
        return Multiset(joined(clicks_of(views, searches, users)), said_activity)

    detail = f"{profiles:,} profiles, {views:,} views, {searches:,} searches"
    topics = ("profiles", "views", "searches")
    return Workload("W3", "clickstream", detail, topics, views + searches, first, backlog, judge, ticks)


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
