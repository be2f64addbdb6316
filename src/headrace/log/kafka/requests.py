"""What Kafka answers when something is wrong, as errors that say what to do.

Questions to a Kafka cluster: waited for up to a limit, with a line in the log now and then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.errors import (
    ConfigError,
    GroupInUseError,
    LogBusyError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RecordTooLargeError,
    StreamsError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
)
from headrace.log.kafka.clients import Clients, kafka

_code = kafka.KafkaError
FENCED = {_code._FENCED, _code.INVALID_PRODUCER_EPOCH, _code.PRODUCER_FENCED}  # noqa: SLF001 - their public names
NO_ANSWER = {
    _code._TRANSPORT, _code._ALL_BROKERS_DOWN, _code._TIMED_OUT, _code._RESOLVE,  # noqa: SLF001
    _code.BROKER_NOT_AVAILABLE, _code.NETWORK_EXCEPTION,
}  # fmt: skip
NEW = {_code._UNKNOWN_PARTITION, _code._UNKNOWN_TOPIC}  # noqa: SLF001 - to this client, if others know it
MOVING = {  # a partition or a group is on its way from one broker to another
    _code.NOT_LEADER_FOR_PARTITION, _code.LEADER_NOT_AVAILABLE, _code.NOT_COORDINATOR, _code.COORDINATOR_NOT_AVAILABLE,
    _code.COORDINATOR_LOAD_IN_PROGRESS, _code.REPLICA_NOT_AVAILABLE, _code.OFFSET_NOT_AVAILABLE,
    _code.UNKNOWN_LEADER_EPOCH, _code.FENCED_LEADER_EPOCH, _code.REQUEST_TIMED_OUT,
    _code._NOENT,  # noqa: SLF001 - no leader is known yet
}  # fmt: skip
PASSING = {  # another transaction may well succeed
    *NO_ANSWER, *MOVING, _code._MSG_TIMED_OUT, _code.KAFKA_STORAGE_ERROR,  # noqa: SLF001
    _code.NOT_ENOUGH_REPLICAS, _code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, _code.CONCURRENT_TRANSACTIONS,
    _code.OUT_OF_ORDER_SEQUENCE_NUMBER, _code.UNKNOWN_PRODUCER_ID, _code.INVALID_TXN_STATE,
    _code.INVALID_PRODUCER_ID_MAPPING,
}  # fmt: skip
_KINDS: dict[int, type[StreamsError]] = {
    _code.UNKNOWN_TOPIC_OR_PART: UnknownTopicError,
    _code._UNKNOWN_TOPIC: UnknownTopicError,  # noqa: SLF001
    _code._UNKNOWN_PARTITION: UnknownTopicError,  # noqa: SLF001
    _code.TOPIC_ALREADY_EXISTS: TopicExistsError,
    _code.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    _code._AUTO_OFFSET_RESET: OffsetOutOfRangeError,  # noqa: SLF001
    _code.MSG_SIZE_TOO_LARGE: RecordTooLargeError,
    _code.GROUP_ID_NOT_FOUND: UnknownGroupError,
    _code.NON_EMPTY_GROUP: GroupInUseError,
    _code.INVALID_CONFIG: ConfigError,
    _code.INVALID_REPLICATION_FACTOR: ConfigError,
    **dict.fromkeys(MOVING, LogBusyError),
    **dict.fromkeys(FENCED, ProducerFencedError),
}
_REFUSALS = {
    _code.TOPIC_AUTHORIZATION_FAILED: "an ACL for the topic is missing",
    _code.GROUP_AUTHORIZATION_FAILED: "an ACL for the group is missing",
    _code.CLUSTER_AUTHORIZATION_FAILED: "an ACL for the cluster is missing",
    _code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "an ACL for the transactional id is missing",
    _code._AUTHENTICATION: "the credentials are not accepted",  # noqa: SLF001
    _code.SASL_AUTHENTICATION_FAILED: "the credentials are not accepted",
    _code._SSL: "no secure connection can be made",  # noqa: SLF001
}
REFUSED = set(_REFUSALS)  # waiting would not help


def code_of(error: BaseException) -> int:
    """The code of an exception of the client."""
    return error.args[0].code()


def translated(error: Any, doing: str) -> StreamsError:
    """What a `KafkaError` means, when it came while something was done."""
    code = error.code()
    if code in _REFUSALS:
        return LogUnavailableError(f"{doing} was refused: {_REFUSALS[code]} ({error.str()})")
    if code in NO_ANSWER:
        return LogUnavailableError(f"{doing} got no answer: {error.str()}. Are the brokers running, and reachable?")
    return _KINDS.get(code, LogUnavailableError)(f"{doing} failed: {error.str()} ({error.name()})")


@contextmanager
def explained(doing: str) -> Generator[None]:
    """What the client raises inside is raised as one of ours."""
    try:
        yield
    except kafka.KafkaException as error:
        raise translated(error.args[0], doing) from error


_FIRST, _LONGEST = 1.0, 5.0  # seconds that one waits before one looks how things are
_QUIET, _BETWEEN = 2.5, 5.0  # seconds until the first line, and between two
_PAUSE = 0.1
# Requests of the client for administration are given up by us before they are by the client: that is where it crashes.
MARGIN = 15.0
_LOGGER = logging.getLogger("headrace.log.kafka")
Answer = TypeVar("Answer")
Name = TypeVar("Name")


class Wait:
    """The time that is left for an answer."""

    def __init__(self, doing: str, servers: str, patience: float) -> None:
        self._doing, self._servers, self._patience = doing, servers, patience
        self._began, self._length = time.monotonic(), _FIRST
        self._next = self._began + _QUIET

    @property
    def left(self) -> float:
        return self._began + self._patience - time.monotonic()

    def slice(self) -> float:
        """How many seconds the next try may take."""
        length, self._length = self._length, min(2 * self._length, _LONGEST)
        return max(min(length, self.left), 0.01)

    def tell(self) -> None:
        """Says what is waited for, now and then."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _BETWEEN
        _LOGGER.warning(
            "%s got no answer from %s for %.0f s: waiting for %.0f s more, then giving up",
            self._doing, self._servers, now - self._began, max(self.left, 0),
        )  # fmt: skip


def ask(clients: Clients, doing: str, question: Callable[[float], Answer]) -> Answer:
    """The answer to a question that changes nothing; it is given the seconds that it may take."""
    waiting = Wait(doing, clients.settings.servers, clients.settings.patience)
    while True:
        try:
            return question(waiting.slice())
        except kafka.KafkaException as error:
            if code_of(error) not in NO_ANSWER or waiting.left <= 0:
                raise translated(error.args[0], doing) from error
        _check(clients, doing)
        waiting.tell()
        time.sleep(max(min(waiting.left, _PAUSE), 0))


def answers(
    clients: Clients,
    doing: str,
    question: Callable[[float], Mapping[Name, Future[Any]]],
    again: Collection[int] = frozenset({*NO_ANSWER, *MOVING}),
) -> dict[Name, Future[Any]]:
    """The same for questions of the client for administration, each with an answer of its own, good or bad.

    After answers that are in `again` all is asked once more.
    """
    waiting = Wait(doing, clients.settings.servers, clients.settings.patience)
    while True:
        asked = dict(question(clients.settings.patience + MARGIN))
        while wait(asked.values(), waiting.slice()).not_done:
            _check(clients, doing)
            if waiting.left <= 0:
                raise translated(kafka.KafkaError(_TIMED_OUT), doing)
            waiting.tell()
        errors = [error for future in asked.values() if (error := future.exception()) is not None]
        if waiting.left <= 0 or not any(
            isinstance(error, kafka.KafkaException) and code_of(error) in again for error in errors
        ):
            return asked
        time.sleep(_PAUSE)


_TIMED_OUT = kafka.KafkaError._TIMED_OUT  # noqa: SLF001 - a public name


def _check(clients: Clients, doing: str) -> None:
    """Raises why nobody answers, where waiting would not help."""
    found = clients.trouble()
    if found is not None and found.code() in REFUSED:
        raise translated(found, doing)
