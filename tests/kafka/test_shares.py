"""A batch that several processes deliver together: if one of them dies or stops, every partition has it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from uuid import uuid4

import pytest

from headrace.errors import LogBusyError, LogUnavailableError, ProducerFencedError, RecordTooLargeError
from headrace.log.kafka import KafkaLog
from headrace.log.kafka.clients import kafka
from headrace.log.protocol import Records, Share
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from tests.kafka.acls import allow
from tests.kafka.test_delivery_faults import hook

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
PLACES = 4
_NAMES = (f"shares-{uuid4().hex[:6]}-{i}" for i in count())
Logs = Callable[[], KafkaLog]


@pytest.fixture
def logs(broker_address: str) -> Iterator[Logs]:
    """Each is that of a process of its own."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(KafkaLog(broker_address))


@pytest.fixture
def case(logs: Logs) -> str:
    """An application and its topic; its first batch is delivered."""
    name, log = next(_NAMES), logs()
    log.create_topic(name, PLACES)
    log.deliver(name, 0, items(name, 0))
    return name


def items(name: str, number: int, *partitions: int) -> list[tuple[TopicPartition, Records]]:
    some = partitions or range(PLACES)
    return [(TopicPartition(name, p), Records([b"k"], [b"%d/%d" % (number, p)], [1 + number])) for p in some]


def check(log: KafkaLog, name: str, batches: int) -> None:
    for partition in range(PLACES):
        chunks = log.read(TopicPartition(name, partition), 0)
        values = [row[2] for chunk in chunks for row in chunk.rows()]
        assert values == [b"%d/%d" % (number, partition) for number in range(batches)]
    assert log.delivered(name) == batches - 1


def shared_out(driver: KafkaLog, name: str, number: int, shares: int = 2) -> str:
    found = driver.begin_shares(name, number, shares)
    assert found is not None
    return found


def test_batches_are_delivered_in_shares_by_producers_that_stay(logs: Logs, case: str):
    driver, workers, producers = logs(), [logs(), logs()], ["", ""]
    for number in (1, 2, 3):
        name = shared_out(driver, case, number)
        for i, worker in enumerate(workers):
            for _ in range(2):  # its answer was lost
                share = Share(number, i, name, producers[i])
                producer = worker.deliver_share(case, share, items(case, number, i, i + 2))
                assert producer == (producers[i] or producer)
            producers[i] = producer  # pyright: ignore[reportPossiblyUnboundVariable]
        assert driver.delivered(case) == number - 1
        assert driver.deliver(case, number, [])
    driver.deliver(case, 4, items(case, 4))  # a small one in between
    check(driver, case, 5)


def test_who_follows_a_driver_sends_only_what_its_shares_have_not(logs: Logs, case: str):
    name = shared_out(logs(), case, 1, shares=4)
    logs().deliver_share(case, Share(1, 3, name), items(case, 1, 3))
    logs().deliver_share(case, Share(1, 0, name), items(case, 1, 0))
    second = logs()
    assert second.delivered(case) == 0
    assert second.deliver(case, 1, items(case, 1))
    check(second, case, 2)
    name, worker = shared_out(second, case, 2, shares=2), logs()
    worker.deliver_share(case, Share(2, 1, name), items(case, 2, 1, 2, 3))
    third = logs()
    assert third.begin_shares(case, 2, 2) is None  # what is left is for one to do
    third.deliver(case, 2, items(case, 2))
    check(third, case, 3)


def test_a_share_that_sleeps_in_its_commit_while_the_driver_is_followed_commits_nothing(
    logs: Logs, case: str, monkeypatch: pytest.MonkeyPatch
):
    name, second = shared_out(logs(), case, 1), logs()

    def around(commit: Callable[[], None]) -> None:
        if next(commits) == 1:  # after its barrier
            assert second.deliver(case, 1, items(case, 1))
        commit()

    commits = count()
    hook(monkeypatch, around, producers=1)
    zombie = logs()
    with pytest.raises(LogBusyError, match="taken up by another process"):
        zombie.deliver_share(case, Share(1, 0, name), items(case, 1, 0, 2))
    with pytest.raises(ProducerFencedError, match="another instance of the application"):
        zombie.deliver_share(case, Share(1, 0, name), items(case, 1, 0, 2))
    second.deliver(case, 2, items(case, 2))
    check(second, case, 3)


def test_a_share_that_begins_after_the_driver_was_followed_is_refused(logs: Logs, case: str):
    name, second = shared_out(logs(), case, 1), logs()
    new = shared_out(second, case, 1)
    with pytest.raises(ProducerFencedError, match="another instance of the application"):
        logs().deliver_share(case, Share(1, 0, name), items(case, 1, 0, 2))
    for i in range(2):
        logs().deliver_share(case, Share(1, i, new), items(case, 1, i, i + 2))
    second.deliver(case, 1, [])
    check(second, case, 2)


def test_a_share_that_is_tried_again_elsewhere_is_delivered_once_and_may_come_back(
    logs: Logs, case: str, monkeypatch: pytest.MonkeyPatch
):
    driver, other = logs(), logs()
    name = shared_out(driver, case, 1)

    def around(commit: Callable[[], None]) -> None:
        if next(commits) == 1:
            other.deliver_share(case, Share(1, 0, name), items(case, 1))
        commit()

    commits = count()
    hook(monkeypatch, around, producers=1)
    slow = logs()
    with pytest.raises(LogBusyError, match="taken up by another process"):
        slow.deliver_share(case, Share(1, 0, name), items(case, 1))
    driver.deliver(case, 1, [])
    producers = {slow: slow.deliver_share(case, Share(1, 0, name), items(case, 1)), other: ""}
    for number, worker in ((2, slow), (3, other), (4, slow), (5, other)):
        share = Share(number, 0, shared_out(driver, case, number), producers[worker])
        producers[worker] = worker.deliver_share(case, share, items(case, number))
        driver.deliver(case, number, [])
    check(driver, case, 6)


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_became_of_a_share_is_read_back_if_the_answer_is_lost(
    logs: Logs, case: str, monkeypatch: pytest.MonkeyPatch, is_committed: bool
):
    driver = logs()
    name = shared_out(driver, case, 1)

    def around(commit: Callable[[], None]) -> None:
        is_lost = next(commits) == 1
        if is_committed or not is_lost:
            commit()
        if is_lost:
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))

    commits = count()
    hook(monkeypatch, around, producers=1)
    logs().deliver_share(case, Share(1, 0, name), items(case, 1))
    assert next(commits) == 2
    driver.deliver(case, 1, [])
    check(driver, case, 2)


def test_many_marks_of_shares_hide_no_marker(logs: Logs):
    driver, name = logs(), next(_NAMES)
    driver.create_topic(name, 100)
    driver.deliver(name, 0, [])
    places = [TopicPartition(name, p) for p in range(100)]
    share = Share(1, 0, shared_out(driver, name, 1))
    logs().deliver_share(name, share, [(at, Records([None], [b"v"], [1])) for at in places])
    assert driver.delivered(name) == 0
    with KafkaLog(driver.url) as second:
        second.deliver(name, 1, [(at, Records([None], [b"v"], [1])) for at in places])
        assert {extent.end for extent in second.extents([name]).values()} == {2}  # the record, and the commit


def test_what_a_cluster_refuses_in_a_share_is_named(guarded: KafkaBroker):
    with KafkaLog(guarded.address) as log:
        log.create_topic("shared", 2, {"max.message.bytes": 1000})
        log.deliver("guarded", 0, [])
        name = shared_out(log, "guarded", 1)
        at, share = TopicPartition("shared", 1), Share(1, 0, name)
        with pytest.raises(RecordTooLargeError, match="shared"):
            log.deliver_share("guarded", share, [(at, Records([None], [bytes(5000)], [1]))])
        some = [(at, Records([None], [b"v"], [1]))]
        allow(guarded, "bob", "TOPIC", "shared", "DESCRIBE", "DESCRIBE_CONFIGS")
        allow(guarded, "bob", "TOPIC", "guarded-delivered", "ALL")
        with KafkaLog(guarded.secured, guarded.settings_of("bob")) as bob:
            with pytest.raises(LogUnavailableError, match=r"as 'guarded-delivery-0' was refused: an ACL for the trans"):
                bob.deliver_share("guarded", share, some)
            allow(guarded, "bob", "TRANSACTIONAL_ID", "guarded-delivery-0", "ALL")
            with pytest.raises(LogUnavailableError, match=r"as 'guarded-delivery-0' to shared.* was refused: an ACL"):
                bob.deliver_share("guarded", share, some)
            allow(guarded, "bob", "TOPIC", "shared", "WRITE")
            bob.deliver_share("guarded", share, some)
        assert log.deliver("guarded", 1, [])
        assert [row[2] for chunk in log.read(at, 0) for row in chunk.rows()] == [b"v"]
