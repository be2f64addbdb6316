"""W3: views of pages with the profile of the user, and with the searches of the second before."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import orjson

from benchmarks.peers.truths import Judge, Multiset
from benchmarks.peers.workload import BEFORE, Given, Workload, keys_of_partitions
from examples.events import START

SEARCH_BEFORE_VIEW = 1_000
# Two topics are read in the order of time only as far as records have arrived: Kafka Streams promises no more, and what
# comes too late has no part in a join without grace. It loses one result in four thousand.
TOLERANCE = 0.001


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
        return Multiset(joined(clicks_of(views, searches, users)), said_activity, TOLERANCE)

    detail = f"{profiles:,} profiles, {views:,} views, {searches:,} searches"
    topics = ("profiles", "views", "searches")
    return Workload("W3", "clickstream", detail, topics, views + searches, first, backlog, judge, ticks)
