"""Window stores against a plain list of what was put."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from headrace.serde import STRING
from headrace.state import window
from headrace.state.spec import StoreSpec, WindowKind
from tests.state.harness import ENGINES, LIST, StoreMachine, few_keys, machine, run_machine, texts

SIZE, RETENTION = 10, 100_000
SEGMENT = 60_000
times = st.sampled_from([0, 1, 59_999, 60_000, 100_000, 100_001, 160_001, 240_000])


@dataclass
class Model:
    """`entries`: (key bytes, start, arrival) → value, until it is deleted; expired ones too."""

    clock: int = -1
    lingers: bool = False  # with caching, what has expired is still shown
    arrivals: int = 0
    drops: int = 0
    held: int = 0  # windows from here on are waited for
    entries: dict[tuple[bytes, int, int], str] = field(default_factory=dict)
    batches: dict[tuple[bytes, int, int], int] = field(default_factory=dict)  # place → batch that put it last

    @property
    def hidden(self):
        return -1 if self.lingers else self.clock - RETENTION

    def visible(self, first=0, last=10**12):
        return [
            (key.decode(), start, value)
            for (key, start, _), value in sorted(self.entries.items())
            if max(first, self.hidden + 1) <= start <= last
        ]


class WindowMachine(StoreMachine):
    spec: ClassVar[Any] = StoreSpec("windows", WindowKind(RETENTION, SIZE), STRING)

    def new_model(self):
        return Model(lingers=self.caching)

    @property
    def duplicates(self):
        return self.spec.kind.retain_duplicates

    def rows(self, entries):
        rows = [(*key, value) for key, value in entries]
        assert all(window.end == window.start + SIZE for _, window, _ in rows)
        return [(key, window.start, self.text(value)) for key, window, value in rows]

    @rule(key=few_keys, value=st.none() | texts, start=times)
    def put(self, key, value, start):
        drops = self.drops
        self.store.put(key, self.given(value), start)
        self.gone()
        self.model_put(key.encode(), value, start)
        assert self.drops - drops == self.model.drops
        self.model.drops = 0

    def model_put(self, key, value, start):
        model = self.model
        if value is None and self.duplicates and self.spec.persistent:
            return
        model.clock = max(model.clock, start)
        horizon = model.clock - RETENTION
        late = start // SEGMENT < horizon // SEGMENT if self.spec.persistent else start <= horizon
        if late and not model.lingers:
            model.drops += 1
            return
        if late:  # a cache keeps it, and has the store behind it drop it once a batch
            model.drops += value is not None and model.batches.get((key, start, 0)) != self.number
        if value is not None:
            model.arrivals += self.duplicates
            model.entries[key, start, model.arrivals] = value
            model.batches[key, start, model.arrivals] = self.number
        elif not self.duplicates:
            model.entries.pop((key, start, 0), None)
            model.batches.pop((key, start, 0), None)

    @rule(key=few_keys, first=times, last=times)
    def fetch(self, key, first, last):
        expected = [(start, value) for k, start, value in self.model.visible(first, last) if k == key]
        assert [(start, self.text(value)) for start, value in self.store.fetch(key, first, last)] == expected
        backward = [(start, self.text(value)) for start, value in self.store.backward_fetch(key, first, last)]
        assert backward == expected[::-1]

    @rule(key=few_keys, start=times)
    def fetch_one(self, key, start):
        if not self.duplicates:
            expected = [value for k, at, value in self.model.visible(start, start) if k == key]
            assert self.text(self.store.fetch(key, start)) == (expected[0] if expected else None)
            assert self.text(self.store.table.committed(self.store.key_bytes(key, start))) == self.committed_value(
                key, start
            )

    def store_committed(self, key, start):
        return self.store.table.committed(self.store.key_bytes(key, start))

    def committed_value(self, key, start):
        found = self.saved.entries.get((key.encode(), start, 0))
        return None if start <= self.saved.hidden else found

    @rule(first=times, last=times)
    def fetch_all(self, first, last):
        assert self.rows(self.store.fetch_all(first, last)) == self.model.visible(first, last)
        assert self.rows(self.store.backward_fetch_all(first, last)) == self.model.visible(first, last)[::-1]

    @rule()
    def all(self):
        assert self.rows(self.store.all()) == self.model.visible()
        assert self.rows(self.store.backward_all()) == self.model.visible()[::-1]

    @rule(first=times, last=times)
    def by_time(self, first, last):
        expected = sorted(self.model.visible(first, last), key=lambda row: (row[1], row[0].encode()))
        found = self.rows(self.store.by_time(first, last))
        assert [row for row in found if row[1] > self.model.hidden] == expected

    def committed(self):
        if self.spec.kind.by_time:  # else they go a whole stretch of time at once
            assert self.store.table.count() == len(self.model.visible())


class HeldBackMachine(WindowMachine):
    """An operator waits for windows: they stay, however old, until it has seen them."""

    spec = StoreSpec("windows", WindowKind(RETENTION, SIZE, by_time=True), STRING)

    def open(self):
        super().open()
        self.hold_back(self.model.held)

    @rule(time=times)
    def hold_back(self, time):
        self.model.held = max(time, self.model.held)
        self.store.hold_back(self.model.held)

    @rule(last=times)
    def emit(self, last):
        waiting = [
            (key.decode(), at, value) for (key, at, _), value in self.model.entries.items() if at >= self.model.held
        ]
        expected = sorted((row for row in waiting if row[1] <= last), key=lambda row: (row[1], row[0].encode()))
        assert self.rows(self.store.by_time(self.model.held, last)) == expected

    def committed_value(self, key, start):
        return self.text(
            self.store.table.committed(self.store.key_bytes(key, start))
        )  # whether it is still there is not the point here

    def committed(self):
        pass


VARIANTS = [
    pytest.param(WindowKind(RETENTION, SIZE, **settings), persistent, id=f"{name}-{where}")
    for name, settings in {
        "single": {},
        "by time": {"by_time": True},
        "duplicates": {"retain_duplicates": True},
    }.items()
    for persistent, where in ((True, "persistent"), (False, "memory"))
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind, persistent", VARIANTS)
def test_a_window_store_shows_what_was_put_within_its_retention(engine, kind, persistent):
    spec = StoreSpec("windows", kind, STRING, persistent=persistent)
    run_machine(machine(WindowMachine, spec=spec, engine=engine))


DUPLICATES = StoreSpec("windows", WindowKind(RETENTION, SIZE, retain_duplicates=True), STRING)


def test_duplicates_are_the_same_when_hardly_any_are_at_hand(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(window, "AT_HAND", 2)
    run_machine(machine(WindowMachine, spec=DUPLICATES, engine="disk"))


@pytest.mark.parametrize("spec", [WindowMachine.spec, DUPLICATES], ids=["single", "duplicates"])
@pytest.mark.parametrize("caching", [False, True])
def test_a_window_store_keeps_values_apart_from_what_users_do_to_them(caching, spec):
    run_machine(machine(WindowMachine, spec=spec, engine="disk", value_serde=LIST, caching=caching))


@pytest.mark.parametrize("engine", ENGINES)
def test_windows_that_are_waited_for_stay(engine):
    run_machine(machine(HeldBackMachine, engine=engine))
