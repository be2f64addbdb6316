"""Deliveries, exactly once: a Kafka transaction stores the records of a batch together with its marker.

`BatchDelivery` delivers a batch as a whole. It alternates between the transactional ids `<application>-delivery` and
`<application>-delivery-next`: an id cannot begin a transaction before all partitions have the end of its last one, and
the client checks that only every 20 ms. When the cluster has accepted the end of a transaction, its outcome is certain,
so the next transaction may begin; readers see the two in order.

A batch may also be delivered in shares, each by another process (`ShareDelivery`) with the transactional id
`<application>-delivery-<n>`. A share marks every partition that it has written. `BatchDelivery` then completes the
batch: it sends what no share has marked, and moves the marker of the application.

A new owner first fences every producer of the previous owner, then passes a probe and a barrier, and only then reads
the marker. So no earlier owner can commit anything after the marker was read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from headrace.errors import LogBusyError, ProducerFencedError, StreamsError
from headrace.log.kafka.clients import ClientSettings
from headrace.log.kafka.markers import (
    ABORTED,
    FOREIGN_TRANSACTION,
    DeliveryMarker,
    MarkerTopics,
    batch_marker,
    hanging_transaction,
    marker_partition,
    owner_barrier,
    share_barrier,
    share_markers,
)
from headrace.log.kafka.outcomes import Outcome
from headrace.log.kafka.producer import (
    BATCH_SIZE,
    Batch,
    OutcomeUnknownError,
    RecordChecker,
    Result,
    TransactionalProducer,
    retry_until_known,
)
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Item, Share
from headrace.log.validation import is_next_batch
from headrace.model.ids import TopicPartition

HANGING = 10.0  # seconds after which a committed transaction that is not visible hangs
_TOPICS_AGE = 1.0  # seconds for which the description of a topic is reused
_LOGGER = logging.getLogger("headrace.log.kafka")
_PARALLEL = 8  # producers of shares that are fenced at the same time


def _share_id(application: str, share: int) -> str:
    return f"{application}-delivery-{share}"


# ---------------------------------------------------------------------------------------------------------- batches
class _Ownership:
    """The two producers of an application, which take turns, and its marker. `name` is the owner in markers."""

    def __init__(self, producers: Sequence[TransactionalProducer], marker: DeliveryMarker) -> None:
        self.producers, self.marker = list(producers), marker
        self.name, self.batch_size = producers[0].name, producers[0].batch_size

    def commit(self, batch: Batch, markers: Batch) -> dict[TopicPartition, int]:
        self.producers.reverse()
        return self.producers[0].commit(batch, markers)

    def close(self) -> None:
        for producer in self.producers:
            producer.close()


class BatchDelivery:
    """Delivers the batches of applications."""

    def __init__(self, settings: ClientSettings, topics: Topics, markers: MarkerTopics, checker: RecordChecker) -> None:
        self._settings, self._topics, self._markers, self._checker = settings, topics, markers, checker
        self._lock = settings.threads.lock()
        self._owned: dict[str, _Ownership] = {}  # by application
        self._fenced: dict[str, str] = {}  # why this process may not deliver for an application any more

    def delivered(self, application: str) -> int:
        return self._markers.read(application).last

    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        is_new, wait = self._deliver(application, number, items)
        wait()
        return is_new

    def begin(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]:
        """Delivers a batch. The returned function waits until readers see it."""
        _, wait = self._deliver(application, number, items)
        return wait

    def _deliver(self, application: str, number: int, items: Sequence[Item]) -> tuple[bool, Callable[[], None]]:
        if type(application) is not str:
            raise TypeError(f"an application has a name, not {application!r}")
        batch, batch_size = self._checker.check(items, max_age=_TOPICS_AGE)

        def is_due(last: int) -> bool:
            return is_next_batch(application, number, last)

        return self._move_marker(application, number, batch, batch_size, is_due)

    def mark(self, application: str, number: int | None) -> None:
        wanted = -1 if number is None else number
        _, wait = self._move_marker(application, number, [], BATCH_SIZE, lambda last: last != wanted)
        wait()

    def begin_shares(self, application: str, number: int, shares: int) -> str | None:
        def attempt() -> str | None:
            with self._lock:
                owned = self._own(application, BATCH_SIZE)
                marker = owned.marker
                # The markers of shares must follow the marker of the previous batch. A batch that an earlier owner has
                # left half delivered is completed as a whole.
                if not is_next_batch(application, number, marker.last) or marker.last < 0 or marker.delivered:
                    return None
                if marker.shares < shares:  # the next owner must know how many producers to fence
                    ends = self._commit(application, owned, [], marker._replace(shares=shares))
                    self._markers.wait_until_visible(ends, marker_partition(application))
                return owned.name

        return self._retry(application, number, attempt)

    def _move_marker(
        self, application: str, number: int | None, batch: Batch, batch_size: int, is_due: Callable[[int], bool]
    ) -> tuple[bool, Callable[[], None]]:
        """Moves the marker and stores a batch with it.

        Returns False if the marker was there before, and a function that waits until readers see the batch.
        """
        was_tried = False
        last = -1 if number is None else number

        def attempt() -> tuple[bool, dict[TopicPartition, int]]:
            nonlocal was_tried
            with self._lock:
                owned = self._own(application, batch_size)
                if not is_due(owned.marker.last):
                    return was_tried, {}
                was_tried = True
                rest = [item for item in batch if not owned.marker.has(item[0], last)]
                return True, self._commit(application, owned, rest, owned.marker._replace(last=last, delivered={}))

        is_new, ends = self._retry(application, number, attempt)
        return is_new, lambda: self._wait_until_visible(application, last, ends)

    def _wait_until_visible(self, application: str, last: int, ends: Mapping[TopicPartition, int]) -> None:
        at = marker_partition(application)
        try:
            if not self._markers.wait_until_visible(ends, at, HANGING):
                self._end_hanging(application)
                self._markers.wait_until_visible(ends, at)
        except OutcomeUnknownError:
            # New producers end the transaction that hangs, and the marker tells whether it was committed.
            self._drop(application)
            with self._lock:
                owned = self._retry(application, last, lambda: self._own(application, BATCH_SIZE))
            if owned.marker.last < last:
                raise

    def _end_hanging(self, application: str) -> None:
        """Ends committed transactions that are still open in a partition, although the cluster takes them for ended.

        This happens if a broker restarts while the transaction ends. The end of the next transaction of the same
        producer ends it in the partition, too, so both producers commit one. This is safe, because all that they have
        sent before was committed: after any other outcome this process replaces them.
        """
        with self._lock:
            owned = self._owned.get(application)
            if owned is None:
                return
            _LOGGER.warning("A committed delivery of %s is not visible: its transaction is ended again", application)
            for _ in owned.producers:
                owned.commit([], owner_barrier(application, owned.name))

    def _retry(self, application: str, number: int | None, attempt: Callable[[], Result]) -> Result:
        what = f"batch {number} of {application}"
        return retry_until_known(what, self._settings, attempt, lambda: self._drop(application))

    def _commit(
        self, application: str, owned: _Ownership, batch: Batch, after: DeliveryMarker
    ) -> dict[TopicPartition, int]:
        """Stores records together with the marker `after`. Returns the last offset of each partition."""
        number = None if after.last < 0 else after.last
        try:
            ends = owned.commit(batch, batch_marker(application, number, owned.name, after.shares))
        except ProducerFencedError as error:
            self._fenced[application] = str(error)
            raise
        except StreamsError:
            self._drop(application)
            raise
        owned.marker = after
        return ends

    def _own(self, application: str, batch_size: int) -> _Ownership:
        """Returns the producers and the marker of an application. The first call takes over from earlier owners."""
        if application in self._fenced:
            raise ProducerFencedError(self._fenced[application])
        owned = self._owned.get(application)
        if owned is not None and owned.batch_size > batch_size:
            self._drop(application)
            owned = None
        if owned is None:
            self._markers.create(application)
            producers = self._create_producers(application, batch_size)
            owned = self._owned[application] = _Ownership(producers, self._take_over(application, producers))
        return owned

    def _create_producers(self, application: str, batch_size: int) -> list[TransactionalProducer]:
        """Creates both producers, at the same time. This fences those of an earlier owner."""

        def create(name: str) -> TransactionalProducer:
            return TransactionalProducer(self._settings, self._topics, name, batch_size)

        return self._settings.threads.map(create, (f"{application}-delivery", f"{application}-delivery-next"), 2)

    def _take_over(self, application: str, producers: Sequence[TransactionalProducer]) -> DeliveryMarker:
        """Fences the shares of earlier owners, and returns the marker, which only this process can change now."""
        producer = producers[0]
        if not self._markers.is_clear(application, FOREIGN_TRANSACTION):
            shares = self._markers.read(application).shares
            self._fence_shares(application, shares)
            if not self._markers.is_clear(application, min(HANGING, self._settings.timeout)):
                self._end_earlier(application, producers, shares)
            if not self._markers.is_clear(application):
                raise hanging_transaction(marker_partition(application))
        barrier, fenced = owner_barrier(application, producer.name), 0
        while True:
            # A share that stopped inside its transaction hides everything behind it until the share is fenced.
            timeout = FOREIGN_TRANSACTION if fenced == 0 else None
            is_visible = self._markers.pass_barrier(application, producer, barrier, timeout)
            marker = self._markers.read(application)
            if marker.shares > fenced:
                self._fence_shares(application, marker.shares)
                fenced = marker.shares
            elif is_visible:
                return marker
            elif fenced or not self._markers.pass_barrier(application, producer, barrier):
                raise hanging_transaction(marker_partition(application))

    def _end_earlier(self, application: str, producers: Sequence[TransactionalProducer], shares: int) -> None:
        """Ends the last transactions of the producers again, as the cluster has ended them.

        A broker that has restarted may have lost the end of one of them in the topic of the markers. The next
        transaction of the same producer ends it there, so that one must have the same outcome. A producer whose last
        outcome cannot be found out is left alone.
        """
        ids = [f"{application}-delivery", f"{application}-delivery-next"]
        ids += [_share_id(application, share) for share in range(shares)]
        found = [(name, self._markers.find_outcome(application, name)) for name in ids]
        _LOGGER.warning("A delivery of %s has no end in the cluster: it is ended again, as was decided", application)
        barrier = owner_barrier(application, producers[0].name)
        for (_, outcome), producer in zip(found, producers, strict=False):
            if outcome is not None:
                self._repeat(producer, outcome, barrier)
        for share, (name, outcome) in enumerate(found[len(producers) :]):
            if outcome is not None:
                producer = TransactionalProducer(self._settings, self._topics, name, BATCH_SIZE)
                self._repeat(producer, outcome, share_barrier(application, share))
                producer.close()

    def _repeat(self, producer: TransactionalProducer, outcome: Outcome, barrier: Batch) -> None:
        if outcome.is_committed:
            producer.commit([], barrier)
            return
        # An abort may be lost in the topics of outputs, too: there the next commit would deliver the aborted records.
        markers = {at for at, _ in barrier}
        known = self._topics.find(sorted({at.topic for at in outcome.partitions}))
        others = [at for at in outcome.partitions if at not in markers and known[at.topic] is not None]
        producer.abort([*barrier, *((at, ABORTED) for at in others)])

    def _fence_shares(self, application: str, shares: int) -> None:
        """Fences the producers of shares. A share that begins later finds the barrier of the new owner."""

        def fence(share: int) -> None:
            try:
                TransactionalProducer(self._settings, self._topics, _share_id(application, share), BATCH_SIZE).close()
            except ProducerFencedError as error:  # by a share that began at the same moment
                raise OutcomeUnknownError(str(error)) from error

        self._settings.threads.map(fence, range(shares), _PARALLEL)

    def _drop(self, application: str) -> None:
        with self._lock:
            owned = self._owned.pop(application, None)
            if owned is not None:
                owned.close()

    def close(self) -> None:
        with self._lock:
            for application in list(self._owned):
                self._drop(application)


# ----------------------------------------------------------------------------------------------------------- shares
_Key = tuple[str, int]  # application and ordinal of the share


class _ShareProducer:
    """The producer of a share, with the owner that it has delivered for, and the last batch."""

    def __init__(self, producer: TransactionalProducer, owner: str) -> None:
        self.producer, self.owner, self.last = producer, owner, -1

    def has_delivered(self, share: Share) -> bool:
        return self.owner == share.owner and self.last >= share.number

    def can_deliver(self, share: Share) -> bool:
        """Returns True if no other producer of the share is known. If there is one nevertheless, the commit fails."""
        return (self.owner, self.producer.name) == (share.owner, share.producer)


class ShareDelivery:
    """Delivers shares of batches.

    A new producer of a share fences the previous one, passes a barrier, and reads the owner of the deliveries and the
    markers, before it sends anything. Later batches need none of this: if another process has taken over, the commit
    fails.
    """

    def __init__(self, settings: ClientSettings, topics: Topics, markers: MarkerTopics, checker: RecordChecker) -> None:
        self._settings, self._topics, self._markers, self._checker = settings, topics, markers, checker
        self._lock = settings.threads.lock()
        self._producers: dict[_Key, _ShareProducer] = {}

    def deliver(self, application: str, share: Share, items: Sequence[Item]) -> str:
        batch, batch_size = self._checker.check(items)
        key = (application, share.ordinal)
        what = f"share {share.ordinal} of batch {share.number} of {application}"

        def attempt() -> str:
            return self._attempt(key, share, batch, batch_size)

        with self._lock:
            return retry_until_known(what, self._settings, attempt, lambda: self._drop(key))

    def _attempt(self, key: _Key, share: Share, batch: Batch, batch_size: int) -> str:
        known = self._producers.get(key)
        if known is None or not known.has_delivered(share):
            is_new = known is None or not known.can_deliver(share) or known.producer.batch_size > batch_size
            if known is None or is_new:
                self._drop(key)
                producer = self._create_producer(key, batch_size)
                batch = self._find_missing(key[0], share, batch)
                known = self._producers[key] = _ShareProducer(producer, share.owner)
            self._commit(key, known, share, batch, is_new=is_new)
        return known.producer.name

    def _create_producer(self, key: _Key, batch_size: int) -> TransactionalProducer:
        application, ordinal = key
        try:
            producer = TransactionalProducer(self._settings, self._topics, _share_id(*key), batch_size)
            if not self._markers.is_clear(application):
                raise hanging_transaction(marker_partition(application))
            is_visible = self._markers.pass_barrier(application, producer, share_barrier(application, ordinal))
        except ProducerFencedError as error:  # another process took up the share at the same moment
            raise OutcomeUnknownError(str(error)) from error
        if not is_visible:
            raise hanging_transaction(marker_partition(application))
        return producer

    def _find_missing(self, application: str, share: Share, batch: Batch) -> Batch:
        """Returns the items of a share that are not in the log; raises if the share's owner was replaced."""
        marker = self._markers.read(application)
        if marker.owner != share.owner or marker.last < share.number - 1:
            raise ProducerFencedError(
                f"share {share.ordinal} of batch {share.number} of {application!r} is not ours to deliver: another "
                "instance of the application has taken over its deliveries, and this one must stop"
            )
        if marker.last >= share.number:
            return []
        return [item for item in batch if not marker.has(item[0], share.number)]

    def _commit(self, key: _Key, known: _ShareProducer, share: Share, batch: Batch, *, is_new: bool) -> None:
        at_markers = marker_partition(key[0])
        try:
            if batch:
                markers = share_markers(key[0], share.number, dict.fromkeys(at for at, _ in batch))
                ends = known.producer.commit(batch, markers, markers_last=True)
                # Other shares write markers too. The process that completes the batch waits for all of them.
                self._markers.wait_until_visible({at: end for at, end in ends.items() if at != at_markers}, None)
        except ProducerFencedError as error:
            if not is_new:  # another process took the share in between, and now this one has it again
                raise OutcomeUnknownError(str(error)) from error
            self._drop(key)
            raise LogBusyError(
                f"share {share.ordinal} of batch {share.number} was taken up by another process, or took longer than a "
                f"transaction may (producer.transaction.timeout.ms): {error}"
            ) from error
        except StreamsError:
            self._drop(key)
            raise
        known.last = share.number

    def _drop(self, key: _Key) -> None:
        known = self._producers.pop(key, None)
        if known is not None:
            known.producer.close()

    def close(self) -> None:
        with self._lock:
            for key in list(self._producers):
                self._drop(key)
