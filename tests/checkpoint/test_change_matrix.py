"""Every change that needs no decision: afterwards the state is that of a run which had the new form from the start.

Each case runs the first form over the first records, stops, and starts the second form, which goes on with the rest.
The application has every kind of store. HEADRACE_KEYS=100000, which `make test-changes` sets, is the number of keys.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import defaultdict
from copy import deepcopy
from typing import Any

import pytest

from headrace import serde
from headrace.checkpoint.storage import DiskStorage, open_storage
from headrace.runtime.partitioning import CELLS
from headrace.state.task_state import PREFIX, table_prefix
from tests.checkpoint.cluster import Cluster, Ground, outputs
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.test_changed_topologies import PARTITIONS, TOPICS, build, cells, feed, program, rows, run

MANY = int(os.environ.get("HEADRACE_KEYS", "0"))
KEYS, ROUNDS = (MANY, 1) if MANY else (12, 4)
LATER = min(KEYS, 300)  # keys that get records after the change
LIMIT = max(50, KEYS // 10)  # records of a partition in a batch

pytestmark = [pytest.mark.slow, *([pytest.mark.timeout(4 * 3600)] if MANY else [])]
WIDE = {"value": {"value": serde.DOUBLE, "migrate": float, "migrate_from": serde.LONG}, "wide": True}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an operator is added": ({}, {"filtered": True}),
    "an operator is removed": ({"filtered": True}, {}),
    "generated names shift": ({"named": False}, {"named": False, "filtered": True}),
    "stores and operators get names": ({"named": False}, {}),
    "sub-topologies get other numbers": ({}, {"first": True}),
    "numbers and names shift together": ({"named": False}, {"named": False, "first": True, "filtered": True}),
    "a sub-topology and its stores are removed": ({"first": True}, {}),
    "stores are removed": ({}, {"customers": False}),
    "stores are added": ({"customers": False}, {}),
    "a store moves to a sub-topology of its own": ({}, {"again": True}),
    "a store moves back": ({"again": True}, {}),
    "retention and grace": ({}, {"retention": 5_000, "grace": 300}),
    "history": ({}, {"history": 50_000}),
    "caching": ({}, {"caching": False}),
    "values are migrated": ({}, WIDE),
    "values are migrated, and names shift": ({"named": False}, {"named": False, "filtered": True, **WIDE}),
}
NEW = {"news-counts", "customers", "current", "latest"}  # stores that begin empty where they are added


class Prepared:
    """Applications that have read the first records: each form runs once, and every test gets a copy."""

    def __init__(self, folder) -> None:
        self.folder, self.known = folder, dict[str, Ground]()

    def ground(self, to, form: dict[str, Any], partitions: int = PARTITIONS) -> Ground:
        name = repr((sorted(form.items()), partitions))
        if name not in self.known:
            self.known[name] = self._run(self.folder / str(len(self.known)), form, partitions)
        log, storage = self.known[name].log, self.known[name].storage
        assert isinstance(storage, DiskStorage)
        shutil.copytree(storage.directory, to)
        copied = MemoryLog()
        copied._topics, copied.markers = dict(log._topics), dict(log.markers)
        copied.rows = defaultdict(list, {at: list(some) for at, some in log.rows.items()})
        return Ground(log=copied, storage=open_storage(to), clock=deepcopy(self.known[name].clock))

    def _run(self, folder, form: dict[str, Any], partitions: int) -> Ground:
        log = MemoryLog(**dict.fromkeys(TOPICS, partitions), out=PARTITIONS)
        ground = Ground(log=log, storage=open_storage(folder))
        feed(log, 0, KEYS, ROUNDS, partitions, topics_of(form))
        began = time.perf_counter()
        run(ground, program(**form), LIMIT).close()
        tell(began, f"to read {KEYS:,} keys with {name_of(form)}")
        return ground


def topics_of(form: dict[str, Any]) -> list[str]:
    return [topic for topic in TOPICS if topic != "news" or form.get("first")]


def tell(began: float, what: str) -> None:
    if MANY:
        sys.stderr.write(f"{time.perf_counter() - began:8.1f} s {what}\n")


def name_of(form: dict[str, Any]) -> str:
    return ", ".join(name for name in form if name not in {"more", "value"}) or "the plain form"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Prepared:
    return Prepared(tmp_path_factory.mktemp("prepared"))


def start(ground: Ground, form: dict[str, Any]) -> Cluster:
    """Starts the new form, and tells how long that took."""
    began = time.perf_counter()
    cluster = Cluster(ground, program(**form), limit=LIMIT)
    tell(began, f"to start with {name_of(form)}")
    cluster.run()
    return cluster


@pytest.mark.parametrize("case", CASES)
def test_a_changed_topology_goes_on_as_if_it_had_been_so_from_the_start(case, prepared, tmp_path):
    before, after = ({"more": True, **form} for form in CASES[case])
    changed = prepared.ground(tmp_path / "changed", before)
    fresh = prepared.ground(tmp_path / "fresh", before if "grace" in after else after)
    written = [{at: len(some) for at, some in outputs(where.log).items()} for where in (changed, fresh)]
    for where in (changed, fresh):
        feed(where.log, ROUNDS, LATER, max(2, ROUNDS))
    ours, theirs = start(changed, after), start(fresh, after)
    added = NEW & theirs.graph.stores.keys() - build(**before).graph().stores.keys()
    kept = {name for name in theirs.graph.stores if not name.startswith(("KTABLE-FK", *added)) or not added}
    assert rows(ours, kept) == rows(theirs, kept)
    assert len({key for _, table, key in rows(ours, {"moving"}) if table == "moving"}) == KEYS
    if not added:
        known = cells(ours)
        assert {name: known.get(name) for name in cells(theirs)} == cells(theirs)
        tails = [
            {at: [row[1:] for row in some[start[at] :]] for at, some in outputs(where.log).items()}
            for where, start in zip((changed, fresh), written, strict=True)
        ]
        assert tails[0] == tails[1]
    ours.close()
    theirs.close()


# ---- other numbers of partitions
def rows_by_task(cluster: Cluster) -> dict[tuple[Any, str], set[tuple[bytes, bytes]]]:
    """All rows of all stores, as far as they do not depend on the neighbours of a key.

    Sequence numbers of join windows do; updates in a suppress buffer have the old partition.
    """
    joins = {
        table_prefix(name) for name, spec in cluster.graph.stores.items() if getattr(spec.kind, "retain_duplicates", 0)
    }
    suppressed = {table_prefix(name) for name in cluster.graph.stores if "SUPPRESS" in name}
    lru = table_prefix("recent")  # its values begin with the number of their use
    found = defaultdict[tuple[Any, str], set[tuple[bytes, bytes]]](set)
    for task, some in cluster.stores().items():
        for key, value in some:
            prefix = key[:PREFIX]
            if prefix != CELLS and task.subtopology in cluster.plan.stages:
                place = key[PREFIX:-4] if prefix in joins else key[PREFIX:]
                kept = b"" if prefix in suppressed else value[8:] if prefix == lru else value
                found[task, prefix.hex()].add((place, kept))
    return found


def values_of(log: Any) -> dict[bytes, tuple[list[bytes], list[bytes], bytes | None]]:
    """What was written for every key: counts in their order, joins in any order, the last one by a foreign key."""
    found = defaultdict[bytes, list[bytes]](list)
    for some in outputs(log).values():
        for _, key, value, *_ in some:
            found[key].append(value)
    found.pop(b"told", None)  # by a punctuator, one for each task
    return {
        key: (
            [value for value in some if value.isdigit()],
            sorted(value for value in some if b"+" in value),
            next((value for value in reversed(some) if b" of " in value), None),
        )
        for key, some in found.items()
    }


SIZES = {
    "source topics grow": ({}, 2, {}, 3),
    "source topics grow, and names shift": ({"named": False}, 2, {"named": False, "filtered": True, "first": True}, 5),
    "source topics grow, and a store moves": ({}, 2, {"again": True}, 3),
    "source topics grow, and values are migrated": ({}, 2, WIDE, 3),
    "more tasks behind repartitions": ({"behind": 2}, 2, {"behind": 5}, 2),
    "fewer tasks behind repartitions": ({"behind": 5}, 2, {"behind": 2}, 2),
    "more tasks behind repartitions, and names shift": (
        {"behind": 2, "named": False},
        2,
        {"behind": 3, "named": False, "filtered": True},
        2,
    ),
}


@pytest.mark.parametrize("case", SIZES)
def test_state_is_divided_as_if_it_had_been_so_from_the_start(case, prepared, tmp_path):
    before, few, after, many = SIZES[case]
    before, after = ({"more": True, "steady": True, **form} for form in (before, after))
    changed, fresh = (
        prepared.ground(tmp_path / "changed", before, few),
        prepared.ground(tmp_path / "fresh", after, many),
    )
    for topic in TOPICS:
        changed.log.topics()[topic] = fresh.log.topics()[topic]
    for where in (changed, fresh):
        feed(where.log, ROUNDS, LATER, max(2, ROUNDS), many)
    if "first" in after and "first" not in before:  # a source that is new begins with its first record
        for at in [at for at in fresh.log.rows if at.topic == "news"]:
            changed.log.rows[at] = list(fresh.log.rows[at])
    ours, theirs = start(changed, after), start(fresh, after)
    found = rows_by_task(ours)
    assert found == rows_by_task(theirs)
    assert sum(len(some) for (_, table), some in found.items() if table == table_prefix("moving").hex()) == KEYS
    assert values_of(changed.log) == values_of(fresh.log)
    ours.close()
    theirs.close()
