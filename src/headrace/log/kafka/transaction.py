"""A transactional producer, and the rule for outcomes that are not definite.

A producer's word is taken only where it is definite. After anything else there is a new producer with the same id:
making it ends the old one's transaction, one way or the other, and then the marker says which.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.errors import LogUnavailableError, ProducerFencedError, StreamsError
from headrace.log.kafka.clients import Clients, kafka, make
from headrace.log.kafka.producer import Load, send
from headrace.log.kafka.requests import FENCED, MOVING, NO_ANSWER, PASSING, Wait, code_of, translated
from headrace.log.kafka.topics import Topics
from headrace.model.ids import TopicPartition

_LOOK_AGAIN, _TRY_AGAIN, _PROGRESS = 0.002, 0.1, 2.0  # seconds
_PURGED = {kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 - public names
_AGAIN = {*NO_ANSWER, *MOVING, kafka.KafkaError.CONCURRENT_TRANSACTIONS}  # that of the one before is just being ended
_FAILED = {kafka.KafkaError._STATE, kafka.KafkaError._FATAL}  # noqa: SLF001
_EMPTY = kafka.KafkaError.INVALID_TXN_STATE  # nothing ever came to be in the transaction
_NOT_WRITABLE = kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
_LOGGER = logging.getLogger("headrace.log.kafka")
Answer = TypeVar("Answer")


class UnclearError(Exception):
    """It is not known whether a transaction was committed, or it was not, for a reason that may pass."""


def until_clear(what: str, patience: float, attempt: Callable[[], Answer], forget: Callable[[], None]) -> Answer:
    """What an attempt at a delivery gives, once its outcome is clear; before the next one its producer is forgotten."""
    end = time.monotonic() + patience
    while True:
        try:
            return attempt()
        except UnclearError as error:
            forget()
            _LOGGER.warning("Whether %s was delivered is not clear: %s", what, error)
            if time.monotonic() > end:
                raise LogUnavailableError(f"{what} could not be delivered: {error}") from error
        time.sleep(_TRY_AGAIN)


class TransactionalProducer:
    """A transactional producer; `name` is one that no other has."""

    def __init__(self, clients: Clients, topics: Topics, transactional_id: str, batch: int) -> None:
        self.batch, self.name, self._id = batch, secrets.token_hex(8), transactional_id
        self._settings, self._topics = clients.settings, topics
        self._producer = make("producer", clients.settings, {"transactional.id": self._id, "batch.size": batch})
        try:
            self._patiently(self._producer.init_transactions)
        except kafka.KafkaException as error:
            found = self._fenced_or(error)
            if code_of(error) in NO_ANSWER or error.args[0].retriable():
                raise UnclearError(str(found)) from error
            raise found from error

    def commit(self, load: Load, marks: Load, *, apart: bool = False) -> dict[TopicPartition, int]:
        """Sends records in a transaction; they are then stored, or not, or it is unclear. Gives the last offsets.

        `apart`: the marks leave when all else has arrived, so that their partition is not kept from others for long.
        """
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
                self._send(load, marks, note, apart=apart)
                self._patiently(producer.commit_transaction)
            except kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._abort()
                raise self._explained(error, failed) from error
        except kafka.KafkaException as error:
            raise self._fenced_or_unclear(error) from error
        except SystemError as error:  # the client tells of records while it is about to raise what is fatal
            raise self._fenced_or_unclear(error.__cause__ or error) from error
        return ends

    def _send(self, load: Load, marks: Load, note: Callable[[Any, Any], None], *, apart: bool) -> None:
        """Whether it goes well or not, the commit says."""
        try:
            send(self._producer, load, [note] * len(load), of_all=False)
            if apart:
                before, left = -1, self._producer.flush(_PROGRESS)
                while left and left != before:  # there is progress
                    before, left = left, self._producer.flush(_PROGRESS)
            send(self._producer, marks, [note] * len(marks), of_all=False)
        except kafka.KafkaException as error:
            # In a transaction that has failed already nothing is taken, and it cannot be committed: to try says why.
            if code_of(error) not in _FAILED:
                raise

    def _abort(self) -> None:
        try:
            self._patiently(self._producer.abort_transaction)
        except kafka.KafkaException as error:
            if code_of(error) != _EMPTY:
                raise

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
                if code_of(error) not in _AGAIN or not error.args[0].retriable() or wait.left <= 0:
                    raise
                wait.tell()
                time.sleep(_LOOK_AGAIN)

    def _fenced_or(self, error: BaseException) -> StreamsError:
        """Whoever was fenced is told so."""
        if code_of(error) not in FENCED:
            return translated(error.args[0], self._doing)
        return ProducerFencedError(
            "another instance of the application has taken over its deliveries, or this one was silent for longer than "
            f"the cluster allows: {error.args[0].str()}. If no other one runs, start it again"
        )

    def _fenced_or_unclear(self, error: BaseException) -> Exception:
        found = self._fenced_or(error) if isinstance(error, kafka.KafkaException) else error
        return found if isinstance(found, ProducerFencedError) else UnclearError(str(found))

    def close(self) -> None:
        self._producer.purge()
