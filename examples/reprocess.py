"""Reprocess: a new version of a program runs beside the old one, on the same input, until it has proved itself.

The first version counts the visits of every page, as the topic has them. The second knows better: it leaves robots out
and takes `/News/` and `/news` for one page. Each is an application of its own, with its own id, its own positions in
the input and its own output, so that both can run at once. When the second has caught up, the outputs are compared:

    python -m examples.reprocess compare file:DIRECTORY

Who uses the counts reads `current_counts`, which follows a topic that says whose they are. One record there, and all
of them have moved over to the second version, or back:

    python -m examples.reprocess switch file:DIRECTORY visit-counts-v2

There is another way, without a second version's topics: stop the program, let it forget all, run the new one.

    headrace reset --application-id visit-counts-v1 --input-topics visits --log file:DIRECTORY
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from examples.events import START, Event, Topics
from headrace import Admin, Consumer, Producer, StreamsBuilder, Topology, serde
from headrace.serde import Serde

APPLICATION, APPLICATION_2 = "visit-counts-v1", "visit-counts-v2"
VISITS, COUNTS, COUNTS_2, STORE = "visits", "visit-counts-v1", "visit-counts-v2", "counts"
CURRENT = "visit-counts-current"  # the name of the topic with the counts that are in use, under its own


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


def table(log: str, topic: str, value: Serde = serde.LONG) -> dict[str, Any]:
    """What a topic comes to: the last value of every key."""
    rows: dict[str, Any] = {}
    with Consumer(log, key=serde.STRING, value=value, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        while records := consumer.poll():
            rows.update((record.key, record.value) for record in records)
    return {key: value for key, value in rows.items() if value is not None}


def compare(log: str) -> dict[str, tuple[int | None, int | None]]:
    return differences(table(log, COUNTS), table(log, COUNTS_2))


def switch(log: str, counts: str) -> None:
    """Lets everybody read the counts of another version."""
    with Admin(log) as admin:
        if CURRENT not in admin.topics():
            admin.create_topic(CURRENT, config={"cleanup.policy": "compact"})
    with Producer(log, key=serde.STRING, value=serde.STRING) as producer:
        producer.send(CURRENT, CURRENT, counts)


def current_counts(log: str) -> dict[str, int]:
    """The counts that are in use: those of the first version, until there was a switch."""
    with Admin(log) as admin:
        was_switched = CURRENT in admin.topics()
    return table(log, table(log, CURRENT, serde.STRING)[CURRENT] if was_switched else COUNTS)


PAGES = ("/", "/news", "/News/", "/help", "/HELP")
AGENTS = ("firefox", "safari", "searchbot")


def events(random: Random) -> Iterator[Event]:
    """Visits of people and of robots."""
    now = START
    while True:
        yield Event(VISITS, f"visitor-{random.randint(1, 99)}", Visit(random.choice(PAGES), random.choice(AGENTS)), now)
        now += random.randint(1, 300)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "switch":
        switch(*arguments)
    else:
        for page, (first, second) in compare(*arguments).items():
            print(page, first, second, sep="\t")
