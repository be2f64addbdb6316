"""A test kit for sinks: it kills the delivery at every step, and compares what the target has.

def make(name):
    sink = PostgresSink(dsn, name, key="id", create={"id": str, "n": int})
    return sink, lambda: read_rows(name)

check_sink(make)
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from headrace.checkpoint.coordinator import CommitHooks, CommitOptions, Coordinator
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.receipt import Receipt, complete_receipt, new_attempt
from headrace.checkpoint.sink_delivery import SinkTarget
from headrace.checkpoint.steps import AtStep, ignore_step
from headrace.checkpoint.storage import Storage, open_storage
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.model.ids import TaskId
from headrace.model.record import Record
from headrace.model.sink import Sink, SinkContext, SinkWriter, sink_topic
from headrace.serde.internal import ROW
from headrace.state.delta import Delta

# A sink, and a function that returns what its target has: lists, dicts or anything else whose `repr` is comparable.
MakeSink = Callable[[str], tuple[Sink, Callable[[], Iterable[Any]]]]
TASKS = 2  # parts of a batch
_LIVES = 6


class _KilledError(BaseException):
    """The end of a process."""


def sample_batches() -> list[list[Record]]:
    """Returns records with keys "k0" to "k4"; one of them is deleted, and inserted again in a later batch."""
    batches: list[list[Record]] = [
        [Record(f"k{(7 * n + i) % 5}", {"n": 10 * n + i}, 1000 * n + i) for i in range(4)] for n in range(5)
    ]
    batches[2].append(Record("k1", None, 2999))
    return batches


def check_sink(
    make: MakeSink, batches: Sequence[Sequence[Record]] | None = None, *, compare: Callable[[Any], Any] = repr
) -> dict[str, int]:
    """Delivers batches to a sink, killed before and after every step; raises AssertionError if the target shows it.

    `make` gets the name of a fresh target, and returns the sink and a function that reads the target. The target of an
    atomic or idempotent sink must have the same items as after a delivery without a kill, whatever their order, and
    that of another sink at least these. Returns how often each moment killed the delivery.

    >>> from pathlib import Path
    >>> from headrace.connect import FileSink, list_files
    >>> def make(name):
    ...     place = Path(folder, name)
    ...     sink = FileSink(str(place), format="json", key="id")
    ...     return sink, lambda: [
    ...         row for file in list_files(str(place)) for row in (place / file).read_text().split()
    ...     ]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(check_sink(make))[:2]
    ['after sink commit', 'after sink progress']
    """
    batches = sample_batches() if batches is None else batches
    moments: set[str] = set()

    def note(moment: str) -> None:
        if " sink " in moment:
            moments.add(moment)

    killed: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, closing(open_log(f"file:{folder}", {})) as log:
        _, wanted = _run(make, "undisturbed", batches, log, note)
        expected = Counter(compare(item) for item in wanted)
        for place, moment in enumerate(sorted(moments)):
            killer = _Killer(moment, 2, 3)
            sink, items = _run(make, f"killed_{place}", batches, log, killer)
            killed[moment] = killer.kills
            found = Counter(compare(item) for item in items)
            missing = expected - found
            more: Counter[Any] = found - expected if sink.guarantee != "at least once" else Counter()
            if missing or more:
                raise AssertionError(
                    f"{sink.label} says that it is {sink.guarantee}, but after a crash {moment} its target lacks "
                    f"{list(missing.elements())} and has {list(more.elements())} too many"
                )
    return killed


class _OpenedSink(Sink):
    """A sink whose writers are closed after a kill: their connections would stay open in this process."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._writers = sink, list[SinkWriter]()
        self.guarantee, self.takes_bytes = sink.guarantee, sink.takes_bytes

    def open(self, context: SinkContext) -> SinkWriter:
        writer = self._sink.open(context)
        self._writers.append(writer)
        return writer

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class _Killer:
    """Kills at the nth time of a moment, for each n."""

    def __init__(self, moment: str, *times: int) -> None:
        self._moment, self._times, self._seen, self.kills = moment, times, 0, 0

    def __call__(self, moment: str) -> None:
        if moment == self._moment:
            self._seen += 1
            if self._seen in self._times:
                self.kills += 1
                raise _KilledError(moment)


def _run(
    make: MakeSink, name: str, batches: Sequence[Sequence[Record]], log: Log, at_step: AtStep
) -> tuple[Sink, list[Any]]:
    """Delivers all batches, in as many lives as it takes. Returns the sink and what its target has."""
    sink, read = make(name)
    storage = open_storage("memory:///")
    for _ in range(_LIVES):
        try:
            deliver(storage, log, sink, name, batches, at_step)
        except _KilledError:
            continue
        return sink, list(read())
    raise AssertionError(f"{sink.label} was killed {_LIVES} times")


def deliver(
    storage: Storage,
    log: Log,
    sink: Sink,
    name: str,
    batches: Sequence[Sequence[Record]],
    at_step: AtStep = ignore_step,
) -> None:
    """Runs one life of an application that has nothing but a sink: it continues with the batch after the last one."""
    opened = _OpenedSink(sink)
    target = SinkTarget(name=name, sink=opened, node=name, key=ROW, value=ROW)
    options = CommitOptions(
        max_undelivered=0, background=False, marker_timeout_ms=0, keep=2, purge_every=2, purge_delay_ms=0
    )
    hooks = CommitHooks(at_step=at_step, has_exited=lambda holder, other: True)
    coordinator = None
    try:
        coordinator = Coordinator.open(
            storage, log, f"check-{name}", Fingerprint((), (), {}), sinks={name: target}, options=options, hooks=hooks
        )
        while (done := coordinator.ledger.clock) < len(batches):  # the clock counts the batches that were committed
            receipts = [_receipt(storage, coordinator, task, name, batches[done]) for task in range(TASKS)]
            coordinator.commit(coordinator.number, done + 1, receipts)
        coordinator.close()
    except BaseException:
        if coordinator is not None:
            coordinator.abandon()
        raise
    finally:
        opened.close()


def _receipt(
    storage: Storage, coordinator: Coordinator, partition: int, name: str, records: Sequence[Record]
) -> Receipt:
    """Returns the receipt of a task that has written its share of the records: those of a key come from one task."""
    task, number = TaskId(0, partition), coordinator.number
    base = coordinator.ledger.head(task).version
    receipt = Receipt(task=task, level=0, number=number, attempt=new_attempt(), base=base)
    outputs = [
        (
            sink_topic(name), partition, ROW.encode(record.key),
            None if record.value is None else ROW.encode(record.value), record.timestamp, record.headers, (place,),
        )
        for place, record in enumerate(records)
        if sum(ROW.encode(record.key)) % TASKS == partition
    ]  # fmt: skip
    return complete_receipt(
        storage, receipt, Delta(receipt.version, ()), outputs, {}, lambda topic: 1, inline=1 << 20, packed=True
    )
