"""How long records took, in buckets of powers of two.

What happened in the last batches, as far as their manifests tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.checkpoint.manifest import Manifest

BUCKETS = 26  # up to 1, 2, 4 … 2²⁵ ms, nine hours; one more for what took longer


class Latencies:
    """A histogram of milliseconds.

    >>> latencies = Latencies()
    >>> latencies.add([3, 100], 2, 1)
    >>> [(bound, count) for bound, count in latencies.up_to() if bound in (2, 4, 64, 128)]
    [(2, 0), (4, 1), (64, 1), (128, 2)]
    >>> latencies.count, latencies.sum, latencies.least, latencies.most
    (2, 105, 4, 101)
    """

    def __init__(self) -> None:
        self.counts = [0] * (BUCKETS + 1)
        self.sum, self.least, self.most = 0, 0, 0

    def add(self, ages: Sequence[int], stand_for: int, more: int) -> None:
        """Takes in records by the ages of some of them, each of which grew by `more`; none is below 0."""
        if not ages:
            return
        each, left = divmod(stand_for, len(ages))
        is_first = not self.count
        for place, age in enumerate(ages):
            took, weight = max(0, age + more), each + (place < left)
            self.counts[min(max(took - 1, 0).bit_length(), BUCKETS)] += weight
            self.sum += took * weight
        least, most = max(0, min(ages) + more), max(0, max(ages) + more)
        self.least, self.most = least if is_first else min(self.least, least), max(self.most, most)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def up_to(self) -> list[tuple[int, int]]:
        """(milliseconds, records that took at most that long); those that took longer than the last are left out."""
        total, found = 0, list[tuple[int, int]]()
        for exponent in range(BUCKETS):
            total += self.counts[exponent]
            found.append((2**exponent, total))
        return found

    def copy(self) -> Latencies:
        other = Latencies()
        other.counts, other.sum, other.least, other.most = list(self.counts), self.sum, self.least, self.most
        return other


KEPT = 600  # batches


@dataclass(frozen=True, slots=True)
class BatchNote:
    """A batch: its number and time, where it left the sources, and what it wrote."""

    number: int
    clock: int
    epoch: int
    positions: Mapping[tuple[str, int], int]  # of the partitions that it moved, or of all
    tasks: int  # that changed something
    state_bytes: int  # that it added to the state
    outbox_bytes: int
    carried: int
    dropped: int  # since the beginning

    @classmethod
    def of(cls, manifest: Manifest) -> BatchNote:
        number = manifest.number
        new = [link for task in manifest.tasks for link in task.links if link.number == number]
        return cls(
            number=number,
            clock=manifest.clock,
            epoch=manifest.epoch,
            positions={(topic, part): at for topic, some in manifest.positions.items() for part, at in some.items()},
            tasks=len(new),
            state_bytes=sum(link.piece.size for link in new),
            outbox_bytes=sum(outbox.piece.size for outbox in manifest.outboxes),
            carried=len(manifest.carried),
            dropped=sum(manifest.dropped.values()),
        )


class History:
    """Notes of the last batches, oldest first."""

    def __init__(self) -> None:
        self._notes: dict[int, BatchNote] = {}
        self._read: dict[tuple[str, int], int] = {}  # where the sources are now
        self._records: dict[int, dict[str, int]] = {}  # records by topic that each batch read

    def add(self, note: BatchNote) -> None:
        known = max(self._notes, default=None)
        if known is not None and note.number <= known:
            self._notes, self._read, self._records = {}, {}, {}  # the checkpoint was begun anew
        read = dict[str, int]()
        for at, position in note.positions.items():
            if at in self._read:
                read[at[0]] = read.get(at[0], 0) + position - self._read[at]
        self._read |= note.positions
        self._notes[note.number], self._records[note.number] = note, read
        for old in [number for number in self._notes if number <= note.number - KEPT]:
            del self._notes[old], self._records[old]

    def notes(self) -> list[BatchNote]:
        return list(self._notes.values())

    def records(self, number: int) -> Mapping[str, int]:
        """Records by topic that a batch, or those that were passed over before it, read from the log."""
        return self._records.get(number, {})

    def rate(self, now: int, span: int = 10_000) -> dict[str, float]:
        """Records a second by topic, of the batches of the last `span` milliseconds."""
        recent = [note for note in self.notes() if note.clock > now - span]
        total = dict[str, int]()
        for note in recent:
            for topic, count in self.records(note.number).items():
                total[topic] = total.get(topic, 0) + count
        return {topic: 1000 * count / span for topic, count in total.items()}

    def interval(self) -> float | None:
        """Milliseconds from one batch to the next, of the last ones."""
        gaps = [later.clock - earlier.clock for earlier, later in pairwise(self.notes()[-20:])]
        return sum(gaps) / len(gaps) if gaps else None
