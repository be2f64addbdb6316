"""Popular results: which search result do people click most, for each query?

A click belongs to what the same user searched for in the five seconds before it. The pairs are counted per query, and
the result with the most clicks is written whenever it changes its count or its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import JoinWindows, StreamsBuilder, Topology, serde

APPLICATION = "popular-results"
SEARCHES, CLICKS, POPULAR, STORE = "searches", "clicks", "popular-results", "clicks-by-query"
CLICK_AFTER_SEARCH = JoinWindows.of(0).after(5_000)


@dataclass(frozen=True)
class Search:
    query: str


@dataclass(frozen=True)
class Click:
    result: str


@dataclass(frozen=True)
class SearchClick:
    query: str
    result: str


@dataclass(frozen=True)
class Popular:
    result: str
    clicks: int


SEARCH = serde.json_of(Search)
CLICK = serde.json_of(Click)
SEARCH_CLICK = serde.json_of(SearchClick)
RESULT = serde.json_of(Popular)
CLICK_COUNTS = serde.json_of(dict[str, int])
TOPICS: Topics = {SEARCHES: (serde.STRING, SEARCH), CLICKS: (serde.STRING, CLICK)}
OUTPUTS: Topics = {POPULAR: (serde.STRING, RESULT)}


def clicked(search: Search, click: Click) -> SearchClick:
    return SearchClick(search.query, click.result)


def query_of(pair: SearchClick) -> str:
    return pair.query


def count_click(_query: str, pair: SearchClick, counts: dict[str, int]) -> dict[str, int]:
    return {**counts, pair.result: counts.get(pair.result, 0) + 1}


def most_popular(counts: dict[str, int]) -> Popular:
    """The result with the most clicks; of equal ones the first by name."""
    result = min(counts, key=lambda result: (-counts[result], result))
    return Popular(result, counts[result])


def build() -> Topology:
    builder = StreamsBuilder()
    searches = builder.stream(SEARCHES, key=serde.STRING, value=SEARCH)
    clicks = builder.stream(CLICKS, key=serde.STRING, value=CLICK)
    (
        searches.join(clicks, clicked, windows=CLICK_AFTER_SEARCH)
        .group_by(query_of, key=serde.STRING, value=SEARCH_CLICK)
        .aggregate(dict, count_click, store=STORE, value=CLICK_COUNTS)
        .map_values(most_popular)
        .to_stream()
        .to(POPULAR, key=serde.STRING, value=RESULT)
    )
    return builder.build()


RESULTS = {query: [f"{query}.example/{n}" for n in range(1, 5)] for query in ("kafka", "spark", "python")}


def events(random: Random) -> Iterator[Event]:
    """Users search; most click on something within five seconds, some later, some never."""
    now, number = START, 0
    while True:
        user, query = f"user-{number % 50}", random.choice(list(RESULTS))
        yield Event(SEARCHES, user, Search(query), now)
        if random.random() < 0.8:
            now += random.randint(500, 6_000)
            [result] = random.choices(RESULTS[query], weights=(4, 3, 2, 1))
            yield Event(CLICKS, user, Click(result), now)
        now, number = now + random.randint(100, 1_000), number + 1
