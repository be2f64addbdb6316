"""Materialized, Suppressed and Buffer check what they are given."""

from datetime import timedelta

import pytest

from headrace import Buffer, Materialized, Suppressed, TopologyError


def test_durations_become_milliseconds():
    assert Materialized(retention=timedelta(seconds=2)).retention == 2000
    assert Materialized("t", history=timedelta(seconds=2)).history == 2000
    assert Suppressed.until_time_limit(timedelta(seconds=2), Buffer.unbounded()).wait == 2000


@pytest.mark.parametrize(
    "given, error, message",
    [
        ({"name": "a b"}, TopologyError, "the name 'a b'"),
        ({"kind": "disk"}, ValueError, "the kind of a store is 'persistent', 'memory' or None"),
        ({"retention": -1}, ValueError, "the retention must be at least 0 ms, not -1"),
        ({"retention": 1.5}, TypeError, "the retention must be milliseconds as an int or a timedelta"),
        ({"name": "t", "history": -1}, ValueError, "the history must be at least 0 ms"),
        ({"history": 5}, ValueError, "a versioned table needs a named store"),
        ({"name": "t", "history": 5, "retention": 5}, ValueError, "'t' has a history and a retention"),
    ],
)
def test_a_store_that_cannot_be_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        Materialized(**given)


def test_a_bounded_buffer_emits_early_unless_told_otherwise():
    assert Buffer.max_records(5).emit_early
    assert not Buffer.max_bytes(5).shut_down_when_full().emit_early
    assert not Buffer.unbounded().emit_early
    assert Buffer.unbounded().with_max_records(3).with_max_bytes(4).emit_early_when_full() == Buffer(
        3, 4, emit_early=True
    )
    assert Buffer.max_records(5).with_no_bound() == Buffer.unbounded()
    assert not Buffer.unbounded().without_logging().logging


def test_a_buffer_has_no_negative_size():
    with pytest.raises(ValueError, match="max_records cannot be negative"):
        Buffer.max_records(-1)


def test_a_final_result_cannot_come_early():
    with pytest.raises(
        ValueError, match=r"cannot come out early: use Buffer\.unbounded\(\) or shut_down_when_full\(\)"
    ):
        Suppressed.until_window_closes(Buffer.max_records(5))


def test_a_time_limit_is_not_negative():
    with pytest.raises(ValueError, match="the time limit must be at least 0 ms"):
        Suppressed.until_time_limit(-1, Buffer.unbounded())
