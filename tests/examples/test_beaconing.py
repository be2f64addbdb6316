from examples import beaconing
from examples.beaconing import HOUR, MINUTE, Beacon
from tests.examples.playing import Play, generated


def connect(play, pair, *times):
    play.pipe("connections", *((pair, 64, time) for time in times))


def test_a_pair_that_calls_every_five_minutes_is_reported_once_after_ten_intervals():
    with Play(beaconing) as play:
        for call in range(10):
            connect(play, "a > home", call * 5 * MINUTE)
        assert play.pairs("beacons") == []
        connect(play, "a > home", 50 * MINUTE, 55 * MINUTE, 60 * MINUTE)
        # The punctuator runs after the record that moves time on: it sees the eleventh call with that call.
        [record] = play.records("beacons")
        assert (record.key, record.value, record.timestamp) == ("a > home", Beacon(300.0, 0.0, 11), 50 * MINUTE)


def test_a_little_jitter_does_not_hide_a_beacon():
    with Play(beaconing) as play:
        connect(play, "a > home", *(call * MINUTE + (call % 2) * 5_000 for call in range(20)))
        [(pair, beacon)] = play.pairs("beacons")
        assert pair == "a > home"
        assert 0.05 < beacon.jitter <= 0.1


def test_people_are_not_beacons():
    with Play(beaconing) as play:
        connect(play, "a > news", *(call**2 * 1_000 for call in range(60)))
        assert play.pairs("beacons") == []


def test_pairs_that_fell_silent_are_forgotten():
    with Play(beaconing) as play:
        connect(play, "a > home", *(call * MINUTE for call in range(15)))
        connect(play, "b > news", 14 * MINUTE + 2 * HOUR - MINUTE)
        assert set(play.stored("pairs")) == {"a > home", "b > news"}
        connect(play, "b > news", 14 * MINUTE + 2 * HOUR)
        assert set(play.stored("pairs")) == {"b > news"}


def test_among_all_that_hosts_do_the_two_that_call_home_are_found():
    with Play(beaconing) as play:
        play.pipe_events(generated(beaconing))
        beacons = play.pairs("beacons")
        assert sorted(pair for pair, _ in beacons) == ["10.0.0.3 > home.example", "10.0.0.8 > home.example"]
        assert [round(beacon.period / 60) for _, beacon in sorted(beacons)] == [5, 7]
