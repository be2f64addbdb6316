from examples import log_levels
from examples.log_levels import LogLine
from tests.examples.playing import Play, generated


def test_errors_have_high_priority_and_all_the_rest_low():
    with Play(log_levels) as play:
        play.pipe("logs", *((level, LogLine(level, "x"), 0) for level in ("INFO", "ERROR", "WARN", "FATAL", "error")))
        assert play.pairs("logs-high-priority") == [("ERROR", LogLine("ERROR", "x"))]
        assert [key for key, _ in play.pairs("logs-low-priority")] == ["INFO", "WARN", "FATAL", "error"]


def test_no_line_is_lost_and_none_comes_twice():
    events = generated(log_levels)
    with Play(log_levels) as play:
        play.pipe_events(events)
        high, low = play.records("logs-high-priority"), play.records("logs-low-priority")
        assert {record.value.level for record in high} == {"ERROR"}
        together = sorted((*high, *low), key=lambda record: record.timestamp)
        assert [(record.key, record.value) for record in together] == [(event.key, event.value) for event in events]
