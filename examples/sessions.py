"""Sessions: the pages that a user visits one after the other, until nothing comes for half an hour.

A session grows with every visit within the gap. A visit that comes late, between two sessions, makes them one: the two
are deleted from the output and the merged one takes their place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import SessionWindows, StreamsBuilder, Topology, serde

APPLICATION = "web-sessions"
VISITS, SESSIONS, STORE = "visits", "web-sessions", "sessions"
MINUTE = 60_000
WINDOWS = SessionWindows.of(30 * MINUTE, grace=60 * MINUTE)


@dataclass(frozen=True)
class Session:
    visits: int = 0
    pages: tuple[str, ...] = ()  # each once, by name


SESSION = serde.json_of(Session)
TOPICS: Topics = {VISITS: (serde.STRING, serde.STRING)}
OUTPUTS: Topics = {SESSIONS: (serde.session_windowed(serde.STRING), SESSION)}


def add_visit(_user: str, page: str, session: Session) -> Session:
    return Session(session.visits + 1, tuple(sorted({*session.pages, page})))


def merge_sessions(_user: str, left: Session, right: Session) -> Session:
    return Session(left.visits + right.visits, tuple(sorted({*left.pages, *right.pages})))


def build() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(VISITS, key=serde.STRING, value=serde.STRING)
        .group_by_key()
        .windowed_by(WINDOWS)
        .aggregate(Session, add_visit, merger=merge_sessions, store=STORE, value=SESSION)
        .to_stream()
        .to(SESSIONS)
    )
    return builder.build()


PAGES = ("/", "/search", "/cart", "/help", "/news")


def events(random: Random) -> Iterator[Event]:
    """Visits of eight users; one in ten is up to 40 minutes late."""
    now = START
    while True:
        late = random.randint(1, 40 * MINUTE) if random.random() < 0.1 else 0
        yield Event(VISITS, f"user-{random.randint(1, 8)}", random.choice(PAGES), max(START, now - late))
        now += random.randint(1, 6 * MINUTE)
