"""Kafka transactions: `TransactionalProducer.commit` begins one, sends records, and commits or aborts it.

A producer's answer counts only if it is definite: committed, aborted or fenced. After any other answer the outcome is
unknown. Then a new producer with the same transactional id is created, which ends the transaction of the old one, and
the delivery marker tells whether it was committed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.errors import LogUnavailableError, ProducerFencedError, StreamsError
from headrace.log.kafka.clients import (
    FENCED,
    MOVING,
    NO_ANSWER,
    TRANSIENT,
    ClientSettings,
    Deadline,
    code_of,
    create_client,
    kafka,
    translate_error,
)
from headrace.log.kafka.producer import Batch, send
from headrace.log.kafka.topics import Topics
from headrace.model.ids import TopicPartition

_PAUSE, _RETRY_PAUSE, _PROGRESS = 0.002, 0.1, 2.0  # seconds
_PURGED = {kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 - public names
_RETRIED = {*NO_ANSWER, *MOVING, kafka.KafkaError.CONCURRENT_TRANSACTIONS}  # the previous transaction is being ended
_HAS_FAILED = {kafka.KafkaError._STATE, kafka.KafkaError._FATAL}  # noqa: SLF001
_IS_EMPTY = kafka.KafkaError.INVALID_TXN_STATE  # nothing was sent in the transaction
_NOT_WRITABLE = kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
_LOGGER = logging.getLogger("headrace.log.kafka")
Result = TypeVar("Result")


class OutcomeUnknownError(Exception):
    """It is not known whether a transaction was committed, or it was aborted for a reason that may pass."""


def retry_until_known(
    what: str, settings: ClientSettings, attempt: Callable[[], Result], reset: Callable[[], None]
) -> Result:
    """Repeats an attempt at a delivery until its outcome is known. `reset` drops the producer of the last attempt."""
    threads = settings.threads
    end = threads.seconds() + settings.timeout
    while True:
        try:
            return attempt()
        except OutcomeUnknownError as error:
            reset()
            _LOGGER.warning("It is not known whether %s was delivered: %s", what, error)
            if threads.seconds() > end:
                raise LogUnavailableError(f"{what} could not be delivered: {error}") from error
        threads.sleep(_RETRY_PAUSE)


class TransactionalProducer:
    """A producer with a transactional id. Creating one fences all earlier producers with that id.

    `name` is unique. `batch_size` is the most that it sends at once.
    """

    def __init__(self, settings: ClientSettings, topics: Topics, transactional_id: str, batch_size: int) -> None:
        self.batch_size, self.name, self._id = batch_size, secrets.token_hex(8), transactional_id
        self._settings, self._topics = settings, topics
        fixed = {"transactional.id": self._id, "batch.size": batch_size}
        self._producer = create_client("producer", settings, fixed)
        try:
            self._retry(self._producer.init_transactions)
        except kafka.KafkaException as error:
            found = self._translate(error)
            if code_of(error) in NO_ANSWER or error.args[0].retriable():
                raise OutcomeUnknownError(str(found)) from error
            raise found from error

    def commit(self, batch: Batch, markers: Batch, *, markers_last: bool = False) -> dict[TopicPartition, int]:
        """Stores records and markers in one transaction. Returns the last offset of each partition.

        Raises `ProducerFencedError` if another producer has the transactional id, or `OutcomeUnknownError`. With
        `markers_last` the markers are sent after all records have arrived: their partition is locked for less time.
        """
        producer, ends, failures = self._producer, dict[TopicPartition, int](), list[tuple[TopicPartition, Any]]()

        def on_delivery(error: Any, message: Any) -> None:
            at = TopicPartition(message.topic(), message.partition())
            if error is not None:
                failures.append((at, error))
            else:
                ends[at] = message.offset()

        try:
            producer.begin_transaction()
            try:
                self._send(batch, markers, on_delivery, markers_last=markers_last)
                self._retry(producer.commit_transaction)
            except kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._abort()
                raise self._explain_abort(error, failures) from error
        except kafka.KafkaException as error:
            raise self._fenced_or_unknown(error) from error
        except SystemError as error:  # a callback ran while the client was about to raise a fatal error
            raise self._fenced_or_unknown(error.__cause__ or error) from error
        return ends

    def abort(self, batch: Batch) -> None:
        """Stores records in a transaction, and aborts it: no reader of committed records sees them.

        If an earlier transaction of the producer is still open in their partitions, it is aborted there, too.
        """
        producer, failures = self._producer, list[Any]()

        def on_delivery(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        deadline = Deadline(self._doing, self._settings)
        try:
            producer.begin_transaction()
            send(producer, batch, [on_delivery] * len(batch), of_all=False)
            while producer.flush(deadline.next_slice()):  # what has not arrived when it is aborted ends nothing
                if deadline.left <= 0:
                    raise OutcomeUnknownError(f"{self._doing} got no answer")
            self._abort()
        except kafka.KafkaException as error:
            raise self._fenced_or_unknown(error) from error
        for error in failures:
            raise OutcomeUnknownError(str(translate_error(error, self._doing)))

    def _send(
        self, batch: Batch, markers: Batch, on_delivery: Callable[[Any, Any], None], *, markers_last: bool
    ) -> None:
        try:
            send(self._producer, batch, [on_delivery] * len(batch), of_all=False)
            if markers_last:
                before, left = -1, self._producer.flush(_PROGRESS)
                while left and left != before:  # as long as there is progress
                    before, left = left, self._producer.flush(_PROGRESS)
            send(self._producer, markers, [on_delivery] * len(markers), of_all=False)
        except kafka.KafkaException as error:
            # A transaction that has failed accepts no records. The commit, which follows, raises the reason.
            if code_of(error) not in _HAS_FAILED:
                raise

    def _abort(self) -> None:
        try:
            self._retry(self._producer.abort_transaction)
        except kafka.KafkaException as error:
            if code_of(error) != _IS_EMPTY:
                raise

    def _explain_abort(self, error: BaseException, failures: Sequence[tuple[TopicPartition, Any]]) -> Exception:
        """Returns why a transaction was aborted, and for which partition or topics.

        A record that the abort purged from the client's queue is no reason.
        """
        reasons = [failure for failure in failures if failure[1].code() not in _PURGED]
        if reasons:
            at, reason = reasons[0]
            found = translate_error(reason, f"{self._doing} to {at}")
            return OutcomeUnknownError(str(found)) if reason.code() in TRANSIENT else found
        if code_of(error) in TRANSIENT:
            return OutcomeUnknownError(str(translate_error(error.args[0], self._doing)))
        names = sorted({at.topic for at, _ in failures})
        if names and code_of(error) == _NOT_WRITABLE:
            names = self._topics.find_unwritable(names) or names
        return translate_error(error.args[0], " to ".join(filter(None, [self._doing, ", ".join(names)])))

    @property
    def _doing(self) -> str:
        return f"a delivery as {self._id!r}"

    def _retry(self, call: Callable[[float], None]) -> None:
        """Repeats a call until the timeout: the client continues what it could not finish in time."""
        deadline = Deadline(self._doing, self._settings)
        while True:
            try:
                return call(deadline.next_slice())
            except kafka.KafkaException as error:
                if code_of(error) not in _RETRIED or not error.args[0].retriable() or deadline.left <= 0:
                    raise
                deadline.warn_if_due()
                self._settings.threads.sleep(_PAUSE)

    def _translate(self, error: BaseException) -> StreamsError:
        if code_of(error) not in FENCED:
            return translate_error(error.args[0], self._doing)
        return ProducerFencedError(
            "another instance of the application has taken over its deliveries, or this one was silent for longer than "
            f"the cluster allows: {error.args[0].str()}. If no other one runs, start it again"
        )

    def _fenced_or_unknown(self, error: BaseException) -> Exception:
        found = self._translate(error) if isinstance(error, kafka.KafkaException) else error
        return found if isinstance(found, ProducerFencedError) else OutcomeUnknownError(str(found))

    def close(self) -> None:
        self._producer.purge()
