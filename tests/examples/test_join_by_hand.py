import pytest

from examples import join_by_hand
from headrace import Record
from tests.examples.playing import Play, generated

BUILDS = pytest.mark.parametrize("build", [join_by_hand.build, join_by_hand.build_with_dsl])


@BUILDS
def test_pairs_within_ten_seconds_are_multiplied_and_summed_up(build):
    # Which pairs there are, and their times, was asked of Kafka Streams.
    with Play(join_by_hand, build()) as play:
        play.pipe("topic1", ("a", 2, 0))
        play.pipe("topic2", ("a", 3, 10_000), ("b", 3, 10_000), ("a", 5, 10_001))
        play.pipe("topic1", ("a", 7, 12_000), ("a", 4, 5_000), ("b", None, 12_000), (None, 1, 12_000))
        play.pipe("topic1", ("z", 1, 40_000), ("a", 1, 12_000))
        assert play.records("topic3") == [
            Record("a", 6, 10_000),  # 2 x 3
            Record("a", 27, 12_000),  # + 7 x 3
            Record("a", 62, 12_000),  # + 7 x 5
            Record("a", 74, 12_000),  # + 4 x 3
            Record("a", 94, 12_000),  # + 4 x 5
            Record("a", 97, 12_000),  # + 1 x 3: late, but topic2 has not gone on
            Record("a", 102, 12_000),  # + 1 x 5
        ]
        assert play.store("sums").get("a") == (102, 12_000)


@pytest.mark.parametrize("seed", [1, 2])
def test_both_programs_give_the_same_records(seed):
    outputs = []
    for build in (join_by_hand.build, join_by_hand.build_with_dsl):
        with Play(join_by_hand, build()) as play:
            play.pipe_events(generated(join_by_hand, seed=seed))
            outputs.append((play.records("topic3"), dict(play.store("sums").all())))
    by_hand, with_dsl = outputs
    assert by_hand == with_dsl
    assert len(by_hand[0]) > 1_000


def test_the_topology_is_the_picture():
    described = str(join_by_hand.build().describe())
    for line in (
        "Source: Source1 (topics: [topic1])",
        "Source: Source2 (topics: [topic2])",
        "Processor: Join (stores: [left, right])",
        "Processor: Aggregate (stores: [sums])",
        "Sink: Sink (topic: topic3)",
    ):
        assert line in described


@BUILDS
def test_the_sums_are_what_one_would_compute_from_all_pairs(build):
    events, sums = generated(join_by_hand, count=1_000), {}
    left, right = ([event for event in events if event.topic == topic] for topic in ("topic1", "topic2"))
    for one in left:
        for other in right:
            if one.key == other.key and abs(one.timestamp - other.timestamp) <= 10_000:
                sums[one.key] = sums.get(one.key, 0) + one.value * other.value
    with Play(join_by_hand, build()) as play:
        play.pipe_events(events)
        assert play.table("topic3") == sums
