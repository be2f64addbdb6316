"""The embedded log against dicts: appends, ranges, retention, compaction, groups and deliveries, in any order."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.errors import GroupInUseError, OffsetOutOfRangeError, ProducerFencedError
from headrace.log.embedded import chunks, compaction
from headrace.log.protocol import Extent, LogRow, ProducerSequence, Records
from headrace.model.ids import TopicPartition
from tests.clocks import ManualClock
from tests.log.harness import NOW, file_log, rows, scratch
from tests.profiles import examples

PLACES = [TopicPartition("plain", 0), TopicPartition("plain", 1), TopicPartition("compacted", 0)]
COMPACTED = PLACES[2]
TOMBSTONES_MS = 1000
places = st.sampled_from(PLACES)
keys = st.sampled_from([b"a", b"b", b"c", b"d"])
some_values = st.none() | st.binary(max_size=3) | st.just(b"x" * 3000)
columns = st.lists(st.tuples(keys, some_values), max_size=5)


class LogMachine(RuleBasedStateMachine):
    """What is in the log, as lists of rows; what is dead for compaction may or may not be there."""

    @initialize()
    def start(self):
        self.directory: tempfile.TemporaryDirectory[str] = scratch()
        self.clock = ManualClock(NOW)
        self.log = file_log(self.directory.name, self.clock)
        self.log.create_topic("plain", 2)
        self.log.create_topic("compacted", 1, {"cleanup.policy": "compact", "delete.retention.ms": TOMBSTONES_MS})
        self.rows: dict[TopicPartition, list[LogRow]] = {at: [] for at in PLACES}
        self.extents = {at: Extent(0, 0) for at in PLACES}
        self.offsets: dict[TopicPartition, int] = {}
        self.delivered, self.sequence, self.producer = -1, 0, self.log.new_producer()
        self.last_append: Any = None

    # ------------------------------------------------------------------------------------------------- appending
    def batch(self, entries):
        time = self.clock.advance(1)
        return [
            (at, Records.from_rows([(key, value, time, ((("h", key),) if value else ())) for key, value in pairs]))
            for at, pairs in entries
        ]

    def expect(self, items):
        bases = []
        for at, records in items:
            earliest, end = self.extents[at]
            bases.append(end)
            headers = records.headers or [()] * len(records)
            self.rows[at] += [
                (end + i, *row)
                for i, row in enumerate(zip(records.keys, records.values, records.timestamps, headers, strict=True))
            ]
            self.extents[at] = Extent(earliest, end + len(records))
        return bases

    @rule(entries=st.lists(st.tuples(places, columns), max_size=3))
    def append(self, entries):
        items = self.batch(entries)
        bases = self.log.append(items)
        assert bases == self.expect(items)

    @rule(entries=st.lists(st.tuples(places, columns), max_size=3))
    def append_as_producer(self, entries):
        items, sequence = self.batch(entries), ProducerSequence(self.producer, self.sequence)
        bases = self.log.append(items, sequence=sequence)
        assert bases == self.expect(items)
        self.sequence += 1
        self.last_append = (items, sequence, bases)

    @precondition(lambda self: self.last_append)
    @rule()
    def append_again(self):
        items, sequence, bases = self.last_append
        assert self.log.append(items, sequence=sequence) == bases

    @rule(entries=st.lists(st.tuples(places, columns), max_size=2), ahead=st.integers(-2, 2))
    def deliver(self, entries, ahead):
        items, number = self.batch(entries), max(0, self.delivered + 1 + ahead)
        if number == self.delivered + 1:
            assert self.log.deliver("app", number, items)
            self.expect(items)
            self.delivered = number
        elif number == self.delivered:
            assert not self.log.deliver("app", number, items)
        else:
            with pytest.raises(ProducerFencedError):
                self.log.deliver("app", number, items)

    # -------------------------------------------------------------------------------------------------- cleaning
    @rule(at=places, back=st.integers(0, 6))
    def truncate(self, at, back):
        earliest, end = self.extents[at]
        before = max(end - back, 0)
        assert self.log.delete_records({at: before}) == {at: max(earliest, before)}
        self.cut(at, max(earliest, before))

    def cut(self, at, earliest):
        self.rows[at] = [row for row in self.rows[at] if row[0] >= earliest]
        self.extents[at] = Extent(earliest, self.extents[at].end)

    @rule(wait=st.sampled_from([0, 10, TOMBSTONES_MS + 200]))
    def clean(self, wait):
        self.clock.advance(wait)
        self.clean_up()

    def clean_up(self):
        """Compaction keeps the last record of a key; tombstones go some time later."""
        self.log.clean()
        found = rows(self.log, COMPACTED)
        last = {row[1]: row for row in self.rows[COMPACTED]}
        for row in last.values():
            if row not in found:
                assert row[2] is None
                assert self.clock.now() - row[3] >= TOMBSTONES_MS
        assert set(found) <= set(last.values())
        self.rows[COMPACTED] = found

    @rule(keep=st.integers(0, 20))
    def expire_by_time(self, keep):
        self.log.alter_config("plain", {"retention.ms": keep})
        self.clean_up()
        self.log.alter_config("plain", {"retention.ms": -1})
        limit = self.clock.now() - keep
        for at, extent in self.log.extents(["plain"]).items():
            gone = [row for row in self.rows[at] if row[0] < extent.earliest]
            assert all(row[3] < limit for row in gone)
            self.cut(at, extent.earliest)

    @rule(keep=st.sampled_from([0, 500, 2000, 5000]))
    def expire_by_size(self, keep):
        self.log.alter_config("plain", {"retention.bytes": keep})
        self.clean_up()
        self.log.alter_config("plain", {"retention.bytes": -1})
        for at, extent in self.log.extents(["plain"]).items():
            assert keep > 0 or extent.earliest == extent.end
            self.cut(at, extent.earliest)

    @rule()
    def reopen(self):
        self.log.close()
        self.log = file_log(self.directory.name, self.clock)

    # ---------------------------------------------------------------------------------------------------- groups
    @rule(offsets=st.dictionaries(places, st.integers(0, 30), max_size=2))
    def commit(self, offsets):
        self.log.commit("group", offsets)
        self.offsets.update(offsets)

    @rule(offsets=st.dictionaries(places, st.integers(0, 30), min_size=1))
    def commit_as_member(self, offsets):
        membership = self.log.join("group", "m", ["plain"], frozenset(), 1000)
        assert membership.partitions == {PLACES[0], PLACES[1]}
        if offsets.keys() <= membership.partitions:
            self.log.commit("group", offsets, member="m")
            self.offsets.update(offsets)
        else:
            with pytest.raises(ProducerFencedError):
                self.log.commit("group", offsets, member="m")
        with pytest.raises(GroupInUseError):
            self.log.commit("group", {PLACES[0]: 0})
        self.log.leave("group", "m")

    # -------------------------------------------------------------------------------------------------- checking
    @invariant()
    def everything_is_as_expected(self):
        assert self.log.extents(["plain", "compacted"]) == self.extents
        assert self.log.committed("group") == self.offsets
        assert self.log.delivered("app") == self.delivered
        for at in PLACES:
            assert rows(self.log, at) == self.rows[at]

    @rule(at=places, start=st.integers(-1, 40), length=st.integers(0, 10))
    def read(self, at, start, length):
        earliest, end = self.extents[at]
        if earliest <= start <= start + length <= end:
            expected = [row for row in self.rows[at] if start <= row[0] < start + length]
            assert rows(self.log, at, start, start + length) == expected
        else:
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(at, start, start + length)

    @rule(at=places, time=st.integers(NOW - 1, NOW + 60))
    def find_by_time(self, at, time):
        expected = next((row[0] for row in self.rows[at] if row[3] >= time), None)
        assert self.log.offsets_for_times({at: time}) == {at: expected}

    def teardown(self):
        if hasattr(self, "log"):
            assert self.log.verify() == []
            self.log.clean()
            named = {
                row[0]
                for row in self.log._resources.database._writer.execute("SELECT file FROM chunks WHERE file > ''")
            }
            left = {path.name for path in (Path(self.directory.name) / "chunks").iterdir()}
            assert named <= left
            self.log.close()
            self.directory.cleanup()


@pytest.mark.parametrize("small_files", [False, True], ids=["database", "files"])
def test_the_log_is_what_the_model_says(monkeypatch, small_files):
    """Also with tiny limits, so that chunks become files, and runs of chunks end early."""
    if small_files:
        monkeypatch.setattr(chunks, "LARGE", 100)
        monkeypatch.setattr(compaction, "_RUN_BYTES", 2000)
        monkeypatch.setattr(compaction, "_SMALL", 700)
        monkeypatch.setattr(compaction, "_RUN_ROWS", 8)
        monkeypatch.setattr(compaction, "_MAX_KEYS", 2)
    checks = settings(
        max_examples=examples(25), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(LogMachine, settings=checks)
