"""Rows between slots: a level begins when all of them are there, and rows of other attempts do no harm."""

from __future__ import annotations

import random
from io import BytesIO

from headrace.spark.exchange import Delivery, Exchange


def exchange(memory: int = 1 << 20) -> Exchange:
    return Exchange(memory, BytesIO)


def end(attempt: int, slot: int, level: int, *rows: tuple[int, bytes]) -> Delivery:
    return Delivery(attempt, slot, level, is_end=True, rows=rows)


def test_level_0_waits_for_no_other_level():
    some = exchange()
    some.begin(1, {0, 1})
    assert some.is_ready(0)
    assert some.take(0) == []


def test_a_level_waits_for_the_ends_of_all_levels_below_in_all_slots():
    some = exchange()
    some.begin(1, {0, 1})
    some.add(end(1, 0, 0))
    some.add(end(1, 1, 0))
    assert (some.is_ready(1), some.is_ready(2)) == (True, False)
    some.add(end(1, 0, 1))
    assert not some.is_ready(2)
    some.add(end(1, 1, 1))
    assert some.is_ready(2)


def test_rows_of_several_frames_and_of_levels_further_down_are_kept_in_their_order():
    some = exchange()
    some.begin(1, {0})
    some.add(Delivery(1, 0, 0, is_end=False, rows=[(1, b"a"), (2, b"later")]))
    some.add(end(1, 0, 0, (1, b"b")))
    some.add(end(1, 0, 1))
    assert some.take(1) == [b"a", b"b"]
    assert some.take(2) == [b"later"]


def test_rows_of_an_earlier_attempt_are_dropped_and_those_of_a_later_one_wait_for_it():
    some = exchange()
    some.begin(2, {0, 1})
    some.add(end(1, 1, 0, (1, b"old")))
    some.add(end(3, 1, 0, (1, b"new")))
    some.add(end(2, 0, 0))
    assert not some.is_ready(1)
    some.begin(3, {0, 1})
    some.add(end(3, 0, 0))
    assert some.is_ready(1)
    assert some.take(1) == [b"new"]


def test_what_comes_of_an_aborted_attempt_is_not_kept():
    some = exchange()
    some.begin(2, {0})
    some.add(end(2, 0, 0, (1, b"row")))
    some.abort(2)
    some.add(end(2, 0, 0, (1, b"late")))
    assert some.attempt == 3
    some.begin(3, {0})
    assert not some.is_ready(1)
    assert some.take(1) == []


def test_an_abort_of_an_old_attempt_changes_nothing():
    some = exchange()
    some.begin(5, {0})
    some.abort(4)
    assert some.attempt == 5


def test_four_times_as_many_bytes_as_fit_come_back_whole_and_in_order():
    chance, some = random.Random(7), exchange(memory=1 << 14)  # noqa: S311
    rows = [chance.randbytes(chance.randrange(1, 2000)) for _ in range(130)]
    assert sum(map(len, rows)) > 4 << 14
    some.begin(1, {0, 1})
    for number, raw in enumerate(rows):
        some.add(Delivery(1, number % 2, 0, is_end=number >= 128, rows=[(1, raw)]))
    assert some.is_ready(1)
    assert some.take(1) == rows
