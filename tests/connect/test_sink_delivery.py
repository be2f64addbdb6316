"""Delivery to sinks without a server: policies, outages, back-pressure, progress, and topologies with sinks."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headrace import Record, StreamsBuilder, TopologyError, serde
from headrace.checkpoint.coordinator import CommitHooks, CommitOptions, Coordinator
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.sink_delivery import SinkTarget, read_progress
from headrace.checkpoint.storage import DiskStorage, Storage, open_storage
from headrace.connect import FileSink, Sink, SinkBatch, SinkContext, SinkWriter
from headrace.errors import CheckpointMismatchError, ProcessingError, RecordsRejectedError, StreamsError, summarize
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.model.ids import TopicPartition
from headrace.serde.internal import ROW
from headrace.testing import TopologyTestDriver, check_sink
from headrace.testing.sinks import _receipt

TIMEOUT = 30.0  # seconds: a test that waits so long has failed


@dataclass
class Target:
    """What a sink writes to; it can be away, and reject records whose value is negative."""

    rows: list[Any] = field(default_factory=list)
    batches: dict[str, int] = field(default_factory=dict)
    is_there: threading.Event = field(default_factory=threading.Event)
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.is_there.set()


@dataclass(frozen=True)
class MemorySink(Sink):
    target: Target
    remembers: bool = True
    guarantee = "atomic"

    def open(self, context: SinkContext) -> SinkWriter:
        return MemoryWriter(self)


class MemoryWriter(SinkWriter):
    def __init__(self, sink: MemorySink) -> None:
        self._sink, self._target = sink, sink.target

    def write(self, batch: SinkBatch) -> None:
        self._target.asked.release()
        if not self._target.is_there.is_set():
            raise ConnectionRefusedError("nobody listens")
        batch = batch.without(self._target.batches if self._sink.remembers else {})
        bad = [(record, "negative") for record in batch.records() if (record.value or {}).get("n", 0) < 0]
        if bad:
            raise RecordsRejectedError("a record is negative", bad)
        self._target.rows += [(record.key, record.value and record.value["n"]) for record in batch.records()]
        self._target.batches |= dict.fromkeys(batch.part_names, batch.number)


class Host:
    """A coordinator with sinks, which commits batches of records for all of them."""

    def __init__(self, storage: Storage, log: Log, sinks: dict[str, SinkTarget], **options: Any) -> None:
        self.storage, self.sinks = storage, sinks
        eager = CommitOptions(keep=2, purge_every=2, purge_delay_ms=0, background=False, marker_timeout_ms=0)
        chosen = replace(eager, **options)
        self.coordinator = Coordinator.open(
            storage, log, "shop", Fingerprint((), (), {}), sinks=sinks, options=chosen,
            hooks=CommitHooks(has_exited=lambda holder, other: True),
        )  # fmt: skip

    def commit(self, *records: Record) -> None:
        coordinator = self.coordinator
        name = next(iter(self.sinks), "other")
        receipts = [_receipt(self.storage, coordinator, task, name, records) for task in range(2)]
        coordinator.commit(coordinator.number, 0, receipts)


@pytest.fixture
def log(tmp_path) -> Iterator[Log]:
    with closing(open_log(f"file:{tmp_path}/log", {})) as log:
        yield log


def sinks(target: Target, **options: Any) -> dict[str, SinkTarget]:
    return {"s": SinkTarget(name="s", sink=MemorySink(target), node="s", key=ROW, value=ROW, **options)}


def record(n: int, key: str = "k") -> Record:
    return Record(key, {"n": n}, max(n, 0))


# --------------------------------------------------------------------------------------------------------- the test kit
def test_the_kit_catches_a_sink_that_is_not_atomic():
    def make(name):
        target = Target()
        return MemorySink(target, remembers=False), lambda: target.rows

    with pytest.raises(AssertionError, match="says that it is atomic, but after a crash after sink commit"):
        check_sink(make)


def test_the_kit_passes_a_sink_that_is_atomic():
    def make(name):
        target = Target()
        return MemorySink(target), lambda: target.rows

    killed = check_sink(make)
    assert killed == {
        f"{when} sink {what}": 2 for when in ("after", "before") for what in ("commit", "progress", "write")
    }


# -------------------------------------------------------------------------------------------------------------- outages
def test_a_target_that_is_away_is_asked_again_and_the_application_waits_with_a_full_backlog(log):
    target, storage = Target(), open_storage("memory:///")
    host = Host(storage, log, sinks(target), sink_backlog=3, sink_backoff_ms=10, max_undelivered=2)
    host.commit(record(1))
    host.coordinator.drain()
    target.is_there.clear()
    for n in range(2, 5):
        host.commit(record(n))
    for _ in range(4):  # it is asked again and again
        assert target.asked.acquire(timeout=TIMEOUT)
    (report,) = host.coordinator.sinks.reports()
    assert report.waiting == 3
    assert report.error == "ConnectionRefusedError: nobody listens"
    waiting = threading.Thread(target=host.commit, args=(record(5),), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    target.is_there.set()
    waiting.join(TIMEOUT)
    assert not waiting.is_alive()
    assert host.coordinator.close(TIMEOUT)
    assert target.rows == [("k", n) for n in range(1, 6)]


def test_closing_does_not_wait_for_a_target_that_is_away_and_the_next_start_delivers_the_rest(log):
    target, storage = Target(), open_storage("memory:///")
    host = Host(storage, log, sinks(target), sink_backoff_ms=10_000, max_undelivered=2)
    target.is_there.clear()
    for n in range(30):  # more than the manifests that are kept
        host.commit(record(n))
    assert target.asked.acquire(timeout=TIMEOUT)
    assert not host.coordinator.close()
    assert target.rows == []
    target.is_there.set()
    with Host(storage, log, sinks(target), max_undelivered=2).coordinator as coordinator:
        coordinator.drain()
        assert target.rows == [("k", n) for n in range(30)]


def test_an_error_of_a_sink_that_no_retry_cures_stops_the_application(log):
    target = Target()
    target.rows = None  # pyright: ignore[reportAttributeAccessIssue]
    host = Host(open_storage("memory:///"), log, sinks(target), max_undelivered=2)
    host.commit(record(1))
    with pytest.raises(TypeError):
        host.coordinator.drain()
    host.coordinator.abandon()


# ----------------------------------------------------------------------------------------------------- rejected records
def test_a_rejected_record_stops_the_application_and_is_tried_again_after_a_restart(log):
    target, storage = Target(), open_storage("memory:///")
    host = Host(storage, log, sinks(target), max_undelivered=0)
    with pytest.raises(RecordsRejectedError, match="a record is negative") as raised:
        host.commit(record(1), record(-1))
    assert "on_rejected='continue'" in raised.value.__notes__[0]
    host.coordinator.abandon()
    host = Host(storage, log, sinks(target, on_rejected="continue"), max_undelivered=0)
    assert target.rows == [("k", 1)]
    assert host.coordinator.sinks.reports()[0].rejected == 1
    host.coordinator.close()


def test_a_rejected_record_is_a_dead_letter(log):
    target = Target()
    chosen = sinks(target, on_rejected="dead_letter", dead_letter_topic="bad")
    host = Host(open_storage("memory:///"), log, chosen, max_undelivered=0)
    host.commit(record(1), record(-1))
    host.coordinator.close()
    assert target.rows == [("k", 1)]
    (letter,) = [row for chunk in log.read(TopicPartition("bad", 0), 0) for row in chunk.rows()]
    assert ROW.decode(letter[2]) == {"n": -1}
    assert dict(letter[4])["__streams.errors.message"] == b"negative"
    assert dict(letter[4])["__headrace.batch"] == b"1"


def test_dead_letters_need_a_topic(log):
    host = Host(open_storage("memory:///"), log, sinks(Target(), on_rejected="dead_letter"), max_undelivered=0)
    with pytest.raises(StreamsError, match=r"errors\.dead\.letter\.queue\.topic\.name"):
        host.commit(record(-1))
    host.coordinator.abandon()


@dataclass(frozen=True)
class QuotingSink(Sink):
    """Its writer fails with `error`, which quotes the record."""

    error: Callable[[Record], Exception]
    fails_once: list[bool] = field(default_factory=lambda: [True])
    guarantee = "atomic"

    def open(self, context: SinkContext) -> SinkWriter:
        return QuotingWriter(self)


class QuotingWriter(SinkWriter):
    def __init__(self, sink: QuotingSink) -> None:
        self._sink = sink

    def write(self, batch: SinkBatch) -> None:
        for some in batch.records():
            if self._sink.fails_once and self._sink.fails_once.pop():
                raise self._sink.error(some)


def rejection(record: Record) -> Exception:
    return RecordsRejectedError(f"{record.value} is rejected", [(record, "rejected")])


def lines_above_debug(caplog: pytest.LogCaptureFixture) -> str:
    """The lines of Headrace's log: others may be of a thread of an earlier test."""
    return "\n".join(
        line.getMessage()
        for line in caplog.records
        if line.levelno > logging.DEBUG and line.name.startswith("headrace")
    )


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    "error, named",
    [
        (rejection, "the sink 's' rejects 1 of 1 records of batch"),
        (lambda record: ConnectionError(f"broken at {record.value}"), "ConnectionError"),
        (lambda record: OSError(errno.ENOSPC, f"no space for {record.value}"), "OSError: "),
    ],
    ids=["rejected", "connection", "disk"],
)
def test_a_failure_that_does_not_stop_the_application_is_in_the_log_without_the_record(
    log, caplog, error, named, allowed
):
    caplog.set_level(logging.DEBUG)
    chosen = SinkTarget(
        name="s", sink=QuotingSink(error), node="s", key=ROW, value=ROW,
        on_rejected="continue", log_record_values=allowed,
    )  # fmt: skip
    host = Host(open_storage("memory:///"), log, {"s": chosen}, max_undelivered=0)
    host.commit(record(4111))
    host.coordinator.close()
    assert named in lines_above_debug(caplog)
    assert ("4111" in lines_above_debug(caplog)) == allowed
    assert "4111" in caplog.text


@pytest.mark.parametrize(
    "error", [rejection, lambda record: KeyError(record.value["n"])], ids=["rejected", "another error"]
)
def test_an_error_that_stops_the_application_has_a_summary_without_the_record(log, error):
    chosen = SinkTarget(name="s", sink=QuotingSink(error), node="s", key=ROW, value=ROW)
    host = Host(open_storage("memory:///"), log, {"s": chosen}, max_undelivered=0)
    with pytest.raises((RecordsRejectedError, KeyError), match="4111") as raised:
        host.commit(record(4111))
    host.coordinator.abandon()
    assert "4111" not in summarize(raised.value)
    assert "4111" in summarize(raised.value, with_values=True)


def test_a_handler_of_rejected_records_that_fails_does_not_quote_the_record_in_the_log(log):
    def fail(failure: Any, record: Record, error: Exception) -> str:
        raise ValueError(f"what is {record.value}?")

    chosen = SinkTarget(name="s", sink=QuotingSink(rejection), node="s", key=ROW, value=ROW, on_rejected=fail)
    host = Host(open_storage("memory:///"), log, {"s": chosen}, max_undelivered=0)
    with pytest.raises(ProcessingError, match=r"exception handler itself failed.*4111") as raised:
        host.commit(record(4111))
    host.coordinator.abandon()
    assert summarize(raised.value) == "s: the exception handler itself failed: ValueError"


# ------------------------------------------------------------------------------------------------------------- progress
def test_the_log_gets_nothing_of_what_is_for_a_sink(log):
    host = Host(open_storage("memory:///"), log, sinks(Target()), max_undelivered=0)
    host.commit(record(1))
    host.coordinator.close()
    assert [topic for topic in log.topics() if "sink" in topic] == []


def test_a_new_sink_begins_with_the_next_batch(log):
    storage, target = open_storage("memory:///"), Target()
    with Host(storage, log, {}).coordinator as coordinator:
        last = coordinator.ledger.number
    with Host(storage, log, sinks(target)).coordinator:
        assert read_progress(storage) == {"s": last + 1}


def test_the_progress_of_a_sink_is_durable_before_manifests_are_deleted_because_of_it(tmp_path, log, monkeypatch):
    """The process that has recorded it may have been killed before the name of the file was on disk."""
    storage, target, synced = open_storage(tmp_path / "checkpoint"), Target(), []
    host = Host(storage, log, sinks(target), max_undelivered=0, keep=100)
    for n in range(4):
        host.commit(record(n))
    host.coordinator.close()

    delete, fsync = DiskStorage.delete, os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()) or fsync(file)
    )
    monkeypatch.setattr(DiskStorage, "delete", lambda self, name: synced.append(name) or delete(self, name))
    Host(storage, log, sinks(target)).coordinator.close()
    deleted = next(at for at, name in enumerate(synced) if str(name).startswith("manifests/"))
    assert tmp_path / "checkpoint" / "sinks" / "s" in synced[:deleted]


def test_a_sink_without_records_makes_progress_so_that_manifests_are_deleted(log):
    storage, target = open_storage("memory:///"), Target()
    host = Host(storage, log, sinks(target), max_undelivered=0)
    host.sinks = {}  # the records of all batches are for another sink, which is gone
    for n in range(40):
        host.commit(record(n))
    host.coordinator.close()
    assert target.rows == []
    assert read_progress(storage)["s"] >= 24
    assert len(storage.names("manifests/")) < 30
    with Host(storage, log, sinks(target)).coordinator:
        pass


def test_a_sink_that_is_removed_must_have_everything(log):
    storage, target = open_storage("memory:///"), Target()
    target.is_there.clear()
    host = Host(storage, log, sinks(target), max_undelivered=2)
    host.commit(record(1))
    assert target.asked.acquire(timeout=TIMEOUT)
    host.coordinator.close()
    with pytest.raises(CheckpointMismatchError, match=r"no sink 's' any more.*delete sinks/s/0000"):
        Host(storage, log, {})
    target.is_there.set()
    with Host(storage, log, sinks(target)).coordinator as coordinator:
        coordinator.drain()
    with Host(storage, log, {}).coordinator:
        assert read_progress(storage) == {}


# ----------------------------------------------------------------------------------------------------------- topologies
def test_a_driver_shows_what_a_table_writes_to_a_sink():
    builder = StreamsBuilder()
    table = builder.table("prices", key=serde.STRING, value=serde.JSON)
    table.filter(lambda price: price["n"] > 0).sink(FileSink("/nowhere"), name="copy")
    with TopologyTestDriver(builder.build()) as driver:
        prices = driver.input_topic("prices", key=serde.STRING, value=serde.JSON)
        prices.pipe("a", {"n": 1}, timestamp=5)
        prices.pipe("a", {"n": -1}, timestamp=6)
        assert driver.sink_records("copy") == [Record("a", {"n": 1}, 5), Record("a", None, 6)]
        assert driver.sink_records("copy") == []
        with pytest.raises(ValueError, match="no sink 'cpoy': did you mean 'copy'"):
            driver.sink_records("cpoy")


def test_two_sinks_cannot_have_one_name():
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.sink(FileSink("/data/in"))
    stream.sink(FileSink("/other/in"))
    with pytest.raises(TopologyError, match=r"two sinks have the name 'in'.*name="):
        builder.build()


def test_what_is_no_sink_is_rejected():
    with pytest.raises(TypeError, match=r"a sink of headrace\.connect"):
        StreamsBuilder().stream("in").sink("out")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="on_rejected is"):
        StreamsBuilder().stream("in").sink(FileSink("/x"), on_rejected="ignore")  # pyright: ignore[reportArgumentType]
