"""Session stores against a plain dict of what was put."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from headrace.model.windows import Window, Windowed
from headrace.serde import STRING
from headrace.state.spec import SessionKind, StoreSpec
from tests.state.harness import ENGINES, LIST, StoreMachine, few_keys, machine, run_machine, texts

RETENTION, SEGMENT = 100_000, 60_000
times = st.sampled_from([0, 1, 59_999, 60_000, 100_000, 100_001, 160_001, 240_000])
spans = st.tuples(times, times).map(sorted).map(lambda span: Window(*span))


@dataclass
class Model:
    """`entries`: (key bytes, end, start) → value, until it is removed; expired ones too."""

    clock: int = -1
    lingers: bool = False  # with caching, what has expired is still shown
    entries: dict[tuple[bytes, int, int], str] = field(default_factory=dict)
    batches: dict[tuple[bytes, int, int], int] = field(default_factory=dict)  # place → batch that put it last

    @property
    def hidden(self):
        return -1 if self.lingers else self.clock - RETENTION

    def visible(self):
        return [
            (key.decode(), start, end, value)
            for (key, end, start), value in sorted(self.entries.items())
            if end > self.hidden
        ]


class SessionMachine(StoreMachine):
    spec = StoreSpec("sessions", SessionKind(RETENTION), STRING)

    def new_model(self):
        return Model(lingers=self.caching)

    def rows(self, entries):
        return [(session.key, *session.window, self.text(value)) for session, value in entries]

    @rule(key=few_keys, window=spans, value=st.none() | texts)
    def put(self, key, window, value):
        drops, model = self.drops, self.model
        self.store.put(Windowed(key, window), self.given(value))
        self.gone()
        model.clock = max(model.clock, window.end)
        horizon = model.clock - RETENTION
        late = window.end // SEGMENT < horizon // SEGMENT if self.spec.persistent else window.end <= horizon
        if not model.lingers:
            assert self.drops - drops == late
        else:  # a cache keeps it, and has the store behind it drop it once a batch
            place = (key.encode(), window.end, window.start)
            assert self.drops - drops == (late and value is not None and model.batches.get(place) != self.number)
        if model.lingers or not late:
            self.model_put(key, window, value)

    def model_put(self, key, window, value):
        place = (key.encode(), window.end, window.start)
        self.model.entries.pop(place, None)
        self.model.batches.pop(place, None)
        if value is not None:
            self.model.entries[place] = value
            self.model.batches[place] = self.number

    @rule(key=few_keys, window=spans)
    def remove(self, key, window):
        self.store.remove(Windowed(key, window))
        if self.spec.persistent:
            self.model.clock = max(self.model.clock, window.end)
        self.model_put(key, window, None)

    @rule(key=few_keys, window=spans)
    def fetch_session(self, key, window):
        expected = [row[3] for row in self.model.visible() if row[:3] == (key, *window)]
        assert self.text(self.store.fetch_session(key, *window)) == (expected[0] if expected else None)

    @rule(key=few_keys, earliest_end=times, latest_start=times)
    def find_sessions(self, key, earliest_end, latest_start):
        visible = [row for row in self.model.visible() if row[0] == key]
        expected = [row for row in visible if row[2] >= earliest_end and row[1] <= latest_start]
        assert self.rows(self.store.find_sessions(key, earliest_end, latest_start)) == self.found(expected)
        backward = self.store.backward_find_sessions(key, earliest_end, latest_start)
        assert self.rows(backward) == self.found(expected)[::-1]
        assert self.rows(self.store.fetch(key)) == self.found(visible)
        assert self.rows(self.store.backward_fetch(key)) == self.found(visible)[::-1]

    def found(self, rows):
        """By end; of those with one end, a store in memory gives the one that starts last first."""
        return rows if self.spec.persistent else sorted(rows, key=lambda row: (row[2], -row[1]))

    @rule()
    def all(self):
        assert self.rows(self.store.all()) == self.model.visible()

    @rule(first=times, last=times)
    def by_end(self, first, last):
        expected = sorted(
            (row for row in self.model.visible() if first <= row[2] <= last),
            key=lambda row: (row[2], row[1], row[0].encode()),
        )
        found = self.rows(self.store.by_end(first, last))
        assert [row for row in found if row[2] > self.model.hidden] == expected

    def committed(self):
        assert self.store.table.count() == len(self.model.visible())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("persistent", [True, False])
def test_a_session_store_shows_what_was_put_within_its_retention(engine, persistent):
    spec = StoreSpec("sessions", SessionKind(RETENTION), STRING, persistent=persistent)
    run_machine(machine(SessionMachine, spec=spec, engine=engine))


@pytest.mark.parametrize("caching", [False, True])
def test_a_session_store_keeps_values_apart_from_what_users_do_to_them(caching):
    run_machine(machine(SessionMachine, engine="disk", value_serde=LIST, caching=caching))
