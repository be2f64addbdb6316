from collections import Counter

import pytest

from examples import reprocess
from examples.reprocess import Visit, compare, current_counts, differences, switch
from headrace import Admin, Producer, serde
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


@pytest.fixture
def log(tmp_path):
    """A log with what both versions have written: every count up to the last."""
    address = f"file:{tmp_path}/log"
    tables = {"visit-counts-v1": {"/news": 2, "/News/": 1, "/": 1}, "visit-counts-v2": {"/news": 2, "/": 1}}
    with Admin(address) as admin, Producer(address, key=serde.STRING, value=serde.LONG) as producer:
        for topic, counts in tables.items():
            admin.create_topic(topic, partitions=2)
            for page, count in counts.items():
                for so_far in range(1, count + 1):
                    producer.send(topic, page, so_far)
    return address


def test_the_outputs_of_both_versions_are_compared_key_by_key(log):
    assert compare(log) == {"/News/": (1, None)}


def test_one_record_moves_all_readers_over_to_the_second_version_and_another_one_back(log):
    first, second = {"/news": 2, "/News/": 1, "/": 1}, {"/news": 2, "/": 1}
    assert current_counts(log) == first
    switch(log, "visit-counts-v2")
    assert current_counts(log) == second
    switch(log, "visit-counts-v1")
    assert current_counts(log) == first
