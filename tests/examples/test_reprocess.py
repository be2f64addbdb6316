from collections import Counter

from examples import reprocess
from examples.reprocess import Visit, differences
from tests.examples.playing import Play, generated

VISITS = [
    ("v1", Visit("/news", "firefox"), 0),
    ("v2", Visit("/News/", "safari"), 1),
    ("v3", Visit("/news", "searchbot"), 2),
    ("v4", Visit("/", "firefox"), 3),
]


def counted(build, output, visits):
    with Play(reprocess, build()) as play:
        play.pipe("visits", *visits)
        return play.table(output)


def test_the_first_version_counts_what_the_topic_has():
    assert counted(reprocess.build, "visit-counts-v1", VISITS) == {"/news": 2, "/News/": 1, "/": 1}


def test_the_second_version_leaves_robots_out_and_knows_one_page_under_its_names():
    assert counted(reprocess.build_version_2, "visit-counts-v2", VISITS) == {"/news": 2, "/": 1}


def test_the_differences_of_two_tables_are_told_key_by_key():
    assert differences({"/": 1, "/news": 2, "/News/": 1}, {"/": 1, "/news": 3, "/new": 1}) == {
        "/News/": (1, None),
        "/new": (None, 1),
        "/news": (2, 3),
    }
    assert differences({"/": 1}, {"/": 1}) == {}


def test_the_versions_differ_as_one_would_compute():
    events = generated(reprocess)
    visits = [(event.key, event.value, event.timestamp) for event in events]
    first = counted(reprocess.build, "visit-counts-v1", visits)
    second = counted(reprocess.build_version_2, "visit-counts-v2", visits)
    assert first == Counter(event.value.page for event in events)
    people = Counter(event.value.page for event in events if event.value.agent != "searchbot")
    assert second == {
        "/": people["/"],
        "/news": people["/news"] + people["/News/"],
        "/help": people["/help"] + people["/HELP"],
    }
    assert list(differences(first, second)) == ["/", "/HELP", "/News/", "/help", "/news"]
