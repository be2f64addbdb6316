"""Consumer groups of a Kafka cluster: `ConsumerGroups` reads and commits offsets, `GroupMembers` joins groups.

A `GroupMember` is a Kafka consumer that reads nothing and only keeps its place in the group; `PartitionReader` reads
the records. A thread polls the consumer. When the group wants partitions back, the thread makes the group wait until
the member has given them up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from headrace.errors import ProducerFencedError
from headrace.log.kafka.clients import (
    FENCED,
    MOVING,
    NO_ANSWER,
    REFUSED,
    AdminConnection,
    ClientSettings,
    ask,
    ask_all,
    code_of,
    create_client,
    create_reader,
    kafka,
    translate_error,
    translate_errors,
)
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Group, Membership
from headrace.log.validation import (
    check_committed_offset,
    check_partition,
    group_in_use,
    no_longer_member,
    offsets_in_use,
    partitions_lost,
    unknown_group,
)
from headrace.model.clock import Clock
from headrace.model.ids import TopicPartition

_code = kafka.KafkaError
_LEFT = {_code.UNKNOWN_MEMBER_ID, _code.ILLEGAL_GENERATION, _code.REBALANCE_IN_PROGRESS}
_IN_USE = {*_LEFT, _code.NON_EMPTY_GROUP}
_FENCED = {*_LEFT, *FENCED, _code.FENCED_INSTANCE_ID}
_NO_COORDINATOR = {*MOVING, *NO_ANSWER, _code._WAIT_COORD}  # noqa: SLF001 - a public name
_PAUSE, _LONGEST_REQUEST = 0.05, 5.0  # seconds
_MAX_CLIENTS = 8  # consumers that are kept to read and commit offsets
_POLL = 0.02  # seconds between two looks at the clock
_FIRST_ANSWER = 5.0  # seconds that a new member waits for the group
_SHORTEST_SESSION = 6000  # ms: brokers accept no less by default
_COMMITTING = "committing offsets"


class ConsumerGroups:
    """Groups as an observer sees them."""

    def __init__(self, admin: AdminConnection, topics: Topics) -> None:
        self._admin, self._topics, self._timeout = admin, topics, admin.settings.timeout
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}  # consumers by group
        self._commits: dict[str, Future[list[Any]]] = {}  # the last commit of each group

    def all(self) -> dict[str, Group]:
        client, doing = self._admin.client, "listing the groups"
        answers = ask_all(self._admin, doing, lambda timeout: {0: client.list_consumer_groups(request_timeout=timeout)})
        with translate_errors(doing):
            names = sorted(group.group_id for group in answers[0].result().valid)
        return {
            name: Group(name, 0, _members(described), self.committed(name))
            for name, described in self._describe(names).items()
            if described.state != kafka.ConsumerGroupState.DEAD
        }

    def _describe(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        client, doing = self._admin.client, f"describing the groups {', '.join(names)}"
        answers = ask_all(
            self._admin, doing, lambda timeout: client.describe_consumer_groups(names, request_timeout=timeout)
        )
        with translate_errors(doing):
            return {name: answers[name].result() for name in names}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with translate_errors(f"asking for the offsets of the group {group!r}"):
            found = self._retry(group, self._request_committed)
        return {TopicPartition(at.topic, at.partition): at.offset for at in sorted(found) if at.offset >= 0}

    def _request_committed(self, client: Any) -> list[Any]:
        topics = ask(self._admin, "listing the topics", lambda timeout: client.list_topics(timeout=timeout)).topics
        partitions = [kafka.TopicPartition(name, i) for name, topic in topics.items() for i in topic.partitions]
        return client.committed(partitions, timeout=min(self._timeout, _LONGEST_REQUEST)) if partitions else []

    def _retry(self, group: str, call: Callable[[Any], list[Any]]) -> list[Any]:
        """Repeats a call while the group has no coordinator."""
        end = time.monotonic() + self._timeout
        client = self._client_of(group)
        while True:
            try:
                found = call(client)
                for at in found:
                    if at.error is not None:
                        raise kafka.KafkaException(at.error)  # noqa: TRY301
            except kafka.KafkaException as error:
                for message in client.consume(10, 0):  # the client reports here why there is no coordinator
                    if message.error() is not None and message.error().code() in REFUSED:
                        raise kafka.KafkaException(message.error()) from error
                if code_of(error) not in _NO_COORDINATOR or time.monotonic() > end:
                    raise
                time.sleep(_PAUSE)
            else:
                return found

    def _client_of(self, group: str) -> Any:
        """Returns a consumer that is no member of the group.

        The admin client can read and commit offsets too, but it ends the whole process if the coordinator of a group
        has just moved or the connection to it breaks.
        """
        with self._lock:
            if group not in self._clients:
                self._clients[group] = create_reader(self._admin.settings, group)
                while len(self._clients) > _MAX_CLIENTS:
                    self._close_client(next(iter(self._clients)))
            return self._clients[group]

    def _close_client(self, group: str) -> None:
        client, commit = self._clients.pop(group), self._commits.pop(group, None)
        if commit is None or commit.done():
            client.close()  # else it would wait for the commit

    def close(self) -> None:
        with self._lock:
            for group in list(self._clients):
                self._close_client(group)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets of a group that has no members."""
        topics = self._topics.get(*sorted({at.topic for at in offsets}))
        for at, offset in offsets.items():
            check_partition(at, topics[at.topic].partitions)
            check_committed_offset(at, offset)
        if not offsets:
            return
        places = _to_kafka(offsets)
        with translate_errors(_setting_offsets(group)):
            try:
                self._retry(group, lambda client: self._commit(group, client, places))
            except kafka.KafkaException as error:
                if code_of(error) not in _IN_USE:
                    raise
                raise offsets_in_use(group, self._members_of(group)) from error

    def _commit(self, group: str, client: Any, places: list[Any]) -> list[Any]:
        """Commits offsets, and raises an error after the timeout.

        The client itself waits for a cluster that is away, without limit. So a thread waits for the client, and the
        next commit of the group waits for that thread: an earlier commit must not overtake it.
        """
        before = self._commits.get(group)
        if before is not None:
            _await(before, self._timeout, _setting_offsets(group))
        done = self._commits[group] = Future[list[Any]]()
        commit = partial(client.commit, offsets=places, asynchronous=False)
        threading.Thread(target=_resolve, args=(done, commit), name=f"headrace commit {group}", daemon=True).start()
        _await(done, self._timeout, _setting_offsets(group))
        return done.result()

    def delete(self, group: str) -> None:
        with translate_errors(f"deleting the group {group!r}"):
            try:
                self._admin.client.delete_consumer_groups([group], request_timeout=self._timeout)[group].result()
            except kafka.KafkaException as error:
                if code_of(error) == _code.GROUP_ID_NOT_FOUND:
                    raise unknown_group(group) from error
                if code_of(error) in _IN_USE:
                    raise group_in_use(group, self._members_of(group)) from error
                raise

    def _members_of(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        return _members(self._describe([group])[group])


def _resolve(done: Future[Any], call: Callable[[], Any]) -> None:
    """Sets the result of a call, or its error."""
    try:
        done.set_result(call())
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        done.set_exception(error)


def _await(done: Future[Any], timeout: float, doing: str) -> None:
    """Waits until a call has ended, in one way or the other."""
    wait([done], timeout)
    if not done.done():
        raise translate_error(kafka.KafkaError(_code._TIMED_OUT), doing)  # noqa: SLF001 - a public name


def _setting_offsets(group: str) -> str:
    return f"setting the offsets of the group {group!r}"


def _members(description: Any) -> dict[str, frozenset[TopicPartition]]:
    """Returns the partitions by member: by its client id, or by its member id if two members share the client id."""
    client_ids = [member.client_id for member in description.members]
    return {
        member.client_id if client_ids.count(member.client_id) == 1 else member.member_id: frozenset(
            _from_kafka(member.assignment.topic_partitions if member.assignment else [])
        )
        for member in description.members
    }


# ---------------------------------------------------------------------------------------------------------- members
class GroupMember:
    """A member of a group, until its lease ends."""

    def __init__(
        self, settings: ClientSettings, group: str, name: str, topics: Sequence[str], lease: int, clock: Clock
    ) -> None:
        self.topics, self._group, self._name, self._lease, self._clock = tuple(topics), group, name, lease, clock
        self._changed = threading.Condition()
        self._assigned: set[TopicPartition] = set()
        self._revoked: set[TopicPartition] = set()  # assigned, and wanted back by the group
        self._held: set[TopicPartition] = set()  # assigned, and not given up
        self._actions: list[tuple[Callable[[], object], Future[object]]] = []
        self._timeout = settings.timeout
        self._generation, self._expires, self._is_over = 0, clock.now() + lease, False
        fixed = {
            "group.id": group,
            "client.id": name,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": max(lease, _SHORTEST_SESSION),
            "heartbeat.interval.ms": max(100, min(lease // 3, 1000)),
            "topic.metadata.refresh.interval.ms": 1000,
        }
        self._client = create_client("consumer", settings, fixed)
        self._client.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread = threading.Thread(target=self._run, name=f"headrace-{name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------------ the caller's
    @property
    def is_over(self) -> bool:
        """True if the lease has ended or the member has left."""
        return self._is_over or self._clock.now() >= self._expires

    def renew(self, holding: AbstractSet[TopicPartition]) -> Membership:
        """Renews the lease, gives up what is not in `holding`, and returns the partitions that the member may read.

        A new member waits for the first answer of the group.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._generation > 0 or self._is_over, _FIRST_ANSWER)
            self._expires = self._clock.now() + self._lease
            allowed = frozenset(self._assigned - self._revoked)
            self._held = set(holding) & self._assigned | allowed
            self._changed.notify_all()
            return Membership(self._generation, allowed)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._changed:
            lost = offsets.keys() - self._assigned
        if lost:
            raise partitions_lost(self._group, self._name, lost)
        places = _to_kafka(offsets)
        with translate_errors(_COMMITTING):
            try:
                self._run_in_thread(lambda: self._client.commit(offsets=places, asynchronous=False))
            except kafka.KafkaException as error:
                if code_of(error) not in _FENCED:
                    raise
                raise ProducerFencedError(
                    f"the group has moved on without this member: {error.args[0].str()}"
                ) from error

    def _run_in_thread(self, action: Callable[[], object]) -> None:
        """Runs an action in the member's thread: other threads get no answer while the group waits for partitions."""
        done: Future[object] = Future()
        with self._changed:
            self._actions.append((action, done))
            self._changed.notify_all()
        try:
            _await(done, self._timeout, _COMMITTING)
        finally:
            done.cancel()  # if it has not begun
        done.result()

    def leave(self) -> None:
        """Leaves the group; after a commit that waits for a cluster that is away, only when the cluster is back."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(self._timeout)

    # ------------------------------------------------------------------------------------------------ the thread's
    def _run(self) -> None:
        while not self.is_over:
            self._client.poll(_POLL)
            self._run_actions()
        self._is_over = True
        self._client.close()
        self._run_actions()

    def _run_actions(self) -> None:
        while True:
            with self._changed:
                if not self._actions:
                    return
                action, done = self._actions.pop(0)
            if done.set_running_or_notify_cancel():
                _resolve(done, self._refuse if self._is_over else action)

    def _refuse(self) -> None:
        raise no_longer_member(self._group, self._name)

    def _on_assign(self, client: Any, partitions: list[Any]) -> None:
        client.incremental_assign(partitions)
        client.pause(partitions)
        with self._changed:
            self._assigned |= _from_kafka(partitions)
            self._generation += 1
            self._changed.notify_all()

    def _on_revoke(self, client: Any, partitions: list[Any]) -> None:
        """Waits until the member has given the partitions up, or its lease has ended. The group waits meanwhile."""
        revoked = _from_kafka(partitions)
        with self._changed:
            self._revoked |= revoked
            self._generation += 1
        while self._holds(revoked):
            self._run_actions()
        self._on_lost(client, partitions)

    def _holds(self, revoked: AbstractSet[TopicPartition]) -> bool:
        """Returns whether the member still has some of the partitions. If it has, it gets a moment to give them up."""
        with self._changed:
            is_held = bool(self._held & revoked) and not self.is_over
            if is_held:
                self._changed.wait(_POLL)
            return is_held

    def _on_lost(self, client: Any, partitions: list[Any]) -> None:
        lost = _from_kafka(partitions)
        with self._changed:
            self._assigned -= lost
            self._revoked -= lost
            self._held -= lost
            self._generation += 1


class GroupMembers:
    """The group members of this process."""

    def __init__(self, settings: ClientSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._members: dict[tuple[str, str], GroupMember] = {}

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        joined = self._members.get((group, member))
        if joined is not None and (joined.is_over or joined.topics != tuple(topics)):
            self.leave(group, member)
            joined = None
        if joined is None:
            joined = GroupMember(self._settings, group, member, topics, lease, self._clock)
            with self._lock:
                self._members[group, member] = joined
        return joined.renew(holding)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], member: str) -> None:
        joined = self._members.get((group, member))
        if joined is None or joined.is_over:
            raise no_longer_member(group, member)
        joined.commit(offsets)

    def leave(self, group: str, member: str) -> None:
        with self._lock:
            joined = self._members.pop((group, member), None)
        if joined is not None:
            joined.leave()

    def close(self) -> None:
        for group, member in list(self._members):
            self.leave(group, member)


def _from_kafka(partitions: list[Any]) -> set[TopicPartition]:
    return {TopicPartition(at.topic, at.partition) for at in partitions}


def _to_kafka(offsets: Mapping[TopicPartition, int]) -> list[Any]:
    return [kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
