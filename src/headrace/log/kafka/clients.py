"""Kafka's clients: their settings, how they are created, and how they send requests and translate errors.

    admin = AdminConnection(ClientSettings(servers, given))
    ask(admin, "reading the offsets", lambda seconds: ...)     a call that waits
    ask_all(admin, "creating topics", lambda seconds: ...)     a call of the admin client, which returns futures

Requests are repeated until the timeout, and Kafka's errors become errors of a log. While a request waits, the program's
log says so every ten seconds.

Only this module imports the client library. Clients do not survive a fork: each process creates its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import confluent_kafka
import confluent_kafka.admin

from headrace.config.settings import SHARED_BY_CLIENTS
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
from headrace.log.client_log import ClientLog, warn
from headrace.model.threads import SYSTEM_THREADS, Threads

kafka: Any = confluent_kafka  # its types are incomplete
kafka_admin: Any = confluent_kafka.admin
Kind = Literal["admin", "consumer", "producer"]
Answer = TypeVar("Answer")
Name = TypeVar("Name")
# Java's clients also wait at most a second before they connect again; this library's default is ten.
_DEFAULTS_OF_ALL = {"reconnect.backoff.max.ms": 1000}
_DEFAULTS: dict[Kind, dict[str, Any]] = {
    "admin": {},
    # A range of offsets is read as fast as it arrives, and does not wait at the end of a partition for more.
    "consumer": {"fetch.wait.max.ms": 5, "queued.min.messages": 200_000},
    "producer": {
        "linger.ms": 5,
        "message.max.bytes": 1_000_000_000,
        "queue.buffering.max.messages": 1_000_000,
        "retry.backoff.ms": 5,  # with the default, every transaction waits 100 ms for the one before it
    },
}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The servers, and the settings that the user has given: `consumer.*`, `producer.*`, `admin.*`, TLS and SASL.

    `make_client`, if given, creates the clients instead of the client library.
    """

    servers: str
    given: Mapping[str, Any]
    threads: Threads = SYSTEM_THREADS
    make_client: Callable[[Kind, dict[str, Any]], Any] | None = None

    def of(self, kind: Kind, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings of one client. Correctness depends on `fixed`, so the user cannot change these.

        >>> given = {"sasl.username": "ada", "producer.linger.ms": 1, "num.stream.threads": 4}
        >>> ClientSettings("host:9092", given).of("admin", {})
        {'reconnect.backoff.max.ms': 1000, 'sasl.username': 'ada', 'bootstrap.servers': 'host:9092'}
        """
        shared = {name: value for name, value in self.given.items() if name.startswith(SHARED_BY_CLIENTS)}
        prefix = f"{kind}."
        own = {name.removeprefix(prefix): value for name, value in self.given.items() if name.startswith(prefix)}
        return {**_DEFAULTS_OF_ALL, **_DEFAULTS[kind], **shared, **own, **fixed, "bootstrap.servers": self.servers}

    @property
    def replication_factor(self) -> int:
        """The replication factor of topics that are created without one. -1 is the broker's default."""
        return int(self.given.get("replication.factor", -1))

    @property
    def timeout(self) -> float:
        """How many seconds a call waits for an answer."""
        return int(self.given.get("default.api.timeout.ms", 60_000)) / 1000


def parse_servers(address: str) -> str:
    """Returns the bootstrap servers of an address.

    >>> parse_servers("kafka://one:9092,two:9092")
    'one:9092,two:9092'
    """
    servers = [server.strip() for server in address.removeprefix("kafka://").rstrip("/").split(",")]
    for server in servers:
        host, colon, port = server.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ConfigError(f"{address!r} is not the address of a log: write kafka://HOST:PORT,HOST:PORT,...")
    return ",".join(servers)


def create_client(kind: Kind, settings: ClientSettings, fixed: Mapping[str, Any] | None = None) -> Any:
    """Creates an admin client, a consumer or a producer."""
    if settings.make_client is not None:
        return settings.make_client(kind, settings.of(kind, fixed or {}))
    constructors = {"admin": kafka_admin.AdminClient, "consumer": kafka.Consumer, "producer": kafka.Producer}
    try:
        return constructors[kind](settings.of(kind, fixed or {}), logger=ClientLog(settings.servers))
    except kafka.KafkaException as error:
        hint = ". Give sasl.username and sasl.password instead" if "sasl.jaas.config" in settings.given else ""
        raise ConfigError(f"Kafka's client does not take these settings: {error.args[0].str()}{hint}") from error


def create_reader(settings: ClientSettings, group: str = "headrace") -> Any:
    """Creates a consumer that is no member of a group. A group must be named, even if nothing is committed for it."""
    fixed = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    }
    return create_client("consumer", settings, fixed)


class AdminConnection:
    """The admin client of a process. It is created when it is first used."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None
        self._errors: list[Any] = []

    @property
    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = create_client("admin", self.settings, {"error_cb": self._add_error})
            return self._client

    def _add_error(self, error: Any) -> None:
        self._errors.append(error)

    def poll_errors(self) -> list[Any]:
        """Returns the new errors of the connection: a refused login may be followed by "all brokers are down"."""
        self._errors = []
        self.client.poll(0)
        return self._errors

    def close(self) -> None:
        with self._lock:
            self._client = None


# --------------------------------------------------------------------------------------------------------------- errors
_code = kafka.KafkaError
FENCED = {_code._FENCED, _code.INVALID_PRODUCER_EPOCH, _code.PRODUCER_FENCED}  # noqa: SLF001 - public names
NO_ANSWER = {
    _code._TRANSPORT, _code._ALL_BROKERS_DOWN, _code._TIMED_OUT, _code._RESOLVE,  # noqa: SLF001
    _code._DESTROY_BROKER,  # noqa: SLF001 - the client has given the connection up
    _code.BROKER_NOT_AVAILABLE, _code.NETWORK_EXCEPTION,
}  # fmt: skip
NOT_IN_METADATA = {_code._UNKNOWN_PARTITION, _code._UNKNOWN_TOPIC}  # noqa: SLF001 - of this client; the cluster may know
MOVING = {  # a partition or a group moves from one broker to another
    _code.NOT_LEADER_FOR_PARTITION, _code.LEADER_NOT_AVAILABLE, _code.NOT_COORDINATOR, _code.COORDINATOR_NOT_AVAILABLE,
    _code.COORDINATOR_LOAD_IN_PROGRESS, _code.REPLICA_NOT_AVAILABLE, _code.OFFSET_NOT_AVAILABLE,
    _code.UNKNOWN_LEADER_EPOCH, _code.FENCED_LEADER_EPOCH, _code.REQUEST_TIMED_OUT,
    _code._NOENT,  # noqa: SLF001 - no leader is known yet
}  # fmt: skip
TRANSIENT = {  # another transaction may succeed
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
REFUSED = set(_REFUSALS)  # these do not go away with time
# A broker that wants TLS or a login ends the connection of a client without it, as one that is away does.
CHECK_BROKERS = "Are the brokers running, and reachable, and is security.protocol what they expect?"


def code_of(error: BaseException) -> int:
    """Returns the error code of a `KafkaException`."""
    return error.args[0].code()


def translate_error(error: Any, doing: str) -> StreamsError:
    """Returns the error of a log for a `KafkaError`. `doing` says what failed."""
    code = error.code()
    if code in _REFUSALS:
        return LogUnavailableError(f"{doing} was refused: {_REFUSALS[code]} ({error.str()})")
    if code in NO_ANSWER:
        return LogUnavailableError(f"{doing} got no answer: {error.str()}. {CHECK_BROKERS}")
    return _KINDS.get(code, LogUnavailableError)(f"{doing} failed: {error.str()} ({error.name()})")


@contextmanager
def translate_errors(doing: str) -> Generator[None]:
    """Raises errors of the client library as errors of a log."""
    try:
        yield
    except kafka.KafkaException as error:
        raise translate_error(error.args[0], doing) from error


# ------------------------------------------------------------------------------------------------------------- requests
_RETRIED = frozenset({*NO_ANSWER, *MOVING})
_FIRST_SLICE, _LONGEST_SLICE = 1.0, 5.0  # seconds
_FIRST_WARNING, _BETWEEN_WARNINGS = 2.5, 5.0  # seconds
_PAUSE = 0.1  # seconds between two attempts
_MARGIN = 15.0  # seconds: the library crashes when a request of the admin client times out, so `ask_all` gives up first


class Deadline:
    """The time that is left for an answer, in slices: first one second, then longer ones."""

    def __init__(self, doing: str, settings: ClientSettings) -> None:
        self._doing, self._servers, self._seconds = doing, settings.servers, settings.threads.seconds
        self._began, self._slice = self._seconds(), _FIRST_SLICE
        self._end = self._began + settings.timeout
        self._next_warning = self._began + _FIRST_WARNING

    @property
    def left(self) -> float:
        return self._end - self._seconds()

    def next_slice(self) -> float:
        """Returns how many seconds the next attempt may take."""
        length, self._slice = self._slice, min(2 * self._slice, _LONGEST_SLICE)
        return max(min(length, self.left), 0.01)

    def warn_if_due(self) -> None:
        """Writes every few seconds to the program's log which request waits."""
        now = self._seconds()
        if now < self._next_warning:
            return
        self._next_warning = now + _BETWEEN_WARNINGS
        waited, left = now - self._began, max(self.left, 0)
        warn(
            self._servers,
            f"{self._doing} got no answer from {self._servers} for {waited:.0f} s: waiting for {left:.0f} s more, then "
            "giving up",
        )


def ask(admin: AdminConnection, doing: str, question: Callable[[float], Answer]) -> Answer:
    """Repeats a call that changes nothing until there is an answer. The call gets the seconds that it may take."""
    deadline = Deadline(doing, admin.settings)
    while True:
        try:
            return question(deadline.next_slice())
        except kafka.KafkaException as error:
            if code_of(error) not in NO_ANSWER:
                raise translate_error(error.args[0], doing) from error
            _raise_refusal(admin, doing)
            if deadline.left <= 0:
                raise translate_error(error.args[0], doing) from error
        deadline.warn_if_due()
        time.sleep(max(min(deadline.left, _PAUSE), 0))


def ask_all(
    admin: AdminConnection,
    doing: str,
    question: Callable[[float], Mapping[Name, Future[Any]]],
    retried: Collection[int] = _RETRIED,
) -> dict[Name, Future[Any]]:
    """Repeats a call of the admin client until no answer is an error in `retried`. Returns the completed futures."""
    return begin_asking(admin, doing, question, retried)()


def begin_asking(
    admin: AdminConnection,
    doing: str,
    question: Callable[[float], Mapping[Name, Future[Any]]],
    retried: Collection[int] = _RETRIED,
) -> Callable[[], dict[Name, Future[Any]]]:
    """Sends the request of `ask_all`. The returned function waits for the answers.

    A request may wait for a broker that has died, though others have taken over from it, so it is sent again.
    """
    timeout = admin.settings.timeout + _MARGIN
    first = dict(question(timeout))

    def answers() -> dict[Name, Future[Any]]:
        deadline, attempts = Deadline(doing, admin.settings), [first]
        while True:
            wait(attempts[-1].values(), deadline.next_slice())
            answered = next((asked for asked in attempts if all(future.done() for future in asked.values())), None)
            if answered is None:
                _raise_refusal(admin, doing)
                if deadline.left <= 0:
                    raise translate_error(kafka.KafkaError(_code._TIMED_OUT), doing)  # noqa: SLF001 - a public name
                deadline.warn_if_due()
                _refresh_brokers(admin)
            elif deadline.left <= 0 or not any(_is_retried(future, retried) for future in answered.values()):
                return answered
            else:
                attempts.clear()
                time.sleep(_PAUSE)
            attempts.append(dict(question(timeout)))

    return answers


def _refresh_brokers(admin: AdminConnection) -> None:
    """Makes the admin client ask which brokers are there: a request waits for a broker that has died, for minutes."""
    with suppress(kafka.KafkaException):
        admin.client.list_topics(timeout=_FIRST_SLICE)


def _is_retried(future: Future[Any], retried: Collection[int]) -> bool:
    error = future.exception()
    return error is not None and isinstance(error, kafka.KafkaException) and code_of(error) in retried


def _raise_refusal(admin: AdminConnection, doing: str) -> None:
    """Raises the error of the connection if waiting would not help."""
    for error in admin.poll_errors():
        if error.code() in REFUSED:
            raise translate_error(error, doing)
