"""Members of consumer groups: each one a Kafka consumer that reads nothing, and only keeps its place in the group.

Records are read by whoever holds the partitions. A thread listens to what the group says. When partitions are to be
given up, it makes the group wait until the member has done so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Any

from headrace.log.errors import FencedError
from headrace.log.kafka.clients import Clients, kafka, make
from headrace.log.kafka.trouble import FENCED, code_of, explained
from headrace.log.protocol import Membership
from headrace.model.clock import Clock
from headrace.model.ids import TopicPartition

_LISTEN = 0.02  # seconds between two looks at the clock
_FIRST_ANSWER = 5.0  # seconds that a new member waits for the group
_SHORTEST_SESSION = 6000  # ms: brokers accept no less, unless they are told to
_code = kafka.KafkaError
_GONE = {_code.UNKNOWN_MEMBER_ID, _code.ILLEGAL_GENERATION, _code.REBALANCE_IN_PROGRESS, _code.FENCED_INSTANCE_ID}


class Seat:
    """The place of a member in a group, until its lease is over."""

    def __init__(
        self, clients: Clients, group: str, member: str, topics: Sequence[str], lease: int, clock: Clock
    ) -> None:
        self.topics, self._name, self._lease, self._clock = tuple(topics), member, lease, clock
        self._changed = threading.Condition()
        self._assigned: set[TopicPartition] = set()
        self._leaving: set[TopicPartition] = set()  # what the group wants back
        self._held: set[TopicPartition] = set()
        self._actions: list[tuple[Callable[[], object], Future[object]]] = []
        self._generation, self._expires, self._is_over = 0, clock.now() + lease, False
        fixed = {
            "group.id": group,
            "client.id": member,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": max(lease, _SHORTEST_SESSION),
            "heartbeat.interval.ms": max(100, min(lease // 3, 1000)),
            "topic.metadata.refresh.interval.ms": 1000,
        }
        self._consumer = make("consumer", clients.settings, fixed)
        self._consumer.subscribe(list(topics), on_assign=self._gain, on_revoke=self._lose, on_lost=self._forget)
        self._thread = threading.Thread(target=self._listen, name=f"headrace-{member}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------------- for the member
    @property
    def is_over(self) -> bool:
        """Whether the lease was not renewed in time, or the member has left."""
        return self._is_over or self._clock.now() >= self._expires

    def renew(self, holding: AbstractSet[TopicPartition]) -> Membership:
        """What the member may read, which a new one waits for; what it does not hold any more, others may get."""
        with self._changed:
            self._changed.wait_for(lambda: self._generation > 0 or self._is_over, _FIRST_ANSWER)
            self._expires = self._clock.now() + self._lease
            self._held = set(holding) & self._assigned
            allowed = frozenset(self._assigned - self._leaving)
            self._held |= allowed
            self._changed.notify_all()
            return Membership(self._generation, allowed)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits what the member holds."""
        with self._changed:
            lost = sorted(set(offsets) - self._assigned)
        if lost:
            names = ", ".join(map(str, lost))
            raise FencedError(f"{self._name!r} does not hold {names} any more: another member reads it now")
        places = [kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        with explained("committing offsets"):
            try:
                self._in_thread(lambda: self._consumer.commit(offsets=places, asynchronous=False))
            except kafka.KafkaException as error:
                if code_of(error) not in _GONE | FENCED:
                    raise
                raise FencedError(f"the group has moved on without this member: {error.args[0].str()}") from error

    def _in_thread(self, action: Callable[[], object]) -> None:
        """Lets the thread do it: while the group waits for partitions, nobody else gets an answer."""
        done: Future[object] = Future()
        with self._changed:
            self._actions.append((action, done))
            self._changed.notify_all()
        done.result()

    def leave(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    # ------------------------------------------------------------------------------------------------- in the thread
    def _listen(self) -> None:
        while not self.is_over:
            self._consumer.poll(_LISTEN)
            with self._changed:
                self._act()
        self._is_over = True
        self._consumer.close()
        with self._changed:
            self._act()

    def _act(self) -> None:
        """Does what was asked for."""
        while self._actions:
            action, done = self._actions.pop(0)
            try:
                if self._is_over:
                    raise FencedError("this member has left the group, or its lease was over")  # noqa: TRY301
                done.set_result(action())
            except BaseException as error:  # noqa: BLE001 - for whoever asked
                done.set_exception(error)

    def _gain(self, consumer: Any, partitions: list[Any]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        with self._changed:
            self._assigned |= _places(partitions)
            self._generation += 1
            self._changed.notify_all()

    def _lose(self, consumer: Any, partitions: list[Any]) -> None:
        """The group goes on when the member has given the partitions up, or is taken for dead."""
        wanted = _places(partitions)
        with self._changed:
            self._leaving |= wanted
            self._generation += 1
            while self._held & wanted and not self.is_over:
                self._changed.wait(_LISTEN)
                self._act()
        self._forget(consumer, partitions)

    def _forget(self, consumer: Any, partitions: list[Any]) -> None:
        gone = _places(partitions)
        with self._changed:
            self._assigned -= gone
            self._leaving -= gone
            self._held -= gone
            self._generation += 1


class Members:
    """What `Log` says of members."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients, self._clock = clients, clock
        self._lock = threading.Lock()
        self._seats: dict[tuple[str, str], Seat] = {}

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        seat = self._seats.get((group, member))
        if seat is not None and (seat.is_over or seat.topics != tuple(topics)):
            self.leave(group, member)
            seat = None
        if seat is None:
            seat = Seat(self._clients, group, member, topics, lease, self._clock)
            with self._lock:
                self._seats[group, member] = seat
        return seat.renew(holding)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], member: str) -> None:
        seat = self._seats.get((group, member))
        if seat is None or seat.is_over:
            raise FencedError(
                f"{member!r} is no longer a member of {group!r}: its lease was over. Poll again to join anew"
            )
        seat.commit(offsets)

    def leave(self, group: str, member: str) -> None:
        with self._lock:
            seat = self._seats.pop((group, member), None)
        if seat is not None:
            seat.leave()

    def close(self) -> None:
        for group, member in list(self._seats):
            self.leave(group, member)


def _places(partitions: list[Any]) -> set[TopicPartition]:
    return {TopicPartition(at.topic, at.partition) for at in partitions}
