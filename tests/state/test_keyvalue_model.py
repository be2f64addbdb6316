"""Key-value stores against a dict, and LRU stores against an ordered one."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from headrace.serde import STRING
from headrace.state.spec import KeyValueKind, LruKind, StoreSpec
from tests.state.harness import ENGINES, LIST, StoreMachine, keys, machine, run_machine, texts

MODES = {"shared": (STRING, False), "encoded": (LIST, False), "held": (LIST, True)}


def by_bytes(entries):
    return sorted(entries, key=lambda entry: entry[0].encode())


class KeyValueMachine(StoreMachine):
    spec = StoreSpec("totals", KeyValueKind(), STRING)

    def new_model(self):
        return {}

    def read(self, entries):
        return [(key, self.text(value)) for key, value in entries]

    @rule(key=keys, value=st.none() | texts)
    def put(self, key, value):
        self.store.put(key, self.given(value))
        self.gone()
        self.model_put(key, value)

    def model_put(self, key, value):
        if value is None:
            self.model.pop(key, None)
        else:
            self.model[key] = value

    @rule(key=keys, value=texts)
    def put_if_absent(self, key, value):
        old = self.model_get(key)
        assert self.text(self.store.put_if_absent(key, self.given(value))) == old
        self.gone()
        if old is None:
            self.model_put(key, value)

    @rule(key=keys)
    def delete(self, key):
        assert self.text(self.store.delete(key)) == self.model.pop(key, None)

    @rule(key=keys)
    def get(self, key):
        assert self.text(self.store.get(key)) == self.model_get(key)

    def model_get(self, key):
        return self.model.get(key)

    @rule(key=keys)
    def committed_value(self, key):
        assert self.text(self.store.table.committed(self.store.key_bytes(key))) == self.saved.get(key)

    @rule(low=st.none() | keys, high=st.none() | keys)
    def scan(self, low, high):
        expected = [
            (key, value)
            for key, value in by_bytes(self.model.items())
            if (low is None or low.encode() <= key.encode()) and (high is None or key.encode() <= high.encode())
        ]
        assert self.read(self.store.range(low, high)) == expected
        assert self.read(self.store.reverse_range(low, high)) == expected[::-1]

    @rule(prefix=keys)
    def prefix_scan(self, prefix):
        expected = [entry for entry in by_bytes(self.model.items()) if entry[0].startswith(prefix)]
        assert self.read(self.store.prefix_scan(prefix)) == expected

    @rule()
    def all(self):
        assert self.read(self.store.all()) == by_bytes(self.model.items())
        assert self.read(self.store.reverse_all()) == by_bytes(self.model.items())[::-1]
        assert self.store.approximate_size == len(self.model)

    @rule(key=keys, value=texts)
    def change_while_scanning(self, key, value):
        expected = by_bytes(self.model.items())
        scan = self.store.all()
        seen = [next(scan)] if expected else []
        self.store.put(key, self.given(value))
        self.gone()
        for other in list(self.model)[::2]:
            self.store.delete(other)
            self.model_put(other, None)
        self.model_put(key, value)
        self.store.put(key, self.given(value))
        self.gone()
        assert self.read([*seen, *scan]) == expected


class LruMachine(KeyValueMachine):
    """The model is a dict in the order of use."""

    spec = StoreSpec("recent", LruKind(3), STRING)

    def model_put(self, key, value):
        self.model.pop(key, None)
        if value is not None:
            self.model[key] = value
            while len(self.model) > 3:
                del self.model[next(iter(self.model))]

    def model_get(self, key):
        if key in self.model:
            self.model[key] = self.model.pop(key)
        return self.model.get(key)

    def committed_value(self, key):  # an LRU store has none: it is no table's store
        pass

    @rule(key=keys)
    def look_without_using(self, key):
        assert self.text(self.store.peek(key)) == self.model.get(key)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", MODES)
def test_a_key_value_store_is_a_sorted_dict(engine, mode):
    serde, caching = MODES[mode]
    run_machine(machine(KeyValueMachine, engine=engine, value_serde=serde, caching=caching))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("serde", [STRING, LIST], ids=repr)
def test_an_lru_store_forgets_the_key_that_was_not_used_for_longest(engine, serde):
    run_machine(machine(LruMachine, engine=engine, value_serde=serde))
