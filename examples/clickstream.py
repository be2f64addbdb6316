"""Clickstream: who looked at which page, and what had they just searched for?

Page views are enriched twice: with the profile of the user, a table; and with the searches of the same user at most
one second before the view, a stream. The second window is asymmetric, for a search after the view did not lead to it.
A view without a search comes out when no search can come any more.

`build` reads the profiles as they are; `build_from_changes` reads them as Debezium captures them from a database, in
another topic, and gives them the key of the views.
"""

from collections.abc import Iterator
from random import Random

from msgspec import Struct

from examples.events import START, Event, Topics
from headrace import JoinWindows, KTable, Materialized, StreamsBuilder, Topology, serde

APPLICATION = "clicks"
PROFILES, VIEWS, SEARCHES = "clicks.user.profile", "clicks.pages.views", "clicks.search"
ACTIVITY = "clicks.user.activity"
CHANGES = "db.public.profiles"
SEARCH_BEFORE_VIEW = JoinWindows.of(0).before(1_000)


class Profile(Struct, frozen=True):
    age: int
    gender: str
    interests: tuple[str, ...]


class PageView(Struct, frozen=True):
    page: str


class Search(Struct, frozen=True):
    terms: str


class Activity(Struct, frozen=True):
    page: str
    profile: Profile | None = None
    search_terms: str | None = None


USER = serde.INTEGER
PROFILE = serde.json_of(Profile)
VIEW = serde.json_of(PageView)
SEARCH = serde.json_of(Search)
ACTIVITY_VALUE = serde.json_of(Activity)
TOPICS: Topics = {PROFILES: (USER, PROFILE), VIEWS: (USER, VIEW), SEARCHES: (USER, SEARCH)}
CHANGED_USER, CHANGED_PROFILE = serde.debezium_key("user_id"), serde.debezium(Profile)
OUTPUTS: Topics = {ACTIVITY: (USER, ACTIVITY_VALUE)}


def with_profile(view: PageView, profile: Profile | None) -> Activity:
    return Activity(view.page, profile)


def with_search(activity: Activity, search: Search | None) -> Activity:
    return activity if search is None else Activity(activity.page, activity.profile, search.terms)


def build() -> Topology:
    builder = StreamsBuilder()
    write_activity(builder, builder.table(PROFILES, key=USER, value=PROFILE, store="profiles"))
    return builder.build()


def build_from_changes() -> Topology:
    builder = StreamsBuilder()
    changes = builder.stream(CHANGES, key=CHANGED_USER, value=CHANGED_PROFILE)
    profiles = changes.select_key(user_of).to_table(store=Materialized("profiles", key=USER, value=PROFILE))
    write_activity(builder, profiles)
    return builder.build()


def user_of(user: int, _profile: Profile | None) -> int:
    return user


def write_activity(builder: StreamsBuilder, profiles: KTable) -> None:
    views = builder.stream(VIEWS, key=USER, value=VIEW)
    searches = builder.stream(SEARCHES, key=USER, value=SEARCH)
    (
        views.left_join(profiles, with_profile)
        .left_join(searches, with_search, windows=SEARCH_BEFORE_VIEW, value=ACTIVITY_VALUE)
        .to(ACTIVITY, key=USER, value=ACTIVITY_VALUE)
    )


PAGES = ("/bikes", "/tents", "/boots", "/maps")
INTERESTS = ("cycling", "hiking", "climbing", "sailing")


def events(random: Random) -> Iterator[Event]:
    """Users, one in five without a profile, view pages; every other view comes shortly after a search."""
    now = START
    while True:
        user = random.randint(1, 20)
        if user % 5 and random.random() < 0.1:
            profile = Profile(random.randint(18, 80), random.choice("fmx"), tuple(random.sample(INTERESTS, 2)))
            yield Event(PROFILES, user, profile, now)
            now += random.randint(1, 100)
        page = random.choice(PAGES)
        if random.random() < 0.5:
            yield Event(SEARCHES, user, Search(f"good {page[1:]}"), now)
            now += random.randint(100, 1_500)
        yield Event(VIEWS, user, PageView(page), now)
        now += random.randint(100, 2_000)
