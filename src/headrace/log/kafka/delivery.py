"""Shares of a batch, exactly once: records and a marker for each of their partitions in one Kafka transaction.

Every share has a transactional id of its own, and who takes up a share anew makes a new producer with it: whoever had
it before can commit nothing more. The new one looks who delivers now, and what is marked, before it sends anything. As
long as nobody makes another, a producer that has done so once need not look again; else its commit fails.

The outputs of batches, exactly once: records and the marker of their batch in one Kafka transaction.

The marker is a record of the compacted topic `<application>-delivered`. A batch may be delivered in shares, each in a
transaction of its own somewhere else (`sharing`): what they have marked is not sent again, and nobody can deliver a
share any more once it was looked up what is marked, because their producers are made anew before that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace.errors import LogBusyError, ProducerFencedError, StreamsError
from headrace.log.kafka.clients import Clients
from headrace.log.kafka.markers import (
    OTHERS,
    DeliveryMarker,
    Marks,
    barrier,
    barrier_of_share,
    hanging,
    marker,
    marks_of,
    place_of,
)
from headrace.log.kafka.producer import BATCH, Checking, Load
from headrace.log.kafka.topics import Topics
from headrace.log.kafka.transaction import Answer, TransactionalProducer, UnclearError, until_clear
from headrace.log.protocol import Item, Share
from headrace.log.validation import is_next_batch

_Key = tuple[str, int]  # application and share


class _Member:
    """A producer for a share, and for whom it has delivered what."""

    def __init__(self, producer: TransactionalProducer, line: str) -> None:
        self.producer, self.line, self.last = producer, line, -1

    def has(self, share: Share) -> bool:
        """Whether it has delivered the share already."""
        return self.line == share.owner and self.last >= share.number

    def may(self, share: Share) -> bool:
        """Whether it may well be that nobody has made another since: if not, the commit fails."""
        return (self.line, self.producer.name) == (share.owner, share.producer)


class Sharing:
    """What `Shareable` says of a share."""

    def __init__(self, clients: Clients, topics: Topics, marks: Marks, checking: Checking) -> None:
        self._clients, self._topics, self._marks, self._checking = clients, topics, marks, checking
        self._lock = threading.Lock()
        self._members: dict[_Key, _Member] = {}

    def deliver(self, application: str, share: Share, items: Sequence[Item]) -> str:
        load, batch = self._checking(items)
        key, patience = (application, share.ordinal), self._clients.settings.patience
        what = f"share {share.ordinal} of batch {share.number} of {application}"
        with self._lock:
            return until_clear(what, patience, lambda: self._attempt(key, share, load, batch), lambda: self._drop(key))

    def _attempt(self, key: _Key, share: Share, load: Load, batch: int) -> str:
        member = self._members.get(key)
        if member is None or not member.has(share):
            is_new = member is None or not member.may(share) or member.producer.batch > batch
            if member is None or is_new:
                self._drop(key)
                producer = self._producer(key, batch)
                load = self._lacking(key[0], share, load)
                member = self._members[key] = _Member(producer, share.owner)
            self._commit(key, member, share, load, is_new=is_new)
        return member.producer.name

    def _producer(self, key: _Key, batch: int) -> TransactionalProducer:
        application, ordinal = key
        try:
            producer = TransactionalProducer(self._clients, self._topics, share_id(application, ordinal), batch)
            is_seen = self._marks.pass_barrier(application, producer, barrier_of_share(application, ordinal))
        except ProducerFencedError as error:  # somebody else has taken it up at this very moment
            raise UnclearError(str(error)) from error
        if not is_seen:
            raise hanging(place_of(application))
        return producer

    def _lacking(self, application: str, share: Share, load: Load) -> Load:
        """What of a share is not in the log; refuses one that is not to be delivered any more."""
        standing = self._marks.standing(application)
        if standing.line != share.owner or standing.last < share.number - 1:
            raise ProducerFencedError(
                f"share {share.ordinal} of batch {share.number} of {application!r} is not ours to deliver: another "
                "instance of the application has taken over its deliveries, and this one must stop"
            )
        if standing.last >= share.number:
            return []
        return [item for item in load if not standing.has(item[0], share.number)]

    def _commit(self, key: _Key, member: _Member, share: Share, load: Load, *, is_new: bool) -> None:
        marker = place_of(key[0])
        try:
            if load:
                marks = marks_of(key[0], share.number, dict.fromkeys(at for at, _ in load))
                ends = member.producer.commit(load, marks, apart=True)
                # Others write to the marker's topic, too; whoever delivers what is left waits for all of them.
                self._marks.see({at: end for at, end in ends.items() if at != marker}, None)
        except ProducerFencedError as error:
            if not is_new:  # the share was taken up elsewhere in between, and came back
                raise UnclearError(str(error)) from error
            self._drop(key)
            raise LogBusyError(
                f"share {share.ordinal} of batch {share.number} was taken up anew elsewhere, or took longer than a "
                f"transaction may (producer.transaction.timeout.ms): {error}"
            ) from error
        except StreamsError:
            self._drop(key)
            raise
        member.last = share.number

    def _drop(self, key: _Key) -> None:
        member = self._members.pop(key, None)
        if member is not None:
            member.producer.close()

    def close(self) -> None:
        with self._lock:
            for key in list(self._members):
                self._drop(key)


_AT_ONCE = 8  # producers that are made, to end what those before them did


def share_id(application: str, share: int) -> str:
    """The transactional id of those who deliver a share."""
    return f"{application}-delivery-{share}"


class Delivering:
    """What `Log` says of deliveries."""

    def __init__(self, clients: Clients, topics: Topics, marks: Marks, checking: Checking) -> None:
        self._clients, self._topics, self._marks, self._checking = clients, topics, marks, checking
        self._lock = threading.RLock()
        self._lines: dict[str, tuple[TransactionalProducer, DeliveryMarker]] = {}
        self._fenced: dict[str, str] = {}

    def delivered(self, application: str) -> int:
        return self._marks.standing(application).last

    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        if type(application) is not str:
            raise TypeError(f"an application has a name, not {application!r}")
        load, batch = self._checking(items)
        return self._moved(application, number, load, batch, lambda last: is_next_batch(application, number, last))

    def mark(self, application: str, number: int | None) -> None:
        self._moved(application, number, [], BATCH, lambda last: last != (-1 if number is None else number))

    def share_out(self, application: str, number: int, shares: int) -> str | None:
        """Lets a batch be delivered in shares; gives the name of the line that does."""

        def attempt() -> str | None:
            with self._lock:
                line, standing = self._line(application, BATCH)
                # Markers of shares must lie behind that of the batch before; what is left of a batch is for one to do.
                if not is_next_batch(application, number, standing.last) or standing.last < 0 or standing.marked:
                    return None
                if standing.shares < shares:  # whoever follows has to know whom to stop
                    self._commit(application, line, [], standing._replace(shares=shares))
                return line.name

        return self._until_clear(application, number, attempt)

    def _moved(
        self, application: str, number: int | None, load: Load, batch: int, is_due: Callable[[int], bool]
    ) -> bool:
        """Moves the marker, with what belongs to it; False if somebody else had moved it there before."""
        was_tried = False

        def attempt() -> bool:
            nonlocal was_tried
            with self._lock:
                line, standing = self._line(application, batch)
                if not is_due(standing.last):
                    return was_tried
                was_tried = True
                last = -1 if number is None else number
                rest = [item for item in load if not standing.has(item[0], last)]
                self._commit(application, line, rest, standing._replace(last=last, marked={}))
                return True

        return self._until_clear(application, number, attempt)

    def _until_clear(self, application: str, number: int | None, attempt: Callable[[], Answer]) -> Answer:
        what, patience = f"batch {number} of {application}", self._clients.settings.patience
        return until_clear(what, patience, attempt, lambda: self._drop(application))

    def _commit(self, application: str, line: TransactionalProducer, load: Load, then: DeliveryMarker) -> None:
        """`then` is what the marker says with it."""
        number = None if then.last < 0 else then.last
        try:
            ends = line.commit(load, marker(application, number, line.name, then.shares))
            self._marks.see(ends, place_of(application))
        except ProducerFencedError as error:
            self._fenced[application] = str(error)
            raise
        except StreamsError:
            self._drop(application)
            raise
        self._lines[application] = line, then

    def _line(self, application: str, batch: int) -> tuple[TransactionalProducer, DeliveryMarker]:
        """The producer of an application, which is fenced when somebody else moves the marker, and what that says."""
        if application in self._fenced:
            raise ProducerFencedError(self._fenced[application])
        known = self._lines.get(application)
        if known is not None and known[0].batch > batch:
            self._drop(application)
            known = None
        if known is None:
            self._marks.see_to_topic(application)
            line = TransactionalProducer(self._clients, self._topics, f"{application}-delivery", batch)
            known = self._lines[application] = line, self._taken_over(application, line)
        return known

    def _taken_over(self, application: str, line: TransactionalProducer) -> DeliveryMarker:
        """What is marked, once nobody else can mark anything any more."""
        own, ended = barrier(application, line.name), 0
        while True:
            # A share that hangs in the middle of its transaction hides what is behind it until it is ended.
            is_seen = self._marks.pass_barrier(application, line, own, OTHERS if ended == 0 else None)
            standing = self._marks.standing(application)
            if standing.shares > ended:
                self._end_shares(application, standing.shares)
                ended = standing.shares
            elif is_seen:
                return standing
            elif ended or not self._marks.pass_barrier(application, line, own):
                raise hanging(place_of(application))

    def _end_shares(self, application: str, shares: int) -> None:
        """Whoever has begun a share can commit nothing after this; whoever begins one later finds the barrier."""

        def end(share: int) -> None:
            try:
                TransactionalProducer(self._clients, self._topics, share_id(application, share), BATCH).close()
            except ProducerFencedError as error:  # by a share that has begun at this very moment
                raise UnclearError(str(error)) from error

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(end, range(shares)))

    def _drop(self, application: str) -> None:
        with self._lock:
            line, _ = self._lines.pop(application, (None, None))
            if line is not None:
                line.close()

    def close(self) -> None:
        with self._lock:
            for application in list(self._lines):
                self._drop(application)
