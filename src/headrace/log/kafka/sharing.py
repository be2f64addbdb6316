"""Shares of a batch, exactly once: records and a marker for each of their partitions in one Kafka transaction.

Every share has a transactional id of its own, and who takes up a share anew makes a new producer with it: whoever had
it before can commit nothing more. The new one looks who delivers now, and what is marked, before it sends anything. As
long as nobody makes another, a producer that has done so once need not look again; else its commit fails.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.errors import StreamsError
from headrace.log.errors import FencedError, LogBusyError
from headrace.log.kafka.appending import Checking, Load
from headrace.log.kafka.clients import Clients
from headrace.log.kafka.delivering import share_id
from headrace.log.kafka.line import Line, UnclearError, until_clear
from headrace.log.kafka.marks import Marks, barrier_of_share, hanging, marks_of, place_of
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Item, Share

_Key = tuple[str, int]  # application and share


class _Member:
    """A producer for a share, and for whom it has delivered what."""

    def __init__(self, producer: Line, line: str) -> None:
        self.producer, self.line, self.last = producer, line, -1

    def has(self, share: Share) -> bool:
        """Whether it has delivered the share already."""
        return self.line == share.line and self.last >= share.number

    def may(self, share: Share) -> bool:
        """Whether it may well be that nobody has made another since: if not, the commit fails."""
        return (self.line, self.producer.name) == (share.line, share.producer)


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
                member = self._members[key] = _Member(producer, share.line)
            self._commit(key, member, share, load, is_new=is_new)
        return member.producer.name

    def _producer(self, key: _Key, batch: int) -> Line:
        application, ordinal = key
        try:
            producer = Line(self._clients, self._topics, share_id(application, ordinal), batch)
            is_seen = self._marks.pass_barrier(application, producer, barrier_of_share(application, ordinal))
        except FencedError as error:  # somebody else has taken it up at this very moment
            raise UnclearError(str(error)) from error
        if not is_seen:
            raise hanging(place_of(application))
        return producer

    def _lacking(self, application: str, share: Share, load: Load) -> Load:
        """What of a share is not in the log; refuses one that is not to be delivered any more."""
        standing = self._marks.standing(application)
        if standing.line != share.line or standing.last < share.number - 1:
            raise FencedError(
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
        except FencedError as error:
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
