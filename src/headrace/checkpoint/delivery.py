"""Delivery: the outboxes of a committed batch go to the log, after those of the batch before.

    exactly once    the log takes the records and the marker N in one transaction, if its marker is N-1
    at least once   the records first, then the marker: after a crash the last batch may be delivered twice

A large batch is delivered in shares, by several processes at once: `spark.delivery_job` runs `read_share` in each.
A partition belongs to one share. The driver delivers the topics that are in no share, with the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar
from zlib import crc32

from headrace.checkpoint.files import BlobRef, manifest_name, read_blob
from headrace.checkpoint.ledger import read_manifest
from headrace.checkpoint.manifest import Outbox
from headrace.checkpoint.outbox import Section, decode_outbox, merge_outboxes
from headrace.checkpoint.steps import DELIVERY, MARKER, AtStep, step
from headrace.checkpoint.storage import Storage
from headrace.errors import ProducerFencedError, StreamsError
from headrace.log.protocol import Extent, Item, Topic
from headrace.model.ids import TopicPartition
from headrace.model.sink import is_sink_topic

ReadBlob = Callable[[BlobRef, str], bytes]
# Delivers batch N in shares. Returns the topics that are in no share, or None if the batch cannot be shared.
DeliverInShares = Callable[[int], Sequence[str] | None]
_ATTEMPTS = 3
Result = TypeVar("Result")


class DeliveryTarget(Protocol):
    """The methods of `log.protocol.Log` that a coordinator calls."""

    def topics(self) -> Mapping[str, Topic]: ...
    def create_topic(self, name: str) -> Topic: ...
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]: ...
    def append(self, items: Sequence[Item]) -> list[int]: ...
    def begin_delivery(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]: ...
    def delivered(self, application: str) -> int: ...


class Delivery:
    """Delivers the batches of an application, in order. `last` is the last one that the log has.

    A batch whose outboxes have `share_bytes` or more goes to `deliver_in_shares`, if that is given.
    """

    def __init__(
        self,
        log: DeliveryTarget,
        application: str,
        *,
        exactly_once: bool,
        at_step: AtStep,
        deliver_in_shares: DeliverInShares | None = None,
        share_bytes: int = 0,
    ) -> None:
        self._log, self._application, self._exactly_once, self._at_step = log, application, exactly_once, at_step
        self._deliver_in_shares, self._share_bytes = deliver_in_shares, share_bytes
        self.last = log.delivered(application)

    def read_marker(self) -> None:
        """Reads from the log which batch was delivered last: another instance may have delivered more."""
        self.last = max(self.last, self._log.delivered(self._application))

    def begin(self, number: int, outboxes: Sequence[Outbox], read: ReadBlob) -> Callable[[], None]:
        """Delivers a batch and its marker. The returned function waits until readers see it.

        The next batch may begin meanwhile; the functions are called in the order of the batches.
        """
        left = self._share(number, outboxes)
        if left is None:
            sections = read_sections(number, outboxes, read, is_for_log)
        else:
            sections = read_sections(
                number, outboxes if left else (), read, lambda section: section.topic in left
            )  # without sinks
        items = merge_outboxes(sections, self._count_partitions)
        with step(DELIVERY, self._at_step):
            wait = self._retry(number, lambda: self._send(number, items))

        def finish() -> None:
            wait()
            with step(MARKER, self._at_step):
                if not self._exactly_once:
                    # Not `mark_delivered`: an owner that was replaced meanwhile must not move the marker back.
                    self._log.begin_delivery(self._application, number, ())()
                self.last = number

        return finish

    def catch_up(self, batches: Mapping[int, Sequence[Outbox]], read: ReadBlob) -> None:
        """Delivers the batches that the log lacks. The previous owner may be delivering the same ones right now."""
        for number, outboxes in batches.items():
            try:
                self.begin(number, outboxes, read)()
            except ProducerFencedError:
                if self._log.delivered(self._application) < number:
                    raise
                self.last = number

    def _share(self, number: int, outboxes: Sequence[Outbox]) -> Sequence[str] | None:
        """Delivers a large batch in shares. Returns the topics that are left; None if nothing was delivered."""
        deliver_in_shares = self._deliver_in_shares
        if deliver_in_shares is None or not outboxes or sum(blob.size for _, blob in outboxes) < self._share_bytes:
            return None
        return self._retry(number, lambda: deliver_in_shares(number))

    def _count_partitions(self, topic: str) -> int:
        """Creates a missing topic with one partition, as a Kafka broker may."""
        topics = self._log.topics()
        return (topics[topic] if topic in topics else self._log.create_topic(topic)).partitions

    def _send(self, number: int, items: Sequence[Item]) -> Callable[[], None]:
        if self._exactly_once:
            return self._log.begin_delivery(self._application, number, items)
        if items:
            self._log.append(items)
        return lambda: None

    def _retry(self, number: int, call: Callable[[], Result]) -> Result:
        """Repeats a call that fails with a retriable error. Adds to the last error that the batch is committed."""
        attempts = _ATTEMPTS
        while True:
            attempts -= 1
            try:
                return call()
            except StreamsError as error:
                if error.retriable and attempts:
                    continue
                if not isinstance(error, ProducerFencedError):
                    error.add_note(
                        f"Batch {number} of {self._application!r} is committed in {manifest_name(number)}: it will be "
                        "delivered as soon as the application is started again and the log takes it."
                    )
                raise


def is_for_log(section: Section) -> bool:
    """False if a sink for another system gets the records (`sink_delivery`)."""
    return not is_sink_topic(section.topic)


def read_sections(
    number: int, outboxes: Iterable[Outbox], read: ReadBlob, is_wanted: Callable[[Section], bool]
) -> list[tuple[int, list[Section]]]:
    """Reads the outboxes of a batch. Returns the wanted sections of each task, with the partition of the task."""
    found: list[tuple[int, list[Section]]] = []
    for origin, blob in outboxes:
        raw = read(blob, f"what task {origin} wrote in batch {number}")
        found.append((origin.partition, [section for section in decode_outbox(raw, blob.name) if is_wanted(section)]))
    return found


# ------------------------------------------------------------------------------------------------------------- shares
class DeliveryShare(NamedTuple):
    """The items of one share, and the topics that are in no share.

    A task that did not know a topic's partition count left the partition of its records open. Which partition they get
    depends on when the count is read, so one process has to place all records of such a topic.
    """

    items: list[Item]
    unshared_topics: list[str]


def read_share(storage: Storage, number: int, share: int, shares: int) -> DeliveryShare:
    """Reads one of `shares` shares of a batch from the checkpoint."""
    unshared = set[str]()

    def is_in_share(section: Section) -> bool:
        if not is_for_log(section):
            return False
        if section.partition is None:
            unshared.add(section.topic)
            return False
        return share_of(TopicPartition(section.topic, section.partition), shares) == share

    manifest, _ = read_manifest(storage, number)
    found = read_sections(number, manifest.outboxes, partial(read_blob, storage), is_in_share)
    shared = [(partition, [section for section in some if section.topic not in unshared]) for partition, some in found]
    no_counts = dict[str, int]().__getitem__  # every section of a shared topic has its partition
    return DeliveryShare(merge_outboxes(shared, no_counts), sorted(unshared))


def share_of(at: TopicPartition, shares: int) -> int:
    """Returns the share of a partition. Consecutive partitions of a topic are in consecutive shares.

    >>> [share_of(TopicPartition("t", partition), 3) for partition in range(4)]
    [2, 0, 1, 2]
    """
    return (crc32(at.topic.encode()) + at.partition) % shares
