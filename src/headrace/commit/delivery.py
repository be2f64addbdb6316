"""Delivery: what a committed batch wrote goes into the log, in one call, after that of the batch before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from headrace.commit.manifest import Outbox
from headrace.commit.names import manifest_name
from headrace.commit.outbox import items_of
from headrace.commit.sharing import Read, sections_of
from headrace.commit.steps import DELIVERY, MARKER, AtStep, step
from headrace.errors import StreamsError
from headrace.log.errors import FencedError
from headrace.log.protocol import Extent, Item, Topic
from headrace.model.ids import TopicPartition

# Delivers a batch in shares, all but what only one can deliver: gives those topics; None if it cannot be shared.
Crew = Callable[[int], Sequence[str] | None]
_TRIES = 3
Answer = TypeVar("Answer")


def nobody(_number: int) -> None:
    """A crew that shares nothing."""


class Target(Protocol):
    """The part of a log that a coordinator needs; what it says of each method, `Log` says."""

    def topics(self) -> Mapping[str, Topic]: ...
    def topic(self, name: str) -> Topic: ...
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]: ...
    def append(self, items: Sequence[Item]) -> list[int]: ...
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool: ...
    def delivered(self, application: str) -> int: ...
    def mark_delivered(self, application: str, number: int | None) -> None: ...


class Delivery:
    """Delivers the batches of an application. `last` is the last one that the log has.

    Exactly once: the log takes records and the marker together, if the marker says the batch before. At least once: the
    marker comes after the records, so the last batch may come twice after a crash. A batch of `large` bytes or more is
    for the crew, if there is one: what is left of it then is delivered with the marker.
    """

    def __init__(
        self,
        log: Target,
        application: str,
        *,
        exactly_once: bool,
        at_step: AtStep,
        crew: Crew = nobody,
        large: int = 0,
    ) -> None:
        self._log, self._application, self._exactly_once, self._at_step = log, application, exactly_once, at_step
        self._crew, self._large = crew, large
        self.last = log.delivered(application)

    def deliver(self, number: int, outboxes: Sequence[Outbox], read: Read) -> None:
        """Everything that a batch wrote; `read` gives the bytes of a piece."""
        left = None
        if outboxes and sum(piece.size for _, piece in outboxes) >= self._large:
            left = self._told(number, lambda: self._crew(number))
        if left is None:
            sections = sections_of(number, outboxes, read)
        else:
            sections = sections_of(number, outboxes if left else (), read, lambda section: section.topic in left)
        items = items_of(sections, lambda topic: self._log.topic(topic).partitions)
        with step(DELIVERY, self._at_step):
            self._told(number, lambda: self._send(number, items))
        with step(MARKER, self._at_step):
            if not self._exactly_once:
                self._log.mark_delivered(self._application, number)
            self.last = number

    def catch_up(self, batches: Mapping[int, Sequence[Outbox]], read: Read) -> None:
        """Delivers what the log lacks, unless the one who ran before is doing it at this very moment."""
        for number, outboxes in batches.items():
            try:
                self.deliver(number, outboxes, read)
            except FencedError:
                if self._log.delivered(self._application) < number:
                    raise
                self.last = number

    def _send(self, number: int, items: Sequence[Item]) -> None:
        if self._exactly_once:
            self._log.deliver(self._application, number, items)
        elif items:
            self._log.append(items)

    def _told(self, number: int, call: Callable[[], Answer]) -> Answer:
        """What a call gives, perhaps when it is tried again; what goes wrong is told with what it is about."""
        tries = _TRIES
        while True:
            tries -= 1
            try:
                return call()
            except StreamsError as error:
                if error.retriable and tries:
                    continue
                if not isinstance(error, FencedError):
                    error.add_note(
                        f"Batch {number} of {self._application!r} is committed in {manifest_name(number)}: it will be "
                        "delivered as soon as the application is started again and the log takes it."
                    )
                raise
