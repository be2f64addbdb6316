"""What the tests of stores share: both engines, kinds of serdes, and a machine that compares a store with a model."""

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from headrace.serde import STRING
from headrace.serde.protocol import Serde, serde_of
from headrace.state.delta import apply
from headrace.state.engine import Engine, MemoryEngine, Version
from headrace.state.lmdb import LmdbEngine
from headrace.state.spec import StoreSpec
from headrace.state.task_state import TaskState
from tests.profiles import examples

# HEADRACE_STEPS=10000 makes every machine take that many steps, others in every run.
STEPS = int(os.environ.get("HEADRACE_STEPS", examples(600)))
LENGTH = 50

ENGINES = ("memory", "disk")

LIST = serde_of(
    lambda value: json.dumps(value).encode(), json.loads, name="list"
)  # values that can be changed in place

# Of all lengths, with zeros, the beginnings of one another, and long enough to share a bucket of LMDB.
KEYS = ("", "a", "ab", "b", "a\0", "a\0b", "\0", "é", "x" * 430, "x" * 435, "x" * 440, "x" * 5000, "x" * 436 + "\0y")

keys = st.sampled_from(KEYS)
few_keys = st.sampled_from(["", "a", "a\0", "x" * 440, "x" * 5000])  # so that calls meet
texts = st.text(max_size=3)


def opened_state(spec: StoreSpec, engine: Engine, *, caching: bool = False, dropped=lambda _, __: None) -> TaskState:
    return TaskState.open({spec.name: spec}, engine, key=STRING, value=STRING, caching=caching, dropped=dropped)


def contents(engine: Engine) -> list[tuple[bytes, bytes]]:
    return list(engine.scan(b"", None))


def run_machine(machine: type[RuleBasedStateMachine]) -> None:
    examples = max(1, STEPS // LENGTH)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=LENGTH,
            deadline=None,
            database=None,
            derandomize="HEADRACE_STEPS" not in os.environ,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


class StoreMachine(RuleBasedStateMachine):
    """Does to a store what it does to a model; batches are committed, rolled back, undone, and the state reopened."""

    spec: ClassVar[StoreSpec]
    engine: ClassVar[str] = "memory"
    value_serde: ClassVar[Serde] = STRING
    caching: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.memory = MemoryEngine()
        self.replica = MemoryEngine()
        self.drops = 0
        self.number = 0
        self.model = self.saved = self.new_model()
        self.model = copy.deepcopy(self.saved)
        self.before: Any = None  # the model of the version before the last one, while it can be undone
        self.open()

    def new_model(self) -> Any:
        raise NotImplementedError

    def open(self) -> None:
        spec = StoreSpec(**{**self._fields(), "value": self.value_serde, "caching": self.caching})
        engine = self.memory if self.engine == "memory" else LmdbEngine(Path(self.directory.name), map_size=1 << 20)
        self.state = opened_state(spec, engine, caching=self.caching, dropped=self.count_drops)
        self.store = self.state.store(spec.name)

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self.spec, name) for name in self.spec.__slots__}

    def count_drops(self, _: str, count: int) -> None:
        self.drops += count

    # What the store is given and what it gives are changed in place afterwards: that must not reach it.
    def given(self, text: str | None) -> Any:
        if text is None or self.value_serde is STRING:
            return text
        self.in_hand = [text]
        return self.in_hand

    def gone(self) -> None:
        if self.value_serde is not STRING and not self.caching and hasattr(self, "in_hand"):
            self.in_hand.append("changed by the user")

    def text(self, value: Any) -> str | None:
        if value is None or self.value_serde is STRING:
            return value
        (text,) = value
        if not self.caching:
            value.append("changed by the user")
        return text

    @rule()
    def commit(self) -> None:
        self.number += 1
        apply(self.state.commit(Version(self.number, "attempt")), self.replica)
        self.before, self.saved = self.saved, copy.deepcopy(self.model)
        assert contents(self.replica) == contents(self.state.engine)
        self.committed()

    def committed(self) -> None:
        pass

    @rule()
    def rollback(self) -> None:
        self.state.rollback()
        self.model = copy.deepcopy(self.saved)

    @precondition(lambda self: self.before is not None)
    @rule()
    def undo(self) -> None:
        self.state.undo()
        self.replica.undo()
        self.model, self.saved, self.before = copy.deepcopy(self.before), self.before, None
        assert contents(self.replica) == contents(self.state.engine)

    @rule()
    def reopen(self) -> None:
        self.state.close()
        self.model = copy.deepcopy(self.saved)
        self.open()

    def teardown(self) -> None:
        self.state.close()
        self.directory.cleanup()


def machine(kind: type[RuleBasedStateMachine], /, **changes: Any) -> type[RuleBasedStateMachine]:
    """A machine like this one, with other settings."""
    return type(kind.__name__, (kind,), changes)
