"""The outputs of batches, exactly once: records and the marker of their batch in one Kafka transaction.

The marker is a record of the compacted topic `<application>-delivered`. A producer's word is taken only where it is
definite. After anything else there is a new producer: making it ends the old one's transaction, one way or the other,
and then the marker says which.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors import StreamsError
from headrace.log.errors import FencedError, LogUnavailableError, TopicExistsError
from headrace.log.kafka.appending import BATCH, Checking, Load, send
from headrace.log.kafka.asking import Wait
from headrace.log.kafka.clients import Clients, kafka, make
from headrace.log.kafka.reading import Reading
from headrace.log.kafka.topics import Topics
from headrace.log.kafka.trouble import FENCED, MOVING, NO_ANSWER, PASSING, code_of, translated
from headrace.log.protocol import Item, Records
from headrace.model.ids import TopicPartition

_KEY = b"delivered"
_BARRIER = b"barrier"
_LOOK_BACK = 64  # offsets, at first: a delivery takes two
_LOOK_AGAIN, _TRY_AGAIN = 0.002, 0.1  # seconds
_OTHERS = 1.0  # seconds after which it must be somebody else's transaction that hides ours
_PURGED = {kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 - public names
_NOT_WRITABLE = kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
_LOGGER = logging.getLogger("headrace.log.kafka")


class UnclearError(Exception):
    """It is not known whether a transaction was committed, or it was not, for a reason that may pass."""


def marker_topic(application: str) -> str:
    return f"{application}-delivered"


def due(application: str, number: int, last: int) -> bool:
    """Whether a batch is the next one to be delivered; False if it is the last one that was."""
    if last not in {number - 1, number}:
        said = f"batch {last} was" if last >= 0 else "no batch was"
        raise FencedError(
            f"batch {number} of {application!r} cannot be delivered: {said} the last one delivered to this log. "
            "The log or the checkpoint is not the one that belongs to the other, or is an older copy"
        )
    return last == number - 1


class Line:
    """A transactional producer of an application, and the last batch that was delivered."""

    def __init__(self, clients: Clients, topics: Topics, application: str, batch: int) -> None:
        self.batch, self._settings, self._topics, self.last = batch, clients.settings, topics, -1
        self._id = f"{application}-delivery"
        fixed = {"transactional.id": self._id, "batch.size": batch}
        self._producer = make("producer", clients.settings, fixed)
        try:
            self._patiently(self._producer.init_transactions)
        except kafka.KafkaException as error:
            found = self._fenced_or(error)
            if code_of(error) in NO_ANSWER or error.args[0].retriable():
                raise UnclearError(str(found)) from error
            raise found from error

    def commit(self, load: Load, last: int) -> dict[TopicPartition, int]:
        """Sends records in a transaction; they are then stored, or not, or it is unclear. Gives the last offsets."""
        producer, ends, failed = self._producer, dict[TopicPartition, int](), list[Any]()

        def note(error: Any, message: Any) -> None:
            at = TopicPartition(message.topic(), message.partition())
            if error is not None:
                failed.append((at, error))
            else:
                ends[at] = message.offset()

        try:
            producer.begin_transaction()
            try:
                send(producer, load, [note] * len(load), of_all=False)
                self._patiently(producer.commit_transaction)
            except kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._patiently(producer.abort_transaction)
                raise self._explained(error, failed) from error
        except kafka.KafkaException as error:
            found = self._fenced_or(error)
            raise found if isinstance(found, FencedError) else UnclearError(str(found)) from error
        self.last = last
        return ends

    def _explained(self, error: BaseException, failed: Sequence[tuple[TopicPartition, Any]]) -> Exception:
        """Why a transaction could not be; what it left behind in the client is no reason, but says where."""
        reasons = [found for found in failed if found[1].code() not in _PURGED]
        if reasons:
            at, why = reasons[0]
            found = translated(why, f"{self._doing} to {at}")
            return UnclearError(str(found)) if why.code() in PASSING else found
        if code_of(error) in PASSING:
            return UnclearError(str(translated(error.args[0], self._doing)))
        names = sorted({at.topic for at, _ in failed})
        if names and code_of(error) == _NOT_WRITABLE:
            names = self._topics.not_writable(names) or names
        return translated(error.args[0], " to ".join(filter(None, [self._doing, ", ".join(names)])))

    @property
    def _doing(self) -> str:
        return f"a delivery as {self._id!r}"

    def _patiently(self, call: Callable[[float], None]) -> None:
        """What the client could not bring to its end in time goes on when it is called again."""
        wait = Wait(self._doing, self._settings.servers, self._settings.patience)
        while True:
            try:
                return call(wait.slice())
            except kafka.KafkaException as error:
                if code_of(error) not in {*NO_ANSWER, *MOVING} or not error.args[0].retriable() or wait.left <= 0:
                    raise
                wait.tell()
                time.sleep(_LOOK_AGAIN)

    def _fenced_or(self, error: BaseException) -> StreamsError:
        """Whoever was fenced is told so."""
        if code_of(error) not in FENCED:
            return translated(error.args[0], self._doing)
        return FencedError(
            "another instance of the application has taken over its deliveries, or this one was silent for longer than "
            f"the cluster allows: {error.args[0].str()}. If no other one runs, start it again"
        )

    def close(self) -> None:
        self._producer.purge()


class Delivering:
    """What `Log` says of deliveries."""

    def __init__(self, clients: Clients, topics: Topics, reading: Reading, checking: Checking) -> None:
        self._clients, self._topics, self._reading, self._checking = clients, topics, reading, checking
        self._lock = threading.RLock()
        self._lines: dict[str, Line] = {}
        self._fenced: dict[str, str] = {}
        self._hidden = set[TopicPartition]()  # where the open transactions of others hide what was delivered

    def delivered(self, application: str) -> int:
        """What the marker says now; a transaction that is not over yet may still move it."""
        at = TopicPartition(marker_topic(application), 0)
        if self._topics.described([at.topic])[at.topic] is None:
            return -1
        earliest, end = self._reading.extents([at.topic])[at]
        start, step = end, _LOOK_BACK
        while start > earliest:
            start, step = max(earliest, start - step), 8 * step
            rows = [row for chunk in self._reading.read(at, start, end, None) for row in chunk.rows()]
            values = [value for _, key, value, _, _ in rows if key == _KEY]
            if values:
                return -1 if values[-1] is None else int(values[-1])
        return -1

    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        if type(application) is not str:
            raise TypeError(f"an application has a name, not {application!r}")
        load, batch = self._checking(items)
        return self._moved(application, number, load, batch, lambda last: due(application, number, last))

    def mark(self, application: str, number: int | None) -> None:
        self._moved(application, number, [], BATCH, lambda last: last != (-1 if number is None else number))

    def _moved(
        self, application: str, number: int | None, load: Load, batch: int, is_due: Callable[[int], bool]
    ) -> bool:
        """Moves the marker, with what belongs to it; False if somebody else had moved it there before."""
        end, was_tried = time.monotonic() + self._clients.settings.patience, False
        while True:
            with self._lock:
                try:
                    line = self._line(application, batch)
                    if not is_due(line.last):
                        return was_tried
                    was_tried = True
                    self._commit(application, line, load, number)
                except UnclearError as error:
                    self._drop(application)
                    _LOGGER.warning("Whether batch %s of %s was delivered is not clear: %s", number, application, error)
                    if time.monotonic() > end:
                        raise LogUnavailableError(f"batch {number} could not be delivered: {error}") from error
                else:
                    return True
            time.sleep(_TRY_AGAIN)

    def _commit(self, application: str, line: Line, load: Load, number: int | None) -> None:
        value = None if number is None else b"%d" % number
        marker = (TopicPartition(marker_topic(application), 0), Records([_KEY], [value], [max(_now(), 1)]))
        try:
            ends = line.commit([*load, marker], -1 if number is None else number)
            self._see(ends, marker[0])
        except FencedError as error:
            self._fenced[application] = str(error)
            raise
        except StreamsError:
            self._drop(application)
            raise

    def _see(self, ends: Mapping[TopicPartition, int], own: TopicPartition) -> None:
        """Waits until readers see what was committed: a cluster says that it will do it a little before it has.

        In the marker's topic nobody else writes. Elsewhere the open transaction of somebody else hides what is behind
        its beginning, also ours, for as long as it likes: that is not waited for.
        """
        began, hidden = time.monotonic(), ends.keys()
        while hidden := {at for at, upto in self._reading.ends(list(hidden)).items() if upto <= ends[at]}:
            waited = time.monotonic() - began
            if own not in hidden and (hidden <= self._hidden or waited > _OTHERS):
                break
            if waited > self._clients.settings.patience:
                raise UnclearError(
                    f"{own} does not show what was committed: the transaction hangs in the cluster, and "
                    "`kafka-transactions.sh find-hanging` says where"
                )
            time.sleep(_LOOK_AGAIN)
        if more := hidden - self._hidden:
            names = ", ".join(map(str, sorted(more)))
            _LOGGER.warning("What is delivered to %s is not to be seen yet: a transaction is open there", names)
        self._hidden = (self._hidden - ends.keys()) | hidden

    def _line(self, application: str, batch: int) -> Line:
        """The producer of an application, which knows the marker, and is fenced when somebody else moves it."""
        if application in self._fenced:
            raise FencedError(self._fenced[application])
        line = self._lines.get(application)
        if line is not None and line.batch > batch:
            self._drop(application)
            line = None
        if line is None:
            self._see_to_topic(marker_topic(application))
            line = Line(self._clients, self._topics, application, batch)
            # The transactions of earlier producers have ended by now, but a broker that has just started may hide the
            # end of a partition for a moment. What is behind a record of our own is all there was.
            own = (TopicPartition(marker_topic(application), 0), Records([_BARRIER], [b""], [max(_now(), 1)]))
            self._see(line.commit([own], -1), own[0])
            line.last = self.delivered(application)
            self._lines[application] = line
        return line

    def _see_to_topic(self, name: str) -> None:
        if self._topics.described([name])[name] is None:
            try:
                self._topics.create(name, 1, {"cleanup.policy": "compact"})
            except TopicExistsError:
                return

    def _drop(self, application: str) -> None:
        line = self._lines.pop(application, None)
        if line is not None:
            line.close()

    def close(self) -> None:
        with self._lock:
            for application in list(self._lines):
                self._drop(application)


def _now() -> int:
    return time.time_ns() // 1_000_000
