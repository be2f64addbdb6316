from itertools import chain

import pytest

from examples import offline_device
from examples.offline_device import HOUR, MINUTE, Measured
from headrace import Window, Windowed
from tests.examples.playing import Play, generated

SIZE = 10 * MINUTE
UPDATES, RESULTS, TOO_LATE = "device-updates", "device-results", "device-too-late"


def window(device, number):
    return Windowed(device, Window(number * SIZE, (number + 1) * SIZE))


def report(play, device, *minutes, degrees=20):
    play.pipe("device-reports", *((device, degrees, minute * MINUTE) for minute in minutes))


def test_a_window_is_updated_with_every_report_and_its_result_comes_once_after_the_grace():
    with Play(offline_device) as play:
        report(play, "a", 1, 5, 11)
        play.pipe("device-reports", ("a", 28, 9 * MINUTE))  # two minutes late: within the grace
        assert play.pairs(UPDATES) == [
            (window("a", 0), Measured(1, 20)),
            (window("a", 0), Measured(2, 20)),
            (window("a", 1), Measured(1, 20)),
            (window("a", 0), Measured(3, 28)),
        ]
        assert play.pairs(RESULTS) == []
        report(play, "a", 12)
        assert play.pairs(RESULTS) == [(window("a", 0), Measured(3, 28))]
        report(play, "a", 13, 15)
        assert play.pairs(RESULTS) == []


def test_what_comes_after_the_result_is_in_the_ledger_and_changes_nothing():
    with Play(offline_device) as play:
        report(play, "a", 1, 12)
        play.pairs(UPDATES)
        report(play, "a", 9, degrees=99)
        [late] = play.records(TOO_LATE)
        assert (late.key, late.value, late.timestamp) == ("a", 99, 9 * MINUTE)
        assert play.pairs(UPDATES) == []
        assert play.pairs(RESULTS) == [(window("a", 0), Measured(1, 20))]


def test_a_backlog_of_hours_is_not_late_however_far_ahead_the_others_are():
    with Play(offline_device) as play:
        report(play, "a", 1)
        report(play, "b", *range(300))  # five hours go by
        assert [key for key, _ in play.pairs(RESULTS)] == [window("b", number) for number in range(29)]  # a's is open
        report(play, "a", *range(2, 32, 2))  # it was offline only: here is what it measured
        assert play.pairs(RESULTS) == [(window("a", 0), Measured(5, 20)), (window("a", 1), Measured(5, 20))]
        assert play.pairs(TOO_LATE) == []


def test_the_backlog_of_one_device_does_not_make_others_late():
    with Play(offline_device) as play:
        report(play, "a", 1)
        report(play, "b", 1)
        report(play, "a", *range(2, 600))  # ten hours at once, and b's clock is where it was
        report(play, "b", 3, 4)
        assert play.pairs(TOO_LATE) == []
        assert play.table(UPDATES)[window("b", 0)] == Measured(3, 20)
        report(play, "b", 12)
        assert [result for result in play.pairs(RESULTS) if result[0].key == "b"] == [(window("b", 0), Measured(3, 20))]


def test_a_device_that_sends_its_latest_report_first_is_late_with_the_rest():
    with Play(offline_device) as play:
        report(play, "a", 1, 300, 2, 291, 290)
        assert [late.timestamp // MINUTE for late in play.records(TOO_LATE)] == [2]
        assert play.table(UPDATES)[window("a", 29)] == Measured(2, 20)


def test_devices_whose_names_begin_alike_do_not_mix():
    with Play(offline_device) as play:
        report(play, "a", 1)
        report(play, "a1", 1)
        report(play, "a", 12)
        assert [key.key for key, _ in play.pairs(RESULTS)] == ["a"]


# ------------------------------------------------------------------------------------------- with one clock for all
def test_with_one_clock_old_windows_are_updated_while_the_grace_lasts():
    with Play(offline_device, offline_device.build_with_one_clock()) as play:
        report(play, "a", 1)
        report(play, "b", 5 * 60)
        report(play, "a", *range(2, 10))
        assert play.table(UPDATES)[window("a", 0)] == Measured(9, 20)
        assert play.dropped == 0


def test_with_one_clock_the_results_of_all_wait_for_the_longest_absence():
    with Play(offline_device, offline_device.build_with_one_clock()) as play:
        report(play, "a", 1)
        report(play, "b", *range(6 * 60 + 10))
        assert play.pairs(RESULTS) == []
        report(play, "b", 6 * 60 + 10)
        assert sorted(play.pairs(RESULTS)) == [(window("a", 0), Measured(1, 20)), (window("b", 0), Measured(10, 20))]


def test_with_one_clock_and_a_short_grace_the_backlog_is_dropped_and_counted():
    with Play(offline_device, offline_device.build_with_one_clock(grace=2 * MINUTE)) as play:
        report(play, "a", 1)
        report(play, "b", 60)
        report(play, "a", *range(2, 30))
        assert play.dropped == 28
        assert play.table(UPDATES)[window("a", 0)] == Measured(1, 20)


# ---------------------------------------------------------------------------------------------------- all that comes
def test_a_device_has_the_same_output_with_all_others_as_alone():
    events = generated(offline_device, seed=3)
    with Play(offline_device) as play:
        play.pipe_events(events)
        together = {topic: play.records(topic) for topic in offline_device.OUTPUTS}
    for device in sorted({event.key for event in events}):
        with Play(offline_device) as play:
            play.pipe_events(event for event in events if event.key == device)
            alone = {topic: play.records(topic) for topic in offline_device.OUTPUTS}
        of_device = {
            topic: [record for record in records if device in (record.key, record.key[0])]
            for topic, records in together.items()
        }
        assert of_device == alone


@pytest.mark.parametrize("seed", [1, 3])
def test_every_report_is_in_one_result_or_still_open_or_too_late(seed):
    events = generated(offline_device, seed=seed)
    with Play(offline_device) as play:
        play.pipe_events(events)
        results, late = play.pairs(RESULTS), play.records(TOO_LATE)
        still_open = play.stored("open-windows")
    assert len(dict(results)) == len(results)
    assert not dict(results).keys() & still_open.keys()
    counted = sum(measured.reports for measured in chain(dict(results).values(), still_open.values()))
    assert counted + len(late) == len(events)
    assert len(late) == {1: 0, 3: 82}[seed]  # one of them sends its latest report first
    assert max(event.timestamp for event in events) - min(event.timestamp for event in events) > 5 * HOUR
