"""Delivery markers: the compacted topic `<application>-delivered` says which owner delivered which batch last.

| key                             | value  | headers      | written                                             |
|---------------------------------|--------|--------------|-----------------------------------------------------|
| `delivered`                     | number | line, shares | with every batch: all of its records are in the log |
| `delivered <topic>-<partition>` | number | -            | with a share of a batch, for each of its partitions |
| `barrier`                       | -      | line         | by a new producer of the application                |
| `barrier <share>`               | -      | -            | by a new producer of a share                        |
| `probe`                         | -      | -            | before a barrier, and in no transaction             |

`line` is the name of the producer that owns the deliveries, and `shares` the number of transactional ids that shares
have used. The markers of a share follow the marker of the previous batch, so readers begin there.

A barrier is a record that a new producer writes and waits to see. Everything that was committed before is visible then.

A probe is visible as soon as no transaction is open before it. When a broker crashes, the cluster may lose the end of
a transaction in this topic. The next transaction of the same producer would end the open one with its own outcome,
commit or abort, whatever was decided before. So a new producer waits for a probe before it writes its barrier. If
the probe stays hidden, the records of the coordinator tell how the transaction was ended (`outcomes.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.errors import LogCorruptedError, TopicExistsError
from headrace.log.kafka.clients import ClientSettings
from headrace.log.kafka.outcomes import Outcome, find_outcome
from headrace.log.kafka.producer import Batch, OutcomeUnknownError, TransactionalProducer
from headrace.log.kafka.reader import PartitionReader
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import LogRow, Records
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

_DELIVERED, _BARRIER, _PROBE = b"delivered", b"barrier", b"probe"
_OWNER, _SHARES = "line", "shares"  # headers
_FIRST_STEP = 64  # offsets to look back at first; a delivery takes two
_PAUSE = 0.004  # seconds
FOREIGN_TRANSACTION = 1.0  # seconds after which another application's transaction must be what hides our records
ABORTED = Records([b"aborted"], [b""], [1])  # a record that no reader of committed records sees
_LOGGER = logging.getLogger("headrace.log.kafka")


def marker_partition(application: str) -> TopicPartition:
    return TopicPartition(f"{application}-delivered", 0)


# ---------------------------------------------------------------------------------------------------------- records
def batch_marker(application: str, number: int | None, owner: str, shares: int) -> Batch:
    """Marks a batch as delivered; None: as if no batch was delivered."""
    headers = ((_OWNER, owner.encode()), *([(_SHARES, b"%d" % shares)] if shares else []))
    return _make_records(application, [_DELIVERED], None if number is None else b"%d" % number, headers)


def share_markers(application: str, number: int, partitions: Iterable[TopicPartition]) -> Batch:
    """Marks what a batch writes to some partitions as delivered."""
    return _make_records(application, [b"%s %s" % (_DELIVERED, _name(at)) for at in partitions], b"%d" % number)


def owner_barrier(application: str, owner: str) -> Batch:
    return _make_records(application, [_BARRIER], b"", ((_OWNER, owner.encode()),))


def share_barrier(application: str, share: int) -> Batch:
    return _make_records(application, [b"%s %d" % (_BARRIER, share)], b"")


def _make_records(application: str, keys: Sequence[bytes], value: bytes | None, headers: Headers = ()) -> Batch:
    count, now = len(keys), max(time.time_ns() // 1_000_000, 1)
    records = Records(keys, [value] * count, [now] * count, [headers] * count if headers else None)
    return [(marker_partition(application), records)]


def _name(at: TopicPartition) -> bytes:
    return f"{at.topic}-{at.partition}".encode()


class DeliveryMarker(NamedTuple):
    """What the topic says: the last batch, the number of shares, the owner, and parts of the next batch."""

    last: int = -1
    shares: int = 0
    owner: str = ""
    delivered: Mapping[bytes, int] = {}  # the number of the next batch, by names of partitions that have it

    def has(self, at: TopicPartition, number: int) -> bool:
        """Returns True if a share of the batch has delivered what goes to the partition."""
        return self.delivered.get(_name(at)) == number


def parse_markers(rows: Iterable[LogRow], at: TopicPartition) -> DeliveryMarker | None:
    """Parses records of the topic `at`; None if no marker of a batch is among them.

    >>> from headrace.log.protocol import Chunk
    >>> markers = [*batch_marker("a", 7, "one", 2), *share_markers("a", 8, [TopicPartition("t", 0)])]
    >>> batch = [*markers, *owner_barrier("a", "two")]
    >>> rows = [row for offset, (_, records) in enumerate(batch) for row in Chunk([offset], records).rows()]
    >>> parse_markers(rows, marker_partition("a"))
    DeliveryMarker(last=7, shares=2, owner='two', delivered={b't-0': 8})
    """
    found: DeliveryMarker | None = None
    owner, delivered = "", dict[bytes, int]()
    for offset, key, value, _, pairs in rows:
        headers = dict(pairs)
        try:
            owner = (headers.get(_OWNER) or owner.encode()).decode()
            if key == _DELIVERED:
                delivered = {}
                found = DeliveryMarker(-1 if value is None else int(value), int(headers.get(_SHARES) or 0))
            elif key is not None and value is not None and key.startswith(_DELIVERED):
                delivered[key.partition(b" ")[2]] = int(value)
        except ValueError as error:
            raise LogCorruptedError(
                f"{at} has a record at offset {offset} that is no marker of a delivery: only the application may write "
                "to this topic",
                at=at,
                offsets=range(offset, offset + 1),
            ) from error
    return None if found is None else found._replace(owner=owner, delivered=delivered)


# ------------------------------------------------------------------------------------------------------------ topic
class MarkerTopics:
    """Creates and reads marker topics, and waits until committed records are visible.

    `append` stores records without a transaction, and returns their offsets.
    """

    def __init__(
        self,
        topics: Topics,
        reader: PartitionReader,
        settings: ClientSettings,
        append: Callable[[Batch], Sequence[int]],
    ) -> None:
        self._topics, self._reader, self._timeout, self._append = topics, reader, settings.timeout, append
        self._threads = settings.threads
        self._hidden = set[TopicPartition]()  # partitions where open transactions of others hide delivered records

    def create(self, application: str) -> None:
        """Creates the topic of an application, unless it exists."""
        name = marker_partition(application).topic
        if self._topics.find([name])[name] is None:
            with suppress(TopicExistsError):
                self._topics.create(name, 1, {"cleanup.policy": "compact"})

    def read(self, application: str) -> DeliveryMarker:
        """Reads what the topic says now. An open transaction may still change it."""
        at = marker_partition(application)
        if self._topics.find([at.topic])[at.topic] is None:
            return DeliveryMarker()
        earliest, end = self._reader.extents([at.topic])[at]
        start, step = end, _FIRST_STEP
        while start > earliest:
            start, step = max(earliest, start - step), 8 * step
            chunks = self._reader.read(at, start, end)
            found = parse_markers((row for chunk in chunks for row in chunk.rows()), at)
            if found is not None:
                return found
        return DeliveryMarker()

    def find_outcome(self, application: str, transactional_id: str) -> Outcome | None:
        """Returns how the last transaction of a producer in the topic has ended; None if that cannot be found out."""
        return find_outcome(self._topics, self._reader, transactional_id, marker_partition(application))

    def is_clear(self, application: str, timeout: float | None = None) -> bool:
        """Returns True as soon as no transaction is open in the topic, and False after the timeout."""
        (end,) = self._append(_make_records(application, [_PROBE], b""))
        return self._is_visible(marker_partition(application), end, timeout)

    def pass_barrier(
        self, application: str, producer: TransactionalProducer, barrier: Batch, timeout: float | None = None
    ) -> bool:
        """Commits a barrier and waits until it is visible. Returns False after the timeout.

        Creating the producer has ended the transactions of earlier ones, but a broker that has just started may hide
        the end of a partition for a moment.
        """
        at = marker_partition(application)
        return self._is_visible(at, producer.commit([], barrier)[at], timeout)

    def _is_visible(self, at: TopicPartition, end: int, timeout: float | None) -> bool:
        deadline = self._threads.seconds() + (self._timeout if timeout is None else timeout)
        while self._reader.ends([at])[at] <= end:
            if self._threads.seconds() > deadline:
                return False
            self._threads.sleep(_PAUSE)
        return True

    def wait_until_visible(
        self, ends: Mapping[TopicPartition, int], own: TopicPartition | None, patience: float | None = None
    ) -> bool:
        """Waits until readers see what was committed: the cluster confirms a commit a little before that.

        `own` is the partition of the markers. Only this application writes there, so the markers must become visible.
        In other partitions an open transaction of another application can hide our records for any time, so this waits
        for them only `FOREIGN_TRANSACTION` seconds. Returns False if the markers are hidden for `patience` seconds.
        """
        began, hidden = self._threads.seconds(), ends.keys()
        while hidden := {at for at, end in self._reader.ends(list(hidden)).items() if end <= ends[at]}:
            waited = self._threads.seconds() - began
            if own not in hidden and (hidden <= self._hidden or waited > FOREIGN_TRANSACTION):
                break
            if patience is not None and waited > patience:
                return False
            if waited > self._timeout:
                raise hanging_transaction(own)
            self._threads.sleep(_PAUSE)
        if new := hidden - self._hidden:
            names = ", ".join(map(str, sorted(new)))
            _LOGGER.warning("Records delivered to %s are not visible yet: another transaction is open there", names)
        self._hidden = (self._hidden - ends.keys()) | hidden
        return True


def hanging_transaction(at: TopicPartition | None) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{at} does not show what was committed: a transaction hangs in the cluster. `kafka-transactions.sh "
        "find-hanging` finds it, and `kafka-transactions.sh abort` ends it. Then start the application again: it "
        "delivers what is missing"
    )
