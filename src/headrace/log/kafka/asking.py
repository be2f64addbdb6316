"""Questions to a Kafka cluster: waited for up to a limit, with a line in the log now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from headrace.log.kafka.clients import Clients, kafka
from headrace.log.kafka.trouble import MOVING, NO_ANSWER, REFUSED, code_of, translated

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
