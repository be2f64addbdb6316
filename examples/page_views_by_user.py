"""Page views by user: a stream becomes a table, the table a stream of its changes, and that the same table again.

This is the duality of streams and tables. The views of each user are counted; the changes of the count are written to
a topic; whoever reads that topic as a table has the same table. A user who wants to be forgotten is deleted from the
first table, and by the tombstone in the changes from the second. A third topic says, row by row, if the two are equal.
"""

from collections.abc import Iterator
from random import Random

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION = "page-views-by-user"
VIEWS, CHANGES, CHECKS = "page-views", "views-by-user-changes", "views-by-user-checks"
FIRST, SECOND = "views-by-user", "views-by-user-again"
FORGET_ME = "/forget-me"
TOPICS: Topics = {VIEWS: (serde.STRING, serde.STRING)}
OUTPUTS: Topics = {CHANGES: (serde.STRING, serde.LONG), CHECKS: (serde.STRING, serde.BOOLEAN)}


def no_views() -> int:
    return 0


def count_view(_user: str, page: str, views: int) -> int | None:
    return None if page == FORGET_ME else views + 1


def are_equal(first: int | None, second: int | None) -> bool:
    return first == second


def build() -> Topology:
    builder = StreamsBuilder()
    views = builder.stream(VIEWS, key=serde.STRING, value=serde.STRING)
    first = views.group_by_key().aggregate(no_views, count_view, store=FIRST, value=serde.LONG)
    first.to_stream().to(CHANGES, key=serde.STRING, value=serde.LONG)
    second = builder.table(CHANGES, key=serde.STRING, value=serde.LONG, store=SECOND)
    checks = first.outer_join(second, are_equal).to_stream()
    checks.to(CHECKS, key=serde.STRING, value=serde.BOOLEAN)
    return builder.build()


PAGES = ("/", "/news", "/sports", "/weather")


def events(random: Random) -> Iterator[Event]:
    """Views of twenty users, who now and then want to be forgotten."""
    now = START
    while True:
        page = FORGET_ME if random.random() < 0.03 else random.choice(PAGES)
        yield Event(VIEWS, f"user-{random.randint(1, 20)}", page, now)
        now += random.randint(1, 200)
