"""The compacted topic `<application>-delivered`: who delivers, and how far the application is.

key                           value        headers          written
delivered                     number       line, shares     with every batch: it is in the log
delivered <topic>-<partition> number       -                with a share of a batch: what it wrote to a partition is
barrier                       -            line             by a line of the application that begins
barrier <share>               -            -                by that of a share

A line is a producer of the application; `shares` is how many ids there are for producers of shares. Whatever is marked
of a batch lies behind the marker of the batch before: that is where everybody finds it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.errors import TopicExistsError
from headrace.log.kafka.clients import Clients
from headrace.log.kafka.producer import Load
from headrace.log.kafka.reader import Reading
from headrace.log.kafka.topics import Topics
from headrace.log.kafka.transaction import TransactionalProducer, UnclearError
from headrace.log.protocol import LogRow, Records
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

_DELIVERED, _BARRIER = b"delivered", b"barrier"
_LINE, _SHARES = "line", "shares"
_LOOK_BACK = 64  # offsets, at first: a delivery takes two
_LOOK_AGAIN = 0.002  # seconds
OTHERS = 1.0  # seconds after which it must be somebody else's transaction that hides ours
_LOGGER = logging.getLogger("headrace.log.kafka")


def place_of(application: str) -> TopicPartition:
    return TopicPartition(f"{application}-delivered", 0)


def marker(application: str, number: int | None, line: str, shares: int) -> Load:
    """A batch is in the log; None: as if there never was any."""
    headers = ((_LINE, line.encode()), *([(_SHARES, b"%d" % shares)] if shares else []))
    return _records(application, [_DELIVERED], None if number is None else b"%d" % number, headers)


def marks_of(application: str, number: int, places: Iterable[TopicPartition]) -> Load:
    """What a batch wrote to some partitions is in the log."""
    return _records(application, [b"%s %s" % (_DELIVERED, _named(at)) for at in places], b"%d" % number)


def barrier(application: str, line: str) -> Load:
    return _records(application, [_BARRIER], b"", ((_LINE, line.encode()),))


def barrier_of_share(application: str, share: int) -> Load:
    return _records(application, [b"%s %d" % (_BARRIER, share)], b"")


def _records(application: str, keys: Sequence[bytes], value: bytes | None, headers: Headers = ()) -> Load:
    count, now = len(keys), max(time.time_ns() // 1_000_000, 1)
    records = Records(keys, [value] * count, [now] * count, [headers] * count if headers else None)
    return [(place_of(application), records)]


def _named(at: TopicPartition) -> bytes:
    return f"{at.topic}-{at.partition}".encode()


class DeliveryMarker(NamedTuple):
    """What the topic says; `line` is the one that was the last to say anything."""

    last: int = -1  # batch
    shares: int = 0
    line: str = ""
    marked: Mapping[bytes, int] = {}  # the batch after the last one, by names of partitions that have it

    def has(self, at: TopicPartition, number: int) -> bool:
        return self.marked.get(_named(at)) == number


def standing_of(rows: Iterable[LogRow]) -> DeliveryMarker | None:
    """What records of the topic say, if a marker is among them.

    >>> from headrace.log.protocol import Chunk
    >>> marks = [*marker("a", 7, "one", 2), *marks_of("a", 8, [TopicPartition("t", 0)]), *barrier("a", "two")]
    >>> standing_of(row for offset, (_, records) in enumerate(marks) for row in Chunk([offset], records).rows())
    DeliveryMarker(last=7, shares=2, line='two', marked={b't-0': 8})
    """
    found: DeliveryMarker | None = None
    line, marked = "", dict[bytes, int]()
    for _, key, value, _, headers in rows:
        said = dict(headers)
        line = (said.get(_LINE) or line.encode()).decode()
        if key == _DELIVERED:
            marked = {}
            found = DeliveryMarker(-1 if value is None else int(value), int(said.get(_SHARES) or 0))
        elif key is not None and value is not None and key.startswith(_DELIVERED):
            marked[key.partition(b" ")[2]] = int(value)
    return None if found is None else found._replace(line=line, marked=marked)


class Marks:
    """Reads the topics of applications, and waits until what was written can be seen."""

    def __init__(self, clients: Clients, topics: Topics, reading: Reading) -> None:
        self._topics, self._reading, self._patience = topics, reading, clients.settings.patience
        self._hidden = set[TopicPartition]()  # where the open transactions of others hide what was delivered

    def see_to_topic(self, application: str) -> None:
        name = place_of(application).topic
        if self._topics.described([name])[name] is None:
            try:
                self._topics.create(name, 1, {"cleanup.policy": "compact"})
            except TopicExistsError:
                return

    def standing(self, application: str) -> DeliveryMarker:
        """What the topic says now; a transaction that is not over yet may still move it."""
        at = place_of(application)
        if self._topics.described([at.topic])[at.topic] is None:
            return DeliveryMarker()
        earliest, end = self._reading.extents([at.topic])[at]
        start, step = end, _LOOK_BACK
        while start > earliest:
            start, step = max(earliest, start - step), 8 * step
            chunks = self._reading.read(at, start, end, None)
            found = standing_of(row for chunk in chunks for row in chunk.rows())
            if found is not None:
                return found
        return DeliveryMarker()

    def pass_barrier(
        self, application: str, line: TransactionalProducer, own: Load, patience: float | None = None
    ) -> bool:
        """Whether all there was before is to be seen now: what is behind a record of our own.

        The transactions of earlier producers with this id have ended when there is a new one, but a broker that has
        just started may hide the end of a partition for a moment.
        """
        ends, at = line.commit([], own), place_of(application)
        end = time.monotonic() + (self._patience if patience is None else patience)
        while self._reading.ends([at])[at] <= ends[at]:
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_AGAIN)
        return True

    def see(self, ends: Mapping[TopicPartition, int], own: TopicPartition | None) -> None:
        """Waits until readers see what was committed: a cluster says that it will do it a little before it has.

        In the marker's topic, `own`, only we write, and shares that have ended. Elsewhere the open transaction of
        somebody else hides what is behind its beginning, also ours, for as long as it likes: that is not waited for.
        """
        began, hidden = time.monotonic(), ends.keys()
        while hidden := {at for at, upto in self._reading.ends(list(hidden)).items() if upto <= ends[at]}:
            waited = time.monotonic() - began
            if own not in hidden and (hidden <= self._hidden or waited > OTHERS):
                break
            if waited > self._patience:
                raise hanging(own)
            time.sleep(_LOOK_AGAIN)
        if more := hidden - self._hidden:
            names = ", ".join(map(str, sorted(more)))
            _LOGGER.warning("What is delivered to %s is not to be seen yet: a transaction is open there", names)
        self._hidden = (self._hidden - ends.keys()) | hidden


def hanging(at: TopicPartition | None) -> UnclearError:
    return UnclearError(
        f"{at} does not show what was committed: the transaction hangs in the cluster, and "
        "`kafka-transactions.sh find-hanging` says where"
    )
