"""Retention, compaction, merging, and what is thrown away."""

import os
import threading
from pathlib import Path

import pytest

from headrace.errors import ProducerFencedError
from headrace.log.embedded import chunks, cleaner
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Extent, ProducerSequence
from tests.clocks import ManualClock
from tests.log.harness import NOW, A, chunk_files, file_log, pairs, records, rows, seeded, values

DAY = 86_400_000


def chunk_count(log: FileLog) -> int:
    with log._resources.database.reading() as connection:
        return connection.execute("SELECT count(*) FROM chunks").fetchone()[0]


def join_upkeep(log: FileLog) -> None:
    thread = log._resources.cleaner._thread
    assert thread is not None
    thread.join()


def earliest(log: FileLog) -> int:
    return log.extents(["a"])[A].earliest


# -------------------------------------------------------------------------------------------------------- retention
def test_nothing_goes_by_itself(embedded: FileLog, clock: ManualClock):
    embedded.append([(A, records(b"old", at=0))])
    clock.advance(1000 * DAY)
    embedded.clean()
    assert values(embedded, A) == [b"old"]


def test_old_records_go_chunk_by_chunk(embedded: FileLog, clock: ManualClock):
    embedded.alter_config("a", {"retention.ms": 100})
    for at in (NOW - 300, NOW - 200, NOW, NOW - 250):  # the last is old too, but what is before it stays
        embedded.append([(A, records(b"1", b"2", at=at))])
    embedded.clean()
    assert embedded.extents(["a"])[A] == Extent(4, 8)
    assert chunk_count(embedded) == 2
    clock.advance(101)
    embedded.clean()
    assert earliest(embedded) == 4  # the newest of the chunk is not old enough
    clock.advance(1)
    embedded.clean()
    assert embedded.extents(["a"])[A] == Extent(8, 8)
    assert embedded.append([(A, records(b"new"))]) == [8]


def test_a_topic_that_gives_the_time_keeps_by_its_own(embedded: FileLog, clock: ManualClock):
    embedded.alter_config("a", {"retention.ms": 100, "message.timestamp.type": "LogAppendTime"})
    embedded.append([(A, records(b"1", at=0))])
    embedded.clean()
    assert earliest(embedded) == 0
    clock.advance(101)
    embedded.clean()
    assert earliest(embedded) == 1


def test_a_partition_keeps_at_least_its_size(embedded: FileLog):
    noise = seeded(1)
    for _ in range(10):
        embedded.append([(A, records(noise.randbytes(1000)))])
    embedded.alter_config("a", {"retention.bytes": 3000})
    embedded.clean()
    assert earliest(embedded) == 7  # of some 1400 bytes each, three are at least 3000
    embedded.alter_config("a", {"retention.bytes": 0})
    embedded.clean()
    assert embedded.extents(["a"])[A] == Extent(10, 10)


def test_files_and_pages_are_given_back(embedded: FileLog, directory: Path):
    noise = seeded(1)
    embedded.alter_config("a", {"max.message.bytes": 10 << 20})
    embedded.append([(A, records(noise.randbytes(5 << 20)))])
    for _ in range(20):
        embedded.append([(A, records(noise.randbytes(500_000)))])
    assert len(chunk_files(directory)) == 1
    embedded.close()
    full = (directory / "log.db").stat().st_size
    with file_log(directory, ManualClock(NOW)) as log:
        log.delete_records({A: 20})
        assert chunk_files(directory) == []
        log.clean()
        assert log.verify() == []
    assert full > 10_000_000
    assert (directory / "log.db").stat().st_size < full / 3


def test_a_deleted_topic_leaves_nothing_behind(embedded: FileLog, monkeypatch: pytest.MonkeyPatch, directory: Path):
    monkeypatch.setattr(chunks, "LARGE", 100)
    for i in range(300):
        embedded.append([(A, records(seeded(i).randbytes(i)))])
    assert chunk_files(directory)
    embedded.delete_topic("a")
    assert (chunk_count(embedded), chunk_files(directory)) == (0, [])


def test_files_that_no_row_names_are_deleted_when_they_are_old(
    embedded: FileLog, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chunks, "LARGE", 100)
    embedded.append([(A, records(seeded(1).randbytes(200)))])
    young, old = directory / "chunks" / "young.chunk", directory / "chunks" / "old.chunk"
    for path, age in ((young, 599), (old, 601)):
        path.write_bytes(b"torn")
        os.utime(path, (NOW / 1000 - age, NOW / 1000 - age))
    os.utime(next(path for path in chunk_files(directory) if path not in (young, old)), (0, 0))
    embedded.clean()
    assert old not in chunk_files(directory)
    assert young in chunk_files(directory)
    assert len(rows(embedded, A)) == 1


def test_idle_producers_are_forgotten_after_a_day(embedded: FileLog, clock: ManualClock):
    producer = embedded.new_producer()
    embedded.append([(A, records(b"1"))], sequence=ProducerSequence(producer, 0))
    clock.advance(DAY)
    embedded.clean()
    assert embedded.append([(A, records(b"1"))], sequence=ProducerSequence(producer, 0)) == [0]
    clock.advance(1)
    embedded.clean()
    with pytest.raises(ProducerFencedError, match="idle for more than a day"):
        embedded.append([(A, records(b"1"))], sequence=ProducerSequence(producer, 0))


# ------------------------------------------------------------------------------------------------------- compaction
@pytest.fixture
def compacted(embedded: FileLog) -> FileLog:
    embedded.alter_config("a", {"cleanup.policy": "compact", "delete.retention.ms": 800})
    return embedded


def test_the_last_record_of_every_key_stays_where_it_is(compacted: FileLog):
    compacted.append([(A, pairs((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4")))])
    compacted.append([(A, pairs((b"b", b"5"), (b"d", b"6"), (b"d", b"7")))])
    compacted.clean()
    assert [row[:3] for row in rows(compacted, A)] == [
        (2, b"a", b"3"),
        (3, b"c", b"4"),
        (4, b"b", b"5"),
        (6, b"d", b"7"),
    ]
    assert compacted.extents(["a"])[A] == Extent(0, 7)
    assert [row[0] for row in rows(compacted, A, 0, 4)] == [2, 3]
    assert [row[0] for row in rows(compacted, A, 5, 6)] == []
    compacted.append([(A, pairs((b"d", b"8")))])
    compacted.clean()
    assert [row[0] for row in rows(compacted, A)] == [2, 3, 4, 7]
    assert compacted.verify() == []


def test_tombstones_stay_until_everybody_can_have_seen_them(compacted: FileLog, clock: ManualClock):
    compacted.append([(A, pairs((b"a", b"1"), (b"b", b"2"), (b"a", None)))])
    compacted.clean()
    assert [row[:3] for row in rows(compacted, A)] == [(1, b"b", b"2"), (2, b"a", None)]
    clock.advance(799)
    compacted.clean()
    assert len(rows(compacted, A)) == 2
    clock.advance(101)  # the wait, rounded up to the next eighth
    compacted.clean()
    assert [row[0] for row in rows(compacted, A)] == [1]
    assert compacted.extents(["a"])[A] == Extent(0, 3)


def test_tombstones_go_even_if_new_ones_come_all_the_time(compacted: FileLog, clock: ManualClock):
    for i in range(60):
        compacted.append([(A, pairs((b"%d" % i, None)))])
        compacted.clean()
        clock.advance(100)
    assert len(rows(compacted, A)) <= 11
    assert chunk_count(compacted) <= 12


def test_an_empty_partition_after_compaction_can_still_be_read(compacted: FileLog, clock: ManualClock):
    compacted.append([(A, pairs((b"a", None), (b"b", None)))])
    for _ in range(3):
        compacted.clean()
        clock.advance(1000)
    assert (rows(compacted, A), compacted.extents(["a"])[A]) == ([], Extent(0, 2))
    assert compacted.offsets_for_times({A: 0}) == {A: None}
    assert compacted.append([(A, pairs((b"a", b"1")))]) == [2]
    assert [row[0] for row in rows(compacted, A)] == [2]


def test_records_without_a_key_are_refused_where_keys_decide(compacted: FileLog):
    with pytest.raises(ValueError, match="compacted: every record needs a key"):
        compacted.append([(A, records(b"x", key=None))])


def test_a_topic_that_is_compacted_later_is_compacted_from_the_start(embedded: FileLog):
    for i in range(400):
        embedded.append([(A, pairs((b"%d" % (i % 3), b"%d" % i)))])
    embedded.clean()
    assert len(rows(embedded, A)) == 400
    embedded.alter_config("a", {"cleanup.policy": "compact"})
    embedded.clean()
    assert [row[0] for row in rows(embedded, A)] == [397, 398, 399]


def test_both_policies_work_together(embedded: FileLog):
    embedded.alter_config("a", {"cleanup.policy": "compact,delete", "retention.ms": 100})
    embedded.append([(A, pairs((b"a", b"1"), (b"a", b"2"), at=0))])
    embedded.append([(A, pairs((b"b", b"3"), (b"b", b"4"), at=NOW))])
    embedded.clean()
    assert [row[0] for row in rows(embedded, A)] == [3]
    assert earliest(embedded) == 2


# ---------------------------------------------------------------------------------------------------------- merging
def test_many_small_chunks_become_few_large_ones(embedded: FileLog):
    for i in range(300):
        embedded.append([(A, records(b"%d" % i, at=i))])
    expected = rows(embedded, A)
    embedded.clean()
    assert chunk_count(embedded) < 60
    assert rows(embedded, A) == expected
    assert rows(embedded, A, 17, 19) == expected[17:19]
    embedded.clean()
    assert rows(embedded, A) == expected


# --------------------------------------------------------------------------------------------------- in the background
def test_cleaning_happens_while_records_are_appended_and_ends_with_the_log(directory: Path, clock: ManualClock):
    before = set(threading.enumerate())
    with FileLog(directory, clock=clock, clean_every=1000) as log:
        log.create_topic("a", config={"retention.ms": 100})
        log.append([(A, records(b"old", at=clock.now() - 50))])
        join_upkeep(log)  # nobody knows when the log was cleaned before
        log.append([(A, records(b"middle", at=clock.now() - 50))])
        assert set(threading.enumerate()) <= before
        clock.advance(1000)
        log.append([(A, records(b"new", at=clock.now()))])
        join_upkeep(log)
        assert earliest(log) == 2
    with FileLog(directory, clock=clock, clean_every=1000) as log:
        log.append([(A, records(b"newer", at=clock.now()))])
        assert set(threading.enumerate()) <= before  # it was cleaned just now
    assert set(threading.enumerate()) <= before


def test_damage_found_in_the_background_is_in_the_programs_log(embedded: FileLog, directory: Path, caplog, monkeypatch):
    monkeypatch.setattr(chunks, "LARGE", 100)
    embedded.alter_config("a", {"cleanup.policy": "compact"})
    embedded.append([(A, records(seeded(1).randbytes(200)))])
    chunk_files(directory)[0].write_bytes(b"")
    embedded._resources.cleaner.start(NOW, 1000)
    join_upkeep(embedded)
    assert "could not be cleaned" in caplog.text
    assert "topic 'a', partition 0, offsets 0 to 0" in caplog.text


def test_one_process_at_a_time_cleans(embedded: FileLog, directory: Path, monkeypatch: pytest.MonkeyPatch):
    """What another process is cleaning is left to it; asked for explicitly, it waits."""
    attempts: list[bool] = []
    monkeypatch.setattr(cleaner.WriterLock, "try_acquire", lambda self: attempts.append(True) or len(attempts) > 3)
    monkeypatch.setattr(cleaner.LogCleaner, "_clean", lambda self, now, *, fully: attempts.append(fully))
    embedded._resources.cleaner.clean(NOW, fully=False)
    assert attempts == [True]
    embedded._resources.cleaner.clean(NOW, fully=True)
    assert attempts[-1] is True
    assert len(attempts) == 5


def test_a_cleaning_that_begins_while_the_log_is_closed_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = FileLog(tmp_path, clean_every=1)
    log.create_topic("a", 1)
    closing, may_clean = threading.Thread(target=log.close), threading.Event()
    clean = cleaner.LogCleaner._clean_if_due

    class Starting(threading.Thread):
        def start(self):
            super().start()
            closing.start()
            closing.join(0.3)  # it closes the log now, or waits until this thread is known
            may_clean.set()

    def clean_later(own, now, interval):
        may_clean.wait()
        clean(own, now, interval)  # an error in a thread is an error of the test

    monkeypatch.setattr(cleaner.LogCleaner, "_clean_if_due", clean_later)
    monkeypatch.setattr(cleaner.threading, "Thread", Starting)
    log.append([(A, records(b"new", at=NOW))])
    closing.join()
