"""A host that is killed at any step, before or after it, once or twice, and started again: nobody can tell."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoint.coordinator import CommitOptions
from headrace.checkpoint.steps import BATCH, DELIVERY, MANIFEST, MARKER, START, step
from headrace.checkpoint.storage import ObjectStorage, open_storage
from tests.checkpoint.cluster import Cluster, Ground, Killed, Killer, eager, outputs, run_to_end
from tests.checkpoint.programs import MANY_WORDS, REFERENCES, TAGS, WATCH, WORDS, Program
from tests.expected import values_by_key

pytestmark = pytest.mark.slow

MOMENTS = [f"{when} {name}" for name in (*START, *BATCH) for when in ("before", "after")]
KINDS = ("disk", "memory")


def ground(kind: str, place: Path, program: Program, log=None) -> Ground:
    """LMDB and files, or everything in memory, where no local state survives."""
    log = log or program.log()
    if kind == "memory":
        return Ground(log=log, storage=ObjectStorage.at("memory:///", {}))
    return Ground(log=log, storage=open_storage(place / "checkpoint"), state=place / "state")


def times_of(moment: str) -> list[tuple[int, ...]]:
    """When to kill: once, and twice, the second time while it is getting up or soon after."""
    early = moment.split(" ", 1)[1] in START
    return [(1,), (1, 2)] if early else [(2,), (2, 3)]


CASES = [(moment, times) for moment in MOMENTS for times in times_of(moment)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What programs give that are never killed, by program and kind: what the test driver gives."""
    found = {}
    for program, kind in itertools.product((WORDS, REFERENCES), KINDS):
        place = ground(kind, tmp_path_factory.mktemp("undisturbed"), program)
        cluster = run_to_end(place, program)
        found[program.build, kind] = outputs(place.log), cluster.stores()
        cluster.close()
        rows = [row[1:4] for row in found[program.build, kind][0]["out", 0]]
        if program is WORDS:
            assert rows == WORDS.expected()
        else:  # a foreign-key join takes turns by batches: how it got there differs
            assert last_values(rows) == last_values(REFERENCES.expected())
    return found


def last_values(rows: list) -> dict[bytes | None, bytes | None]:
    return {key: values[-1] for key, values in values_by_key(rows).items()}


def test_what_a_record_causes_is_written_level_by_level(undisturbed):
    ((_, rows),) = undisturbed[WORDS.build, "memory"][0].items()
    assert [value.decode() for _, _, value, _, _ in rows] == [
        *("A B A", "1", "1", "2"), *("B C", "2", "1"), *("C C C", "2", "3", "4"), *("A", "3"),
        *("D E F", "1", "1", "1"), *("A B", "4", "3"), *("F", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment, times", CASES)
def test_output_and_stores_are_those_of_a_run_that_was_never_killed(moment, times, kind, tmp_path, undisturbed):
    place, killer = ground(kind, tmp_path, WORDS), Killer(moment, *times)
    # On disk whatever is written is a file of its own, in memory all of it is in the manifests.
    cluster = run_to_end(place, WORDS, killer, inline=0 if kind == "disk" else 1 << 20)
    if moment.endswith("delta written") and kind == "memory":
        assert killer.landed == 0
    else:
        assert killer.landed == len(times)
    assert (outputs(place.log), cluster.stores()) == undisturbed[WORDS.build, kind]
    cluster.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_rows_that_wait_for_the_next_batch_survive(moment, tmp_path, undisturbed):
    place, killer = ground("disk", tmp_path, REFERENCES), Killer(moment, 2)
    # Two topics are joined, so batches are cut as before; rows for the next batch are on their way at every kill.
    cluster = run_to_end(place, REFERENCES, killer, limit=2, inline=0)
    assert killer.landed == (0 if moment.split(" ", 1)[1] in START else 1)
    assert (outputs(place.log), cluster.stores()) == undisturbed[REFERENCES.build, "disk"]
    cluster.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_function_that_is_not_deterministic_is_delivered_once_and_as_it_was_committed(moment, tmp_path):
    place, killer = ground("disk", tmp_path, TAGS), Killer(moment, 1, 3)
    cluster = run_to_end(place, TAGS, killer, inline=0)
    assert killer.landed >= 1
    ((_, rows),) = outputs(place.log).items()
    lines = [value.rpartition(b" ")[0].decode() for _, _, value, _, _ in rows]
    assert lines == [line for _, line in TAGS.inputs["lines"]]
    latest = {key: value for _, key, value, _, _ in rows}
    (stores,) = cluster.stores().values()
    for key, value in latest.items():
        assert sum(value in stored for name, stored in stores if name.endswith(key)) == 1
    cluster.close()


@pytest.mark.parametrize("moment", [m for m in MOMENTS if "owner" not in m and "takeover" not in m])
def test_several_partitions_lose_nothing_and_deliver_nothing_twice(moment, tmp_path):
    place, killer = ground("disk", tmp_path, MANY_WORDS), Killer(moment, 2)
    cluster = run_to_end(place, MANY_WORDS, killer, inline=0)
    assert killer.landed == 1
    rows = [row[1:4] for some in outputs(place.log).values() for row in some]
    assert values_by_key(rows) == values_by_key(MANY_WORDS.expected())
    again = run_to_end(ground("memory", tmp_path, MANY_WORDS), MANY_WORDS)
    assert cluster.stores() == again.stores()
    cluster.close()
    again.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_the_wall_clock_makes_due_happens_once(moment, tmp_path):
    place, killer = ground("disk", tmp_path, WATCH), Killer(moment, 2)
    for _ in range(4):  # the input at 1000, then ticks at 1100, 1200, 1300
        run_to_end(place, WATCH, killer, inline=0).close()
        place.clock.advance(100)
    assert killer.landed == 1
    ((_, rows),) = outputs(place.log).items()
    told = [(key, value) for _, key, value, _, _ in rows]
    counts = {b"line 0": 3, b"line 1": 2, b"line 2": 2}
    assert told == [(k, b"%d at %d" % (n, at)) for at in (1100, 1200, 1300) for k, n in counts.items()]


# ------------------------------------------------------------------------------------------------------ at least once
@pytest.mark.parametrize("moment", MOMENTS)
def test_at_least_once_repeats_at_most_the_batch_that_was_under_way(moment, tmp_path, undisturbed):
    place, killer = ground("disk", tmp_path, WORDS), Killer(moment, 2)
    cluster = run_to_end(place, WORDS, killer, options=eager(exactly_once=False), inline=0)
    assert killer.landed == (0 if moment.split(" ", 1)[1] in START else 1)
    ((_, rows),) = outputs(place.log).items()
    ((_, expected),) = undisturbed[WORDS.build, "disk"][0].items()
    assert cluster.stores() == undisturbed[WORDS.build, "disk"][1]
    delivered, once = [row[1:] for row in rows], [row[1:] for row in expected]
    if moment in {f"after {DELIVERY}", f"before {MARKER}"}:
        extra = len(delivered) - len(once)
        assert extra > 0
        start = next(
            i for i in range(len(once) + 1) if delivered[i : i + extra] == delivered[i + extra : i + 2 * extra]
        )
        delivered[start : start + extra] = []
    assert delivered == once
    cluster.close()


# ---------------------------------------------------------------------------------------------------------- beside it
@pytest.mark.parametrize("moment", [m for m in MOMENTS if "owner" not in m and "takeover" not in m])
def test_delivery_and_upkeep_beside_the_batches_may_be_killed_too(moment, tmp_path, undisturbed):
    options = CommitOptions(max_undelivered=2, keep=2, purge_every=1, purge_delay_ms=0, compaction=eager().compaction)
    landed = 0
    runs = itertools.count()
    while not landed:  # upkeep may find no turn in a run as short as this
        place, killer = ground("disk", tmp_path / str(next(runs)), WORDS), Killer(moment, 1, 3)
        cluster = run_to_end(place, WORDS, killer, options=options, inline=0)
        assert (outputs(place.log), cluster.stores()) == undisturbed[WORDS.build, "disk"]
        cluster.close()
        landed = killer.landed


class KillingStorage:
    """A storage that kills its user before or after the nth file is created or deleted."""

    def __init__(self, storage, killer: Killer) -> None:
        self._storage, self._killer = storage, killer

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def create(self, name, data):
        with step("change", self._killer):
            return self._storage.create(name, data)

    def delete(self, name):
        with step("change", self._killer):
            self._storage.delete(name)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 60, 5))
def test_any_file_may_be_the_last_that_was_made_or_deleted(nth, when, tmp_path, undisturbed):
    place, killer = ground("disk", tmp_path, WORDS), Killer(f"{when} change", nth, nth + 9)
    mortal: Any = KillingStorage(place.storage, killer)
    place.storage = mortal
    cluster = run_to_end(place, WORDS, inline=0, limit=1)
    assert killer.landed == 2
    assert (outputs(place.log), cluster.stores()) == undisturbed[WORDS.build, "disk"]
    cluster.close()


def test_a_batch_without_a_manifest_never_happened(tmp_path):
    place = ground("disk", tmp_path, WORDS)
    cluster = Cluster(place, WORDS, limit=7, at_step=Killer(f"before {MANIFEST}", 1))
    with pytest.raises(Killed):
        cluster.run()
    cluster.kill()
    assert outputs(place.log) == {("out", 0): []}
    again = Cluster(place, WORDS, limit=1)
    again.run(1)
    assert {row[3] for row in outputs(place.log)[("out", 0)]} == {0}
    assert again.restored == ["undone", "undone", "undone"]
    again.close()
