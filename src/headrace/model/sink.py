"""Sinks for systems other than the log: the classes that the author of a sink writes, and the batches that it gets.

    Sink        what a topology holds: a description that can be pickled, with its guarantee. `open` makes a writer
    SinkWriter  `write` takes the records of a batch, `commit` completes the batch, `close` ends
    SinkBatch   the records of one batch for one sink, in parts: one for each task that wrote any

**The number of a batch is an idempotence token.** A batch is committed before a sink gets it, so its records never
change, but after a crash the sink may get it again: the whole batch, or some of its parts. A sink that stores, in one
transaction with the data, the last batch of each part, and leaves out the parts that it has (`SinkBatch.without`),
writes every record exactly once: it is atomic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from headrace.model.record import Record

# atomic: every record has its effect exactly once. idempotent: a record that is written again changes nothing. The last
# one is that of a user's function, which gets the number of the batch.
Guarantee = Literal["atomic", "idempotent", "at least once", "atomic if the function uses the batch number"]
TOPIC_PREFIX = "sink/"  # of the name under which an outbox has the records of a sink; no topic can have a slash


def sink_topic(name: str) -> str:
    """Returns the name under which an outbox has the records of a sink.

    >>> sink_topic("orders")
    'sink/orders'
    """
    return TOPIC_PREFIX + name


def is_sink_topic(topic: str) -> bool:
    return topic.startswith(TOPIC_PREFIX)


@dataclass(frozen=True, slots=True)
class SinkPart:
    """The records that one task wrote for a sink in a batch. `name` is the task, such as "0_3"."""

    name: str
    partition: int  # of the task
    records: Sequence[Record]
    orders: Sequence[tuple[Any, ...]] = ()  # of the records, to merge parts


class SinkShare(NamedTuple):
    """The number of this process among those that write a batch, and the result of `SinkWriter.share_out` for all.

    >>> SinkBatch(7, (), SinkShare(1, {"owner": "a3f"})).share.ordinal
    1
    """

    ordinal: int
    given: Any


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The records of batch `number` for one sink, or of some of its parts: the share of one process.

    >>> first = SinkPart("0_0", 0, [Record("a", 1, 10), Record("a", 2, 30)], [(10,), (30,)])
    >>> second = SinkPart("0_1", 1, [Record("b", 3, 20)], [(20,)])
    >>> batch = SinkBatch(7, (first, second))
    >>> [record.value for record in batch.records()]
    [1, 3, 2]
    >>> batch.without({"0_0": 7, "0_1": 6}).part_names
    ['0_1']
    """

    number: int
    parts: tuple[SinkPart, ...]
    share: SinkShare | None = None  # None: this process writes the whole batch

    def records(self) -> list[Record]:
        """Returns the records of all parts in their order: a key's records are in the order in which they happened."""
        if len(self.parts) == 1:
            return list(self.parts[0].records)
        rows = [
            (order, place, sequence, record)
            for place, part in enumerate(self.parts)
            # The running maximum keeps a record behind those that its task wrote before it.
            for sequence, (order, record) in enumerate(
                zip(accumulate(part.orders or [()] * len(part.records), max), part.records, strict=True)
            )
        ]
        rows.sort(key=lambda row: row[:3])
        return [record for *_, record in rows]

    @property
    def part_names(self) -> list[str]:
        return [part.name for part in self.parts]

    def __len__(self) -> int:
        return sum(len(part.records) for part in self.parts)

    def without(self, written: Mapping[str, int]) -> SinkBatch:
        """Leaves out the parts that the target has. `written` has the last batch in the target, by part."""
        return replace(self, parts=tuple(part for part in self.parts if written.get(part.name, -1) < self.number))

    def without_records(self, rejected: Iterable[Record]) -> SinkBatch:
        """Leaves out some records, which are the very objects of this batch."""
        gone = set(map(id, rejected))
        return replace(self, parts=tuple(_without(part, gone) for part in self.parts))


def _without(part: SinkPart, gone: set[int]) -> SinkPart:
    kept = [place for place, record in enumerate(part.records) if id(record) not in gone]
    orders = [part.orders[place] for place in kept] if part.orders else ()
    return replace(part, records=[part.records[place] for place in kept], orders=orders)


def _ignore_step(_moment: str) -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """The application and sink of a writer. `owner`, a part's name and a batch's number are the idempotence token.

    An application that is reset begins with batch 0 and another checkpoint. So a target compares `checkpoint`, too:
    batches of another checkpoint do not count.
    """

    application: str
    sink: str
    checkpoint: str
    at_step: Callable[[str], None] = field(default=_ignore_step)
    storage: Any = None  # of the checkpoint, where parts can be staged; it can be pickled
    spark: Any = None  # the SparkSession, in the driver, for a sink that `needs_spark`

    @property
    def owner(self) -> str:
        """
        >>> SinkContext(application="shop", sink="orders", checkpoint="c0ffee").owner
        'shop/orders'
        """
        return f"{self.application}/{self.sink}"


class SinkWriter(ABC):
    """Writes batches to the target. Every call may be repeated: after an error, and by another process after a crash.

    A writer that loses its connection raises `SinkUnavailableError` or an `OSError`: a new writer is opened, and the
    call is repeated until it succeeds. For records that the target does not take it raises `RecordsRejectedError`,
    with nothing of the batch written. Any other error stops the application.
    """

    def share_out(self, number: int, parts: Sequence[str], shares: int) -> Any:
        """Prepares for `shares` processes to write the named parts of a large batch at once, each its own.

        Each process gets the result, plain data, in `SinkBatch.share`. If it is None, this process writes all parts.
        """
        return ()

    @abstractmethod
    def write(self, batch: SinkBatch) -> Any:
        """Writes a batch, or some parts of it. The result, plain data, is given to `commit`."""

    def commit(self, number: int, written: Sequence[Any]) -> None:
        """Completes batch `number`. Called once all parts are written, with what each `write` returned."""
        return

    def close(self) -> None:
        """Closes connections."""
        return


class Sink(ABC):
    """A sink as a topology has it. Subclasses are frozen dataclasses: they are sent to the processes that write.

    >>> @dataclass(frozen=True)
    ... class PrintSink(Sink):
    ...     prefix: str = ""
    ...     def open(self, context):
    ...         return PrintWriter(self.prefix)
    >>> class PrintWriter(SinkWriter):
    ...     def __init__(self, prefix):
    ...         self._prefix = prefix
    ...     def write(self, batch):
    ...         for record in batch.records():
    ...             print(f"{self._prefix}{record.key}: {record.value}")
    >>> PrintSink().guarantee, PrintSink().label
    ('at least once', 'PrintSink')
    """

    guarantee: Guarantee = "at least once"
    takes_bytes: bool = False  # keys and values stay bytes, as the serdes of the stream have encoded them
    needs_spark: bool = False  # `commit` runs Spark jobs

    @abstractmethod
    def open(self, context: SinkContext) -> SinkWriter:
        """Connects to the target."""

    @property
    def label(self) -> str:
        """The default name of the sink: it is the same at every start of the application."""
        return type(self).__name__
