"""How long records took, in buckets of powers of two."""

from __future__ import annotations

from collections.abc import Sequence

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
