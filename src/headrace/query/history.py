"""The history of the last batches, as their manifests tell it, and the histogram of latencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from headrace.checkpoint.manifest import Manifest

BUCKETS = 26  # up to 1, 2, 4 … 2²⁵ ms (nine hours), and one more for longer latencies
KEPT = 600  # batches


class LatencyHistogram:
    """A histogram of milliseconds, with buckets at the powers of two.

    >>> latencies = LatencyHistogram()
    >>> latencies.add([3, 100], 2, 1)
    >>> [(bound, count) for bound, count in latencies.up_to() if bound in (2, 4, 64, 128)]
    [(2, 0), (4, 1), (64, 1), (128, 2)]
    >>> latencies.count, latencies.sum, latencies.least, latencies.most
    (2, 105, 4, 101)
    """

    def __init__(self) -> None:
        self.counts = [0] * (BUCKETS + 1)
        self.sum, self.least, self.most = 0, 0, 0

    def add(self, ages: Sequence[int], records: int, elapsed: int) -> None:
        """Add `records` records, of which `ages` is a sample. The ages have grown by `elapsed` ms since the sample."""
        if not ages:
            return
        each, left = divmod(records, len(ages))
        is_first = not self.count
        for place, age in enumerate(ages):
            latency, weight = max(0, age + elapsed), each + (place < left)
            self.counts[min(max(latency - 1, 0).bit_length(), BUCKETS)] += weight
            self.sum += latency * weight
        least, most = max(0, min(ages) + elapsed), max(0, max(ages) + elapsed)
        self.least, self.most = least if is_first else min(self.least, least), max(self.most, most)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def up_to(self) -> list[tuple[int, int]]:
        """List (milliseconds, records that took at most that long), without the records beyond the last bucket."""
        total, found = 0, list[tuple[int, int]]()
        for exponent in range(BUCKETS):
            total += self.counts[exponent]
            found.append((2**exponent, total))
        return found

    def copy(self) -> LatencyHistogram:
        other = LatencyHistogram()
        other.counts, other.sum, other.least, other.most = list(self.counts), self.sum, self.least, self.most
        return other


class BatchLatency(NamedTuple):
    """How long the records of a batch took, in ms: median wait in the log, and percentiles from timestamp to commit."""

    wait: float
    p50: float
    p99: float

    @classmethod
    def of(cls, ages: Iterable[tuple[Sequence[int], int]], elapsed: int) -> BatchLatency | None:
        """Computes the latency from samples of ages at the start of the batch, each with the number of its records.

        `elapsed` is how long the batch took. None if the batch has read no records.

        >>> BatchLatency.of([([5, 7], 2), ([100], 98)], elapsed=10)
        BatchLatency(wait=100, p50=110, p99=110)
        """
        weighted = sorted((age, records / len(some)) for some, records in ages if some for age in some)
        if not weighted:
            return None
        p50, p99 = (_percentile(weighted, share) for share in (0.5, 0.99))
        return cls(max(0, p50), max(0, p50 + elapsed), max(0, p99 + elapsed))


def _percentile(weighted: Sequence[tuple[int, float]], share: float) -> int:
    left = share * sum(weight for _, weight in weighted)
    for value, weight in weighted:
        left -= weight
        if left < 0:
            return value
    return weighted[-1][0]


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch: its number and time, the source positions after it, and what it wrote."""

    number: int
    clock: int
    epoch: int
    positions: Mapping[tuple[str, int], int]  # of the partitions that it advanced, or of all
    tasks: int  # that changed their state
    state_bytes: int  # that it added to the state
    outbox_bytes: int
    carried: int
    dropped: int  # since the application first ran

    @classmethod
    def of(cls, manifest: Manifest) -> BatchSummary:
        number = manifest.number
        new = [delta for task in manifest.tasks for delta in task.deltas if delta.number == number]
        return cls(
            number=number,
            clock=manifest.clock,
            epoch=manifest.epoch,
            positions={(topic, part): at for topic, some in manifest.positions.items() for part, at in some.items()},
            tasks=len(new),
            state_bytes=sum(delta.blob.size for delta in new),
            outbox_bytes=sum(outbox.blob.size for outbox in manifest.outboxes),
            carried=len(manifest.carried),
            dropped=sum(manifest.dropped.values()),
        )


class BatchHistory:
    """The last batches, oldest first, and how many records each of them read."""

    def __init__(self) -> None:
        self._batches: dict[int, BatchSummary] = {}
        self._positions: dict[tuple[str, int], int] = {}  # of the sources, after the last batch
        self._records: dict[int, dict[str, int]] = {}  # that each batch read, by topic

    def add(self, batch: BatchSummary) -> None:
        last = max(self._batches, default=None)
        if last is not None and batch.number <= last:
            self._batches, self._positions, self._records = {}, {}, {}  # the checkpoint was replaced by a new one
        records = dict[str, int]()
        for at, position in batch.positions.items():
            if at in self._positions:
                records[at[0]] = records.get(at[0], 0) + position - self._positions[at]
        self._positions |= batch.positions
        self._batches[batch.number], self._records[batch.number] = batch, records
        for old in [number for number in self._batches if number <= batch.number - KEPT]:
            del self._batches[old], self._records[old]

    def batches(self) -> list[BatchSummary]:
        return list(self._batches.values())

    def records(self, number: int) -> Mapping[str, int]:
        """Return the records by topic that a batch read, together with skipped batches right before it."""
        return self._records.get(number, {})

    def rate(self, now: int, span: int = 10_000) -> dict[str, float]:
        """Return records per second by topic, over the batches of the last `span` milliseconds."""
        total = dict[str, int]()
        for batch in self.batches():
            for topic, count in self.records(batch.number).items() if batch.clock > now - span else ():
                total[topic] = total.get(topic, 0) + count
        return {topic: 1000 * count / span for topic, count in total.items()}

    def interval(self) -> float | None:
        """Return the average number of milliseconds between the last batches."""
        gaps = [later.clock - earlier.clock for earlier, later in pairwise(self.batches()[-20:])]
        return sum(gaps) / len(gaps) if gaps else None
