"""Consumer groups of a Kafka cluster, as those see them who are not members.

Members of consumer groups: each one a Kafka consumer that reads nothing, and only keeps its place in the group.

Records are read by whoever holds the partitions. A thread listens to what the group says. When partitions are to be
given up, it makes the group wait until the member has done so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Any

from headrace.errors import GroupInUseError, ProducerFencedError, UnknownGroupError
from headrace.log.kafka.clients import READING, Clients, kafka, make
from headrace.log.kafka.requests import FENCED, MOVING, NO_ANSWER, REFUSED, answers, ask, code_of, explained
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Group, Membership
from headrace.model.clock import Clock
from headrace.model.ids import TopicPartition

_code = kafka.KafkaError
_IN_USE = {_code.NON_EMPTY_GROUP, _code.UNKNOWN_MEMBER_ID, _code.ILLEGAL_GENERATION, _code.REBALANCE_IN_PROGRESS}
_ASK_AGAIN, _LONGEST = 0.05, 5.0  # seconds
_VOICES = 8
_DEAD = kafka.ConsumerGroupState.DEAD
_AWAY = {*MOVING, *NO_ANSWER, _code._WAIT_COORD}  # noqa: SLF001 - a public name


class Groups:
    """What `Log` says of groups."""

    def __init__(self, clients: Clients, topics: Topics) -> None:
        self._clients, self._topics, self._patience = clients, topics, clients.settings.patience
        self._lock = threading.Lock()
        self._voices: dict[str, Any] = {}  # by group

    def all(self) -> dict[str, Group]:
        admin, doing = self._clients.admin, "listing the groups"
        asked = answers(self._clients, doing, lambda length: {0: admin.list_consumer_groups(request_timeout=length)})
        with explained(doing):
            listed = asked[0].result().valid
        names = sorted(group.group_id for group in listed)
        described = self._described(names)
        return {
            name: Group(name, 0, _members(described[name]), self.committed(name))
            for name in names
            if described[name].state != _DEAD
        }

    def _described(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        admin, doing = self._clients.admin, f"describing the groups {', '.join(names)}"
        asked = answers(
            self._clients, doing, lambda length: admin.describe_consumer_groups(names, request_timeout=length)
        )
        with explained(doing):
            return {name: future.result() for name, future in asked.items()}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Where a group goes on."""
        with explained(f"asking for the offsets of the group {group!r}"):
            found = self._patiently(group, self._committed)
        return {TopicPartition(at.topic, at.partition): at.offset for at in sorted(found) if at.offset >= 0}

    def _committed(self, consumer: Any) -> list[Any]:
        topics = ask(self._clients, "listing the topics", lambda length: consumer.list_topics(timeout=length)).topics
        places = [kafka.TopicPartition(name, part) for name, topic in topics.items() for part in topic.partitions]
        return consumer.committed(places, timeout=min(self._patience, _LONGEST)) if places else []

    def _patiently(self, group: str, call: Callable[[Any], list[Any]]) -> list[Any]:
        """Calls again while the coordinator of a group is away, or starts."""
        end = time.monotonic() + self._patience
        consumer = self._voice(group)
        while True:
            try:
                found = call(consumer)
                _raise_first(found)
            except kafka.KafkaException as error:
                for said in consumer.consume(10, 0):  # such as why there is no coordinator
                    if said.error() is not None and said.error().code() in REFUSED:
                        raise kafka.KafkaException(said.error()) from error
                if code_of(error) not in _AWAY or time.monotonic() > end:
                    raise
                time.sleep(_ASK_AGAIN)
            else:
                return found

    def _voice(self, group: str) -> Any:
        """A consumer that speaks for a group without being a member.

        The client for administration could do the same, but ends the whole process if the coordinator of a group has
        just moved or the connection to it breaks.
        """
        with self._lock:
            if group not in self._voices:
                self._voices[group] = make("consumer", self._clients.settings, {**READING, "group.id": group})
                while len(self._voices) > _VOICES:
                    self._voices.pop(next(iter(self._voices))).close()
            return self._voices[group]

    def close(self) -> None:
        with self._lock:
            for consumer in self._voices.values():
                consumer.close()
            self._voices.clear()

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Sets offsets while nobody is reading."""
        self.check(offsets)
        if not offsets:
            return
        places = [kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        with explained(f"setting the offsets of the group {group!r}"):
            try:
                self._patiently(group, lambda consumer: consumer.commit(offsets=places, asynchronous=False))
            except kafka.KafkaException as error:
                if code_of(error) not in _IN_USE:
                    raise
                raise GroupInUseError(
                    f"the group {group!r} is in use by {self._readers(group)}: offsets can be set when they left"
                ) from error

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Refuses offsets that cannot be."""
        topics = self._topics.known(sorted({at.topic for at in offsets}))
        for at, offset in offsets.items():
            self._topics.place(at, topics[at.topic])
            if offset < 0:
                raise ValueError(f"an offset to commit is 0 or more, not {offset} of {at}")

    def delete(self, group: str) -> None:
        with explained(f"deleting the group {group!r}"):
            try:
                self._clients.admin.delete_consumer_groups([group], request_timeout=self._patience)[group].result()
            except kafka.KafkaException as error:
                if code_of(error) == _code.GROUP_ID_NOT_FOUND:
                    raise UnknownGroupError(
                        f"there is no consumer group {group!r}: it exists from the first join or commit on"
                    ) from error
                if code_of(error) in _IN_USE:
                    raise GroupInUseError(f"the group {group!r} is in use by {self._readers(group)}") from error
                raise

    def _readers(self, group: str) -> str:
        return ", ".join(sorted(_members(self._described([group])[group])))


def _raise_first(places: list[Any]) -> None:
    for at in places:
        if at.error is not None:
            raise kafka.KafkaException(at.error)


def _members(description: Any) -> dict[str, frozenset[TopicPartition]]:
    """Members by the name that they gave themselves, or by the one that Kafka gave them."""
    by_client = [member.client_id for member in description.members]
    return {
        member.client_id if by_client.count(member.client_id) == 1 else member.member_id: frozenset(
            TopicPartition(at.topic, at.partition)
            for at in (member.assignment.topic_partitions if member.assignment else ())
        )
        for member in description.members
    }


_LISTEN = 0.02  # seconds between two looks at the clock
_FIRST_ANSWER = 5.0  # seconds that a new member waits for the group
_SHORTEST_SESSION = 6000  # ms: brokers accept no less, unless they are told to
_code_of = kafka.KafkaError
_GONE = {
    _code_of.UNKNOWN_MEMBER_ID,
    _code_of.ILLEGAL_GENERATION,
    _code_of.REBALANCE_IN_PROGRESS,
    _code_of.FENCED_INSTANCE_ID,
}


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
            raise ProducerFencedError(f"{self._name!r} does not hold {names} any more: another member reads it now")
        places = [kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        with explained("committing offsets"):
            try:
                self._in_thread(lambda: self._consumer.commit(offsets=places, asynchronous=False))
            except kafka.KafkaException as error:
                if code_of(error) not in _GONE | FENCED:
                    raise
                raise ProducerFencedError(
                    f"the group has moved on without this member: {error.args[0].str()}"
                ) from error

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
                    raise ProducerFencedError("this member has left the group, or its lease was over")  # noqa: TRY301
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
            raise ProducerFencedError(
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
