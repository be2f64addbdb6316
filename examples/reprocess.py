"""Reprocess: a new version of a program runs beside the old one, on the same input, until it has proved itself.

The first version counts the visits of every page, as the topic has them. The second knows better: it leaves robots out
and takes `/News/` and `/news` for one page. Each is an application of its own, with its own id, its own positions in
the input and its own output, so that both can run at once and the outputs can be compared key by key, before anyone
who reads the first moves over to the second.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION, APPLICATION_2 = "visit-counts-v1", "visit-counts-v2"
VISITS, COUNTS, COUNTS_2, STORE = "visits", "visit-counts-v1", "visit-counts-v2", "counts"


@dataclass(frozen=True)
class Visit:
    page: str
    agent: str


VISIT = serde.json_of(Visit)
TOPICS: Topics = {VISITS: (serde.STRING, VISIT)}
OUTPUTS: Topics = {COUNTS: (serde.STRING, serde.LONG), COUNTS_2: (serde.STRING, serde.LONG)}


def page_of(visit: Visit) -> str:
    return visit.page


def plain_page_of(visit: Visit) -> str:
    return visit.page.lower().rstrip("/") or "/"


def is_robot(visit: Visit) -> bool:
    return "bot" in visit.agent


def build() -> Topology:
    """The first version."""
    builder = StreamsBuilder()
    visits = builder.stream(VISITS, key=serde.STRING, value=VISIT)
    counts = visits.group_by(page_of, key=serde.STRING, value=VISIT).count(store=STORE)
    counts.to_stream().to(COUNTS, key=serde.STRING, value=serde.LONG)
    return builder.build()


def build_version_2() -> Topology:
    """The second version."""
    builder = StreamsBuilder()
    visits = builder.stream(VISITS, key=serde.STRING, value=VISIT).filter_not(is_robot)
    counts = visits.group_by(plain_page_of, key=serde.STRING, value=VISIT).count(store=STORE)
    counts.to_stream().to(COUNTS_2, key=serde.STRING, value=serde.LONG)
    return builder.build()


def differences(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, tuple[int | None, int | None]]:
    """The keys whose values differ between two tables, with both values; None where a key is missing."""
    both = {key: (first.get(key), second.get(key)) for key in sorted({*first, *second})}
    return {key: values for key, values in both.items() if values[0] != values[1]}


PAGES = ("/", "/news", "/News/", "/help", "/HELP")
AGENTS = ("firefox", "safari", "searchbot")


def events(random: Random) -> Iterator[Event]:
    """Visits of people and of robots."""
    now = START
    while True:
        yield Event(VISITS, f"visitor-{random.randint(1, 99)}", Visit(random.choice(PAGES), random.choice(AGENTS)), now)
        now += random.randint(1, 300)
