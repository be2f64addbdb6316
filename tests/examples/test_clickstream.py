from collections import Counter

from msgspec.structs import replace

from examples import clickstream
from examples.clickstream import Activity, PageView, Profile, Search
from headrace import serde
from tests.examples.playing import Play, generated, of_topic

PROFILES, VIEWS, SEARCHES, ACTIVITY = (
    "clicks.user.profile",
    "clicks.pages.views",
    "clicks.search",
    "clicks.user.activity",
)
ADA = Profile(36, "f", ("cycling", "hiking"))


def test_a_view_gets_the_profile_and_the_search_of_the_second_before_it():
    #  0        1000 1001      1500         3000
    #  search 1 ────▶ a, b     search 2 ─▶ c    d
    with Play(clickstream) as play:
        play.pipe(PROFILES, (1, ADA, 0))
        play.pipe(SEARCHES, (1, Search("bikes"), 0))
        play.pipe(VIEWS, (1, PageView("/a"), 1_000), (1, PageView("/b"), 1_001))
        play.pipe(SEARCHES, (1, Search("tents"), 1_500))
        play.pipe(VIEWS, (1, PageView("/c"), 1_500), (2, PageView("/d"), 3_000), (2, PageView("/e"), 3_001))
        assert [(record.key, record.value, record.timestamp) for record in play.records(ACTIVITY)] == [
            (1, Activity("/a", ADA, "bikes"), 1_000),
            (1, Activity("/b", ADA, None), 1_001),  # a millisecond too late for the first search, and before the second
            (1, Activity("/c", ADA, "tents"), 1_500),
            (2, Activity("/d", None, None), 3_000),  # nobody knows user 2; it came out when no search could follow
        ]


def test_a_view_joins_every_search_of_the_second_before_it():
    with Play(clickstream) as play:
        play.pipe(SEARCHES, (1, Search("bikes"), 0), (1, Search("tents"), 500), (2, Search("maps"), 500))
        play.pipe(VIEWS, (1, PageView("/a"), 900))
        assert [activity.search_terms for _, activity in play.pairs(ACTIVITY)] == ["bikes", "tents"]


def test_a_view_has_the_profile_of_its_moment():
    with Play(clickstream) as play:
        play.pipe(SEARCHES, (1, Search("x"), 0))
        for profile in (ADA, Profile(37, "f", ()), None):
            play.pipe(PROFILES, (1, profile, 0))
            play.pipe(VIEWS, (1, PageView("/"), 0))
        assert [activity.profile for _, activity in play.pairs(ACTIVITY)] == [ADA, Profile(37, "f", ()), None]


def test_profiles_can_come_as_changes_of_a_database():
    row = '{"age": 36, "gender": "f", "interests": ["cycling", "hiking"], "user_id": 1}'
    changes = (
        f'{{"before": null, "after": {row}, "op": "r"}}',
        f'{{"before": {row}, "after": {row.replace("36", "37")}, "op": "u"}}',
        f'{{"before": {row}, "after": null, "op": "d"}}',
        None,
    )
    with Play(clickstream, clickstream.build_from_changes()) as play:
        database = play.input_topic(clickstream.CHANGES, value=serde.STRING)
        play.pipe(SEARCHES, (1, Search("x"), 0))
        for change in changes:
            database.pipe(b'{"user_id": 1}', change, timestamp=0)
            play.pipe(VIEWS, (1, PageView("/"), 0))
        profiles = [activity.profile for _, activity in play.pairs(ACTIVITY)]
        assert profiles == [ADA, replace(ADA, age=37), None, None]


def test_the_output_is_what_one_would_compute_from_all_events():
    events = generated(clickstream)
    searches, profiles, expected = of_topic(events, SEARCHES), {}, Counter()
    for event in events:
        if event.topic == PROFILES:
            profiles[event.key] = event.value
        elif event.topic == VIEWS:
            page, profile = event.value.page, profiles.get(event.key)
            found = [
                search.value.terms
                for search in searches
                if search.key == event.key and event.timestamp - 1_000 <= search.timestamp <= event.timestamp
            ]
            expected.update((event.key, Activity(page, profile, terms)) for terms in found or [None])
    with Play(clickstream) as play:
        play.pipe_events(events)
        after = events[-1].timestamp + 10_000
        play.pipe(VIEWS, (99, PageView("/last"), after))  # time goes on: views without a search come out
        assert Counter(play.pairs(ACTIVITY)) == expected
