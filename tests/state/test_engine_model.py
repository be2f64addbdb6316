"""Both engines against a dict: commits, undo, reopening, scans in both directions, keys of any length."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.state.engine import MemoryEngine, Version
from headrace.state.lmdb import LmdbEngine
from tests.state.harness import ENGINES, machine, run_machine

STEMS = [b"", b"x" * 438, b"x" * 440, b"x" * 441, b"y" * 4990]
ends = st.binary(max_size=4) | st.sampled_from([b"\x00", b"\x01", b"\xff\xff"])
keys = st.builds(bytes.__add__, st.sampled_from(STEMS), ends).filter(bool)
values = st.tuples(st.binary(max_size=3), st.sampled_from([1, 1, 1, 1_000, 100_000]))  # what is repeated, how often


class EngineMachine(RuleBasedStateMachine):
    kind = "memory"

    @initialize()
    def start(self):
        self.directory = tempfile.TemporaryDirectory()
        self.engine = self.open()
        self.model: dict[bytes, bytes] = {}
        self.version: Version | None = None
        self.before: Any = None

    def open(self):
        return MemoryEngine() if self.kind == "memory" else LmdbEngine(Path(self.directory.name), map_size=1 << 16)

    @rule(changes=st.dictionaries(keys, st.none() | values, max_size=12))
    def commit(self, changes):
        changes = {key: value and value[0] * value[1] for key, value in changes.items()}
        self.before = (dict(self.model), self.version)
        self.version = Version(0 if self.version is None else self.version.number + 1, "attempt é")
        self.engine.commit(sorted(changes.items()), self.version)
        self.model.update({key: value for key, value in changes.items() if value is not None})
        for key in [key for key, value in changes.items() if value is None]:
            self.model.pop(key, None)

    @precondition(lambda self: self.before is not None)
    @rule()
    def undo(self):
        self.engine.undo()
        (self.model, self.version), self.before = self.before, None

    @precondition(lambda self: self.kind == "disk")
    @rule()
    def reopen(self):
        self.engine.close()
        self.engine = self.open()

    @rule(key=keys)
    def get(self, key):
        assert self.engine.get(key) == self.model.get(key)
        for stored in list(self.model)[:3]:
            assert self.engine.get(stored) == self.model[stored]

    @rule(low=keys | st.just(b""), high=st.none() | keys)
    def scan(self, low, high):
        expected = [(key, self.model[key]) for key in sorted(self.model) if low <= key and (high is None or key < high)]
        assert list(self.engine.scan(low, high)) == expected
        assert list(self.engine.scan(low, high, reverse=True)) == expected[::-1]
        assert self.engine.version == self.version

    def teardown(self):
        self.engine.close()
        self.directory.cleanup()


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_is_a_sorted_dict_that_goes_one_version_back(kind):
    run_machine(machine(EngineMachine, kind=kind))
