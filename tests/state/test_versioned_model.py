"""Versioned stores against a list of the times at which a key changed."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from headrace.serde import STRING
from headrace.state.spec import StoreSpec, VersionedKind
from headrace.state.versioned import LATEST, NOT_PUT
from tests.state.harness import ENGINES, LIST, StoreMachine, few_keys, machine, run_machine, texts

HISTORY, SEGMENT = 6_000, 2_000
times = st.sampled_from([0, 1, 2, 1_999, 2_000, 3_000, 6_000, 6_001, 9_000, 12_345])


@dataclass
class Model:
    """`changes`: key → time of a change → value, None where the key was deleted."""

    clock: int = -1
    changes: dict[str, dict[int, str | None]] = field(default_factory=dict)

    def put(self, key, value, timestamp):
        if timestamp < self.clock - HISTORY:
            return NOT_PUT
        self.clock = max(self.clock, timestamp)
        changes = self.changes.setdefault(key, {})
        changes[timestamp] = value
        return min((time for time in changes if time > timestamp), default=LATEST)

    def at(self, key, time):
        changes = self.changes.get(key, {})
        found = max((at for at in changes if at <= time), default=None)
        return None if found is None or changes[found] is None else (changes[found], found)

    def latest(self, key):
        return self.at(key, 10**12)

    def versions(self, key):
        changes = self.changes.get(key, {})
        times = [*sorted(changes), None]
        return [(changes[at], at, end) for at, end in pairwise(times) if changes[at] is not None]


class VersionedMachine(StoreMachine):
    spec = StoreSpec("versions", VersionedKind(HISTORY), STRING)

    def new_model(self):
        return Model()

    def pair(self, record):
        assert record is None or record.valid_to is None
        return None if record is None else (self.text(record.value), record.timestamp)

    @rule(key=few_keys, value=st.none() | texts, timestamp=times)
    def put(self, key, value, timestamp):
        if value is None and (self.model.latest(key) or (None, None))[1] == timestamp:
            return  # Kafka may forget such a deletion; what it does exactly is in test_against_kafka
        drops = self.drops
        expected = self.model.put(key, value, timestamp)
        assert self.store.put(key, self.given(value), timestamp) == expected
        self.gone()
        assert self.drops - drops == (expected == NOT_PUT)

    @rule(key=few_keys, timestamp=times)
    def delete(self, key, timestamp):
        if (self.model.latest(key) or (None, None))[1] == timestamp:
            return
        old = self.model.at(key, timestamp)
        expected = None if self.model.put(key, None, timestamp) == NOT_PUT else old
        assert self.pair(self.store.delete(key, timestamp)) == expected

    @rule(key=few_keys)
    def get(self, key):
        assert self.pair(self.store.get(key)) == self.model.latest(key)

    @rule(key=few_keys, as_of=times)
    def get_as_of(self, key, as_of):
        expected = self.model.at(key, as_of)
        if as_of < self.model.clock - HISTORY and expected != self.model.latest(key):
            expected = None
        assert self.pair(self.store.get(key, as_of)) == expected

    @rule(key=few_keys, first=times, last=times)
    def history(self, key, first, last):
        horizon = self.model.clock - HISTORY
        expected = [
            (value, at, end)
            for value, at, end in self.model.versions(key)
            if at <= last
            and (end is None or (end > first and end // SEGMENT >= horizon // SEGMENT and last >= horizon))
        ]
        found = [(self.text(value), at, end) for value, at, end in self.store.history(key, first, last)]
        assert found == expected

    @rule()
    def latest(self):
        expected = {key: self.model.latest(key) for key in self.model.changes if self.model.latest(key) is not None}
        found = [(key, self.pair(record)) for key, record in self.store.latest()]
        assert found == sorted(expected.items(), key=lambda entry: entry[0].encode())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("serde", [STRING, LIST], ids=repr)
def test_a_versioned_store_remembers_what_a_key_had_and_when(engine, serde):
    run_machine(machine(VersionedMachine, engine=engine, value_serde=serde))
