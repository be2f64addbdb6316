"""What Kafka answers when something is wrong, as errors that say what to do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from headrace.errors import ConfigError, StreamsError
from headrace.log.errors import (
    FencedError,
    GroupInUseError,
    LogBusyError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
)
from headrace.log.kafka.clients import kafka

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
    **dict.fromkeys(MOVING, LogBusyError),
    **dict.fromkeys(FENCED, FencedError),
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
    return _KINDS.get(code, LogUnavailableError)(f"{doing} failed: {error.str()}")


@contextmanager
def explained(doing: str) -> Generator[None]:
    """What the client raises inside is raised as one of ours."""
    try:
        yield
    except kafka.KafkaException as error:
        raise translated(error.args[0], doing) from error
