"""The same records give the same results however they are cut into batches, with restarts between any two."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.properties.cases import AT_ONCE, ONE_BY_ONE, RESTARTED, Case, Piped, random_case
from tests.properties.claims import Claim
from tests.properties.functions import Spec
from tests.properties.running import Ran, check, expect, profile, run, seeds

pytestmark = pytest.mark.slow


@given(seed=seeds)
@profile
def test_without_caching_every_cut_gives_the_same(seed: int):
    check(every_cut_gives_the_same, random_case(seed), seed)


def every_cut_gives_the_same(case: Case) -> None:
    expected = run(case, AT_ONCE)
    for name, cut, engine in cuts_of(case):
        actual = run(case, cut, engine=engine)
        for part in Ran._fields:  # what is committed has buffers, clocks and the stores of joins, too
            expect(f"{name}, {part}", getattr(actual, part), getattr(expected, part))


def test_punctuators_that_are_due_together_fire_in_the_same_order_after_a_restart():
    # At 309 the second fires, as it was due at 0, then the first, as it was due at 15: both are due again at 315.
    topology: list[Spec] = [{"id": "in", "op": "stream", "topic": "in", "key": "string", "value": "string"}]
    for name, schedule in {"first": {"every_ms": 10, "start_ms": 15}, "second": {"every_ms": 7}}.items():
        punctuator = {"fn": "count_punctuate", "clock": "stream", "store": f"{name}-store", **schedule}
        topology += [
            {"op": "store", "store": f"{name}-store", "key": "string", "value": "long"},
            {"id": f"{name}-counts", "op": "process", "from": "in", "processor": punctuator},
            {"id": name, "op": "mapValues", "from": f"{name}-counts", "value": {"fn": "append", "s": name}},
        ]
    topology += [
        {"id": "both", "op": "merge", "from": "first", "other": "second"},
        {"op": "to", "from": "both", "topic": "out"},
    ]
    every_cut_gives_the_same(Case(topology, {}, [Piped("a", "x", 309, []), Piped("a", "x", 400, [])]))


def cuts_of(case: Case):
    return [
        ("one by one", ONE_BY_ONE, "memory"),
        ("one by one with restarts", RESTARTED, "memory"),
        ("batches", case.cut, "memory"),
        ("batches on disk", case.cut, "disk"),
    ]


@given(seed=seeds)
@profile
def test_with_caching_every_cut_gives_the_same_tables(seed: int):
    check(every_cut_gives_the_same_tables, random_case(seed, steady=True), seed)


def every_cut_gives_the_same_tables(case: Case) -> None:
    expected = run(case, AT_ONCE, caching=True)
    for name, cut, engine in cuts_of(case):
        expect_claimed(name, case, run(case, cut, caching=True, engine=engine), expected)
    if not case.says("windowedBy"):  # a cache shows windows longer
        expect_claimed("without caching", case, run(case, AT_ONCE), expected, alike=True)


def expect_claimed(name: str, case: Case, actual: Ran, expected: Ran, *, alike: bool = False) -> None:
    """`alike`: only what is the same without caching, too."""
    for topic, claim in case.sinks.items():
        if claim.alike or not alike:
            expect(f"{name}, {topic}", written(actual, topic, claim), written(expected, topic, claim))
    for store, claim in case.stores.items():
        if claim.alike or not alike:
            expect(f"{name}, {store}", kept(actual, store, claim), kept(expected, store, claim))


def written(ran: Ran, topic: str, claim: Claim) -> Any:
    """What is claimed of a topic: all its records, or the last value of every key."""
    records = ran.outputs.get(topic, [])
    if claim.exact:
        return records
    table = {key: (value, timestamp if claim.times else None) for key, value, timestamp, _ in records}
    return {key: row for key, row in table.items() if row[0] is not None and not (claim.zeros and row[0] == 0)}


def kept(ran: Ran, name: str, claim: Claim) -> Any:
    """What is claimed of a store."""
    entries = ran.stores.get(name, [])
    if claim.times and not claim.zeros:
        return entries
    table = {key: value[0] for key, value in entries}
    return {key: value for key, value in table.items() if not (claim.zeros and value == 0)}
