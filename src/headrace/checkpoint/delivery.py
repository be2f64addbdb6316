"""A large batch is delivered in shares, by several processes at once: each has the partitions that only it delivers.

Delivery: what a committed batch wrote goes into the log, in one call, after that of the batch before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar
from zlib import crc32

from headrace.checkpoint.files import Piece, manifest_name, read_piece
from headrace.checkpoint.ledger import read_manifest
from headrace.checkpoint.manifest import Outbox
from headrace.checkpoint.outbox import Section, decode_outbox, items_of
from headrace.checkpoint.steps import DELIVERY, MARKER, AtStep, step
from headrace.checkpoint.storage import Storage
from headrace.errors import ProducerFencedError, StreamsError
from headrace.log.protocol import Extent, Item, Topic
from headrace.model.ids import TopicPartition

Read = Callable[[Piece, str], bytes]


def sections_of(
    number: int, outboxes: Iterable[Outbox], read: Read, wanted: Callable[[Section], bool] = lambda section: True
) -> list[tuple[int, list[Section]]]:
    """What tasks wrote in a batch, as far as it is wanted, each with the partition of its task."""
    found: list[tuple[int, list[Section]]] = []
    for origin, piece in outboxes:
        raw = read(piece, f"what task {origin} wrote in batch {number}")
        found.append((origin.partition, [section for section in decode_outbox(raw, piece.name) if wanted(section)]))
    return found


def share_of(at: TopicPartition, shares: int) -> int:
    """The share that a partition belongs to: those of a topic one after the other.

    >>> [share_of(TopicPartition("t", partition), 3) for partition in range(4)]
    [2, 0, 1, 2]
    """
    return (crc32(at.topic.encode()) + at.partition) % shares


class DeliveryShare(NamedTuple):
    """What one share has to deliver, and the topics that none of them has.

    Where a topic was not known to every task that wrote to it, the places of records depend on who looks, and when:
    all of it is left to the one who delivers what the shares have not.
    """

    items: list[Item]
    left: list[str]


def part_of(storage: Storage, number: int, share: int, shares: int) -> DeliveryShare:
    """The part of a share in a batch, as the checkpoint has it."""
    left = set[str]()

    def is_ours(section: Section) -> bool:
        if section.partition is None:
            left.add(section.topic)
            return False
        return share_of(TopicPartition(section.topic, section.partition), shares) == share

    manifest, _ = read_manifest(storage, number)
    found = sections_of(number, manifest.outboxes, partial(read_piece, storage), is_ours)
    ours = [(home, [section for section in some if section.topic not in left]) for home, some in found]
    return DeliveryShare(
        items_of(ours, dict[str, int]().__getitem__), sorted(left)
    )  # nobody's place has to be counted out


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
            except ProducerFencedError:
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
                if not isinstance(error, ProducerFencedError):
                    error.add_note(
                        f"Batch {number} of {self._application!r} is committed in {manifest_name(number)}: it will be "
                        "delivered as soon as the application is started again and the log takes it."
                    )
                raise
