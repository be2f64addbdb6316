"""The same records give the same results however they are cut into batches, with restarts between any two."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from tests.properties.cases import AT_ONCE, ONE_BY_ONE, RESTARTED, Case, Cuts, cases, cuts
from tests.properties.claims import Claim
from tests.properties.running import Ran, profile, run


@given(case=cases(), cut=cuts, other_cut=cuts)
@profile
def test_without_caching_every_cut_gives_the_same(case: Case, cut: Cuts, other_cut: Cuts):
    expected = run(case, AT_ONCE)
    for given_cut, engine in [(ONE_BY_ONE, "memory"), (RESTARTED, "memory"), (cut, "memory"), (other_cut, "disk")]:
        actual = run(case, given_cut, engine=engine)
        assert actual.outputs == expected.outputs
        assert actual.dropped == expected.dropped
        assert actual.stores == expected.stores
        assert actual.committed == expected.committed  # buffers, clocks and the stores of joins, too


@given(case=cases(steady=True), cut=cuts, other_cut=cuts)
@profile
def test_with_caching_every_cut_gives_the_same_tables(case: Case, cut: Cuts, other_cut: Cuts):
    expected = run(case, AT_ONCE, caching=True)
    for given_cut, engine in [(ONE_BY_ONE, "memory"), (RESTARTED, "memory"), (cut, "memory"), (other_cut, "disk")]:
        check_tables(case, run(case, given_cut, caching=True, engine=engine), expected)
    if not case.says("windowedBy"):  # a cache shows windows longer
        check_tables(case, run(case, AT_ONCE), expected, alike=True)


def check_tables(case: Case, actual: Ran, expected: Ran, *, alike: bool = False) -> None:
    """`alike`: only what is the same without caching, too."""
    for topic, claim in case.sinks.items():
        if claim.alike or not alike:
            assert written(actual, topic, claim) == written(expected, topic, claim), topic
    for name, claim in case.stores.items():
        if claim.alike or not alike:
            assert kept(actual, name, claim) == kept(expected, name, claim), name


def written(ran: Ran, topic: str, claim: Claim) -> Any:
    """What is claimed of a topic: all its records, or the last value of every key."""
    records = ran.outputs.get(topic, [])
    if claim.exact:
        return records
    table = {key: (value, timestamp if claim.times else None) for key, value, timestamp, _ in records}
    return {key: row for key, row in table.items() if row[0] is not None and not (claim.zeros and row[0] == bytes(8))}


def kept(ran: Ran, name: str, claim: Claim) -> Any:
    """What is claimed of a store."""
    entries = ran.stores.get(name, [])
    if claim.times and not claim.zeros:
        return entries
    table = {key: value[0] for key, value in entries}
    return {key: value for key, value in table.items() if not (claim.zeros and value == 0)}
