"""The garbage collector of a slot: it runs between batches, and still finds what functions of the user leave behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from headrace.spark import slot_runner
from headrace.spark.slot_runner import GENERATION, MANY_OBJECTS, collect_garbage, defer_garbage_collection


class Cycle:
    """An object that refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    defer_garbage_collection()
    yield
    gc.set_threshold(*before)


def leave(count: int) -> weakref.ref[Cycle]:
    """Leaves garbage behind, and returns a reference to the last piece."""
    for _ in range(count):
        last = Cycle()
    return weakref.ref(last)


def test_garbage_of_a_batch_is_collected_after_it_and_not_within_it():
    garbage = leave(MANY_OBJECTS)
    assert garbage() is not None
    collect_garbage()
    assert garbage() is None


def test_nothing_is_collected_after_a_small_batch():
    garbage = leave(10)
    collect_garbage()
    assert garbage() is not None


def test_old_garbage_is_collected_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slot_runner, "MANY_OBJECTS", 500)
    garbage = [Cycle()]
    reference = weakref.ref(garbage[0])

    def run_batches(count: int) -> None:
        for _ in range(count):
            leave(1_000)
            collect_garbage()

    run_batches(2 * GENERATION)  # the object is in use, so it becomes old
    garbage.clear()
    run_batches(2 * GENERATION)
    assert reference() is not None
    run_batches(GENERATION * GENERATION)
    assert reference() is None
