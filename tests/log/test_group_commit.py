"""Writes of several threads become one transaction, and each is still its own."""

import sqlite3
import threading
from collections.abc import Callable

import pytest

from headrace.errors import LogUnavailableError, UnknownTopicError
from headrace.log.embedded.database import AckFile, Database
from headrace.log.embedded.file_log import FileLog
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.protocol import ProducerSequence
from headrace.model.ids import TopicPartition
from tests.log.harness import A, records, values


class Crowd:
    """Threads that all wait behind a first transaction, which is held until they are there."""

    def __init__(self, log: FileLog) -> None:
        self.log, self.commits = log, log._resources.commits
        self.outcomes: dict[int, object] = {}
        self.transactions = 0

    def run(self, works: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch) -> None:
        real = AckFile.write

        def count(mark: AckFile, number: int) -> None:
            self.transactions += 1
            real(mark, number)

        monkeypatch.setattr(AckFile, "write", count)
        held, free = threading.Event(), threading.Event()
        first = threading.Thread(target=lambda: self.commits.run(lambda _: held.set() or free.wait()))
        first.start()
        held.wait()
        threads = [threading.Thread(target=self.attempt, args=(i, work)) for i, work in enumerate(works)]
        for thread in threads:
            thread.start()
        while len(self.commits._waiting) < len(works):
            threading.Event().wait(0.001)
        free.set()
        for thread in (first, *threads):
            thread.join()

    def attempt(self, i: int, work: Callable[[], object]) -> None:
        try:
            self.outcomes[i] = work()
        except Exception as error:  # noqa: BLE001
            self.outcomes[i] = error


def append(log: FileLog, topic: str, value: bytes) -> Callable[[], object]:
    return lambda: log.append([(TopicPartition(topic, 0), records(value))])


def test_what_waits_is_written_together(embedded: FileLog, monkeypatch: pytest.MonkeyPatch):
    crowd = Crowd(embedded)
    crowd.run([append(embedded, "a", b"%d" % i) for i in range(30)], monkeypatch)
    assert crowd.transactions == 2  # the first alone, then all the others
    assert sorted(crowd.outcomes.values(), key=str) == sorted(([i] for i in range(30)), key=str)
    for i, offsets in crowd.outcomes.items():
        assert values(embedded, A)[offsets[0]] == b"%d" % i  # pyright: ignore[reportIndexIssue]


def test_small_appends_that_come_together_are_one_chunk(embedded: FileLog, monkeypatch: pytest.MonkeyPatch):
    crowd = Crowd(embedded)
    crowd.run([append(embedded, "a", b"%d" % i) for i in range(30)], monkeypatch)
    assert [len(chunk) for chunk in embedded.read(A, 0)] == [30]


def test_appends_of_one_producer_that_come_together_stay_in_order(embedded: FileLog, monkeypatch: pytest.MonkeyPatch):
    producer = embedded.new_producer()

    def stamped(sequence: int) -> Callable[[], object]:
        return lambda: embedded.append([(A, records(b"%d" % sequence))], sequence=ProducerSequence(producer, sequence))

    crowd = Crowd(embedded)
    crowd.run([stamped(0)], monkeypatch)
    crowd.run([stamped(1), stamped(1), append(embedded, "a", b"other")], monkeypatch)
    assert sorted(values(embedded, A), key=str) == [b"0", b"1", b"other"]
    assert crowd.outcomes[0] == crowd.outcomes[1]


def test_several_logs_of_one_directory_are_written_together(embedded: FileLog, monkeypatch: pytest.MonkeyPatch):
    others = [FileLog(embedded.directory, clean_every=None) for _ in range(5)]
    crowd = Crowd(embedded)
    crowd.run([append(log, "a", b"x") for log in others], monkeypatch)
    assert crowd.transactions == 2
    for log in others:
        log.close()


def test_a_write_that_fails_does_not_fail_the_others(embedded: FileLog, monkeypatch: pytest.MonkeyPatch):
    crowd = Crowd(embedded)
    crowd.run([append(embedded, "a" if i % 3 else "missing", b"%d" % i) for i in range(9)], monkeypatch)
    assert crowd.transactions == 2
    assert {i for i, outcome in crowd.outcomes.items() if isinstance(outcome, UnknownTopicError)} == {0, 3, 6}
    assert sorted(values(embedded, A), key=str) == [b"1", b"2", b"4", b"5", b"7", b"8"]


def test_if_the_commit_fails_all_are_told(embedded: FileLog, monkeypatch: pytest.MonkeyPatch):
    def fail(_: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("no more room")
        error.sqlite_errorname = "SQLITE_FULL"
        raise error

    crowd = Crowd(embedded)
    works = [append(embedded, "a", b"1"), lambda: crowd.commits.run(fail), append(embedded, "a", b"2")]
    crowd.run(works, monkeypatch)
    assert [type(crowd.outcomes[i]) for i in range(3)] == [LogUnavailableError] * 3
    assert values(embedded, A) == []
    assert embedded.append([(A, records(b"3"))]) == [0]


def test_if_the_writing_thread_is_interrupted_the_others_are_told(embedded: FileLog, monkeypatch: pytest.MonkeyPatch):
    commits = GroupCommit(embedded._resources.database)

    class Interrupt(BaseException):
        pass

    entered, other_waits = threading.Event(), threading.Event()
    outcomes: list[BaseException] = []

    def interrupted(self: Database, *, durable: bool) -> None:
        if not entered.is_set():
            entered.set()
            other_waits.wait()
        raise Interrupt

    def attempt() -> None:
        try:
            commits.run(lambda _: None)
        except BaseException as error:  # noqa: BLE001
            outcomes.append(error)

    monkeypatch.setattr(Database, "writing", interrupted)
    threads = [threading.Thread(target=attempt) for _ in range(4)]
    threads[0].start()
    entered.wait()
    for thread in threads[1:]:
        thread.start()
    while len(commits._waiting) < 3:
        threading.Event().wait(0.001)
    other_waits.set()
    for thread in threads:
        thread.join()
    # The first wrote alone and was interrupted; the second then wrote for the third and the fourth, and was, too.
    assert sorted(type(error).__name__ for error in outcomes) == ["Interrupt"] * 2 + ["LogBusyError"] * 2
    assert not commits._has_leader


def test_a_write_that_is_interrupted_while_it_waits_does_not_block_the_others(
    embedded: FileLog, monkeypatch: pytest.MonkeyPatch
):
    commits = GroupCommit(embedded._resources.database)
    held, free = threading.Event(), threading.Event()
    leader = threading.Thread(target=lambda: commits.run(lambda _: held.set() or free.wait()))
    leader.start()
    held.wait()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(commits._changed, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            commits.run(lambda _: pytest.fail("it was withdrawn"))
    assert commits._waiting == []
    free.set()
    leader.join()
    assert commits.run(lambda _: "written") == "written"
    assert (commits._waiting, commits._has_leader) == ([], False)
